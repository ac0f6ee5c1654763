"""Notifies this member's services of migrations: each begin once, followed by one commit or rollback.

A begun migration is on the volume before services are notified, and removed after they were notified of its
end: a member that restarts in between derives the end from persisted state, and may notify twice. Services
delay a migration by at most the time limit of a call. Only one thing blocks it: a service that fails to hand
out its state before the owner changes.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from stele.core.control import commands as m
from stele.core.placement.migration import Type
from stele.core.service_events import (
    Begun,
    Endpoint,
    PartitionMigrationEvent,
    begun,
    event_of_row,
    index_of,
)
from stele.core.table.ids import PartitionId
from stele.core.table.table import Partition
from stele.core.tablet.owner import Phase
from stele.errors import Refused
from stele.member.replication.applied import until_applied
from stele.member.replication.replica import Replica
from stele.member.services.runner import (
    START_SECONDS_MAX,
    MemberContext,
    MemberView,
    ServiceError,
    ServiceRunner,
)
from stele.member.serving.executor import CommandExecutor
from stele.member.storage.volume import SERVICES, MetaWriter, Volume
from stele.services import MigrationAwareService
from stele.wire.storage.log_record import Change
from stele.wire.storage.volume import ServiceMigration, ServicesFile

log = logging.getLogger("stele.services")


class Services:
    """Notifications of services. Without services, every method returns at once and nothing is written."""

    def __init__(
        self,
        services: Mapping[str, MigrationAwareService],
        view: MemberView,
        volume: Volume,
        writer: MetaWriter,
        executor: CommandExecutor,
    ) -> None:
        self._view, self._tablets, self._background = view, view.tablets, view.background
        self._volume, self._writer, self._executor = volume, writer, executor
        self._runners = [ServiceRunner(name, service) for name, service in services.items()]
        self._begun: dict[PartitionId, Begun] = {}
        self._ending: dict[PartitionId, list[tuple[Begun, bool]]] = {}
        self._prepared: set[tuple[PartitionId, str, bool]] = set()
        self._tails: dict[PartitionId, asyncio.Task[None]] = {}

    def __bool__(self) -> bool:
        return bool(self._runners)

    async def start(self) -> None:
        """Start the services, and end migrations that a restart interrupted for good."""
        if not self._runners:
            return
        started = await asyncio.gather(*(self._start(runner) for runner in self._runners))
        self._runners = [runner for runner, fine in zip(self._runners, started, strict=True) if fine]
        for stored in self._volume.load_services().begun:
            if stored.committed is None:
                self._recover(_read(stored))
            else:
                self._end(_read(stored), stored.committed)

    async def _start(self, runner: ServiceRunner) -> bool:
        try:
            context = MemberContext(self._view, runner.name, self._ending)
            await runner.call("start", context, seconds=START_SECONDS_MAX)
        except ServiceError:
            log.error("service %s is disabled: it did not start", runner.name)
            return False
        return True

    def _recover(self, record: Begun) -> None:
        """Resume or end a migration after a restart, according to the row or to this member's promises."""
        partition = record.event.partition
        replica = self._tablets.replicas.get(partition)
        row = self._tablets.rows[partition] if partition < len(self._tablets.rows) else Partition(0, ())
        committed = record.outcome(row)
        if committed is None and replica is not None and _goes_on(replica, record):
            self._begun[partition] = record
        else:
            self._end(record, bool(committed))

    async def stop(self) -> None:
        """Finish pending notifications, then stop the services."""
        tails = list(self._tails.values())
        if tails:
            await asyncio.wait(tails, timeout=START_SECONDS_MAX / 2)
        for runner in self._runners:
            try:
                await runner.call("stop")
            except ServiceError:
                continue
            finally:
                runner.close()

    # -- a migration that feeds a destination

    def begin(self, command: m.StartTabletCopy | m.AddLearner, destination: int) -> None:
        """Begin the migration of this command; a repetition does nothing. Hold the partition's lock.

        When an older master omits the resulting row, services are notified when the row changes.
        """
        partition = command.partition
        if not self._runners or not command.result:
            return
        before = self._begun.get(partition)
        if before is not None and before.event.id == command.id:
            return
        if before is not None:
            self._end(before, False)
        record = begun(
            command.id,
            command.kind,
            partition,
            row=self._tablets.rows[partition],
            result=command.result,
            destination=destination,
            me=self._tablets.me,
        )
        self._begun[partition] = record
        self._enqueue(partition, partial(self._notify_begin, record))

    async def until_notified(self, partition: PartitionId) -> None:
        """Wait until services have been notified of all events of the partition.

        Hold no lock: they may be slow.
        """
        tail = self._tails.get(partition)
        if tail is not None:
            await asyncio.wait([tail])

    async def prepare(self, replica: Replica, id: str, *, frozen: bool) -> None:
        """Log the state that services prepare for the destination, once at the begin and once when frozen.

        Raises Refused when the partition is `frozen` and a service failed, as its state would be lost. Hold
        no lock, since services may be slow.
        """
        record = self._begun.get(replica.partition)
        if not self._runners or record is None or record.event.id != id:
            return
        if (replica.partition, id, frozen) in self._prepared:
            return
        try:
            prepared = await asyncio.gather(*(runner.prepared(record.event) for runner in self._runners))
            if self._begun.get(replica.partition) is not record:
                raise ServiceError("the migration ended meanwhile")
            self._log(replica, [change for changes in prepared for change in changes], id if frozen else "")
        except ServiceError as error:
            if frozen:
                text = f"{error}; its state would be lost by changing the owner"
                raise Refused(text, "SERVICE_FAILED") from None
            log.warning(
                "partition %d: the copy starts without the state of a failed service: %s",
                replica.partition,
                error,
            )
        self._prepared.add((replica.partition, id, frozen))

    def _log(self, replica: Replica, changes: list[Change], frozen: str) -> None:
        """Log prepared changes. `frozen` is the migration that the partition must be frozen for, or empty."""
        owner = replica.owner
        if owner is None or owner.phase is not Phase.SERVING or owner.frozen != frozen:
            raise ServiceError("the partition is no longer served here, or was frozen or thawed meanwhile")
        refusal = self._executor.log_changes(replica, changes)
        if refusal is not None:
            raise ServiceError(f"{refusal.code}: {refusal.text}")

    def aborted(self, partition: PartitionId, id: str) -> None:
        """Handle the rollback of a migration, if it had begun here."""
        record = self._begun.get(partition)
        if record is not None and record.event.id == id:
            self._end(record, False)

    def row_changed(self, partition: PartitionId, before: Partition, row: Partition) -> None:
        """Handle a newer published row."""
        if not self._runners:
            return
        record = self._begun.get(partition)
        known = index_of(before.replicas, self._tablets.me)
        if record is not None and (committed := record.outcome(row)) is not None:
            known = record.index_after(committed)
            self._end(record, committed)
        event = event_of_row(partition, before, row, self._tablets.me, known)
        if event is not None:
            change = Begun(event, before.version, self._tablets.me)
            self._to_notify(change, True)
            self._enqueue(partition, partial(self._notify_change, change))

    def hears_of(self, method: str) -> bool:
        """Return whether a service has an optional method."""
        return any(runner.has(method) for runner in self._runners)

    async def entries_moved(
        self, partition: PartitionId, keyspace: str, keys: list[bytes], arrived: bool
    ) -> None:
        """Inform services of entries of clients that came with a copy, or left with a replica."""
        await self._inform("entries_moved", partition, keyspace, keys, arrived)

    async def entries_expired(self, partition: PartitionId, keyspace: str, keys: list[bytes]) -> None:
        """Inform services of entries of clients that expired here."""
        await self._inform("entries_expired", partition, keyspace, keys)

    async def _inform(self, method: str, *words: object) -> None:
        """Call an optional method of the services that have it."""
        for runner in self._runners:
            if runner.has(method):
                with suppress(ServiceError):  # It is logged.
                    await runner.call(method, *words)

    # -- notifying

    def _to_notify(self, record: Begun, committed: bool) -> None:
        """Record an end; no service serves the partition until it is notified."""
        self._ending.setdefault(record.event.partition, []).append((record, committed))

    def _is_notified(self, record: Begun, committed: bool) -> None:
        pending = self._ending[record.event.partition]
        pending.remove((record, committed))
        if not pending:
            del self._ending[record.event.partition]

    def _end(self, record: Begun, committed: bool) -> None:
        partition = record.event.partition
        self._begun.pop(partition, None)
        self._prepared -= {(partition, record.event.id, frozen) for frozen in (False, True)}
        self._to_notify(record, committed)
        self._enqueue(partition, partial(self._notify_end, record, committed))

    async def _notify_begin(self, record: Begun) -> None:
        await self._save()
        await self._notify("before_migration", record.event)

    async def _notify_change(self, record: Begun) -> None:
        """Notify of a row change without a preceding begin."""
        await self._notify_begin(record)
        await self._notify_end(record, True)

    async def _notify_end(self, record: Begun, committed: bool) -> None:
        event = record.event
        if committed and event.new_replica_index >= 0:
            await until_applied(self._tablets.replicas.get(event.partition))
        await self._notify("commit_migration" if committed else "rollback_migration", event)
        self._is_notified(record, committed)
        await self._save()

    async def _notify(self, method: str, event: PartitionMigrationEvent) -> None:
        await asyncio.gather(*(runner.notify(method, event) for runner in self._runners))

    def _enqueue(
        self, partition: PartitionId, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> "asyncio.Task[None]":
        """Run the work after earlier work for this partition."""
        before = self._tails.get(partition)

        async def run() -> None:
            if before is not None:
                await asyncio.wait([before])
            await work()

        task = self._tails[partition] = self._background.spawn(run())
        task.add_done_callback(partial(self._dequeued, partition))
        return task

    def _dequeued(self, partition: PartitionId, task: "asyncio.Task[None]") -> None:
        if self._tails.get(partition) is task:
            del self._tails[partition]

    async def _save(self) -> None:
        records = [_written(*each) for ending in self._ending.values() for each in ending]
        records += [_written(record, None) for record in self._begun.values()]
        try:
            await self._writer.save(SERVICES, ServicesFile(tuple(records)))
        except OSError as error:
            log.error("notifications of services could not be saved, so a restart may miss an end: %s", error)


def _goes_on(replica: Replica, record: Begun) -> bool:
    """Return whether the migration can still be committed after a restart, by this member's promises."""
    meta, id = replica.meta, record.event.id
    if record.event.endpoint is Endpoint.DESTINATION:
        return meta.copy is not None and meta.copy.id == id
    return meta.waited is not None and meta.waited.id == id


def _written(record: Begun, committed: bool | None) -> ServiceMigration:
    event = record.event
    return ServiceMigration(
        id=event.id,
        type=event.type.value,
        endpoint=event.endpoint.value,
        partition=event.partition,
        base=record.base,
        destination=record.destination,
        current=event.current_replica_index,
        new=event.new_replica_index,
        committed=committed,
    )


def _read(stored: ServiceMigration) -> Begun:
    event = PartitionMigrationEvent(
        Endpoint(stored.endpoint),
        stored.partition,
        stored.current,
        stored.new,
        Type(stored.type),
        stored.id,
    )
    return Begun(event, stored.base, stored.destination)
