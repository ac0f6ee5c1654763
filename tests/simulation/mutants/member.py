"""Bugs planted in what a member does at the master's command, and when it stops."""

import copy
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from stele.core.control.commands import OpId
from stele.core.formats import FIRST
from stele.core.tablet.leases import LeaseGrantor
from stele.core.tablet.log import Log
from stele.core.tablet.owner import Owner, Phase
from stele.member.control import migrations
from stele.member.control.exchange import Exchange
from stele.member.control.fencing import Fencing
from stele.member.control.last_copies import LastCopies
from stele.member.control.migrations import Migrations
from stele.member.copy.copy_writer import CopyWriter
from stele.member.replication.group_commit import GroupCommit
from stele.member.replication.links import InboundConnections
from stele.member.replication.replicator import Replicator
from stele.member.serving.router import RequestRouter
from stele.member.settings import Fsync
from stele.member.storage.write_back import WriteBack
from stele.wire.storage import volume as volume_files
from tests.fakes.disk import SimEngine
from tests.simulation.families.swarm import SWARM
from tests.simulation.mutants.plant import Mutants


def source_clears_early() -> AbstractContextManager[Any]:
    """The old owner gives its tablet up when it has handed over, before the row is stored."""
    real = Migrations.hand_over

    async def hand_over(self: Migrations, command: Any) -> Any:
        result = await real(self, command)
        if result.code == "OK":
            replica = self._tablets.replicas[command.partition]
            if replica.ready:
                await self._tombstone(replica, keep_seconds=0)
        return result

    return patch.object(Migrations, "hand_over", hand_over)


def epoch_not_checked() -> AbstractContextManager[Any]:
    """A member obeys a master that was replaced."""
    real = Exchange._refusal

    def refusal(self: Exchange, request: Any) -> tuple[str, str]:
        code, detail = real(self, request)
        return ("", "") if code == "STALE_EPOCH" else (code, detail)

    return patch.object(Exchange, "_refusal", refusal)


def acknowledges_while_stopping() -> AbstractContextManager[Any]:
    """A member that stops goes on taking and acknowledging writes while its database is being closed, and
    nobody has these later.
    """

    def close(self: SimEngine) -> None:
        self.flush()
        self.kept = copy.deepcopy((self._log, self._synced, self._unsynced))  # type: ignore[attr-defined]

    def after_crash(self: SimEngine, **how: Any) -> SimEngine:
        if hasattr(self, "kept"):
            self._log, self._synced, self._unsynced = self.kept
        return crashed(self, **how)

    def write_out_and_close(self: WriteBack) -> None:
        self.write_out()
        self._engine.close()

    async def stop(self: GroupCommit) -> None:
        self._mode = Fsync.NEVER

    crashed, stack = SimEngine.after_crash, ExitStack()
    stack.enter_context(patch.object(SimEngine, "close", close))
    stack.enter_context(patch.object(WriteBack, "close", write_out_and_close))
    stack.enter_context(patch.object(SimEngine, "after_crash", after_crash))
    stack.enter_context(patch.object(RequestRouter, "stop", lambda self: None))
    stack.enter_context(patch.object(GroupCommit, "stop", stop))
    stack.enter_context(patch.object(Replicator, "stop", lambda self: None))
    stack.enter_context(patch.object(InboundConnections, "close_all", lambda self, reason: None))
    return stack


def copy_written_without_a_flush() -> AbstractContextManager[Any]:
    """The copy of a small tablet is in effect before its entries are on disk."""

    async def flush(self: CopyWriter) -> None:
        return

    return patch.object(CopyWriter, "_flush", flush)


def fence_waits_for_no_lease() -> AbstractContextManager[Any]:
    """A backup promises a term while the owner before may still read by its leave."""
    return patch.object(LeaseGrantor, "wait_seconds", lambda *_: 0.0)


def swapped_with_one_that_is_behind() -> AbstractContextManager[Any]:
    """An owner hands over at once, and a backup accepts whatever it has."""

    def point(replica: Any) -> Any:
        frozen = replica.owner is not None and replica.owner.frozen
        return OpId(*replica.tablet.log.last) if frozen else None

    def follows(self: Owner, member: int) -> bool:
        return self.phase is Phase.SERVING

    def holds(self: Log, op: tuple[int, int]) -> bool:
        return True

    real = Fencing._check_accept

    def check_accept(self: Fencing, replica: Any, command: Any) -> None:
        with patch.object(Log, "holds", holds):
            real(self, replica, command)

    stack = ExitStack()
    stack.enter_context(patch.object(migrations, "hand_over_point", point))
    stack.enter_context(patch.object(Owner, "_follows_closely", follows))
    stack.enter_context(patch.object(Fencing, "_check_accept", check_accept))
    return stack


def written_before_all_can_read_it() -> AbstractContextManager[Any]:
    """A member writes its table in the format that its own build prefers."""
    return patch.object(volume_files, "RANGES", FIRST)


def purged_while_its_partition_is_lost() -> AbstractContextManager[Any]:
    """What is in quarantine goes by time and by hand, whatever became of the other copies."""
    return patch.object(LastCopies, "may_be_here", lambda self, partition: False)


MEMBER: Mutants = {
    source_clears_early: (SWARM, 2, "kept while the stored row names it"),
    epoch_not_checked: (SWARM, 7, "no lower epoch is obeyed"),
    acknowledges_while_stopping: ("stops", 101, "linearizable per key"),
    copy_written_without_a_flush: (SWARM, 7, "safe, balanced and at rest in the end"),
    fence_waits_for_no_lease: ("leases", 52, "linearizable per key"),
    written_before_all_can_read_it: ("mixed", 0, "nothing beyond the features"),
    swapped_with_one_that_is_behind: ("behind", 0, "who takes over has everything"),
    purged_while_its_partition_is_lost: ("quarantines", 22, "nothing is purged that may be the last copy"),
}
