"""The source's side of a copy: streams of blocks from a member's checkpoint, opened read-only."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from rocksdict import AccessType, Options, Rdict, ReadOptions

from stele.core.control.commands import SessionTablet
from stele.core.copy.pacing import PIECE_BYTES_MAX
from stele.errors import BadInput, Corrupt, Stale, Unavailable
from stele.wire.copy.blocks import End, Entry, encode_stream
from stele.wire.copy.fragments import FIRST, Planned, Range, place_text, plan, read_place, whole
from stele.wire.copy.jobs import SessionFile, stream_file
from stele.wire.storage.keys import meta_key
from stele.wire.storage.volume import APPLIED, decode_state
from stele.wire.unreadable import UNREADABLE

COLUMN_FAMILIES = ("log", "data")
READAHEAD_BYTES = 256 * 1024
OPEN_FILES_MAX = 64
"""Files of one checkpoint."""
PLANS_MAX = 256
"""Tablets of one checkpoint whose fragments are cached while they are copied."""

_decode = msgspec.json.Decoder(SessionFile).decode


def read_session(folder: Path) -> SessionFile | None:
    """Read `session.json` of `checkpoints/<session>`; None when there is no such session (any more)."""
    try:
        return _decode((folder / "session.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UNREADABLE as wrong:
        raise Corrupt(f"{folder.name}/session.json: {wrong}") from None


class Checkpoint:
    """One open checkpoint. Any number of threads may read it; `close` only when none does."""

    def __init__(self, folder: Path) -> None:
        """Open the checkpoint. Raises Unavailable when RocksDB cannot."""
        options, families = Options(raw_mode=True), {name: Options(raw_mode=True) for name in COLUMN_FAMILIES}
        # By default all files are opened, by 16 threads that start for it: most sessions read few.
        options.set_max_open_files(OPEN_FILES_MAX)
        options.set_max_file_opening_threads(1)
        mode = AccessType.read_only(error_if_log_file_exist=False)
        path = str(folder / "db")
        try:
            self._db = Rdict(path, options, column_families=families, access_type=mode)
        except Exception as error:  # rocksdict raises bare Exception
            raise Unavailable(f"checkpoint {folder.name} cannot be opened: {error}", "SOURCE") from error
        self._data = self._db.get_column_family("data")
        self._plans: dict[tuple[int, int], list[Planned]] = {}

    def entries(self, planned: Planned, after: bytes = b"") -> Iterator[Entry]:
        """Iterate the entries of a fragment from key `after`, ascending. Raises Corrupt for a damaged block.

        rocksdict's `items()` ends silently at a damaged block; only `status()` of its iterator reveals it.
        """
        for begin, end in planned.ranges:
            if after < end:
                yield from self.range(max(begin, after), end)

    def range(self, begin: bytes, end: bytes) -> Iterator[Entry]:
        """Iterate the entries of [begin, end), all of one partition; see `entries`."""
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        options.set_readahead_size(READAHEAD_BYTES)
        # Each block is read once, so caching costs more than it saves.
        options.fill_cache(False)  # type: ignore[call-arg]
        iterator = self._data.iter(options)
        iterator.seek(begin)
        while iterator.valid():
            yield iterator.key(), iterator.value()
            iterator.next()
        try:
            iterator.status()
        except Exception as error:  # rocksdict raises bare Exception
            partition = int.from_bytes(begin[:2], "big")
            raise Corrupt(f"checkpoint, partition {partition}: {error}") from error

    def blocks(
        self, tablet: SessionTablet, at: str = "", piece_bytes: int = PIECE_BYTES_MAX
    ) -> Iterator[bytearray]:
        """Return the stream of one piece of a fragment from `at`, or of the whole tablet when it is empty.

        Raises BadInput for a position that the tablet does not have.
        """
        if not at:
            planned = whole(tablet.partition, tablet.generation, self._keyspaces(tablet))
            return encode_planned(tablet, planned, self.entries(planned), lambda: "")
        number, key = read_place(at)
        plan = self._plan(tablet)
        if number >= len(plan) or (key and not any(b <= key < e for b, e in plan[number].ranges)):
            raise BadInput(f"at is '{at[:80]}', and partition {tablet.partition} has no such position")
        piece = _Piece(self.entries(plan[number], key), piece_bytes)
        following = "" if number + 1 == len(plan) else place_text(number + 1)
        return encode_planned(tablet, plan[number], piece, lambda: piece.next_place(number) or following)

    def _plan(self, tablet: SessionTablet) -> list[Planned]:
        """Return the tablet's fragments; only large tablets are cached, since small ones are requested
        once."""
        cached = self._plans.get((tablet.partition, tablet.generation))
        if cached is not None:
            return cached
        fragments = plan(tablet.partition, tablet.generation, self._keyspaces(tablet))
        fragments = [Planned(fragment.namespaces, self._filled(fragment.ranges)) for fragment in fragments]
        if len(fragments) > 1:
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            self._plans[tablet.partition, tablet.generation] = fragments
        return fragments

    def _filled(self, ranges: tuple[Range, ...]) -> tuple[Range, ...]:
        """Return the ranges that hold entries; most gaps between keyspaces hold none."""
        if len(ranges) == 1:
            return ranges
        iterator = self._data.iter(ReadOptions())
        return tuple(key_range for key_range in ranges if _holds(iterator, *key_range))

    def _keyspaces(self, tablet: SessionTablet) -> dict[bytes, tuple[int, int]]:
        try:
            stored = self._data.get(meta_key(tablet.partition, tablet.generation, APPLIED))
        except Exception as error:  # rocksdict raises bare Exception
            raise Corrupt(f"checkpoint, partition {tablet.partition}: {error}") from error
        return {} if stored is None else decode_state(stored).keyspaces

    def close(self) -> None:
        """Close the files, which frees the disk space of a removed session."""
        self._db.close()


def encode_planned(
    tablet: SessionTablet, planned: Planned, entries: Iterable[Entry], following: Callable[[], str]
) -> Iterator[bytearray]:
    """Encode a fragment or a piece of one. `following` says, after `entries`, where the tablet continues."""
    namespaces = {name.decode(): tablet.versions for name in planned.namespaces}

    def end(count: int, size: int) -> End:
        where = following()
        applied = None if where else tablet.applied
        return End(tablet.partition, tablet.generation, applied, count, size, namespaces, where)

    return encode_stream(entries, end)


def _holds(iterator: Any, begin: bytes, end: bytes) -> bool:
    """Return whether a key is in the range. A disk error surfaces when the range is read."""
    iterator.seek(begin)
    return not iterator.valid() or bool(iterator.key() < end)


class StoredStreams:
    """The streams of small tablets, which the member wrote when it opened the session, each whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def blocks(
        self, tablet: SessionTablet, at: str = "", piece_bytes: int = PIECE_BYTES_MAX
    ) -> Iterator[bytearray]:
        """Return the stream of the tablet, which is one fragment, in one piece.

        Raises BadInput for any other position, and, when it is iterated, Unavailable after the session's end.
        """
        if at not in ("", FIRST):
            raise BadInput(f"at is '{at[:80]}', and partition {tablet.partition} is one piece, '{FIRST}'")
        return self._read(tablet)

    def _read(self, tablet: SessionTablet) -> Iterator[bytearray]:
        try:
            content = (self._folder / stream_file(tablet.partition, tablet.generation)).read_bytes()
        except OSError as error:
            raise Unavailable(f"partition {tablet.partition} cannot be read: {error}", "SOURCE") from error
        yield bytearray(content)

    def close(self) -> None:
        """Nothing stays open."""


def open_snapshot(folder: Path) -> Checkpoint | StoredStreams:
    """Open what a session serves. Raises Unavailable."""
    return Checkpoint(folder) if (folder / "db").exists() else StoredStreams(folder)


class _Piece:
    """Entries up to about `bytes_max`, and the key with which the rest begins."""

    def __init__(self, entries: Iterator[Entry], bytes_max: int) -> None:
        self._entries, self._bytes_max = entries, bytes_max
        self._next = b""

    def __iter__(self) -> Iterator[Entry]:
        size = 0
        for key, value in self._entries:
            if size >= self._bytes_max:
                self._next = key
                return
            size += len(key) + len(value)
            yield key, value

    def next_place(self, fragment: int) -> str:
        """Return the position of the rest, empty for none. Valid after all entries were taken."""
        return place_text(fragment, self._next) if self._next else ""


def find_tablet(session: SessionFile, partition: int, generation: int) -> SessionTablet | None:
    """Return the tablet, None when the session lacks it. Raises Stale when its generation differs."""
    for tablet in session.tablets:
        if tablet.partition == partition:
            if tablet.generation != generation:
                has = f"generation {tablet.generation}, not {generation}"
                raise Stale(f"session {session.session} holds partition {partition} in {has}")
            return tablet
    return None
