"""The one exception of this package."""

from e2e.cluster.errors import ClusterError


class BenchError(ClusterError):
    """A benchmark cannot go on; the text says what was expected, what was found and what to do."""
