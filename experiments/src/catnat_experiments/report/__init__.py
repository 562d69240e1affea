"""Reports: tables, tests and plots of records, and the page with all of them."""
