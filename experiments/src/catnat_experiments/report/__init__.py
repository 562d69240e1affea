"""From records to tables, tests, plots and the page that has them all."""
