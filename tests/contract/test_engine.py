"""One suite for every engine: the member's safety rests on these rules."""

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, SstFileWriter

from stele.adapters.memory.engine import MemoryEngine
from stele.adapters.rocksdb.engine import RocksEngine, RocksReader
from stele.adapters.rocksdb.family_log import FamilyLog
from stele.adapters.segments import files as segment_files
from stele.adapters.segments.files import FOLDER
from stele.adapters.segments.log import SegmentedLog
from stele.core.formats import FIRST, LOG_SEGMENTS
from stele.errors import Corrupt, Unavailable
from stele.member.replication.stored_log import log_range
from stele.member.storage.write_back import WriteBack
from stele.ports.engine import Engine
from stele.wire.storage.keys import log_key, next_log_key
from tests.fakes.disk import SimEngine

P, Q = 1, 2
"""Partitions."""


def op(index: int, partition: int = P) -> bytes:
    """The key of an operation."""
    return log_key(partition, index)


ALL = log_range(P)


class Case:
    """An engine, and what a restart after a crash, or a loss of power, would find.

    `sizes` are those of the log's files, in the folders `logs`, when they were last synced.
    """

    def __init__(self, engine: Engine, restart: Callable[["Case", bool], Engine]) -> None:
        self.engine = engine
        self.sizes: dict[str, int] = {}
        self.logs: tuple[Path, ...] = ()
        self._restart = restart

    def sync_log(self) -> None:
        self.sizes = {path.name: path.stat().st_size for folder in self.logs for path in log_files(folder)}
        self.engine.sync_log()

    def restart(self, *, power_lost: bool = False) -> Engine:
        self.engine = self._restart(self, power_lost)
        return self.engine


def now_and_restarted(case: Case) -> Iterator[Engine]:
    """The engine, and what is there after a crash."""
    yield case.engine
    yield case.restart()


def log_files(folder: Path) -> list[Path]:
    """The files of a log in segments, or of RocksDB's."""
    return [*folder.glob("*.log"), *folder.glob("*.seg")]


def simulated(case: Case) -> SimEngine:
    assert isinstance(case.engine, SimEngine)
    return case.engine


def crashed_files(root: Path) -> Path:
    """Copy the files as a killed process would leave them."""
    there = root / f"after{len(list(root.iterdir()))}"
    for name in ("data", "wals", FOLDER):
        if (root / name).exists():
            (there / name).mkdir(parents=True)
            for file in (root / name).iterdir():
                if file.name != "LOCK":
                    (there / name / file.name).write_bytes(file.read_bytes())
    return there


def crash_rocks(case: Case, power_lost: bool, root: Path) -> Engine:
    """What a killed process leaves, or a loss of power: the log as it was synced."""
    there = crashed_files(root)
    for folder in (there / "wals", there / FOLDER) if power_lost else ():
        for file in log_files(folder):
            os.truncate(file, min(file.stat().st_size, case.sizes.get(file.name, 0)))
    case.engine.close()
    return RocksEngine(there / "data", there / "wals")


class LeastKept(random.Random):
    """Of what was not synced a loss of power leaves nothing."""

    def randint(self, a: int, b: int) -> int:
        return a


@pytest.fixture(params=["memory", "simulated", "rocksdb", "segments", "written back"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    if request.param == "memory":
        fake = MemoryEngine()
        yield Case(fake, lambda case, power_lost: fake.crashed(power_lost=power_lost))
        return
    if request.param == "simulated":
        start = SimEngine(lambda: 0.0)
        yield Case(start, lambda case, lost: simulated(case).after_crash(power_lost=lost, chance=LeastKept()))
        return
    if request.param == "written back":
        memory = MemoryEngine()
        yield Case(WriteBack(memory), lambda case, lost: WriteBack(memory.crashed(power_lost=lost)))
        return
    engine = RocksEngine(tmp_path / "data", tmp_path / "wals")
    made = Case(engine, lambda case, power_lost: crash_rocks(case, power_lost, tmp_path))
    made.logs = (tmp_path / "wals",)
    if request.param == "segments":
        engine.move_log()
        # From here on RocksDB's log holds nothing that is needed.
        made.logs = (tmp_path / FOLDER,)
        made.sizes = {path.name: path.stat().st_size for path in log_files(tmp_path / FOLDER)}
    yield made
    made.engine.close()


def test_reads_what_was_written(case: Case) -> None:
    case.engine.write_data([(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (b"c", None)])
    assert [case.engine.get(key) for key in (b"a", b"b", b"c", b"d")] == [b"3", b"2", None, None]
    assert case.engine.scan(b"a", b"z", 10) == [(b"a", b"3"), (b"b", b"2")]
    assert case.engine.scan(b"a", b"b", 10) == [(b"a", b"3")]
    assert case.engine.scan(b"a", b"z", 0) == []
    assert case.engine.scan(b"a", b"z", 10, 2) == [(b"a", b"3")], "ends with the entry that reaches the bytes"
    assert case.engine.scan(b"a", b"z", 10, 3) == [(b"a", b"3"), (b"b", b"2")]


T = b"tablet"
"""What the keys of one tablet begin with."""


def test_ranges_are_dropped_before_the_changes_of_the_same_write(case: Case) -> None:
    case.engine.write_data([(T + bytes((n,)), b"old") for n in range(5)])
    case.engine.write_data([(T + b"\1", b"new"), (T, None)], [(T, T + b"\2"), (T + b"\3", T + b"\4")])
    assert case.engine.scan(T, T + b"\7", 9) == [
        (T + b"\1", b"new"),
        (T + b"\2", b"old"),
        (T + b"\4", b"old"),
    ]
    assert [case.engine.get(T + bytes((n,))) for n in range(5)] == [None, b"new", b"old", None, b"old"]
    case.engine.write_data([(T + b"\3", b"again")])
    assert case.engine.get(T + b"\3") == b"again"


@pytest.mark.parametrize("flushed", [False, True])
def test_a_dropped_range_and_its_changes_survive_as_one(case: Case, flushed: bool) -> None:
    case.engine.write_data([(T + b"a", b"1"), (T + b"b", b"1")])
    case.engine.flush()
    case.engine.write_data([(T + b"s", b"after")], [(T + b"a", T + b"b")])
    if flushed:
        case.engine.flush()
    after = case.restart(power_lost=True)
    assert (after.get(T + b"a"), after.get(T + b"s")) == ((None, b"after") if flushed else (b"1", None))
    assert after.get(T + b"b") == b"1"


def test_last_key_stays_inside_the_range(case: Case) -> None:
    case.engine.write_data([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    assert case.engine.last_key(b"a", b"c") == b"b"
    assert case.engine.last_key(b"b1", b"c") is None
    assert case.engine.last_key(b"x", b"z") is None


def test_a_view_does_not_see_later_writes(case: Case) -> None:
    case.engine.write_data([(b"a", b"1")])
    view = case.engine.view()
    case.engine.write_data([(b"a", b"2"), (b"b", b"3")])
    assert view.get(b"a") == b"1"
    assert view.get(b"b") is None
    assert view.scan(b"a", b"z", 9) == [(b"a", b"1")]
    view.close()


def test_log_is_scanned_in_order_and_by_size(case: Case) -> None:
    case.engine.write_log([(op(n), bytes(10)) for n in range(5)])
    assert case.engine.log_bounds(*ALL) == (op(0), op(4))
    assert [key for key, _ in case.engine.scan_log(op(1), ALL[1], 25)] == [op(1), op(2), op(3)]
    assert case.engine.log_bounds(op(1), op(3)) == (op(1), op(2))
    assert case.engine.log_bounds(op(5), ALL[1]) is None
    assert case.engine.log_bounds(*log_range(Q)) is None


def test_drops_come_before_puts(case: Case) -> None:
    case.engine.write_log([(op(1), b"old"), (op(2), b"old")])
    case.engine.write_log([(op(1), b"new")], [ALL])
    assert case.engine.scan_log(*ALL, 100) == [(op(1), b"new")]
    assert case.engine.get_log(op(2)) is None


@pytest.mark.parametrize("index", [1, 2, 4])
@pytest.mark.parametrize("case", ["memory", "simulated", "segments", "written back"], indirect=True)
def test_an_operation_that_does_not_follow_the_last_one_is_refused(case: Case, index: int) -> None:
    """Not by RocksDB's family of format 1, which takes any key."""
    case.engine.write_log([(op(1), b"first"), (op(2), b"second")])
    with pytest.raises(Corrupt, match="log of partition"):
        case.engine.write_log([(op(index), b"other")])
    assert case.engine.scan_log(*ALL, 100) == [(op(1), b"first"), (op(2), b"second")]
    case.engine.write_log([(op(9), b"begins")], [ALL])
    assert case.engine.scan_log(*ALL, 100) == [(op(9), b"begins")]


def test_a_dead_process_keeps_its_log_and_the_flushed_prefix_of_data(case: Case) -> None:
    case.engine.write_data([(b"a", b"1")])
    case.engine.flush()
    case.engine.write_log([(op(1), b"op")])
    case.engine.write_data([(b"a", b"2"), (b"b", b"2")])
    found = case.restart()
    assert found.get_log(op(1)) == b"op"
    assert (found.get(b"a"), found.get(b"b")) == (b"1", None)


def test_drop_data_removes_only_its_range(case: Case) -> None:
    case.engine.write_data([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    case.engine.drop_data(b"a", b"c")
    assert case.engine.scan(b"a", b"z", 9) == [(b"c", b"3")]
    case.engine.flush()
    assert case.restart().scan(b"a", b"z", 9) == [(b"c", b"3")]


def test_a_loss_of_power_takes_what_was_not_synced_and_nothing_else(case: Case) -> None:
    case.engine.write_log([(op(1), b"1")])
    case.engine.write_data([(b"k", b"flushed")])
    case.engine.flush()
    case.sync_log()
    case.engine.write_log([(op(2), b"2"), (op(1, Q), b"3")])
    case.engine.write_data([(b"k", b"in memory")])
    found = case.restart(power_lost=True)
    assert found.scan_log(*ALL, 99) == [(op(1), b"1")]
    assert found.log_bounds(*log_range(Q)) is None
    assert found.get(b"k") == b"flushed"


def test_the_front_of_a_log_stays_dropped(case: Case) -> None:
    case.engine.write_log([(op(n), b"op") for n in range(5)])
    case.engine.write_log([], [(ALL[0], op(3))])
    for engine in now_and_restarted(case):
        assert engine.log_bounds(*ALL) == (op(3), op(4))
        assert engine.get_log(op(2)) is None


def test_the_end_of_a_log_is_taken_back_and_written_anew(case: Case) -> None:
    case.engine.write_log([(op(n), b"old") for n in range(1, 6)])
    case.engine.write_log([(op(3), b"new")], [(op(3), ALL[1])])
    case.engine.write_log([(op(4), b"new")])
    for engine in now_and_restarted(case):
        expected = [(op(1), b"old"), (op(2), b"old"), (op(3), b"new"), (op(4), b"new")]
        assert engine.scan_log(*ALL, 99) == expected


def test_a_dropped_log_has_no_bounds(case: Case) -> None:
    case.engine.write_log([(op(1), b"op"), (op(1, Q), b"other")])
    case.engine.write_log([], [ALL])
    assert case.engine.log_bounds(*ALL) is None
    assert case.engine.log_bounds(*log_range(Q)) == (op(1, Q), op(1, Q))
    assert case.restart().log_bounds(*ALL) is None


def test_a_scan_of_the_log_gives_one_entry_whatever_its_size(case: Case) -> None:
    case.engine.write_log([(op(1), bytes(1000)), (op(2), bytes(1000))])
    assert [key for key, _ in case.engine.scan_log(*ALL, 1)] == [op(1)]


def test_a_view_keeps_what_is_dropped_later(case: Case) -> None:
    case.engine.write_data([(b"a", b"1"), (b"b", b"2")])
    view = case.engine.view()
    case.engine.drop_data(b"a", b"z")
    assert case.engine.scan(b"a", b"z", 9) == []
    assert view.scan(b"a", b"z", 9) == [(b"a", b"1"), (b"b", b"2")]
    view.close()


def test_what_was_dropped_and_written_again_is_there(case: Case) -> None:
    case.engine.write_data([(b"a", b"old"), (b"b", b"old")])
    case.engine.flush()
    case.engine.drop_data(b"a", b"c")
    case.engine.write_data([(b"a", b"new")])
    case.engine.flush()
    for engine in now_and_restarted(case):
        assert (engine.get(b"a"), engine.get(b"b")) == (b"new", None)


def test_a_checkpoint_stays_as_it_was_and_outlives_the_process(case: Case, tmp_path: Path) -> None:
    path = str(tmp_path / "point")
    case.engine.write_data([(b"a", b"1")])
    case.engine.checkpoint(path)
    case.engine.write_data([(b"a", b"2"), (b"b", b"2")])
    for engine in now_and_restarted(case):
        reader = engine.open_checkpoint(path)
        assert (reader.get(b"a"), reader.scan(b"a", b"z", 9)) == (b"1", [(b"a", b"1")])
        reader.close()


def test_files_that_were_made_are_taken_in_for_good_and_are_gone(case: Case, tmp_path: Path) -> None:
    case.engine.write_data([(b"a", b"old"), (b"c", b"kept")])
    paths = [str(tmp_path / name) for name in ("one.sst", "two.sst")]
    case.engine.make_file(paths[0], [(b"a", b"1"), (b"b", b"2")])
    case.engine.make_file(paths[1], [(b"d", b"3")])
    case.engine.ingest(paths)
    expected = [(b"a", b"1"), (b"b", b"2"), (b"c", b"kept"), (b"d", b"3")]
    assert case.engine.scan(b"a", b"z", 9) == expected
    with pytest.raises(Unavailable):
        case.engine.ingest(paths[:1])
    case.engine.flush()
    assert case.restart(power_lost=True).scan(b"a", b"z", 9) == expected


def test_of_files_that_are_not_all_there_none_is_taken_in(case: Case, tmp_path: Path) -> None:
    path = str(tmp_path / "one.sst")
    case.engine.make_file(path, [(b"a", b"1")])
    with pytest.raises(Unavailable):
        case.engine.ingest([path, str(tmp_path / "two.sst")])
    assert case.engine.get(b"a") is None
    case.engine.ingest([path])
    assert case.engine.get(b"a") == b"1"


USES: list[Callable[[Engine], object]] = [
    lambda engine: engine.get(b"a"),
    lambda engine: engine.scan(b"a", b"z", 9),
    lambda engine: engine.last_key(b"a", b"z"),
    lambda engine: engine.write_data([(b"a", b"2")]),
    lambda engine: engine.drop_data(b"a", b"z"),
    lambda engine: engine.view(),
    lambda engine: engine.write_log([(op(1), b"op")]),
    lambda engine: engine.write_log([], [ALL]),
    lambda engine: engine.get_log(op(1)),
    lambda engine: engine.scan_log(*ALL, 9),
    lambda engine: engine.log_bounds(*ALL),
    lambda engine: engine.sync_log(),
    lambda engine: engine.flush(),
    lambda engine: engine.checkpoint("/never/made"),
    lambda engine: engine.open_checkpoint("/never/made"),
    lambda engine: engine.make_file("/never/made", [(b"a", b"1")]),
    lambda engine: engine.ingest([]),
]


def test_whoever_uses_it_once_it_is_closed_is_told_so(case: Case) -> None:
    case.engine.write_data([(b"a", b"1")])
    assert case.engine.get(b"a") == b"1"
    case.engine.close()
    case.engine.close()
    for use in USES:
        with pytest.raises(Unavailable) as told:
            use(case.engine)
        assert told.value.code == "CLOSED"


@pytest.mark.parametrize("attempt", range(3))
def test_what_is_written_while_it_closes_is_refused_or_there_afterwards(case: Case, attempt: int) -> None:
    """A thread writes on while another closes: no write succeeds into nothing."""
    case.engine.write_log([(op(n), bytes(1_000_000)) for n in range(8)])
    written: list[bytes] = []
    refused: list[str] = []

    def write() -> None:
        for number in range(1_000_000):
            key = op(number, Q)
            try:
                case.engine.write_log([(key, b"op")])
                case.engine.write_data([(key, b"value")])
            except Unavailable as error:
                refused.append(error.code)
                return
            written.append(key)

    writer = threading.Thread(target=write)
    writer.start()
    while len(written) < 100 * (attempt + 1):
        pass
    case.engine.close()
    writer.join(30)
    assert refused == ["CLOSED"]
    found = case.restart()
    assert [key for key in written if found.get_log(key) is None or found.get(key) is None] == []


def test_what_was_written_into_no_family_is_cleared_at_opening(tmp_path: Path) -> None:
    data, wals = tmp_path / "data", tmp_path / "wals"
    engine = RocksEngine(data, wals)
    engine._db.put(b"\0\1" + bytes(8), b"an operation that was acknowledged and is nowhere")
    assert engine.default_keys() == 1
    engine.close()
    reader = RocksReader(data, wals, tmp_path / "notes")
    assert reader.default_keys() == 1
    reader.close()
    again = RocksEngine(data, wals)
    assert again.default_keys() == 0
    again.close()


def test_the_keys_of_files_that_were_made_are_told_and_the_files_stay(case: Case, tmp_path: Path) -> None:
    """In the order of the paths, also of files whose keys overlap."""
    paths = [str(tmp_path / name) for name in ("one.sst", "two.sst", "three.sst")]
    case.engine.make_file(paths[0], [(b"d", b"1"), (b"m", b"2"), (b"x", b"3")])
    case.engine.make_file(paths[1], [(b"a", b"4")])
    case.engine.make_file(paths[2], [(b"c", b"5"), (b"e", b"6")])
    for _ in range(2):
        assert case.engine.file_bounds(paths) == [(b"d", b"x"), (b"a", b"a"), (b"c", b"e")]
    with pytest.raises(Corrupt):
        case.engine.file_bounds([paths[0], str(tmp_path / "gone.sst")])
    case.engine.ingest(paths[:2])
    assert case.engine.scan(b"a", b"z", 9) == [(b"a", b"4"), (b"d", b"1"), (b"m", b"2"), (b"x", b"3")]


def test_ingest_moves_finished_files_in(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path / "data", tmp_path / "wals")
    path = str(tmp_path / "one.sst")
    writer = SstFileWriter(options=Options(raw_mode=True))
    writer.open(path)
    writer[b"k"] = b"v"
    writer.finish()
    engine.ingest([path])
    assert engine.get(b"k") == b"v"
    engine.close()
    again = RocksEngine(tmp_path / "data", tmp_path / "wals")
    assert again.get(b"k") == b"v"
    again.close()


def test_the_keys_of_a_damaged_file_are_not_told(tmp_path: Path) -> None:
    """Nothing is left of the try; a file that is well is left as it was."""
    engine = RocksEngine(tmp_path / "data", tmp_path / "wals")
    staging = tmp_path / "staging"
    staging.mkdir()
    good, bad = staging / "good.sst", staging / "bad.sst"
    engine.make_file(str(good), [(b"a", b"1")])
    content = good.read_bytes()
    bad.write_bytes(content[:-20])
    with pytest.raises(Corrupt, match="magic number"):
        engine.file_bounds([str(good), str(bad)])
    assert (good.read_bytes(), sorted(staging.iterdir())) == (content, [bad, good])
    engine.close()


@pytest.mark.parametrize("of", ["wals", FOLDER])
def test_a_flipped_bit_in_the_log_refuses_to_open(tmp_path: Path, of: str) -> None:
    engine = RocksEngine(tmp_path / "data", tmp_path / "wals")
    if of == FOLDER:
        engine.move_log()
    for n in range(2000):
        engine.write_log([(op(n), os.urandom(100))])
    engine.sync_log()
    copy = crashed_files(tmp_path)
    engine.close()
    biggest = max((copy / of).iterdir(), key=lambda file: file.stat().st_size)
    content = bytearray(biggest.read_bytes())
    content[len(content) // 2] ^= 1
    biggest.write_bytes(content)
    with pytest.raises(Corrupt, match="database" if of == "wals" else f"{biggest}: .* checksum mismatch"):
        RocksEngine(copy / "data", copy / "wals")


def test_a_database_in_use_is_unavailable_not_corrupt(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path / "data", tmp_path / "wals")
    with pytest.raises(Unavailable):
        RocksEngine(tmp_path / "data", tmp_path / "wals")
    engine.close()


# -- the log in segments


Operations = dict[bytes, bytes]


def write_many(engine: Engine, partitions: int, record_bytes: int) -> Operations:
    """Some operations of each partition, which begin anywhere, written in turn; at the end what is left."""
    chance = random.Random(7)
    firsts = [chance.choice([0, 1, 300, 2**40]) for _ in range(partitions)]
    written: Operations = {}
    for turn in range(8):
        some = {op(first + turn, p): chance.randbytes(record_bytes) for p, first in enumerate(firsts)}
        engine.write_log(list(some.items()))
        written |= some
    for partition, first in enumerate(firsts[::3]):
        begin, end = op(firsts[partition * 3], partition * 3), op(first + 2, partition * 3)
        engine.write_log([], [(begin, end)])
        written = {key: record for key, record in written.items() if not begin <= key < end}
    return written


def read_all(engine: Engine, partitions: int) -> Operations:
    return {key: record for p in range(partitions) for key, record in engine.scan_log(*log_range(p), 1 << 40)}


def family_is_empty(engine: RocksEngine) -> bool:
    return FamilyLog(engine._db, engine._writing).empty


def is_moved(engine: RocksEngine) -> bool:
    return isinstance(engine._log, SegmentedLog)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[RocksEngine]:
    engine = RocksEngine(tmp_path / "data", tmp_path / "wals")
    yield engine
    engine.close()


def reopened(root: Path) -> RocksEngine:
    return RocksEngine(root / "data", root / "wals")


def test_the_end_of_the_log_is_told_where_it_has_files_of_its_own(
    opened: RocksEngine, tmp_path: Path
) -> None:
    for without in (MemoryEngine(), opened):
        assert WriteBack(without).log_end() is None
    opened.move_log()
    before = opened.log_end()
    assert before is not None
    opened.write_log([(op(1), bytes(1000))])
    end = WriteBack(opened).log_end()
    assert end is not None
    assert (end[0], end[1] > before[1] + 1000) == (before[0], True)
    assert (tmp_path / FOLDER / end[0]).stat().st_size == end[1]
    assert reopened(crashed_files(tmp_path)).log_end() == end


def test_the_end_of_the_log_moves_on_to_newer_files(opened: RocksEngine, tmp_path: Path) -> None:
    """And names sort as the files were made."""
    opened.move_log()
    ends = []
    for n in range(10):
        opened.write_log([(op(4 * n + each), bytes(1 << 20)) for each in range(4)])
        opened.sync_log()
        end = opened.log_end()
        assert end is not None
        assert (tmp_path / FOLDER / end[0]).stat().st_size == end[1]
        ends.append(end)
    assert ends == sorted(ends)
    assert len({name for name, _ in ends}) > 1
    newest = max(path.name for path in (tmp_path / FOLDER).glob("*.seg"))
    assert ends[-1][0] == newest


def test_an_empty_log_is_in_segments_once_the_format_allows_it(opened: RocksEngine, tmp_path: Path) -> None:
    opened.use_format(FIRST)
    assert not is_moved(opened)
    assert not (tmp_path / FOLDER).exists()
    WriteBack(opened).use_format(LOG_SEGMENTS)
    assert is_moved(opened)
    opened.write_log([(op(1), b"op")])
    opened.use_format(LOG_SEGMENTS)
    opened.use_format(FIRST)
    assert is_moved(opened)
    again = reopened(crashed_files(tmp_path))
    assert is_moved(again)
    assert again.get_log(op(1)) == b"op"
    again.close()


def test_a_log_with_operations_stays_until_it_is_moved(opened: RocksEngine, tmp_path: Path) -> None:
    opened.write_log([(op(1), b"1")])
    opened.use_format(LOG_SEGMENTS)
    assert not (tmp_path / FOLDER).exists()
    opened.write_log([(op(2), b"2")])
    again = reopened(crashed_files(tmp_path))
    assert again.scan_log(*ALL, 99) == [(op(1), b"1"), (op(2), b"2")]
    assert again.log_end() is None
    again.close()
    opened.move_log()
    assert is_moved(opened)
    assert opened.scan_log(*ALL, 99) == [(op(1), b"1"), (op(2), b"2")]


def test_a_log_whose_operations_went_counts_as_empty(opened: RocksEngine) -> None:
    opened.write_log([(op(1), b"1"), (op(7, Q), b"2")])
    opened.write_log([], [ALL])
    opened.use_format(LOG_SEGMENTS)
    assert not is_moved(opened)
    opened.write_log([], [log_range(Q)])
    opened.use_format(LOG_SEGMENTS)
    assert is_moved(opened)


def test_all_operations_of_a_log_are_moved(opened: RocksEngine, tmp_path: Path) -> None:
    """As many as take several segments; then RocksDB has none of them."""
    partitions = 300
    expected = write_many(opened, partitions, 10_000)
    opened.move_log()
    assert read_all(opened, partitions) == expected
    assert len(list((tmp_path / FOLDER).glob("*.seg"))) > 1
    assert family_is_empty(opened)
    assert not (tmp_path / "log.new").exists()
    opened.move_log()
    assert read_all(opened, partitions) == expected
    after = crashed_files(tmp_path)
    for file in (after / "wals").glob("*.log"):
        os.truncate(file, 0)
    again = reopened(after)
    assert read_all(again, partitions) == expected, "the move is on disk when it returns"
    again.close()
    opened.write_log([(op(9, partitions), b"later")])
    opened.close()
    again = reopened(tmp_path)
    assert read_all(again, partitions + 1) == {**expected, op(9, partitions): b"later"}
    assert family_is_empty(again)
    again.close()


def test_what_an_interrupted_move_left_aside_is_not_read(opened: RocksEngine, tmp_path: Path) -> None:
    expected = write_many(opened, 9, 100)
    root = crashed_files(tmp_path)
    (root / "log.new").mkdir()
    (root / "log.new" / "0000000000.seg").write_bytes(b"torn")
    (root / "log.new" / "0000000007.seg").write_bytes(bytes(99))
    again = reopened(root)
    assert not is_moved(again)
    assert read_all(again, 9) == expected
    again.move_log()
    assert read_all(again, 9) == expected
    assert not (root / "log.new").exists()
    again.close()
    again = reopened(root)
    assert read_all(again, 9) == expected
    again.close()


class Died(BaseException):
    """The process ends here."""


def die(*_: object, **__: object) -> None:
    raise Died


def full(*_: object, **__: object) -> None:
    raise Unavailable("log: No space left on device", "NO_SPACE")


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def at_folder(folder: Path, work: Callable[..., Any], instead: Callable[..., None]) -> Callable[..., Any]:
    """Do the work in every folder but one."""
    return lambda path, **how: instead() if path == folder else work(path, **how)


STEPS: dict[str, tuple[Any, str]] = {
    "begun": (segment_files, "begin"),
    "copied in part": (SegmentedLog, "sync"),
    "copied": (os, "rename"),
    "renamed": (segment_files, "sync_folder"),
    "synced": (segment_files, "find"),
    "opened": (FamilyLog, "clear"),
}
"""What a move calls after that step, at last in the folder with its final name, or in the one above."""


def move_and(engine: RocksEngine, root: Path, step: str, instead: Callable[..., None]) -> None:
    """Move the log, but do something else after a step."""
    (target, name), end = STEPS[step], {"renamed": root, "synced": root / FOLDER}.get(step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            target, name, instead if end is None else at_folder(end, getattr(target, name), instead)
        )
        engine.move_log()


@pytest.mark.parametrize("step", STEPS)
def test_a_move_may_end_anywhere(opened: RocksEngine, tmp_path: Path, step: str) -> None:
    """Nothing is lost, and what is deleted after the next start does not come back with a later one."""
    expected = write_many(opened, 9, 300_000)
    with pytest.raises(Died):
        move_and(opened, tmp_path, step, die)
    root = crashed_files(tmp_path)
    if (tmp_path / "log.new").exists():
        shutil.copytree(tmp_path / "log.new", root / "log.new")
    for _ in range(2):
        again = reopened(root)
        assert is_moved(again) == (step in ("renamed", "synced", "opened"))
        assert read_all(again, 9) == expected
        again.close()
    again = reopened(root)
    again.move_log()
    again.write_log([], [log_range(0), log_range(4)])
    again.write_log([(op(5, 4), b"anew")])
    dropped = (op(0, 0)[:2], op(0, 4)[:2])
    expected = {key: record for key, record in expected.items() if key[:2] not in dropped}
    for _ in range(2):
        assert read_all(again, 9) == {**expected, op(5, 4): b"anew"}
        assert family_is_empty(again)
        again.close()
        again = reopened(root)
    again.close()


@pytest.mark.parametrize(
    ("step", "error"),
    [("copied", fail), *[(step, full) for step in STEPS if step != "opened"]],
)
def test_a_move_that_fails_loses_nothing_that_is_written_after_it(
    opened: RocksEngine, tmp_path: Path, step: str, error: Callable[..., None]
) -> None:
    """The disk fails once; the process may go on: what it writes then is refused, or there afterwards."""
    expected = write_many(opened, 9, 1000)
    with pytest.raises(Unavailable):
        move_and(opened, tmp_path, step, error)
    later = {op(1, 20): b"later", op(2, 20): b"later"}
    try:
        opened.write_log(list(later.items()))
        opened.sync_log()
    except Unavailable:
        later = {}
    again = reopened(crashed_files(tmp_path))
    assert read_all(again, 30) == {**expected, **later}
    again.close()


def test_a_move_that_cannot_clear_the_database_is_done_all_the_same(
    opened: RocksEngine, tmp_path: Path
) -> None:
    """The next start clears it, though what was moved is trimmed by then."""
    expected = write_many(opened, 9, 1000)
    move_and(opened, tmp_path, "opened", full)
    trimmed = [key for key in expected if key[:2] == op(0, 3)[:2]][:2]
    opened.write_log([], [(op(0, 3), next_log_key(trimmed[-1]))])
    again = reopened(crashed_files(tmp_path))
    assert read_all(again, 9) == {key: expected[key] for key in expected if key not in trimmed}
    assert family_is_empty(again)
    again.close()


def test_operations_that_an_older_build_left_in_the_database_are_not_deleted(
    opened: RocksEngine, tmp_path: Path
) -> None:
    write_many(opened, 9, 1000)
    folder = crashed_files(tmp_path)
    SegmentedLog.copy([[(op(1, 1), b"other")]], folder / FOLDER)
    with pytest.raises(Corrupt, match="which the log in segments lacks"):
        reopened(folder)


def test_a_log_in_segments_is_read_without_a_change(opened: RocksEngine, tmp_path: Path) -> None:
    opened.move_log()
    expected = write_many(opened, 9, 1000)
    root = crashed_files(tmp_path)
    newest = max((root / FOLDER).glob("*.seg"))
    with newest.open("ab") as file:
        file.write(b"\0torn")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    reader = RocksReader(root / "data", root / "wals", tmp_path / "notes")
    assert read_all(reader, 9) == expected
    reader.close()
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
