# ruff: noqa: N818  the names say what happened and read as such where they are raised
"""One tree of errors. The type says who is at fault, the code says what, the text says what to do.

    SteleError
    |-- BadInput      the caller's value breaks a rule: correct the value
    |-- Stale         the request was based on an older state: read the current state, then retry
    |-- Conflict      another party decided differently: read the current state, do not retry as it is
    |-- Corrupt       stored or received data contradicts itself: set it aside, never serve from it
    |-- Refused       the request is valid but the current state forbids it: the code is the reason
    |-- Unavailable   nothing was done, for now: the same request may be sent again
    `-- Uncertain     it may or may not have been done: read before sending it again

Anything else that is raised (AssertionError, KeyError, ...) is a defect of Stele itself.
"""

from typing import ClassVar, Self


class SteleError(Exception):
    """Base of all errors. `code` is stable, in capitals and for programs; `text` is for people."""

    code_default: ClassVar[str] = "ERROR"

    def __init__(self, text: str, code: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.code = self.code_default if code is None else code

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class BadInput(SteleError):
    """Codes: BAD_INPUT, UNKNOWN_FORMAT, UNKNOWN_MEMBER, TOO_LARGE."""

    code_default = "BAD_INPUT"


class Stale(SteleError):
    """Codes: STALE_VERSION, STALE_EPOCH, STALE_TERM."""

    code_default = "STALE_VERSION"


class Conflict(SteleError):
    """Codes: CONFLICT, WRONG_MEMBER, WRONG_CLUSTER, UNKNOWN_FORMAT, MIGRATION_ACTIVE, ALREADY_IN_PROGRESS."""

    code_default = "CONFLICT"


class Corrupt(SteleError):
    """Codes: CORRUPT, UNKNOWN_FORMAT."""

    code_default = "CORRUPT"


class Refused(SteleError):
    """Codes: REFUSED, ILLEGAL_STATE, NOT_OWNER, LAST_REPLICA, OWNER_NEEDED, NO_SPACE, VERSION_LIMIT."""

    code_default = "REFUSED"


class Unavailable(SteleError):
    """Codes: UNAVAILABLE, CLUSTER_PASSIVE, MOVING, DISK_ERROR, NO_SPACE, CLOSED, STOPPING, UNKNOWN_FORMAT."""

    code_default = "UNAVAILABLE"

    @classmethod
    def closed(cls) -> Self:
        """Return the error of every call after `close` has begun."""
        return cls("the database is closed", "CLOSED")


class Uncertain(SteleError):
    """Codes: UNCERTAIN."""

    code_default = "UNCERTAIN"
