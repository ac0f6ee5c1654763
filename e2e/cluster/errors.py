"""The one exception of this package."""


class ClusterError(Exception):
    """Something outside this program is not as it must be; the text says what, and what to do about it."""


class MachineUnfitError(ClusterError):
    """The checks before work begins found that this machine cannot run the test cluster as it is."""
