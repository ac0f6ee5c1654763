"""Bugs planted in what clients of the Redis Cluster protocol, and subscribers on connections, get."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from stele.core.kv.cluster_map import owner_node
from stele.core.table.table import Partition
from stele.member.events.moves import EntryMoves
from stele.member.events.notifier import Notifier
from stele.member.serving import executor
from stele.member.serving.backup_reads import BackupReads
from stele.member.serving.router import RequestRouter
from tests.simulation.cluster_clients import NOT_FORWARDED, REDIRECTED
from tests.simulation.expiring_clients import TAKEN_ONCE
from tests.simulation.history import RECENT
from tests.simulation.mutants import serving
from tests.simulation.mutants.plant import Mutants
from tests.simulation.redis_clients import LIFETIME
from tests.simulation.resp_subscribers import ARRIVALS, EXPIRATIONS


def learners_answer() -> AbstractContextManager[Any]:
    """A member whose tablet no row names, or not yet, answers what it has."""
    real = BackupReads._backup_may_answer

    def may_answer(self: BackupReads, replica: Any, seen: Any, now: float) -> bool:
        return not replica.tablet.named or real(self, replica, seen, now)

    return patch.object(BackupReads, "_backup_may_answer", may_answer)


def backups_take_hearing_for_vouching() -> AbstractContextManager[Any]:
    """As `hearing_taken_for_vouching`, on connections."""
    return serving.hearing_taken_for_vouching()


def moved_names_the_last_of_the_row() -> AbstractContextManager[Any]:
    """MOVED names the last member of a row in place of its owner."""

    def home(self: RequestRouter, partition: int) -> Any:
        row, table = self._table.rows[partition], self._table
        last = table.members.get(row.replicas[-1]) if row.replicas else None
        return None if row.owner == table.me or last is None else owner_node(last)

    return patch.object(RequestRouter, "home", home)


def forwarded_on_every_port() -> AbstractContextManager[Any]:
    """Members forward what clients of the Cluster protocol send to the wrong one."""
    return patch.object(RequestRouter, "home", lambda *_: None)


def arrivals_of_owners_alone() -> AbstractContextManager[Any]:
    """A backup says nothing of the entries that a copy brought."""
    real = EntryMoves.row_changed

    def row_changed(self: EntryMoves, partition: int, before: Partition, row: Partition) -> None:
        if row.owner == self._tablets.me:
            real(self, partition, before, row)

    return patch.object(EntryMoves, "row_changed", row_changed)


def expired_has_no_event() -> AbstractContextManager[Any]:
    """Members send no event of what they remove because it expired."""
    real = Notifier._events

    def events(self: Notifier, *of: Any) -> Any:
        return [each for each in real(self, *of) if each[3] != "expired"]

    return patch.object(Notifier, "_events", events)


def _evaluated(name: bytes, change: Any) -> AbstractContextManager[Any]:
    """The evaluation of one command, changed."""
    real = executor.evaluate

    def evaluate(args: Sequence[bytes], *of: Any) -> Any:
        evaluation = real(args, *of)
        return change(evaluation) if args[0].upper() == name else evaluation

    return patch.object(executor, "evaluate", evaluate)


def getdel_only_gets() -> AbstractContextManager[Any]:
    """GETDEL deletes nothing."""
    return _evaluated(b"GETDEL", lambda evaluation: evaluation._replace(op=None))


def persist_only_answers() -> AbstractContextManager[Any]:
    """PERSIST changes nothing."""
    return _evaluated(b"PERSIST", lambda evaluation: evaluation._replace(op=None))


CONNECTIONS: Mutants = {
    learners_answer: ("cluster", 0, RECENT),
    backups_take_hearing_for_vouching: ("cluster", 20, RECENT),
    moved_names_the_last_of_the_row: ("cluster", 0, REDIRECTED),
    forwarded_on_every_port: ("cluster", 0, NOT_FORWARDED),
    arrivals_of_owners_alone: ("subscriptions", 2, ARRIVALS),
    expired_has_no_event: ("subscriptions", 0, EXPIRATIONS),
    getdel_only_gets: ("subscriptions", 0, TAKEN_ONCE),
    persist_only_answers: ("subscriptions", 0, LIFETIME),
}
