"""What every operation has in common: an operation is what the master does in several decisions."""

from collections.abc import Sequence
from typing import Protocol

from stele.core.control.commands import Command, ExchangeReply, Result
from stele.core.table.ids import MemberIndex


class Operation(Protocol):
    """Sends commands to its participants until it is done.

    Commands follow from its step alone, and are sent again until their results are seen. Nothing of an
    operation is stored: a new master finds what is left of it in the reports, and ends it.
    """

    @property
    def id(self) -> str: ...
    @property
    def participants(self) -> frozenset[MemberIndex]: ...
    @property
    def done(self) -> bool:
        """Whether nothing more is asked of any member."""
        ...

    def commands(self, now: float) -> Sequence[tuple[MemberIndex, Command]]:
        """What to send now, to whom."""
        ...

    def on_result(self, member: MemberIndex, command: Command, result: Result, now: float) -> None:
        """Take in the result of one of its commands; those of an earlier step change nothing."""
        ...

    def on_report(self, member: MemberIndex, name: str, report: ExchangeReply, now: float) -> None:
        """Take in what a member reported last."""
        ...
