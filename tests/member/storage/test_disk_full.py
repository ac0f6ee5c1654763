"""A volume without room: nothing is acknowledged, reads go on, and so do writes once there is room."""

import asyncio
import contextlib
import errno
import gc
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from stele.adapters.memory.engine import MemoryEngine
from stele.adapters.rocksdb.engine import RocksEngine
from stele.core.control import commands as m
from stele.core.formats import FIRST, LOG_SEGMENTS
from stele.errors import Unavailable
from stele.member import limits
from stele.member.admin.metrics import Metrics
from stele.member.replication.log_writer import LogWriter
from stele.member.replication.stored_log import log_range
from stele.member.storage.write_back import WriteBack
from stele.wire import peer
from stele.wire.storage.keys import log_key, tablet_range, user_key
from stele.wire.storage.log_record import put_record
from tests.member.harness.cluster import Client, eventually, hasty_cluster, key_in
from tests.member.harness.single_member import ME, OTHER, THIRD, P, SingleMember
from tests.member.storage.test_damage import attempt, mounted

ONE, TWO = (put_record(2, b"default", key, b"v", 0) for key in (b"one", b"two"))
STEPS = 200
LOOK_SECONDS = 1.5


class Full:
    """Lets an engine in memory refuse all writes while `now` is set."""

    def __init__(self, engine: MemoryEngine) -> None:
        self.now = False
        for name in ("write_log", "write_data", "flush", "sync_log"):
            setattr(engine, name, self._wrapped(getattr(engine, name)))

    def _wrapped(self, work: Any) -> Any:
        def maybe(*args: object) -> Any:
            if self.now:
                raise Unavailable("database: No space left on device", "NO_SPACE")
            return work(*args)

        return maybe


async def backup(made: SingleMember) -> None:
    """It holds what a copy brought, up to (1, 5), and backs another member up."""
    await made.receive()
    await made.store((OTHER, ME))


async def woken(made: SingleMember) -> None:
    """What a tick does while the log is stalled."""
    made.node.replicator.wake()
    await made.until_quiet()


@pytest.mark.parametrize("said_by", ["statvfs", "the database"])
async def test_nothing_is_acknowledged_or_applied_before_it_is_written(
    made: SingleMember, said_by: str
) -> None:
    await backup(made)
    full, free = Full(made.engine), made.node.volume.free_bytes
    if said_by == "statvfs":
        made.node.volume.free_bytes = lambda: limits.LOG_FREE_BYTES_MIN - 1  # type: ignore[method-assign]
    else:
        full.now = True
    asker = made.append((1, 5), [ONE], commit=6)
    await made.until_quiet()
    assert asker.answers == []
    assert made.get(b"one") is None
    assert made.node.gate.full
    assert made.node.gate.refusal is not None
    assert b"\nstele_volume_full 1.0\n" in Metrics(made.node).text(0)
    full.now, made.node.volume.free_bytes = False, free  # type: ignore[method-assign]
    await woken(made)
    assert (await made.acked(asker)).match == 6
    assert made.get(b"one") == b"v"
    made.node.ticker.every_second(made.node.background.now())
    assert made.node.gate.refusal is None
    assert b"\nstele_volume_full 0.0\n" in Metrics(made.node).text(0)


def test_where_there_is_plenty_of_room_it_is_measured_at_each_look_alone() -> None:
    asked, free = list[int](), [2 * limits.PLENTY_BYTES]

    def has_room(size: int) -> bool:
        asked.append(size)
        return size <= free[0]

    writer = LogWriter(MemoryEngine(), has_room)
    for index, looks in enumerate((False, True, False, False), 1):
        if looks:
            writer.look()
        writer.put(P, index, [ONE], len(ONE))
        assert writer.write()
    assert asked == [len(ONE), limits.PLENTY_BYTES]
    free[0] = 0
    writer.look()
    writer.put(P, 5, [ONE], len(ONE))
    assert not writer.write()


async def test_what_was_taken_back_while_nothing_could_be_written_stays_away(made: SingleMember) -> None:
    await backup(made)
    full = Full(made.engine)
    assert (await made.acked(made.append((1, 5), [ONE]))).match == 6
    full.now = True
    made.append((2, 6), [ONE, TWO])
    await made.store((OTHER, ME, THIRD))
    made.append((2, 6), [put_record(3, b"default", b"three", b"w", 0)])
    await made.until_quiet()
    full.now = False
    await woken(made)
    assert made.replica.tablet.log.last == (3, 7)
    await made.restart()
    assert made.replica.tablet.log.last == (3, 7)


async def test_questions_that_are_asked_again_and_again_do_not_gather(made: SingleMember) -> None:
    await backup(made)
    full, row = Full(made.engine), made.rows[P]
    full.now = True
    ack, ask = (
        made.append((1, 5), [ONE]),
        peer.ProbeItem(P, row.version, row.version, cut=False, row=(row.version, row.replicas)),
    )
    for _ in range(9):
        asked = made.tell(peer.Probe([ask]))
        await made.until_quiet()
    assert len(made.node.replicator._replies) == 1
    full.now = False
    await woken(made)
    assert (await made.acked(ack)).match == 6
    assert asked.answers == []
    again = made.tell(peer.Probe([ask]))
    await made.until_quiet()
    assert len(again.answers) == 1


async def test_a_copy_does_not_begin_on_a_log_that_was_not_removed(made: SingleMember) -> None:
    await backup(made)
    full = Full(made.engine)
    full.now = True
    made.append((1, 5), [ONE])
    await made.until_quiet()
    assert await made.code(m.CreateTablet(1, 1)) == "NO_SPACE"
    assert not made.node.tablets.replica_of(1).ready
    full.now = False


async def test_a_database_that_room_does_not_mend_ends_the_process(made: SingleMember) -> None:
    await backup(made)
    full, now = Full(made.engine), made.node.background.now()
    full.now = True
    made.append((1, 5), [ONE])
    await made.until_quiet()
    made.node.volume.free_bytes = lambda: limits.NO_SPACE_BYTES - 1  # type: ignore[method-assign]
    made.node.ticker.every_second(now + 1000)
    made.node.volume.free_bytes = lambda: 2 * limits.NO_SPACE_BYTES  # type: ignore[method-assign]
    made.node.ticker.every_second(now + 1000 + limits.STALLED_SECONDS_MAX - 1)
    assert made.failures == []
    made.node.ticker.every_second(now + 1000 + limits.STALLED_SECONDS_MAX)
    (failure,) = made.failures
    assert failure.startswith("the log takes nothing although there is room again: NO_SPACE")
    made.failures.clear()
    full.now = False


ENTRY_BYTES = len(user_key(1, 1, b"default", b"10")) + 1


def test_what_the_engine_does_not_take_waits_on_and_is_seen() -> None:
    inner = MemoryEngine()
    engine, full, rng = WriteBack(inner), Full(inner), random.Random(7)
    expected_entries: dict[bytes, bytes] = {}
    for _ in range(STEPS):
        full.now = rng.random() < 0.5
        key = user_key(1, 1, b"default", b"%d" % (10 + rng.randrange(30)))
        value = rng.choice([None, b"x", b"y"])
        engine.write_data([(key, value)])
        expected_entries.pop(key, None) if value is None else expected_entries.__setitem__(key, value)
        begin, end = sorted(user_key(1, 1, b"default", b"%d" % (10 + rng.randrange(30))) for _ in range(2))
        limit = rng.randrange(1, 9)
        all_of = sorted((k, v) for k, v in expected_entries.items() if begin <= k < end)
        expected = all_of[:limit]
        assert engine.scan(begin, end, limit) == expected
        assert engine.scan(begin, end, limit, 1) == expected[:1]
        assert engine.scan(begin, end, 9, 3 * ENTRY_BYTES - 1) == all_of[:3]
        assert engine.get(key) == expected_entries.get(key)
    full.now = False
    engine.flush()
    assert dict(inner.scan(*tablet_range(1, 1), 99)) == expected_entries


def fill(disk: Path, free_bytes: int = 0) -> Path:
    """Leave so many bytes of the file system; what a member writes at the same time makes it try again."""
    ballast = disk / "ballast"
    while True:
        now = os.statvfs(disk)
        try:
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, now.f_bavail * now.f_frsize - free_bytes)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            ballast.unlink()
        else:
            return ballast


@pytest.mark.parametrize("segments", [False, True])
def test_the_database_says_that_it_is_full_and_is_read_on(tmp_path: Path, segments: bool) -> None:
    """After a failed write of RocksDB's log it takes none for good: it has to be opened anew. Segments do."""
    root = tmp_path / "disk"
    with mounted(root, "100m"):
        engine = RocksEngine(root / "data", root / "wals")
        if segments:
            engine.move_log()
        engine.write_log([(log_key(P, 1), b"v")])
        engine.write_data([(b"d1", b"v")])
        ballast = fill(root)
        with pytest.raises(Unavailable) as caught:
            engine.write_log([(log_key(P, 2), bytes(1 << 20))])
        assert caught.value.code == "NO_SPACE"
        assert (engine.get(b"d1"), engine.get_log(log_key(P, 1))) == (b"v", b"v")
        assert engine.get_log(log_key(P, 2)) is None
        ballast.unlink()
        if segments:
            engine.write_log([(log_key(P, 2), b"w")])
            engine.sync_log()
        else:
            with pytest.raises(Unavailable) as caught:
                engine.write_log([(log_key(P, 2), b"v")])
            assert caught.value.code == "NO_SPACE"
        shutil.copytree(root, tmp_path / "again")
        with contextlib.suppress(Exception):  # rocksdict tries to write, and raises bare Exception
            engine.close()
        del engine, caught
        gc.collect()
    (tmp_path / "again" / "data" / "LOCK").unlink()
    engine = RocksEngine(tmp_path / "again" / "data", tmp_path / "again" / "wals")
    assert engine.get_log(log_key(P, 1)) == b"v"
    assert engine.get_log(log_key(P, 2)) == (b"w" if segments else None)
    engine.write_log([(log_key(P, 3 if segments else 2), b"v")])
    engine.close()


def test_a_log_finds_no_room_for_segments_and_stays_where_it_is(tmp_path: Path) -> None:
    """It is moved once there is room; meanwhile it goes on."""
    root = tmp_path / "disk"
    with mounted(root, "100m"):
        engine = RocksEngine(root / "data", root / "wals")
        ballast = fill(root, 64 << 10)
        engine.write_log([(log_key(P, 1), bytes(40 << 10))])
        with pytest.raises(Unavailable) as caught:
            engine.move_log()
        assert caught.value.code == "NO_SPACE"
        assert not (root / "log").exists()
        assert engine.get_log(log_key(P, 1)) == bytes(40 << 10)
        ballast.unlink()
        engine.write_log([(log_key(P, 2), b"v")])
        engine.move_log()
        assert (root / "log").exists()
        assert engine.scan_log(*log_range(P), 1 << 20) == [
            (log_key(P, 1), bytes(40 << 10)),
            (log_key(P, 2), b"v"),
        ]
        engine.close()


def test_a_checkpoint_that_finds_no_room_says_so(tmp_path: Path) -> None:
    """The member answers the master with it; another error would cost the whole exchange."""
    root = tmp_path / "disk"
    with mounted(root, "100m"):
        engine = RocksEngine(root / "data", root / "wals")
        engine.write_data([(b"d1", b"v")])
        engine.flush()
        ballast = fill(root)
        with pytest.raises(Unavailable) as caught:
            engine.checkpoint(str(root / "checkpoint"))
        assert caught.value.code == "NO_SPACE"
        ballast.unlink()
        engine.checkpoint(str(root / "again"))
        engine.close()


async def write_on(client: Client, key: bytes, end: asyncio.Event) -> None:
    """Ever greater numbers, whatever is answered."""
    number = 0
    while not end.is_set():
        number += 1
        if not await client.set(0, key, b"%d" % number):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("features", [FIRST, LOG_SEGMENTS])
async def test_a_volume_without_a_byte_left_ends_nothing(tmp_path: Path, features: int) -> None:
    with mounted(tmp_path / "m0", "200m"):
        async with hasty_cluster(tmp_path, 4) as made:
            made.replicas, made.features = 1, features
            await made.form(1)
            client, other, key = Client(made), Client(made), key_in(P, 4)
            assert await client.set(0, b"before", b"v")
            end = asyncio.Event()
            writer = asyncio.create_task(write_on(other, key, end))
            await eventually(lambda: client.call(0, b"GET", key), bool)
            ballast = fill(tmp_path / "m0")
            # What comes before the member noticed waits, and may still be done.
            await asyncio.sleep(LOOK_SECONDS)
            refused = await attempt(client)
            assert refused.startswith("NO_SPACE the volume of member 0, which owns this partition, is full")
            assert await client.call(0, b"GET", b"before") == b"v"
            ballast.unlink()
            assert await eventually(lambda: attempt(client), lambda text: text == "OK")
            end.set()
            await writer
            await other.check(0)
            await client.check(0)
            assert (await made.hello(made.members[0])).incarnation == 1
            assert "Traceback" not in made.members[0].log()
            assert (tmp_path / "m0" / "log").exists() == (features >= LOG_SEGMENTS)
            await client.close()
            await other.close()


async def checked(client: Client) -> bool:
    """Once it is connected again, it finds all that was acknowledged."""
    await client.check(0)
    return True


async def test_a_log_that_takes_nothing_for_good_is_read_on_and_opened_anew(tmp_path: Path) -> None:
    """Only the log's own file system is full, so RocksDB meets its end: the member looks at the other one.

    Of format 1: segments have no file system of their own.
    """
    (tmp_path / "m0").mkdir()
    with mounted(tmp_path / "m0" / "wals", "64m"):
        async with hasty_cluster(tmp_path, 4) as made:
            made.replicas = 1
            await made.form(1)
            client, key = Client(made), key_in(P, 4)
            assert await client.set(0, key, b"v")
            ballast = fill(tmp_path / "m0" / "wals")
            end = asyncio.Event()
            writers = [asyncio.create_task(write_on(Client(made), b"%d" % n, end)) for n in range(3)]
            refused = await eventually(lambda: attempt(client), lambda text: text != "OK")
            assert refused.startswith(("NO_SPACE", "UNCERTAIN"))
            assert await client.call(0, b"GET", key) == b"v"
            ballast.unlink()
            process = made.members[0].process
            assert process is not None
            assert await asyncio.wait_for(process.wait(), 2 * limits.STALLED_SECONDS_MAX) == 1
            end.set()
            await asyncio.gather(*writers)
            assert "ending: the log takes nothing although there is room again" in made.members[0].log()
            assert "Traceback" not in made.members[0].log()
            await made.members[0].start()
            await made.hello(made.members[0])
            await made.publish()
            await made.served()
            for each in made.clients:
                await eventually(lambda each=each: checked(each), bool)
