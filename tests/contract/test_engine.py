"""One suite for every engine: the member's safety rests on these rules."""

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rocksdict import Options, SstFileWriter

from stele.adapters.memory.engine import MemoryEngine
from stele.adapters.rocksdb.engine import RocksEngine, RocksReader
from stele.errors import Corrupt, Unavailable
from stele.member.storage.write_back import WriteBack
from stele.ports.engine import Engine
from tests.fakes.disk import SimEngine


class Case:
    """An engine, and what a restart after a crash, or a loss of power, would find.

    `sizes` are those of the log's files when they were last synced.
    """

    def __init__(self, engine: Engine, restart: Callable[["Case", bool], Engine]) -> None:
        self.engine = engine
        self.sizes: dict[str, int] = {}
        self.wals: Path | None = None
        self._restart = restart

    def sync_log(self) -> None:
        files = [] if self.wals is None else list(self.wals.glob("*.log"))
        self.sizes = {path.name: path.stat().st_size for path in files}
        self.engine.sync_log()

    def restart(self, *, power_lost: bool = False) -> Engine:
        self.engine = self._restart(self, power_lost)
        return self.engine


def simulated(case: Case) -> SimEngine:
    assert isinstance(case.engine, SimEngine)
    return case.engine


def crash_rocks(case: Case, power_lost: bool, data: Path, wals: Path) -> Engine:
    """Copy the files as a killed process would leave them, or a loss of power: the log as it was synced."""
    there = data.parent / f"after{len(list(data.parent.iterdir()))}"
    for folder, name in ((data, "data"), (wals, "wals")):
        (there / name).mkdir(parents=True)
        for file in folder.iterdir():
            if file.name != "LOCK":
                (there / name / file.name).write_bytes(file.read_bytes())
    for file in (there / "wals").glob("*.log") if power_lost else ():
        os.truncate(file, case.sizes.get(file.name, 0))
    case.engine.close()
    return RocksEngine(there / "data", there / "wals")


class LeastKept(random.Random):
    """Of what was not synced a loss of power leaves nothing."""

    def randint(self, a: int, b: int) -> int:
        return a


@pytest.fixture(params=["memory", "simulated", "rocksdb", "written back"])
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
    data, wals = tmp_path / "data", tmp_path / "wals"
    made = Case(RocksEngine(data, wals), lambda case, power_lost: crash_rocks(case, power_lost, data, wals))
    made.wals = wals
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
    case.engine.write_log([(bytes((1, n)), bytes(10)) for n in range(5)])
    assert case.engine.log_bounds(b"\1", b"\2") == (b"\1\0", b"\1\4")
    assert [key[1] for key, _ in case.engine.scan_log(b"\1\1", b"\2", 25)] == [1, 2, 3]
    assert case.engine.log_bounds(b"\2", b"\3") is None


def test_drops_come_before_puts(case: Case) -> None:
    case.engine.write_log([(b"\1\1", b"old"), (b"\1\2", b"old")])
    case.engine.write_log([(b"\1\1", b"new")], [(b"\1", b"\2")])
    assert case.engine.scan_log(b"\1", b"\2", 100) == [(b"\1\1", b"new")]
    assert case.engine.get_log(b"\1\2") is None


def test_a_dead_process_keeps_its_log_and_the_flushed_prefix_of_data(case: Case) -> None:
    case.engine.write_data([(b"a", b"1")])
    case.engine.flush()
    case.engine.write_log([(b"\1\1", b"op")])
    case.engine.write_data([(b"a", b"2"), (b"b", b"2")])
    found = case.restart()
    assert found.get_log(b"\1\1") == b"op"
    assert (found.get(b"a"), found.get(b"b")) == (b"1", None)


def test_drop_data_removes_only_its_range(case: Case) -> None:
    case.engine.write_data([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    case.engine.drop_data(b"a", b"c")
    assert case.engine.scan(b"a", b"z", 9) == [(b"c", b"3")]
    case.engine.flush()
    assert case.restart().scan(b"a", b"z", 9) == [(b"c", b"3")]


def test_a_loss_of_power_takes_what_was_not_synced_and_nothing_else(case: Case) -> None:
    case.engine.write_log([(b"a", b"1")])
    case.engine.write_data([(b"k", b"flushed")])
    case.engine.flush()
    case.sync_log()
    case.engine.write_log([(b"b", b"2")])
    case.engine.write_data([(b"k", b"in memory")])
    found = case.restart(power_lost=True)
    assert found.scan_log(b"a", b"z", 99) == [(b"a", b"1")]
    assert found.get(b"k") == b"flushed"


def test_the_front_of_a_log_stays_dropped(case: Case) -> None:
    case.engine.write_log([(bytes((1, n)), b"op") for n in range(5)])
    case.engine.write_log([], [(b"\1", b"\1\3")])
    for find in (lambda: case.engine, case.restart):
        engine = find()
        assert engine.log_bounds(b"\1", b"\2") == (b"\1\3", b"\1\4")
        assert engine.get_log(b"\1\2") is None


def test_a_dropped_log_has_no_bounds(case: Case) -> None:
    case.engine.write_log([(b"\1\1", b"op"), (b"\2\1", b"other")])
    case.engine.write_log([], [(b"\1", b"\2")])
    assert case.engine.log_bounds(b"\1", b"\2") is None
    assert case.engine.log_bounds(b"\1", b"\3") == (b"\2\1", b"\2\1")


def test_a_scan_of_the_log_gives_one_entry_whatever_its_size(case: Case) -> None:
    case.engine.write_log([(b"\1\1", bytes(1000)), (b"\1\2", bytes(1000))])
    assert [key for key, _ in case.engine.scan_log(b"\1", b"\2", 1)] == [b"\1\1"]


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
    for find in (lambda: case.engine, case.restart):
        engine = find()
        assert (engine.get(b"a"), engine.get(b"b")) == (b"new", None)


def test_a_checkpoint_stays_as_it_was_and_outlives_the_process(case: Case, tmp_path: Path) -> None:
    path = str(tmp_path / "point")
    case.engine.write_data([(b"a", b"1")])
    case.engine.checkpoint(path)
    case.engine.write_data([(b"a", b"2"), (b"b", b"2")])
    for engine in (lambda: case.engine, case.restart):
        reader = engine().open_checkpoint(path)
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
    lambda engine: engine.write_log([(b"\1\1", b"op")]),
    lambda engine: engine.write_log([], [(b"\1", b"\2")]),
    lambda engine: engine.get_log(b"\1\1"),
    lambda engine: engine.scan_log(b"\1", b"\2", 9),
    lambda engine: engine.log_bounds(b"\1", b"\2"),
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
    case.engine.write_log([(bytes((1, n)), bytes(1_000_000)) for n in range(8)])
    written: list[bytes] = []
    refused: list[str] = []

    def write() -> None:
        for number in range(1_000_000):
            key = b"\2" + number.to_bytes(4, "big")
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


def test_a_flipped_bit_in_the_log_refuses_to_open(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path / "data", tmp_path / "wals")
    for n in range(2000):
        engine.write_log([(n.to_bytes(4, "big"), os.urandom(100))])
    engine.sync_log()
    copy = tmp_path / "copy"
    for name in ("data", "wals"):
        (copy / name).mkdir(parents=True)
        for file in (tmp_path / name).iterdir():
            (copy / name / file.name).write_bytes(file.read_bytes())
    engine.close()
    biggest = max((copy / "wals").iterdir(), key=lambda file: file.stat().st_size)
    content = bytearray(biggest.read_bytes())
    content[len(content) // 2] ^= 1
    biggest.write_bytes(content)
    with pytest.raises(Corrupt, match="database"):
        RocksEngine(copy / "data", copy / "wals")


def test_a_database_in_use_is_unavailable_not_corrupt(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path / "data", tmp_path / "wals")
    with pytest.raises(Unavailable):
        RocksEngine(tmp_path / "data", tmp_path / "wals")
    engine.close()
