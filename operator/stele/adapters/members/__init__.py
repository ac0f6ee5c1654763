"""HTTP client of the members."""
