"""The common interface of operations, which take the master several decisions."""

from collections.abc import Sequence
from typing import Protocol

from stele.core.control.commands import Command, ExchangeReply, Result
from stele.core.table.ids import MemberIndex


class Operation(Protocol):
    """Sends commands to its participants until it is done.

    Commands follow from its step alone, and are repeated until their results arrive. Nothing of an operation
    is stored: a new master finds its remains in the reports, and ends them.
    """

    @property
    def id(self) -> str: ...
    @property
    def participants(self) -> frozenset[MemberIndex]: ...
    @property
    def done(self) -> bool:
        """Whether it needs nothing more from any member."""
        ...

    def commands(self, now: float) -> Sequence[tuple[MemberIndex, Command]]:
        """Return the commands to send now, with their recipients."""
        ...

    def on_result(self, member: MemberIndex, command: Command, result: Result, now: float) -> None:
        """Handle the result of one of its commands; those of an earlier step are ignored."""
        ...

    def on_report(self, member: MemberIndex, name: str, report: ExchangeReply, now: float) -> None:
        """Handle a member's last report."""
        ...
