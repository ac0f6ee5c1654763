"""What may go wrong in the demo, by who can do something about it."""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot go on; the text says what was expected, what was found and what to do."""


class PreflightError(DemoError):
    """Found before work began: nothing was started or changed (exit code 2)."""
