"""What may go wrong in the demo, by who can do something about it."""

from __future__ import annotations

from e2e.cluster.errors import ClusterError, MachineUnfitError


class DemoError(ClusterError):
    """The demo cannot go on; the text says what was expected, what was found and what to do."""


class PreflightError(DemoError, MachineUnfitError):
    """Found before work began: nothing was started or changed (exit code 2)."""
