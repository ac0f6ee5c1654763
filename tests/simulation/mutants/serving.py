"""Bugs planted in what members answer and send to clients."""

import asyncio
from contextlib import AbstractContextManager, ExitStack
from math import inf
from typing import Any
from unittest.mock import patch

from msgspec import structs

from stele.core.tablet.leases import LeaseHolder
from stele.core.tablet.read_index import ReadIndexes
from stele.member.events.moves import EntryMoves
from stele.member.events.notifier import Notifier
from stele.member.serving import executor
from stele.member.serving.backup_reads import BackupReads
from stele.member.serving.executor import CommandExecutor
from stele.member.tracking.invalidations import Invalidations
from stele.member.tracking.near_caches import NearCaches
from stele.wire.storage.keys import SERVICE
from tests.simulation.families.swarm import SWARM
from tests.simulation.mutants.plant import Mutants


def what_ran_once_is_forgotten() -> AbstractContextManager[Any]:
    """A sequence that was answered before runs again."""
    real = executor.run_once

    def run_once(engine: Any, replica: Any, attempt: Any, read: Any) -> Any:
        service = replica.prefix(SERVICE)
        return real(engine, replica, attempt, lambda key: None if key.startswith(service) else read(key))

    return patch.object(executor, "run_once", run_once)


def near_caches_outlive_rows() -> AbstractContextManager[Any]:
    """What was read under a row is kept under the next one: neither its readers nor its owner look at it."""
    stack = ExitStack()
    stack.enter_context(patch.object(NearCaches, "row_changed", lambda self, partition: None))
    stack.enter_context(patch.object(Invalidations, "tick", lambda self: None))
    return stack


def told_after_the_answer() -> AbstractContextManager[Any]:
    """An owner answers a write before it tells who caches the key."""
    real = Invalidations._applied

    def applied(self: Invalidations, replica: Any, changes: Any) -> None:
        asyncio.get_running_loop().call_later(0.2, real, self, replica, changes)

    return patch.object(Invalidations, "_applied", applied)


def registered_after_the_read() -> AbstractContextManager[Any]:
    """An owner evaluates and answers a read before it remembers who caches the key."""
    real = Invalidations.register

    def register(self: Invalidations, partition: int, track: Any) -> None:
        asyncio.get_running_loop().call_later(0.02, real, self, partition, track)

    return patch.object(Invalidations, "register", register)


def counted_from_receipt() -> AbstractContextManager[Any]:
    """A backup counts an owner's answer from when it reads it, not from when it asked."""
    real = BackupReads.on_answer

    def on_answer(self: BackupReads, link: Any, message: Any) -> None:
        real(self, link, structs.replace(message, at=self._now()))

    return patch.object(BackupReads, "on_answer", on_answer)


def hearing_taken_for_vouching() -> AbstractContextManager[Any]:
    """A backup answers while it hears from the member that its row names as the owner."""

    def fresh(self: ReadIndexes, partition: int, owner: int, applied: int) -> float:
        link = links.get(id(self), {}).get(owner)
        return -inf if link is None else float(link.heard_at)

    def tick(self: BackupReads, now: float) -> None:
        links[id(self._indexes)] = self._links
        real(self, now)

    links: dict[int, Any] = {}
    real, stack = BackupReads.tick, ExitStack()
    stack.enter_context(patch.object(BackupReads, "tick", tick))
    stack.enter_context(patch.object(ReadIndexes, "fresh", fresh))
    return stack


def available_without_end() -> AbstractContextManager[Any]:
    """An owner answers reads of an Available keyspace for as long as it takes itself for the owner."""
    return patch.object(LeaseHolder, "read_until", lambda *_: inf)


def clear_holds_nothing_up() -> AbstractContextManager[Any]:
    """Commands after a clear see what is stored before it is applied."""
    real = CommandExecutor._clear

    def clear(self: CommandExecutor, replica: Any, request: Any) -> Any:
        reply = real(self, replica, request)
        replica.clearing = 0
        return reply

    return patch.object(CommandExecutor, "_clear", clear)


def events_begin_anew() -> AbstractContextManager[Any]:
    """A new owner sends the events of what it logs, and not of what the one before did not send."""
    real = Notifier.listen

    def listen(self: Notifier, listener: Any, positions: Any) -> None:
        real(self, listener, [(partition, version, -1) for partition, version, _ in positions])

    return patch.object(Notifier, "listen", listen)


def events_before_the_commit() -> AbstractContextManager[Any]:
    """Events are sent of everything that is logged, applied or not."""
    real = Notifier._batch

    def batch(self: Notifier, replica: Any, after: int) -> Any:
        log = replica.tablet.log
        applied, log.applied = log.applied, log.last
        try:
            return real(self, replica, after)
        finally:
            log.applied = applied

    return patch.object(Notifier, "_batch", batch)


def departures_are_not_written_down() -> AbstractContextManager[Any]:
    """A member reports what left with a replica, and remembers that it did until it restarts."""
    real = EntryMoves._departed

    async def departed(self: EntryMoves, replica: Any) -> None:
        before = replica.block
        await real(self, replica)
        async with replica.lock:
            after = replica.block
            await self._metadata.save_block(replica, before)
            replica.block = after

    return patch.object(EntryMoves, "_departed", departed)


SERVING: Mutants = {
    what_ran_once_is_forgotten: (SWARM, 2, "linearizable per key"),
    events_begin_anew: ("events", 0, "each acknowledged write has its event, or there is a gap"),
    departures_are_not_written_down: ("events", 5, "a departure is reported once"),
    events_before_the_commit: ("events", 0, "events are those of applied operations"),
    counted_from_receipt: ("reads", 40, "reads from backups are recent, and in order"),
    hearing_taken_for_vouching: ("reads", 4, "reads from backups are recent, and in order"),
    available_without_end: ("reads", 4, "reads from backups are recent, and in order"),
    clear_holds_nothing_up: ("clears", 0, "linearizable per key"),
    near_caches_outlive_rows: ("near caches", 2, "reads from backups are recent, and in order"),
    registered_after_the_read: ("near caches", 1, "reads from backups are recent, and in order"),
    told_after_the_answer: ("near caches", 0, "reads from backups are recent, and in order"),
}
