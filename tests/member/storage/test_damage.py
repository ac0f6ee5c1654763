"""Damage to a member's volume: each kind ends in a state that is told, and nothing is lost in silence.

One volume is made and killed; each test harms a copy of it and starts a member on that.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from stele.adapters.rocksdb.engine import RocksEngine
from stele.adapters.segments.files import name_of, number_of
from stele.core.control import commands as m
from stele.core.formats import FIRST, LOG_SEGMENTS
from stele.wire.copy.bulk import EXPORT_PREFIX
from stele.wire.copy.jobs import damage_note
from stele.wire.storage.segment import HEADER_BYTES, decode_frame, encode_header
from stele.wire.storage.volume import APPLIED, Instance, LogEnd, Superblock, decode_file, encode_file
from tests.member.admin.test_tablet_info import tablet
from tests.member.harness.clients import RespError
from tests.member.harness.cluster import (
    CLUSTER,
    Client,
    Cluster,
    MemberProcess,
    eventually,
    hasty_cluster,
    key_in,
)
from tests.member.storage import crash_steps as steps

PARTITIONS = 4
PROMISES = "what was promised for it is lost"
VALUE = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(16))
Harm = Callable[[Path], None]


def flip(path: Path, at: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 0x10
    path.write_bytes(content)


def newest(folder: Path, pattern: str) -> Path:
    """The newest file that is not empty."""
    files = [path for path in folder.glob(pattern) if path.stat().st_size]
    return max(files, key=lambda path: path.name)


def flipped(name: str) -> Harm:
    return lambda volume: flip(volume / name)


def gone(name: str) -> Harm:
    return lambda volume: (volume / name).unlink()


def log_cut(volume: Path) -> None:
    """All files of the write-ahead log that are not needed for opening."""
    for path in (volume / "wals").glob("*.log"):
        path.unlink()


def noted_log_cut(volume: Path) -> None:
    noted = decode_file(LogEnd, (volume / "log-end").read_bytes(), "log-end")
    (volume / "wals" / noted.name).write_bytes(b"")


def newest_segment(volume: Path) -> Path:
    return newest(volume / "log", "*.seg")


def noted_segment_cut(volume: Path) -> None:
    """The file ends one frame before what was synced of it."""
    noted = decode_file(LogEnd, (volume / "segments-end").read_bytes(), "segments-end")
    path, ends = volume / "log" / noted.name, [HEADER_BYTES]
    content = memoryview(path.read_bytes())
    while (frame := decode_frame(content, ends[-1])) is not None and frame.end <= noted.bytes:
        ends.append(frame.end)
    assert ends[-1] == noted.bytes
    os.truncate(path, ends[-2])


def noted_segment_missing(volume: Path) -> None:
    """Another was begun and synced, which is gone."""
    following = name_of(number_of(newest_segment(volume).name) + 1)
    (volume / "segments-end").write_bytes(encode_file(LogEnd(following, HEADER_BYTES)))


def segment_between_missing(volume: Path) -> None:
    """Two newer ones follow the newest, of which the first is not there."""
    path = newest_segment(volume)
    number = number_of(path.name)
    path.with_name(name_of(number + 2)).write_bytes(encode_header(HEADER_BYTES))


def marked(volume: Path) -> None:
    (volume / "damaged").write_text("database: a compaction met a bad block\n")


ASIDE: dict[str, tuple[Harm, str]] = {
    "instance flipped": (flipped("instance"), "instance: "),
    "instance missing": (gone("instance"), "its file 'instance' is missing"),
    "database missing": (lambda v: shutil.rmtree(v / "data"), "data/CURRENT is missing"),
    "CURRENT flipped": (lambda v: flip(v / "data/CURRENT", 3), "CURRENT"),
    "CURRENT missing": (gone("data/CURRENT"), "data/CURRENT is missing"),
    "MANIFEST flipped": (lambda v: flip(newest(v / "data", "MANIFEST*")), "MANIFEST"),
    "MANIFEST missing": (lambda v: newest(v / "data", "MANIFEST*").unlink(), "MANIFEST"),
    "table file cut": (lambda v: newest(v / "data", "*.sst").write_bytes(b"x" * 99), ".sst"),
    "table file missing": (lambda v: newest(v / "data", "*.sst").unlink(), ".sst"),
    "table file's end flipped": (lambda v: flip(newest(v / "data", "*.sst"), -20), ".sst"),
    "log-end flipped": (flipped("log-end"), "log-end: "),
    "marked by the last run": (marked, "a compaction met a bad block"),
}
"""Damage of the whole: the volume is put aside, and the member starts empty, as another."""

ASIDE_IN_ROCKSDB: dict[str, tuple[Harm, str]] = {
    "log flipped": (lambda v: flip(newest(v / "wals", "*.log")), "checksum mismatch"),
    "log missing": (log_cut, "is missing; the newest file there is none"),
    "log's folder missing": (lambda v: shutil.rmtree(v / "wals"), "is missing; the newest file there is"),
    "log cut where it was synced": (noted_log_cut, "were synced"),
}
"""The same of a volume whose log is in RocksDB."""

ASIDE_IN_SEGMENTS: dict[str, tuple[Harm, str]] = {
    "RocksDB's log missing": (log_cut, "is missing; the newest file there is none"),
    "RocksDB's log's folder missing": (
        lambda v: shutil.rmtree(v / "wals"),
        "is missing; the newest file there is",
    ),
    "segment flipped": (lambda v: flip(newest_segment(v)), ": checksum mismatch"),
    "segment's first byte flipped": (lambda v: flip(newest_segment(v), 0), ": checksum mismatch"),
    "segment's last byte flipped": (lambda v: flip(newest_segment(v), -1), ": checksum mismatch"),
    "first frame's head flipped": (
        lambda v: flip(newest_segment(v), HEADER_BYTES + 1),
        ": checksum mismatch",
    ),
    "all segments missing": (lambda v: newest_segment(v).unlink(), "has no segment of the log with a header"),
    "segments' folder missing": (lambda v: shutil.rmtree(v / "log"), "the folder log is missing; "),
    "newest segment missing": (noted_segment_missing, "were synced"),
    "segment between missing": (segment_between_missing, ".seg is missing"),
    "segment cut where it was synced": (noted_segment_cut, "were synced"),
    "segment cut to its header": (lambda v: os.truncate(newest_segment(v), HEADER_BYTES), "were synced"),
    "segment empty": (lambda v: os.truncate(newest_segment(v), 0), "has no segment of the log with a header"),
    "segments-end flipped": (flipped("segments-end"), "segments-end: "),
}
"""The same of a volume whose log is in segments."""

OFFLINE: dict[str, tuple[Harm, str]] = {
    "superblock flipped": (flipped("tablet-meta/0"), "tablet-meta/0: "),
    "superblock empty": (lambda v: (v / "tablet-meta/0").write_bytes(b""), "tablet-meta/0: "),
    "consensus flipped": (flipped("consensus-meta/0"), "what was promised for it is lost"),
    "consensus empty": (
        lambda v: (v / "consensus-meta/0").write_bytes(b""),
        "what was promised for it is lost",
    ),
    "consensus missing": (gone("consensus-meta/0"), "consensus-meta/0 is damaged or missing"),
}
"""Damage of one tablet: it is offline, the others serve."""


@dataclass(frozen=True)
class Killed:
    """Where a killed volume is, some of it flushed, some only in the log, and the features of its cluster."""

    folder: Path
    features: int


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Its log is in segments."""
    return Killed(tmp_path_factory.mktemp("damage"), LOG_SEGMENTS)


@pytest.fixture(scope="module")
def first_volume(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Its log is in RocksDB."""
    return Killed(tmp_path_factory.mktemp("damage-1"), FIRST)


async def made_once(killed: Killed) -> Path:
    """The volume that every test harms a copy of."""
    folder = killed.folder
    ready = folder / "ready"
    if not ready.exists():
        async with hasty_cluster(folder, PARTITIONS) as made:
            made.replicas, made.features = 1, killed.features
            await made.form(1)
            client = Client(made)
            for partition in range(PARTITIONS):
                assert await client.set(0, key_in(partition, PARTITIONS), VALUE)
            await made.order(0, m.Fence(0, 3, True))
            made.store(0, (0,), by=2)
            await made.publish()
            await made.served()
            await eventually(lambda: tablet(made, 0, 1), lambda t: t.flushed >= 2)
            ends = ["log-end", *(["segments-end"] if killed.features >= LOG_SEGMENTS else [])]
            for name in ends:
                await eventually(partial(_exists, made.members[0].folder / name), bool)
            for partition in range(PARTITIONS):
                assert await client.set(0, key_in(partition, PARTITIONS, 1), VALUE)
            await client.close()
            await made.members[0].kill()
            assert (made.members[0].folder / "log").exists() == (killed.features >= LOG_SEGMENTS)
            shutil.copytree(made.members[0].folder, ready)
    return ready


async def _exists(path: Path) -> bool:
    return path.exists()


def read_block(folder: Path, partition: int) -> Superblock:
    path = folder / "tablet-meta" / str(partition)
    return decode_file(Superblock, path.read_bytes(), str(path))


@dataclass
class Harmed:
    made: Cluster
    member: MemberProcess
    uuid: str

    async def serve(self) -> m.ExchangeReply:
        """Tell it the table that it had."""
        for partition in range(PARTITIONS):
            self.made.rows[partition] = m.Row(partition, 3 if partition == 0 else 1, (0,))
        return await self.made.exchange(0)

    async def copies_anew(self, partition: int) -> None:
        """The row leaves this member and it receives a copy; what was damaged is kept for a while."""
        self.made.rows[partition] = m.Row(partition, 5, ())
        await self.made.publish()
        started = await self.made.command(0, m.StartTabletCopy("x", partition, 5, 0))
        assert (started.code, started.generation) == ("OK", 2), started
        block = read_block(self.member.folder, partition)
        assert (block.state, [each.generation for each in block.quarantined]) == ("COPYING", [1])

    async def try_to_read(self, partition: int) -> str:
        """Empty when all is there; else what is wrong with the tablet."""
        if offline := (await tablet(self.made, 0, partition)).offline:
            return offline
        try:
            assert await self.read(partition) == [VALUE, VALUE]
        except RespError as error:
            return str(error)
        return ""

    async def read(self, partition: int) -> list[object]:
        client = Client(self.made)
        keys = [key_in(partition, PARTITIONS, seed) for seed in range(2)]
        return [await client.call(0, b"GET", key) for key in keys]


@asynccontextmanager
async def harmed(volume: Killed, tmp_path: Path, harm: Harm) -> AsyncIterator[Harmed]:
    ready = await made_once(volume)
    shutil.copytree(ready, tmp_path / "m0")
    harm(tmp_path / "m0")
    async with hasty_cluster(tmp_path, PARTITIONS) as made:
        made.replicas, made.features = 1, volume.features
        member = await made.add()
        yield Harmed(made, member, member.uuid)


@pytest.mark.parametrize("of", ["volume", "first_volume"])
async def test_an_intact_copy_serves_everything(
    request: pytest.FixtureRequest, tmp_path: Path, of: str
) -> None:
    killed: Killed = request.getfixturevalue(of)
    async with harmed(killed, tmp_path, lambda path: None) as found:
        await found.serve()
        await found.made.served()
        for partition in range(PARTITIONS):
            assert await found.read(partition) == [VALUE, VALUE]


async def test_a_log_is_in_segments_after_a_start_with_the_features(
    first_volume: Killed, tmp_path: Path
) -> None:
    """All that is in the log only is there before and after the move, and no start later misses a file."""
    async with harmed(first_volume, tmp_path, lambda path: None) as found:
        made, folder = found.made, found.member.folder
        made.features = LOG_SEGMENTS
        await found.serve()
        await made.served()
        assert not (folder / "log").exists()
        for _ in range(3):
            await found.member.kill()
            await found.member.start()
            assert (await made.hello(found.member)).uuid == found.uuid
            await found.serve()
            await made.served()
            assert (folder / "log").exists()
            for partition in range(PARTITIONS):
                assert await found.read(partition) == [VALUE, VALUE]
        await eventually(lambda: _exists(folder / "segments-end"), bool)
        await found.member.kill()
        noted_segment_cut(folder)
        await found.member.start()
        await made.hello(found.member)
        (aside,) = (folder / "quarantine").iterdir()
        assert "were synced" in (aside / "reason").read_text()


@pytest.mark.parametrize("name", [*ASIDE, *ASIDE_IN_SEGMENTS])
async def test_a_damaged_volume_is_put_aside(volume: Killed, tmp_path: Path, name: str) -> None:
    harm, reason = (ASIDE | ASIDE_IN_SEGMENTS)[name]
    await is_put_aside(volume, tmp_path, harm, reason)


@pytest.mark.parametrize("name", ASIDE_IN_ROCKSDB)
async def test_a_volume_whose_log_in_rocksdb_is_damaged_is_put_aside(
    first_volume: Killed, tmp_path: Path, name: str
) -> None:
    await is_put_aside(first_volume, tmp_path, *ASIDE_IN_ROCKSDB[name])


async def is_put_aside(volume: Killed, tmp_path: Path, harm: Harm, reason: str) -> None:
    """The member starts empty, and the whole log is in quarantine."""
    old = (await made_once(volume) / "instance").read_bytes()
    async with harmed(volume, tmp_path, harm) as found:
        reply = await found.made.hello(found.member)
        assert (reply.tablets, reply.incarnation) == ((), 1)
        assert found.uuid.encode() not in old
        (aside,) = (tmp_path / "m0" / "quarantine").iterdir()
        assert reason in (aside / "reason").read_text()
        assert "this member starts empty" in found.member.log()
        assert not (tmp_path / "m0" / "log").exists()
        assert not (tmp_path / "m0" / "segments-end").exists()
        await found.member.kill()
        await found.member.start()
        assert (await found.made.hello(found.member)).uuid == found.uuid


@pytest.mark.parametrize("name", OFFLINE)
async def test_a_damaged_tablet_is_offline_and_the_others_serve(
    volume: Killed, tmp_path: Path, name: str
) -> None:
    harm, reason = OFFLINE[name]
    async with harmed(volume, tmp_path, harm) as found:
        reply = await eventually(found.serve, lambda r: r.unserved == (0,))
        assert [each.partition for each in reply.tablets] == [1, 2, 3]
        facts = await tablet(found.made, 0, 0)
        assert reason in facts.offline
        assert not facts.serving
        for partition in (1, 2, 3):
            assert await found.read(partition) == [VALUE, VALUE]
        await found.copies_anew(0)


async def test_a_missing_tablet_is_told(volume: Killed, tmp_path: Path) -> None:
    async with harmed(volume, tmp_path, gone("tablet-meta/1")) as found:
        await eventually(found.serve, lambda r: r.unserved == (1,))
        # The table on the volume knew the row, so an empty tablet is not made for it.
        assert await found.read(0) == [VALUE, VALUE]
        assert (await tablet(found.made, 0, 1)).offline == "row 1 names a tablet that is not on this volume"


@pytest.mark.parametrize("harm", [flipped("table/current"), gone("table/current")])
async def test_a_damaged_table_is_learned_again(volume: Killed, tmp_path: Path, harm: Harm) -> None:
    async with harmed(volume, tmp_path, harm) as found:
        await found.serve()
        await found.made.served()
        assert await found.read(1) == [VALUE, VALUE]


async def test_a_bad_block_takes_its_tablets_offline_when_they_are_read(
    volume: Killed, tmp_path: Path
) -> None:
    def harm(path: Path) -> None:
        """The first block of a file of data."""
        engine = RocksEngine(path / "data", path / "wals")
        engine.flush()
        engine.close()
        files = sorted((path / "data").glob("*.sst"), key=lambda file: file.name)
        flip(next(file for file in files if APPLIED in file.read_bytes()), 40)

    async with harmed(volume, tmp_path, harm) as found:
        await found.serve()
        problems = [await found.try_to_read(partition) for partition in range(PARTITIONS)]
        assert any(problems), "the flip was not read"
        assert all("checksum mismatch" in problem for problem in problems if problem)
        for partition, problem in enumerate(problems):
            assert bool(problem) == bool((await tablet(found.made, 0, partition)).offline)
        await found.copies_anew(next(p for p, problem in enumerate(problems) if problem))


async def test_the_volume_of_another_cluster_is_refused_and_left_alone(
    volume: Killed, tmp_path: Path
) -> None:
    ready = await made_once(volume)
    shutil.copytree(ready, tmp_path / "m0")
    other = encode_file(Instance("another", "u", 1))
    (tmp_path / "m0" / "instance").write_bytes(other)
    code, text = await start_alone(tmp_path)
    assert code == 1
    assert f"belongs to cluster another, but STELE_CLUSTER_UID is {CLUSTER}; mount the right volume" in text
    assert (tmp_path / "m0" / "instance").read_bytes() == other
    assert not list((tmp_path / "m0" / "quarantine").iterdir())


async def test_a_read_only_volume_is_refused_in_a_sentence(volume: Killed, tmp_path: Path) -> None:
    ready = await made_once(volume)
    with mounted(tmp_path / "m0", "64m"):
        shutil.copytree(ready, tmp_path / "m0", dirs_exist_ok=True)
        remount(tmp_path / "m0", "ro")
        code, text = await start_alone(tmp_path)
        assert code == 1
        assert "Read-only file system" in text
        assert "Traceback" not in text


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[None]:
    """A file system of its own, in memory; tests are skipped where none can be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def remount(folder: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)


async def test_a_full_volume_of_a_backup_refuses_writes_at_its_owner(tmp_path: Path) -> None:
    with mounted(tmp_path / "m1", "200m"):
        ballast = tmp_path / "m1" / "ballast"
        async with hasty_cluster(tmp_path, PARTITIONS) as made:
            await made.form(2)
            client, backed_up = Client(made), owned_by(made, 0)
            assert await client.set(0, backed_up, b"v")
            free = os.statvfs(tmp_path / "m1")
            ballast.write_bytes(bytes(free.f_bavail * free.f_frsize - 30 * 1024 * 1024))
            refused = await eventually(lambda: attempt(client, backed_up), lambda text: text != "OK")
            assert refused.startswith("NO_SPACE the volume of member 1, which holds a copy of this partition")
            for command in ([b"DEL", backed_up], [b"STELE.ONCE", b"c", b"1", b"SET", backed_up, b"w"]):
                with pytest.raises(RespError, match="NO_SPACE"):
                    await client.call(0, *command)
            assert await client.call(0, b"GET", backed_up) == b"v"
            assert "member 1: its volume is full" in made.members[0].log()
            ballast.unlink()
            assert await eventually(lambda: attempt(client, backed_up), lambda text: text == "OK")
            await client.close()


def owned_by(made: Cluster, member: int) -> bytes:
    """A key of a partition that the member owns."""
    partition = next(p for p in range(PARTITIONS) if made.rows[p].replicas[0] == member)
    return key_in(partition, PARTITIONS)


async def attempt(client: Client, key: bytes = b"now") -> str:
    try:
        await client.call(0, b"SET", key, b"v")
    except RespError as error:
        return str(error)
    return "OK"


async def start_alone(folder: Path) -> tuple[int, str]:
    """A member that does not come up: its exit code and what it said."""
    async with hasty_cluster(folder, PARTITIONS) as made:
        member = MemberProcess(0, "127.0.0.2", folder / "m0", made.ports, {})
        await member.start()
        assert member.process is not None
        return await member.process.wait(), member.log()


async def test_an_older_snapshot_of_a_member_is_brought_up_to_date(tmp_path: Path) -> None:
    """A backup of its own volume was restored: the other replica has what it acknowledged since."""
    async with hasty_cluster(tmp_path, PARTITIONS) as made:
        await made.form(2)
        member, client = made.members[1], Client(made)
        await write_everywhere(client, 0)
        await member.kill()
        shutil.copytree(member.folder, tmp_path / "snapshot")
        await member.start()
        await made.hello(member)
        await made.served()
        await client.close()
        await write_everywhere(client, 0)
        await write_everywhere(client, 1)
        await member.kill()
        shutil.rmtree(member.folder)
        shutil.copytree(tmp_path / "snapshot", member.folder)
        await member.start()
        await made.hello(member)
        await made.publish()
        await made.served()
        await client.close()
        for index in (0, 1):
            await client.check(index)
        await made.same_everywhere()
        await client.close()


async def write_everywhere(client: Client, seed: int) -> None:
    for partition in range(PARTITIONS):
        key = key_in(partition, PARTITIONS, seed)
        assert await client.set(0, key, b"%d" % len(client.acknowledged)), client.errors


LARGE = 400_000
"""Bytes of one of three values of a tablet that is not small."""


@pytest.mark.parametrize("name", ["*.json", "*.sst", "*.blocks"])
async def test_a_damaged_copy_is_not_taken_in(tmp_path: Path, name: str) -> None:
    """The tablet is small, or as large as makes an SST file."""
    size = LARGE if name == "*.sst" else 20
    async with hasty_cluster(tmp_path, 5) as made:
        world = steps.World(made)
        await world.form()
        for index in (steps.OWNER, steps.TARGET):
            await made.members[index].start_transfer()
        session = await steps.receive(world, world.take("elsewhere"), size)
        (path,) = (made.members[steps.TARGET].folder / "staging" / session).glob(name)
        flip(path)
        refused = await made.command(steps.TARGET, m.Ingest(session, (world.used[-1],)))
        assert refused.code in {"CORRUPT", "STALE_COPY", "NOT_FOUND"}, refused
        assert (await tablet(made, steps.TARGET, world.used[-1])).state == "COPYING"


async def test_damage_that_a_copy_meets_takes_the_source_offline(tmp_path: Path) -> None:
    async with hasty_cluster(tmp_path, 5) as made:
        world = steps.World(made)
        await world.form()
        for index in (steps.OWNER, steps.TARGET):
            await made.members[index].start_transfer()
        partition, session = world.take("elsewhere"), "damaged"
        await world.start_copy(partition, LARGE)
        opened = (await world.command(steps.OWNER, m.OpenSession(session, (partition,)))).session
        assert opened is not None
        for path in (made.members[steps.OWNER].folder / "checkpoints" / session / "db").glob("*.sst"):
            if APPLIED in path.read_bytes():
                flip(path, 40)
        item = m.CopyItem(partition, opened.tablets[0].generation, 1, opened.tablets[0].bytes)
        await world.command(steps.TARGET, m.FetchDirect(session, steps.OWNER, opened.token, (item,)))
        note = made.members[steps.OWNER].folder / "checkpoints" / session / damage_note(partition, 1)
        await eventually(lambda: _exists(note), bool)
        await world.command(steps.OWNER, m.CloseSession(session))
        facts = await tablet(made, steps.OWNER, partition)
        assert "checksum mismatch" in facts.offline
        assert not facts.serving


async def test_damage_that_a_session_meets_takes_the_source_offline(tmp_path: Path) -> None:
    """The stream of a small tablet is read when the session opens."""
    async with hasty_cluster(tmp_path, 5) as made:
        world = steps.World(made)
        await world.form()
        partition, export = world.take("elsewhere"), f"{EXPORT_PREFIX}flushed"
        await world.command(steps.OWNER, m.OpenSession(export, (partition,)))
        for path in (made.members[steps.OWNER].folder / "checkpoints" / export / "db").glob("*.sst"):
            if APPLIED in path.read_bytes():
                flip(path, 40)  # A hard link: it is the database's file, too.
        refused = await made.command(steps.OWNER, m.OpenSession("s", (partition,)))
        assert refused.code == "CORRUPT", refused
        facts = await tablet(made, steps.OWNER, partition)
        assert "checksum mismatch" in facts.offline
        assert not facts.serving
