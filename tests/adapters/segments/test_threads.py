"""One thread writes and reads while another syncs: nothing is lost."""

import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stele.adapters.segments.log import SegmentedLog
from stele.errors import Unavailable
from tests.adapters.segments.workload import Workload, content


@pytest.fixture
def hasty() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def syncs(log: SegmentedLog, ended: threading.Event, failures: list[BaseException]) -> None:
    """Sync in a loop."""
    try:
        while not ended.is_set():
            log.sync()
    except BaseException as error:
        failures.append(error)
        raise


def write_and_read(work: Workload, steps: int) -> None:
    for step in range(steps):
        work.chance.choice((work.append, work.append, work.append, work.trim))()
        if step % 10 == 0:
            work.check()


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_lost_beside_syncs(folder: Path, hasty: None, threads: int) -> None:
    work = Workload(folder, random.Random(threads))
    ended, failures = threading.Event(), list[BaseException]()
    syncing = [threading.Thread(target=syncs, args=(work.log, ended, failures)) for _ in range(threads)]
    for thread in syncing:
        thread.start()
    write_and_read(work, 400)
    ended.set()
    for thread in syncing:
        thread.join(30)
    assert failures == []
    work.check()
    assert min(path.name for path in folder.iterdir()) > "0000000000.seg", "segments are deleted meanwhile"
    work.reopen()
    work.check()
    work.log.close()


def append_forever(work: Workload) -> None:
    while True:
        work.append()


@pytest.mark.parametrize("attempt", range(3))
def test_what_is_written_while_it_closes_is_refused_or_there_afterwards(
    folder: Path, hasty: None, attempt: int
) -> None:
    work = Workload(folder, random.Random(attempt))
    for _ in range(20 * attempt):
        work.append()
    closing = threading.Thread(target=work.log.close)
    closing.start()
    with pytest.raises(Unavailable) as told:
        append_forever(work)
    closing.join(30)
    assert told.value.code == "CLOSED"
    log = SegmentedLog(folder)
    assert content(log) == work.states[-2], "the last one was refused"
    log.close()
