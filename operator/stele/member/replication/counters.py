"""What a member counts of its commands."""

import msgspec

from stele.member.replication.request import Request


class Counters(msgspec.Struct):
    """Commands since the start of the process.

    `reads` and `writes` were answered here, as the owner; `forwarded` counts requests to other owners. The
    others got no answer: they were not done, or it is `uncertain` whether they were. `backup_reads` were
    answered here as a backup. `async_lost` are operations of Async keyspaces that were answered, and
    were cut from the log before their commit was known here. `lost_parts` are those of committed transactions
    whose intents were gone.
    """

    reads: int = 0
    backup_reads: int = 0
    writes: int = 0
    forwarded: int = 0
    unavailable_reads: int = 0
    unavailable_writes: int = 0
    uncertain: int = 0
    async_lost: int = 0
    lost_parts: int = 0

    @property
    def errors(self) -> int:
        return self.unavailable_reads + self.unavailable_writes + self.uncertain

    def add_unavailable(self, request: Request) -> None:
        if request.may_write:
            self.unavailable_writes += len(request.commands)
        else:
            self.unavailable_reads += len(request.commands) or 1
