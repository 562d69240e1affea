"""The engine, which runs the stages of an experiment on Ray Tune, keeps records, and computes no run twice."""
