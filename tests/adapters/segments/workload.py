"""A log in segments beside a model of it, and random calls to both."""

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from stele.adapters.segments import log as module
from stele.adapters.segments.log import SegmentedLog
from stele.wire.storage.keys import log_key, split_log_key
from tests.adapters.segments.disk import Progress

State = dict[bytes, bytes]
"""Records by key."""
Pairs = list[tuple[bytes, bytes]]

PARTITIONS = 6
OFTEN = (40, 20, 5, 1, 1, 1)
"""How often each partition is written to."""
INDEX_MAX = (1 << 63) - 1
ALL_BYTES = 1 << 40
OVERHEAD_BYTES = 40
"""More than a frame of one operation has besides its record."""


def small_limits(patch: pytest.MonkeyPatch) -> None:
    """Let a few operations fill a segment, and a few segments be too many."""
    for name, size in (("SEGMENT", 250), ("CLEAN", 1500), ("MOVE", 60)):
        patch.setattr(module, f"{name}_BYTES", size)
    patch.setattr(module, "PIECE_BYTES_MAX", 150)


def without_waiting(patch: pytest.MonkeyPatch) -> None:
    """Let a sync need no time."""
    patch.setattr(os, "fsync", lambda handle: None)
    patch.setattr(os, "fdatasync", lambda handle: None)


def keys_from(partition: int, first: int = 0, after: int = INDEX_MAX) -> tuple[bytes, bytes]:
    """Return a range of a partition's keys."""
    return log_key(partition, first), log_key(partition, after)


def content(log: SegmentedLog) -> State:
    """Return all operations of a log."""
    found = [log.scan(*keys_from(partition), ALL_BYTES) for partition in range(PARTITIONS)]
    return {key: record for page in found for key, record in page}


def applied(state: State, puts: Sequence[tuple[bytes, bytes]], drops: Sequence[tuple[bytes, bytes]]) -> State:
    """Return what the contract says that there is after a write."""
    after = {key: record for key, record in state.items() if not any(a <= key < b for a, b in drops)}
    for key, record in puts:
        after[key] = record
    return after


class Workload:
    """Calls to a log. `states` are those of the model after each write, the first one before all."""

    def __init__(self, folder: Path, chance: random.Random, made: type[SegmentedLog] = SegmentedLog) -> None:
        self.folder, self.chance, self.made = folder, chance, made
        self.states: list[State] = [{}]
        self.synced = 0
        self.writing = False
        self.log = made(folder)

    @property
    def state(self) -> State:
        return self.states[-1]

    def indexes(self, partition: int) -> list[int]:
        """Return the indexes of a partition's operations, in order."""
        return sorted(index for number, index in map(split_log_key, self.state) if number == partition)

    def write(self, puts: Pairs, drops: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.states.append(applied(self.state, puts, drops))
        self.writing = True
        self.log.write(puts, drops)
        self.writing = False

    def sync(self) -> None:
        written = len(self.states) - 1
        self.log.sync()
        self.synced = written

    def reopen(self) -> None:
        self.log.close()
        self.synced = len(self.states) - 1
        self.log = self.made(self.folder)

    def progress(self) -> Progress:
        newest = len(self.states) - 1
        return Progress(self.synced, newest - self.writing, newest)

    # -- by chance

    def record(self) -> bytes:
        return b"%d " % len(self.states) + bytes(self.chance.randint(0, 60))

    def puts(self, partition: int, first: int) -> Pairs:
        """Return operations that follow each other."""
        count = self.chance.choice((1, 1, 2, 4))
        return [(log_key(partition, first + n), self.record()) for n in range(count)]

    def append(self) -> None:
        """Write operations of one partition or of several, often one after a cut or in place of all."""
        puts: Pairs = []
        drops: Pairs = []
        for partition in set(self.chance.choices(range(PARTITIONS), OFTEN, k=self.chance.choice((1, 1, 3)))):
            there = self.indexes(partition)
            first = there[-1] + 1 if there else self.chance.randint(1, 9)
            if there and self.chance.random() < 0.15:
                first = self.chance.choice(there)
                drops.append(keys_from(partition, first))
            puts += self.puts(partition, first)
        self.write(puts, drops)

    def trim(self) -> None:
        """Drop the first operations of a partition that has many, seldom of another."""
        partition = self.chance.choices(range(PARTITIONS), OFTEN)[0]
        if there := self.indexes(partition):
            self.write([], [keys_from(partition, 0, self.chance.choice(there[-5:]))])

    def clear(self) -> None:
        partition = self.chance.choices(range(PARTITIONS), OFTEN)[0]
        self.write([], [keys_from(partition)])

    def step(self) -> None:
        """Do one thing."""
        does = (self.append, self.trim, self.clear, self.sync, self.reopen)
        self.chance.choices(does, (60, 35, 2, 60, 3))[0]()

    # -- checks

    def check(self) -> None:
        """Check that the log has what the model has, whatever way it is asked."""
        assert content(self.log) == self.state
        for partition in range(PARTITIONS):
            self._check_partition(partition)

    def _check_partition(self, partition: int) -> None:
        there = self.indexes(partition)
        bounds = (log_key(partition, there[0]), log_key(partition, there[-1])) if there else None
        assert self.log.bounds(*keys_from(partition)) == bounds
        first = self.chance.choice(there) if there else 3
        begin, end = keys_from(partition, first, first + self.chance.randint(0, 9))
        inside = [(key, self.state[key]) for key in sorted(self.state) if begin <= key < end]
        assert self.log.bounds(begin, end) == ((inside[0][0], inside[-1][0]) if inside else None)
        bytes_max = self.chance.randint(1, 200)
        assert self.log.scan(begin, end, bytes_max) == list(up_to(inside, bytes_max))
        assert self.log.get(begin) == self.state.get(begin)

    def most_bytes(self) -> int:
        """Return what the files may have at most after a sync: what was dropped goes within some writes."""
        recent = self.states[-40:]
        live = max(sum(len(record) + OVERHEAD_BYTES for record in state.values()) for state in recent)
        return 2 * live + module.CLEAN_BYTES + 4 * module.SEGMENT_BYTES

    def bytes_on_disk(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir())


def up_to(pairs: Pairs, bytes_max: int) -> Iterator[tuple[bytes, bytes]]:
    """Iterate pairs up to the one that reaches so many bytes of records."""
    for key, record in pairs:
        yield key, record
        bytes_max -= len(record)
        if bytes_max <= 0:
            return
