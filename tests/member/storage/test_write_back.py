"""What waits in memory is seen by every read, and reaches the engine tablet by tablet, whole and in order."""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from stele.adapters.memory.engine import MemoryEngine
from stele.errors import Unavailable
from stele.member.storage import write_back
from stele.member.storage.write_back import Changes, WriteBack
from stele.wire.storage.keys import meta_key, tablet_range, user_key


def key(partition: int, name: bytes) -> bytes:
    return user_key(partition, 1, b"default", name)


class Recorder(MemoryEngine):
    """Remembers each write of `data` and counts lookups."""

    def __init__(self):
        super().__init__()
        self.writes = []
        self.lookups = 0

    def get(self, key):
        self.lookups += 1
        return super().get(key)

    def write_data(self, changes, drops=()):
        self.writes.append(dict(changes))
        super().write_data(changes, drops)


def test_reads_see_what_waits_and_what_was_dropped() -> None:
    inner = Recorder()
    engine = WriteBack(inner)
    engine.write_data([(key(1, b"a"), b"1"), (key(2, b"b"), b"2")])
    assert inner.writes == []
    assert engine.get(key(1, b"a")) == b"1"
    assert engine.scan(*tablet_range(1, 1), 9) == [(key(1, b"a"), b"1")]
    assert inner.writes == [{key(1, b"a"): b"1"}]
    engine.drop_data(*tablet_range(2, 1))
    assert engine.get(key(2, b"b")) is None
    assert engine.view().get(key(1, b"a")) == b"1"


def test_many_writes_of_a_key_are_one_write_and_reads_are_remembered() -> None:
    inner = Recorder()
    engine = WriteBack(inner)
    for number in range(100):
        engine.write_data([(key(1, b"a"), b"%d" % number), (meta_key(1, 1, b"applied"), b"%d" % number)])
    engine.flush()
    assert inner.writes == [{key(1, b"a"): b"99", meta_key(1, 1, b"applied"): b"99"}]
    assert [engine.get(key(1, b"none")) for _ in range(9)] == [None] * 9
    assert inner.lookups == 1


def test_a_file_that_is_taken_in_replaces_what_was_remembered() -> None:
    inner = MemoryEngine()
    engine = WriteBack(inner)
    assert engine.get(key(1, b"a")) is None
    inner.files["one"] = [(key(1, b"a"), b"1")]
    engine.ingest(["one"])
    assert engine.get(key(1, b"a")) == b"1"


class SlowWrite(MemoryEngine):
    """A first write of data that another thread has begun, and that fails if it is to."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.began, self.may_end, self.fails = threading.Event(), threading.Event(), fails

    def write_data(self, changes: Changes, drops: Sequence[tuple[bytes, bytes]] = ()) -> None:
        first = not self.began.is_set()
        self.began.set()
        assert self.may_end.wait(10)
        if first and self.fails:
            raise Unavailable("the volume is full", "NO_SPACE")
        super().write_data(changes, drops)


@pytest.mark.parametrize("fails", [False, True])
def test_a_flush_waits_for_what_another_thread_is_writing(fails: bool) -> None:
    """Also when that fails: nothing else waits then, and it would count as flushed."""
    inner = SlowWrite(fails=fails)
    engine = WriteBack(inner)
    engine.write_data([(key(1, b"a"), b"1")])
    with ThreadPoolExecutor(2) as threads:
        writing = threads.submit(engine.write_out)
        assert inner.began.wait(10)
        flushing = threads.submit(engine.flush)
        assert wait([flushing], timeout=0.05).not_done
        inner.may_end.set()
        flushing.result(10)
        assert (writing.exception(10) is not None) is fails
    assert inner.crashed(power_lost=True).get(key(1, b"a")) == b"1"


def test_what_waits_is_bounded_for_a_tablet_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Recorder()
    engine = WriteBack(inner)
    monkeypatch.setattr(write_back, "TABLET_BYTES_MAX", 10_000)
    engine.write_data([(key(1, b"a"), bytes(9_000))])
    engine.write_data([(key(1, b"b"), bytes(9_000))])
    assert [len(write) for write in inner.writes] == [2]
    monkeypatch.setattr(write_back, "WAITING_BYTES_MAX", 10_000)
    for partition in range(2, 5):
        engine.write_data([(key(partition, b"a"), bytes(4_000))])
    assert [len(write) for write in inner.writes] == [2, 1, 1, 1]


def test_what_is_forgotten_is_still_read_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_back, "CACHED_BYTES_MAX", 4_000)
    engine = WriteBack(MemoryEngine())
    for number in range(200):
        engine.write_data([(key(number % 7, b"%d" % number), b"%d" % number)])
    assert [engine.get(key(n % 7, b"%d" % n)) for n in range(200)] == [b"%d" % n for n in range(200)]


def test_a_thread_that_flushes_never_hides_or_reorders_writes() -> None:
    inner = MemoryEngine()
    engine = WriteBack(inner)
    ended = threading.Event()

    def flush() -> None:
        while not ended.is_set():
            engine.flush()

    thread = threading.Thread(target=flush)
    thread.start()
    model: dict[bytes, bytes] = {}
    choose = random.Random(7)
    try:
        for number in range(3_000):
            at = key(choose.randrange(3), b"%d" % choose.randrange(5))
            engine.write_data([(at, b"%d" % number), (meta_key(at[1], 1, b"applied"), b"%d" % number)])
            model[at] = b"%d" % number
            if number % 10 == 0:
                engine._forget()
                assert {each: engine.get(each) for each in model} == model
    finally:
        ended.set()
        thread.join()
    engine.flush()
    assert {each: inner.get(each) for each in model} == model
