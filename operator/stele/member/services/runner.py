"""Runs one service: its thread, its limits, and its view of the member, isolated from everything else."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Container, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from stele.core.kv.commands import KEY_BYTES_MAX, VALUE_BYTES_MAX, Failure
from stele.core.service_events import PartitionMigrationEvent, index_of
from stele.errors import BadInput, Refused
from stele.member import limits
from stele.member.background import Background
from stele.member.replication.tablet_store import TabletStore
from stele.member.serving.router import RequestRouter
from stele.services import Changes, MigrationAwareService
from stele.wire.copy.fragments import service_keyspace
from stele.wire.peer import COMMANDS_MAX
from stele.wire.storage.keys import after_prefix, unpack_value
from stele.wire.storage.log_record import Change

log = logging.getLogger("stele.services")

CALL_SECONDS_MAX = 2.0
"""Time limit of a call, including the wait in the queue of its service. A late result is ignored."""
START_SECONDS_MAX = 10.0
CALLS_WAITING_MAX = 1000
"""Queued calls of a stuck service, above which it is no longer notified."""
PREPARED_BYTES_MAX = 1024 * 1024
PREPARED_KEYS_MAX = 10_000
NAMESPACES_MAX = 100
ENTRIES_MAX = 10_000
_NAMESPACE = re.compile(r"[a-z0-9-]{1,20}")
R = TypeVar("R")


class ServiceError(Exception):
    """A service raised, timed out, or returned an invalid value."""


class ServiceRunner:
    """Calls the methods of one service in one thread, in order."""

    def __init__(self, name: str, service: MigrationAwareService) -> None:
        self.name = name
        self._service = service
        self._thread = _Caller(f"service-{name}")

    def has(self, method: str) -> bool:
        """Return whether the service has an optional method."""
        return hasattr(self._service, method)

    async def call(self, method: str, *args: object, seconds: float = CALL_SECONDS_MAX) -> Any:
        """Call the method and return its result. Raises ServiceError, after logging it."""
        if self._thread.waiting >= CALLS_WAITING_MAX:
            log.error(
                "service %s: %s is dropped, since %d calls are queued", self.name, method, CALLS_WAITING_MAX
            )
            raise ServiceError(f"service {self.name}: {CALLS_WAITING_MAX} calls are queued; it is stuck")
        work = asyncio.wrap_future(self._thread.submit(lambda: self._guarded(method, args)))
        try:
            done, _ = await asyncio.wait([work], timeout=seconds)
            if not done:
                work.add_done_callback(lambda late: late.cancelled() or late.exception())
                raise ServiceError(f"{method} took longer than {seconds:.3g} s")
            return work.result()
        except ServiceError as error:
            log.error("service %s: %s", self.name, error, exc_info=error.__cause__)
            raise ServiceError(f"service {self.name}: {error}") from None

    def _guarded(self, method: str, args: tuple[object, ...]) -> object:
        try:
            return getattr(self._service, method)(*args)
        except BaseException as error:  # Foreign code: not even SystemExit may end the member.
            raise ServiceError(f"{method} failed with {type(error).__name__}: {error}") from error

    async def notify(self, method: str, event: PartitionMigrationEvent) -> None:
        """Call a method that is only notified of an event; errors are logged."""
        try:
            await self.call(method, event)
        except ServiceError:
            return

    async def prepared(self, event: PartitionMigrationEvent) -> list[Change]:
        """Return the state that the service wants replicated, within the time limit. Raises ServiceError."""
        loop = asyncio.get_running_loop()
        end = loop.time() + CALL_SECONDS_MAX
        namespaces: Collection[str] = ("",)
        if hasattr(self._service, "namespaces"):
            namespaces = self._checked_namespaces(await self.call("namespaces", event))
        prepared: list[Change] = []
        for namespace in namespaces:
            remaining = max(0.0, end - loop.time())
            changes = await self.call("prepare_replication", event, namespace, seconds=remaining)
            fault = _fault(changes)
            if fault:
                log.error("service %s: prepare_replication: %s", self.name, fault)
                raise ServiceError(f"service {self.name}: prepare_replication: {fault}")
            keyspace = service_keyspace(self.name, namespace)
            prepared += [Change(keyspace, key, value) for key, value in sorted(changes.items())]
        return prepared

    def _checked_namespaces(self, value: Any) -> list[str]:
        """Return the namespaces, sorted so that every member logs them in the same order."""
        names = sorted({str(each) for each in value}) if isinstance(value, Collection) else [""]
        wrong = next((name for name in names if not _NAMESPACE.fullmatch(name)), None)
        if wrong is None and len(names) <= NAMESPACES_MAX:
            return names
        what = f"{len(names)} of them" if wrong is None else f"'{wrong}'"
        text = f"namespaces: {what}; expected at most {NAMESPACES_MAX} of 1 to 20 of a-z, 0-9 and -"
        log.error("service %s: %s", self.name, text)
        raise ServiceError(f"service {self.name}: {text}")

    def close(self) -> None:
        """Call nothing more; a stuck call is abandoned."""
        self._thread.close()


class _Caller:
    """A daemon thread that runs work in order; it does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Future[object], Callable[[], object]] | None] = SimpleQueue()
        Thread(target=self._run, name=name, daemon=True).start()

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def submit(self, work: Callable[[], object]) -> Future[object]:
        future: Future[object] = Future()
        self._queue.put((future, work))
        return future

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            future, work = item
            try:
                future.set_result(work())
            except ServiceError as error:
                future.set_exception(error)

    def close(self) -> None:
        self._queue.put(None)


def _fault(changes: object) -> str:
    """Return what is wrong with the changes of a service; empty when they are valid."""
    if not isinstance(changes, Mapping):
        return f"it returned {type(changes).__name__}; expected a mapping of bytes to bytes (or None)"
    size = 0
    for key, value in changes.items():
        if not isinstance(key, bytes) or not isinstance(value, bytes | None):
            return f"{key!r:.60}: {value!r:.60}; expected bytes and bytes (or None)"
        if len(key) > KEY_BYTES_MAX or len(value or b"") > VALUE_BYTES_MAX:
            return f"a key of {len(key)} or its value of {len(value or b'')} bytes exceeds its limit"
        size += len(key) + len(value or b"")
    if size > PREPARED_BYTES_MAX or len(changes) > PREPARED_KEYS_MAX:
        most = f"at most {PREPARED_BYTES_MAX} bytes and {PREPARED_KEYS_MAX} keys"
        return f"{size} bytes in {len(changes)} keys; {most} are allowed: store the rest beforehand with put"
    return ""


@dataclass(frozen=True)
class MemberView:
    """What services see of the member."""

    name: str
    tablets: TabletStore
    router: RequestRouter
    background: Background


class MemberContext:
    """`services.Context` of one service. Its methods block on the member's event loop."""

    def __init__(self, view: MemberView, service: str, not_notified: Container[int]) -> None:
        """`not_notified` are the partitions with an ended migration that services do not know of yet."""
        self._view, self._service, self._not_notified = view, service, not_notified
        self._tablets = view.tablets

    @property
    def member(self) -> str:
        return self._view.name

    @property
    def partitions(self) -> int:
        return self._tablets.table.main

    def replica_index(self, partition: int) -> int:
        return index_of(self._tablets.rows[partition].replicas, self._tablets.me)

    def serves(self, partition: int) -> bool:
        replica = self._tablets.replicas.get(partition)
        serving = replica is not None and replica.serves
        return serving and partition not in self._not_notified

    def owner(self, partition: int) -> str:
        owner = self._tablets.rows[partition].owner
        info = None if owner is None else self._tablets.table.members.get(owner)
        return "" if info is None else info.name

    def entries(
        self, partition: int, namespace: str = "", after: bytes = b"", limit: int = 1000
    ) -> list[tuple[bytes, bytes]]:
        if not 1 <= limit <= ENTRIES_MAX:
            raise BadInput(f"limit is {limit}, expected 1 to {ENTRIES_MAX}")

        async def scan() -> list[tuple[bytes, bytes]]:
            replica = self._tablets.replicas.get(partition)
            if replica is None or not replica.ready:
                return []
            prefix = replica.prefix(self._keyspace(namespace))
            begin = prefix + after + b"\0" if after else prefix
            page = self._tablets.engine.scan(begin, after_prefix(prefix), limit)
            return [(key[len(prefix) :], unpack_value(stored)[0]) for key, stored in page]

        return self._wait(scan)

    def put(self, partition: int, changes: Changes, namespace: str = "") -> None:
        if len(changes) > COMMANDS_MAX:
            raise BadInput(f"changes has {len(changes)} keys, expected at most {COMMANDS_MAX}: split them")
        commands = [
            (b"DEL", key) if value is None else (b"SET", key, value) for key, value in changes.items()
        ]
        keyspace = self._keyspace(namespace)
        replies = self._wait(lambda: self._view.router.execute(partition, keyspace, commands))
        failed = next((reply for reply in replies if isinstance(reply, Failure)), None)
        if failed is not None:
            raise Refused(f"partition {partition}: {failed.text}", failed.code)

    def _keyspace(self, namespace: str) -> bytes:
        if namespace and not _NAMESPACE.fullmatch(namespace):
            raise BadInput(f"namespace is '{namespace[:80]}', expected 1 to 20 of a-z, 0-9 and -")
        return service_keyspace(self._service, namespace)

    def _wait(self, work: Callable[[], Awaitable[R]]) -> R:
        async def run() -> R:
            return await work()

        future = asyncio.run_coroutine_threadsafe(run(), self._view.background.loop)
        return future.result(limits.WAIT_SECONDS_MAX + 5)
