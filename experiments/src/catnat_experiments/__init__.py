"""The experiments of the catnat paper, on an engine that resumes: sweeps, records, reports."""
