"""The volume of one member: what is on disk, what would be lost with the power, and what it breaks.

`SimEngine` is the in-memory engine with a write-ahead log that can be torn; `SimVolume` keeps the member's
small files in memory and puts them into a real folder only when a process opens the volume.
"""

import errno
import os
import random
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from crc32c import crc32c

from stele.adapters.memory.engine import MemoryEngine, _Sorted
from stele.errors import Corrupt, Unavailable
from stele.member.storage.volume import (
    CONSENSUS,
    DAMAGED,
    DATA,
    INSTANCE,
    LOG_END,
    SEGMENTS_END,
    SERVICES,
    TABLE_FILE,
    TABLETS,
    Volume,
)
from stele.wire.storage.volume import Consensus, Superblock, decode_file
from tests.fakes.loop import Clock

FREE_BYTES = 1 << 30
NO_ROOM = os.strerror(errno.ENOSPC)
_log_key = struct.Struct(">HQ")
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


@dataclass
class Dropped:
    """Of one partition's log: the first operation that was lost, and when the oldest was written."""

    first: int
    since: float


@dataclass
class _Write:
    """One write to the log that is not synced."""

    at: float
    puts: tuple[tuple[bytes, bytes], ...]
    drops: tuple[tuple[bytes, bytes], ...]


class SimEngine(MemoryEngine):
    """Log writes since the last sync are kept in order, so that a loss of power keeps a part of them.

    `dropped` is what the loss of power before it was opened took, by partition. `has_room` is asked before
    each write: without room it fails as RocksDB does, whose log takes nothing more before it is opened anew.
    """

    def __init__(self, now: Callable[[], float], has_room: Callable[[str], bool] = lambda kind: True) -> None:
        super().__init__()
        self._now, self._has_room = now, has_room
        self._unsynced: list[_Write] = []
        self._log_failed = False
        self.dropped: dict[int, Dropped] = {}

    def _need_room(self) -> None:
        if not self._has_room("data"):
            raise Unavailable(f"database: {NO_ROOM}", "NO_SPACE")

    def write_data(
        self, changes: Sequence[tuple[bytes, bytes | None]], drops: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        self._need_room()
        super().write_data(changes, drops)

    def flush(self) -> None:
        self._need_room()
        super().flush()

    def write_log(
        self, puts: Sequence[tuple[bytes, bytes]], drops: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        self._check_open()
        self._log_failed = self._log_failed or not self._has_room("log")
        if self._log_failed:
            raise Unavailable(f"database: {NO_ROOM}", "NO_SPACE")
        super().write_log(puts, drops)
        self._unsynced.append(_Write(self._now(), tuple(puts), tuple(drops)))

    def sync_log(self) -> None:
        self._check_open()
        for write in self._unsynced:
            _apply(self._synced, write)
        self._unsynced.clear()

    def after_crash(self, *, power_lost: bool, chance: random.Random) -> "SimEngine":
        """What a restart finds: without power, a prefix of the log's writes that were not synced."""
        kept = chance.randint(0, len(self._unsynced)) if power_lost else 0
        for write in self._unsynced[:kept]:
            _apply(self._synced, write)
        log = self._synced if power_lost else self._log
        found = SimEngine(self._now, self._has_room)
        for write in self._unsynced[kept:] if power_lost else ():
            found.note_dropped(write)
        found._log, found._synced = _Sorted(log.values), _Sorted(log.values)
        found._data, found._flushed = _Sorted(self._flushed.values), _Sorted(self._flushed.values)
        found.checkpoints = self.checkpoints
        return found

    def note_dropped(self, write: _Write) -> None:
        """Writes come in the order of their time; what is no operation of a tablet is nobody's loss."""
        for key, _ in write.puts:
            if len(key) != _log_key.size:
                continue
            partition, index = _log_key.unpack(key)
            known = self.dropped.setdefault(partition, Dropped(index, write.at))
            known.first = min(known.first, index)

    def make_file(self, path: str, entries: Sequence[tuple[bytes, bytes]]) -> None:
        self._check_open()
        Path(path).write_bytes(pack_file(list(entries))[0])

    def file_bounds(self, paths: Sequence[str]) -> list[tuple[bytes, bytes]]:
        try:
            found = [_unpack(Path(path).read_bytes()) for path in paths]
        except FileNotFoundError as error:
            raise Corrupt(str(error)) from error
        return [(entries[0][0], entries[-1][0]) for entries in found]

    def ingest(self, paths: Sequence[str]) -> None:
        """The files are what `pack_file` made. All of them are taken in, or none."""
        self._check_open()
        self._need_room()
        missing = [path for path in paths if not Path(path).exists()]
        if missing:
            raise Unavailable(f"SST files could not be ingested: {missing[0]} is not there")
        for path in paths:
            super().write_data(_unpack(Path(path).read_bytes()))
            Path(path).unlink()
        super().flush()


def _apply(target: _Sorted, write: _Write) -> None:
    for begin, end in write.drops:
        target.drop(begin, end)
    for key, value in write.puts:
        target.put(key, value)


def pack_file(entries: list[tuple[bytes, bytes]]) -> tuple[bytes, int]:
    """The content that stands for an SST file, and its crc32c."""
    content = _pack(entries)
    return content, crc32c(content)


class Disk:
    """One volume. `failing_part` of its slow work may fail for a while, and `refused_part` of its writes of
    the kinds in `refused` (log, data, files) find no room; `free_bytes` is what it says is free.

    `noticed` counts writes without room.
    """

    def __init__(self, root: Path, clock: Clock) -> None:
        self.root, self.chance = root, clock.random
        self.now: Callable[[], float] = lambda: clock.now
        self.files: dict[str, bytes] = {}
        self.free_bytes = FREE_BYTES
        self.failing_part = self.refused_part = 0.0
        self.refused: tuple[str, ...] = ()
        self.noticed: Counter[str] = Counter()
        self.engine = SimEngine(self.now, self.has_room)
        self.opened = 0
        self.saved: Callable[[str, bytes, bytes | None], None] = lambda name, content, before: None

    def open(self) -> "SimVolume":
        """The folder as a process finds it: staging and checkpoints stay, files are the synced ones."""
        self.opened += 1
        volume = SimVolume(self)
        volume.create_folders()
        for name in (TABLETS, CONSENSUS):
            for path in volume.path(name).iterdir():
                path.unlink()
        for name, content in self.files.items():
            volume.path(name).write_bytes(content)
        return volume

    def has_room(self, kind: str) -> bool:
        """Whether the next write of that kind finds room."""
        if kind not in self.refused or self.chance.random() >= self.refused_part:
            return True
        self.noticed[f"{kind} without room"] += 1
        return False

    def need_room(self, size: int = 0) -> None:
        """Raise what the operating system says when so many bytes of files find no room."""
        if size > self.free_bytes or not self.has_room("files"):
            raise OSError(errno.ENOSPC, NO_ROOM)

    def before_slow(self, work: Callable[[], object]) -> None:
        """Sometimes the disk answers with an error, before or instead of the work."""
        if self.failing_part and self.chance.random() < self.failing_part:
            raise OSError(errno.EIO, "simulated error of the disk")

    def crash(self, begun: Sequence[Callable[[], object]], *, power_lost: bool) -> None:
        """The process died: slow work that had begun came true, did not, or in part."""
        for work in begun:
            self._maybe(work)
        self.opened += 1
        self.engine = self.engine.after_crash(power_lost=power_lost, chance=self.chance)

    def _maybe(self, work: Callable[[], object]) -> None:
        function = getattr(work, "func", None)
        if getattr(function, "__func__", None) is SimVolume.write:
            assert isinstance(work, partial)
            files = work.args[0]
            self.files.update({n: c for n, c in files.items() if self.chance.random() < 0.5})
        elif self.chance.random() < 0.5:
            # Whatever it raises, nobody hears of it any more.
            with suppress(Exception):
                work()

    def wipe(self) -> None:
        """Another, empty volume in its place."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.files, self.engine = {}, SimEngine(self.now, self.has_room)

    def block_of(self, partition: int) -> Superblock | None:
        """The superblock on disk; None when there is none that can be read."""
        content = self.files.get(f"{TABLETS}/{partition}")
        try:
            return None if content is None else decode_file(Superblock, content, "superblock")
        except Corrupt:
            return None

    def state_of(self, partition: int) -> str:
        """What the superblock on disk says; empty when there is none that can be read."""
        block = self.block_of(partition)
        return "" if block is None else block.state

    def consensus_of(self, partition: int) -> Consensus:
        """What the member promised, on disk."""
        content = self.files.get(f"{CONSENSUS}/{partition}")
        return Consensus() if content is None else decode_file(Consensus, content, "consensus")

    def flip(self, names: Sequence[str]) -> str:
        """One bit of some file is wrong from now on; which."""
        name = self.chance.choice(names)
        content = bytearray(self.files[name])
        content[self.chance.randrange(len(content))] ^= 1 << self.chance.randrange(8)
        self.files[name] = bytes(content)
        return name


class SimVolume(Volume):
    """Writes go to the disk's memory at once: each file whole, as after its rename was synced."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.root)
        self._disk, self._number = disk, disk.opened

    def make_database(self) -> None:
        """What RocksDB leaves in its folder, as far as anybody looks."""
        self.path(DATA).mkdir(exist_ok=True)
        (self.path(DATA) / "CURRENT").touch()

    def write(self, files: dict[str, bytes]) -> None:
        if self._number != self._disk.opened:
            # The process that asks for it is no more.
            return
        # All are written aside before the first takes the place of another.
        self._disk.need_room(sum(map(len, files.values())))
        for name, content in files.items():
            self._disk.saved(name, content, self._disk.files.get(name))
            self._disk.files[name] = content

    def quarantine_volume(self, reason: str) -> Path:
        """All of the member's state goes, as in the product."""
        self._disk.files.clear()
        self._disk.engine = SimEngine(self._disk.now, self._disk.has_room)
        for name in (INSTANCE, TABLE_FILE, LOG_END, SEGMENTS_END, SERVICES, DAMAGED, f"{DATA}/CURRENT"):
            self.path(name).unlink(missing_ok=True)
        for folder in (TABLETS, CONSENSUS):
            for path in self.path(folder).iterdir():
                path.unlink()
        return self.root

    def free_bytes(self) -> int:
        return self._disk.free_bytes
