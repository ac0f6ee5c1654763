"""The one exception of this package."""


class BenchError(Exception):
    """A benchmark cannot go on; the text says what was expected, what was found and what to do."""
