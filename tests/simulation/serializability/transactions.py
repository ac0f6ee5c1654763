"""Transactions that append tokens to lists and read lists, as their clients saw them."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.simulation.history import Violation

SERIALIZABLE = "transactions are strictly serializable"
TOKENS_TOLD = 6
"""Of a longer list the last tokens are told."""

Tokens = tuple[bytes, ...]


class Append(NamedTuple):
    """Adds a token, which nobody else ever adds, to the end of a list."""

    key: bytes
    token: bytes


class Read(NamedTuple):
    """`tokens` is what was answered, None while that is not known."""

    key: bytes
    tokens: Tokens | None = None


class Outcome(Enum):
    """What the client knows: all was done, nothing was done or ever will be, or neither."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Transaction:
    """Its operations happen in their order, at one moment between `begin` and `end`.

    Only a committed one has answers to its reads and an `end`; an unknown one may happen at any time later.
    """

    number: int
    client: str
    operations: list[Append | Read]
    begin: float
    end: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN

    def __str__(self) -> str:
        ended = f"{self.end:.4f}" if self.outcome is Outcome.COMMITTED else self.outcome.value
        did = ", ".join(map(_told, self.operations))
        return f"#{self.number} {self.client} {self.begin:.4f} .. {ended}: {did}"


def _told(operation: Append | Read) -> str:
    key = operation.key.decode(errors="replace")
    if isinstance(operation, Append):
        return f"append {key} {operation.token.decode(errors='replace')}"
    if operation.tokens is None:
        return f"read {key} -> ?"
    left_out = "... " if len(operation.tokens) > TOKENS_TOLD else ""
    told = " ".join(each.decode(errors="replace") for each in operation.tokens[-TOKENS_TOLD:])
    return f"read {key} -> [{left_out}{told}]"


class Anomaly(Violation):
    """`name` says which one, in the words of Adya and of Elle."""

    def __init__(self, name: str, text: str, key: bytes) -> None:
        super().__init__(SERIALIZABLE, f"{name}: {text}", key=key)
        self.name = name
