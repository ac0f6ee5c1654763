"""The page of the operator in a browser, and clusters for it to show: for tests, pictures and a benchmark."""
