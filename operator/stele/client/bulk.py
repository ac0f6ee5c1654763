"""Bulk loads and exports without Spark: rows to pieces to tablets, and back (docs/operating/bulk.md).

A load has an id. Repeating it with the same id and rows resumes it: a tablet applies a load once, atomically.
A `Loader` is used by one task at a time; `finish` is called by the one that has all pieces.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TypeVar

import msgspec
from crc32c import crc32c

from stele.client.members import Members
from stele.core.control.commands import SessionInfo
from stele.core.kv.commands import EXPIRE_AT_MS_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX, text_of
from stele.core.kv.keyslot import partitions_of
from stele.errors import BadInput, Conflict, Corrupt, Refused, Stale, SteleError, Unavailable, Uncertain
from stele.wire.copy.blocks import BlockReader
from stele.wire.copy.bulk import (
    EXPORT_PREFIX,
    BuildOrder,
    Duplicates,
    Loaded,
    LoadList,
    LoadManifest,
    LoadOrder,
    LoadPlace,
    Section,
    SnapshotOrder,
    check_load_id,
    encode_json,
    encode_run,
    piece_head,
)
from stele.wire.storage.keys import EXPIRY_BYTES, KEYSPACE_BYTES_MAX, pack_value, unpack_value

PIECE_BYTES = 32 * 1024 * 1024
"""Size at which collected rows are sent; a task needs a few times as much memory."""
ROW_BYTES = 100
"""Approximate overhead of Python per row."""
PARALLEL = 8
PATIENCE_SECONDS = 120.0
"""How long a tablet's load is retried while its row changes or its members do not answer."""
AGAIN_SECONDS = 0.2
SNAPSHOT_SECONDS = 120.0
T = TypeVar("T")
Row = tuple[bytes, bytes, int]
"""Key, value, expire_at_ms (0: never)."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece that a task sent: its name, partitions and number of rows."""

    name: str
    partitions: tuple[int, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Result of a load: tablets and entries applied now, and tablets that had applied it before."""

    load: str
    tablets: int
    entries: int
    skipped: int


def check_keyspace(keyspace: str) -> str:
    """Return the keyspace. Raises BadInput when its name is invalid."""
    if not 1 <= len(keyspace.encode()) <= KEYSPACE_BYTES_MAX or keyspace.startswith("@"):
        raise BadInput(
            f"keyspace is '{keyspace[:80]}'; expected 1 to {KEYSPACE_BYTES_MAX} bytes, the first not @"
        )
    return keyspace


class Loader:
    """One bulk load, as one task sees it. Nothing of it becomes visible before `finish`."""

    def __init__(
        self, members: Members, load: str, keyspace: str = "default", duplicates: Duplicates = "error"
    ) -> None:
        self._members = members
        self.load = check_load_id(load)
        self._keyspace = check_keyspace(keyspace)
        self._duplicates: Duplicates = duplicates
        self._done: frozenset[int] | None = None
        self._tokens: dict[int, str] = {}

    # -- pieces

    def send(self, name: str, rows: Iterable[Row]) -> list[Piece]:
        """Send rows, with equal keys in order, as pieces `name`-0, `name`-1, ..."""
        pieces, batch, size = list[Piece](), list[tuple[bytes, bytes]](), 0
        for key, value, expire_at_ms in rows:
            _check_row(key, value, expire_at_ms)
            batch.append((key, pack_value(value, expire_at_ms)))
            size += ROW_BYTES + len(key) + len(value)
            if size >= PIECE_BYTES:
                pieces.append(self._send(f"{name}-{len(pieces)}", batch))
                batch, size = [], 0
        if batch:
            pieces.append(self._send(f"{name}-{len(pieces)}", batch))
        return pieces

    def _send(self, name: str, batch: list[tuple[bytes, bytes]]) -> Piece:
        streams = dict(self._streams(batch))
        again = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self._put(name, streams)
                return Piece(name, tuple(streams), len(batch))
            except Unavailable:
                if time.monotonic() > again:
                    raise
                time.sleep(1.0)
                self._members.refresh()

    def _streams(self, batch: list[tuple[bytes, bytes]]) -> Iterator[tuple[int, bytes]]:
        """Iterate (partition, its rows as blocks), for partitions that have not applied the load."""
        done, tablets = self.done, dict[int, list[tuple[bytes, bytes]]]()
        partitions = partitions_of([key for key, _ in batch], self._group)
        for partition, entry in zip(partitions, batch, strict=True):
            tablets.setdefault(partition, []).append(entry)
        for partition in sorted(tablets.keys() - done):
            # The sort is stable, so equal keys stay in order.
            entries = sorted(tablets[partition], key=itemgetter(0))
            yield partition, b"".join(encode_run(_once(entries, self._duplicates), partition))

    @property
    def _group(self) -> range:
        return self._members.table.group(self._keyspace)

    @property
    def done(self) -> frozenset[int]:
        """Partitions that had already applied this load, as far as their owners answer."""
        if self._done is None:
            applied: set[int] = set()
            replicas = map(self._members.table.replicas, self._group)
            owners = {member for slots in replicas for member in slots[:1] if member is not None}
            for member in owners:
                with suppress(SteleError):
                    # Rows of a member that does not answer are sent again, and skipped in the end.
                    applied.update(self._ask(member).partitions)
            self._done = frozenset(applied)
        return self._done

    def _ask(self, member: int) -> LoadList:
        answer = self._members.call(self._members.admin(member), "GET", self._path)
        listed = msgspec.json.decode(answer, type=LoadList)
        self._tokens[member] = listed.token
        return listed

    @property
    def _path(self) -> str:
        return f"/v1/bulk/loads/{self.load}"

    def call(self, member: int, method: str, path: str, body: bytes | None = None) -> bytes:
        """Return what a member's transfer process answers about this load; `path` is below that of the load.

        Raises as `Members.call` does, Unavailable also for a token that the member has replaced.
        """
        place = self._members.transfer(member)
        token = ""
        if place.secured:
            token = self._tokens.get(member) or self._ask(member).token
        try:
            return self._members.call(place, method, self._path + path, body, token)
        except Refused as error:
            if error.code != "UNAUTHORIZED":
                raise
            self._tokens.pop(member, None)
            raise Unavailable(error.text) from error

    def _put(self, name: str, streams: dict[int, bytes]) -> None:
        """Send each member the streams of its tablets."""
        replicas = {p: self._members.table.replicas(p) for p in streams}
        for member in sorted({m for slots in replicas.values() for m in slots if m is not None}):
            own_streams = {p: body for p, body in streams.items() if member in replicas[p]}
            self.call(member, "PUT", f"/pieces/{name}", _piece(own_streams))

    # -- the end

    def finish(
        self, pieces: Sequence[Piece], progress: Callable[[int, int], None] = lambda done, all: None
    ) -> LoadResult:
        """Build every tablet's file at all replicas, then apply all of them.

        Invalid rows and repeated keys are therefore found before anything is loaded. `progress` gets
        (completed steps, all steps). Errors that cannot be retried are raised; the load can then be repeated.
        """
        order: dict[int, list[str]] = {}
        for piece in sorted(pieces, key=lambda piece: piece.name):
            for partition in piece.partitions:
                order.setdefault(partition, []).append(piece.name)
        tablets = [_Tablet(self, partition, tuple(names)) for partition, names in sorted(order.items())]
        steps = _Steps(2 * len(tablets), progress)
        with ThreadPoolExecutor(PARALLEL) as pool:
            steps.run(pool, [tablet.stage for tablet in tablets])
            outcomes = steps.run(pool, [tablet.apply for tablet in tablets])
        self.end()
        applied_entries = [loaded.entries for loaded, skipped in outcomes if not skipped]
        return LoadResult(
            self.load,
            len(applied_entries),
            sum(applied_entries),
            len(outcomes) - len(applied_entries) + len(self.done),
        )

    def end(self) -> None:
        """Let the members delete the pieces; otherwise they do so after an hour."""
        for member in self._members.table.members:
            with suppress(SteleError):
                self.call(member.index, "DELETE", "")

    # -- what tablets ask

    @property
    def members(self) -> Members:
        return self._members

    def order(self, generation: int, pieces: tuple[str, ...]) -> BuildOrder:
        """Return the request to build a file from pieces."""
        group = self._group
        return BuildOrder(generation, self._keyspace, len(group), pieces, self._duplicates, first=group.start)

    def fetch(self, generation: int, source: int, crc: int) -> BuildOrder:
        """Return the request to build a file from another member's run."""
        group = self._group
        return BuildOrder(
            generation, self._keyspace, len(group), source=source, crc32c=crc, first=group.start
        )


class _Tablet:
    """One tablet's part of a load."""

    def __init__(self, loader: Loader, partition: int, pieces: tuple[str, ...]) -> None:
        self._loader, self._members = loader, loader.members
        self._partition, self._pieces = partition, pieces
        self._place: LoadPlace | None = None
        self._made: dict[int, LoadManifest] = {}
        self._path = f"/v1/bulk/loads/{loader.load}/partitions/{partition}"

    def stage(self) -> None:
        """Build the files at the owner, at every other replica, and at the destination of a migration."""
        self._patiently(self._stage)

    def apply(self) -> tuple[Loaded, bool]:
        """Apply the load; return the tablet's record of it, and whether it had applied it before."""
        return self._patiently(self._apply)

    def _patiently(self, work: Callable[[], T]) -> T:
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return work()
            except (Stale, Unavailable, Uncertain) as error:
                if time.monotonic() > end:
                    text = error.text
                    raise Unavailable(
                        f"load {self._loader.load}, partition {self._partition}: {text}; repeat the load "
                        "with this id when the cluster has recovered; completed tablets are skipped"
                    ) from error
                time.sleep(AGAIN_SECONDS)
                self._place = None
                with suppress(Unavailable):
                    self._members.refresh()

    def _stage(self) -> LoadPlace:
        place = self._place = self._ask(self._owner())
        if place.loaded is not None:
            return place
        if not place.members:
            raise Stale(f"its owner, member {self._owner()}, is not serving it now", "NOT_OWNER")
        for member in place.members:
            generation = place.generation if member == self._owner() else self._ask(member).generation
            built = self._made.get(member)
            if generation >= 0 and (built is None or built.generation != generation):
                self._made[member] = self._build(member, generation)
        if len({manifest.crc32c for manifest in self._made.values()}) > 1:
            raise Corrupt(f"partition {self._partition}: its replicas built different files for one load")
        return place

    def _owner(self) -> int:
        replicas = self._members.table.replicas(self._partition)
        if not replicas or replicas[0] is None:
            raise Stale("the partition has no owner now", "NOT_OWNER")
        return replicas[0]

    def _ask(self, member: int) -> LoadPlace:
        answer = self._members.call(self._members.admin(member), "GET", self._path)
        return msgspec.json.decode(answer, type=LoadPlace)

    def _build(self, member: int, generation: int) -> LoadManifest:
        try:
            return self._post(member, self._loader.order(generation, self._pieces))
        except Stale as error:
            # The member joined the row after the pieces were sent: it takes the run of one that had them.
            other = next((m for m in self._made if m != member), None)
            if error.code != "NOT_STAGED" or other is None:
                raise
            crc = self._made[other].crc32c
            return self._post(member, self._loader.fetch(generation, other, crc))

    def _post(self, member: int, order: BuildOrder) -> LoadManifest:
        answer = self._loader.call(member, "POST", f"/partitions/{self._partition}", encode_json(order))
        return msgspec.json.decode(answer, type=LoadManifest)

    def _apply(self) -> tuple[Loaded, bool]:
        place = self._place or self._stage()
        if place.loaded is not None:
            return place.loaded, True
        owner = self._owner()
        made = self._made[owner]
        order = LoadOrder(
            place.version, tuple(self._made), made.keyspace, made.entries, made.bytes, made.crc32c
        )
        answer = self._members.call(self._members.admin(owner), "POST", self._path, encode_json(order))
        return msgspec.json.decode(answer, type=Loaded), False


class _Steps:
    """Runs work in threads; the first error ends all of it."""

    def __init__(self, count: int, progress: Callable[[int, int], None]) -> None:
        self._count, self._progress, self._done = count, progress, 0

    def run(self, pool: ThreadPoolExecutor, work: Sequence[Callable[[], T]]) -> list[T]:
        running = [pool.submit(each) for each in work]
        results = []
        try:
            for future in running:
                results.append(future.result())
                self._done += 1
                self._progress(self._done, self._count)
        except BaseException:
            for future in running:
                future.cancel()
            raise
        return results


def _check_row(key: bytes, value: bytes, expire_at_ms: int) -> None:
    if len(key) > KEY_BYTES_MAX:
        raise BadInput(f"a key has {len(key)} bytes; at most {KEY_BYTES_MAX} are allowed", "TOO_LARGE")
    if len(value) > VALUE_BYTES_MAX:
        text = (
            f"the value of key '{text_of(key)}' has {len(value)} bytes; at most {VALUE_BYTES_MAX} are allowed"
        )
        raise BadInput(text, "TOO_LARGE")
    if not 0 <= expire_at_ms <= EXPIRE_AT_MS_MAX:
        raise BadInput(
            f"expire_at of key '{text_of(key)}' is {expire_at_ms}; expected milliseconds since 1970, or 0 "
            "for never"
        )


def _once(entries: list[tuple[bytes, bytes]], duplicates: Duplicates) -> list[tuple[bytes, bytes]]:
    """Return sorted entries with each key's last value. Raises Conflict with a repeated key."""
    last = dict(entries)
    if len(last) == len(entries):
        return entries
    if duplicates == "error":
        repeated = next(key for (key, _), (other, _) in pairwise(entries) if key == other)
        raise Conflict(
            f"key '{text_of(repeated)}' is repeated in the load, and nothing was loaded: "
            "remove the duplicates, or load with duplicates=last",
            "DUPLICATE_KEY",
        )
    return list(last.items())


def _piece(streams: dict[int, bytes]) -> bytes:
    sections, at, crc = [], 0, 0
    for partition, body in streams.items():
        sections.append(Section(partition, at, len(body)))
        at, crc = at + len(body), crc32c(body, crc)
    return b"".join((piece_head(sections, crc), *streams.values()))


# -- exports


def export_groups(members: Members, keyspace: str = "default", at_once: int = 8) -> list[tuple[int, ...]]:
    """Return a keyspace's partitions, in groups of one owner each; about `at_once` groups per member."""
    owned: dict[int, list[int]] = {}
    for partition in members.refresh().group(keyspace):
        owned.setdefault(_owner_of(members, partition), []).append(partition)
    return [
        tuple(numbers[i::at_once])
        for numbers in owned.values()
        for i in range(at_once)
        if numbers[i::at_once]
    ]


def export(
    members: Members, partitions: Sequence[int], keyspace: str = "default"
) -> Iterator[tuple[list[bytes], list[bytes], list[int]]]:
    """Iterate (keys, values, expire_at_ms) of these partitions in batches, without expired entries.

    Each tablet is a consistent snapshot taken after the call, with every write acknowledged before it. If the
    owner changes before a tablet was started, it is read from the new one. Raises Unavailable when an owner
    is unreachable for long, or lost while its tablet is read: repeat the export then.
    """
    check_keyspace(keyspace)
    remaining = list(partitions)
    end = time.monotonic() + PATIENCE_SECONDS
    while remaining:
        owner = _owner_of(members, remaining[0])
        same_owner = [p for p in remaining if _owner_of(members, p) == owner]
        try:
            with _Snapshot(members, owner, tuple(same_owner)) as snapshot:
                for partition in same_owner:
                    yield from snapshot.read(partition, keyspace)
                    remaining.remove(partition)
                    end = time.monotonic() + PATIENCE_SECONDS
        except (Stale, Unavailable) as error:
            if time.monotonic() > end or (isinstance(error, Unavailable) and error.code == "CUT_OFF"):
                raise Unavailable(f"partitions {same_owner}: {error.text}; repeat the export") from error
            time.sleep(AGAIN_SECONDS)
            with suppress(Unavailable):
                members.refresh()


def _owner_of(members: Members, partition: int) -> int:
    replicas = members.table.replicas(partition)
    return -1 if not replicas or replicas[0] is None else replicas[0]


class _Snapshot:
    """A checkpoint at one owner; it ends with the block, or when it is not read for a while."""

    def __init__(self, members: Members, owner: int, partitions: tuple[int, ...]) -> None:
        self._members, self._owner = members, owner
        self._body = encode_json(SnapshotOrder(partitions, SNAPSHOT_SECONDS))
        self._path = f"/v1/bulk/snapshots/{EXPORT_PREFIX}{os.urandom(8).hex()}"
        self._renewed = time.monotonic()

    def __enter__(self) -> "_Snapshot":
        self._info = self._open()
        return self

    def _open(self) -> SessionInfo:
        self._renewed = time.monotonic()
        answer = self._members.call(self._members.admin(self._owner), "POST", self._path, self._body)
        return msgspec.json.decode(answer, type=SessionInfo)

    def __exit__(self, *error: object) -> None:
        with suppress(SteleError):
            self._members.call(self._members.admin(self._owner), "DELETE", self._path)

    def read(self, partition: int, keyspace: str) -> Iterator[tuple[list[bytes], list[bytes], list[int]]]:
        from urllib.parse import quote

        session = f"/v1/bulk/sessions/{self._info.session}"
        path = f"{session}/partitions/{partition}?keyspace={quote(keyspace, safe='')}"
        address, started = self._members.transfer(self._owner), False
        try:
            with self._members.request(address, "GET", path, token=self._info.token) as response:
                for keys, stored in BlockReader(response.read):
                    started = True
                    yield _live(keys, stored)
                    if time.monotonic() - self._renewed > SNAPSHOT_SECONDS / 4:
                        self._open()
        except (Corrupt, Unavailable) as error:
            raise Unavailable(error.text, "CUT_OFF" if started else None) from error


def _live(keys: list[bytes], stored: list[bytes]) -> tuple[list[bytes], list[bytes], list[int]]:
    """Return the entries that have not expired by this machine's clock."""
    now_ms = int(time.time() * 1000)
    never = bytes(EXPIRY_BYTES)
    if all(value.startswith(never) for value in stored):
        return keys, [value[EXPIRY_BYTES:] for value in stored], [0] * len(keys)
    rows = [(key, *unpack_value(value)) for key, value in zip(keys, stored, strict=True)]
    live = [row for row in rows if not 0 < row[2] <= now_ms]
    return [row[0] for row in live], [row[1] for row in live], [row[2] for row in live]
