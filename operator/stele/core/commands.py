"""Single-key commands as a pure function of the stored value and the time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Simple:
    """A status such as OK."""

    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """An error reply: a code in capitals and a sentence."""

    code: str
    text: str


Reply = None | int | bytes | Simple | Failure | list["Reply"]


@dataclass(frozen=True, slots=True)
class Put:
    """Store a value; `expire_at_ms` is Unix milliseconds, 0 for never."""

    key: bytes
    value: bytes
    expire_at_ms: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key."""

    key: bytes


Op = Put | Delete
Stored = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What to answer, and what to log first (None: nothing changes)."""

    reply: Reply
    op: Op | None = None
