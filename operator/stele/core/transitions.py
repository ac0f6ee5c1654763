"""Legal steps of a state machine as data: what is not in its table raises, and changes nothing."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from stele.errors import Refused

S = TypeVar("S", bound=Enum)


def check_step(what: str, transitions: Mapping[S, frozenset[S]], before: S, to: S) -> None:
    """Raise Refused (ILLEGAL_STATE) for a step that is not in the table."""
    if to not in transitions[before]:
        raise Refused(f"{what}: {before.value} does not lead to {to.value}", "ILLEGAL_STATE")
