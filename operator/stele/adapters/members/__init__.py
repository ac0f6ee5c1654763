"""The HTTP client of the members."""
