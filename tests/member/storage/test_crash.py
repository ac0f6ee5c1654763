"""Kill a member right after every step that changes its volume, start it again, and look at what is there."""

import asyncio
import signal
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from stele.adapters.rocksdb.engine import RocksEngine
from stele.adapters.segments.files import FOLDER
from stele.core.formats import FIRST, LOG_SEGMENTS
from stele.core.tablet.lifecycle import TabletState
from stele.errors import Corrupt
from stele.member.replication.gc import kept_generations
from stele.member.replication.stored_log import log_range
from stele.member.storage import failpoints
from stele.member.storage.failpoints import EXIT_CODE, POINTS
from stele.member.storage.volume import DATA, STATE_OF_MEMBER, TABLETS, WALS, Volume
from stele.wire.storage import keys
from stele.wire.storage.volume import Superblock, encode_file
from tests.member.admin.test_tablet_info import tablet
from tests.member.harness.cluster import MemberProcess, hasty_cluster
from tests.member.harness.forked import Forked
from tests.member.storage import crash_steps as steps
from tests.member.storage.crash_steps import TARGET, Step, World
from tests.sampled import sampled

WHERE: dict[Step, str] = {
    steps.promote: "file.aside file.renamed promised.saved accepted.saved accepted.cleared",
    steps.create: "create.consensus create.superblock table.saved",
    steps.write: "write.logged write.synced write.applied",
    steps.come_back: "write.cut",
    steps.flush: "flush.synced flush.flushed trim.dropped",
    steps.copy: "copy.saved copy.cleared block.copying copy.log_cleared",
    steps.source: "session.written session.described session.closing",
    steps.export: "session.checkpointed",
    steps.ingest: "ingest.dropped ingest.ingested block.ready",
    steps.delete: "block.deleted quarantine.data_dropped quarantine.log_dropped restore.read",
    steps.replace: "quarantine.log_aside",
    steps.hand_over: "waited.saved waited.cleared frozen.saved frozen.cleared",
}
"""The points that each step passes."""
AGAIN: dict[Step, str] = {
    steps.copy: "block.ready block.deleted file.aside",
    steps.delete: "block.ready file.renamed",
    steps.ingest: "copy.log_cleared",
    steps.replace: "copy.saved block.ready ingest.ingested copy.log_cleared block.ready:2",
    steps.export: "session.described session.closing",
    steps.write: "write.logged:3 write.synced:3 write.applied:3",
    steps.hand_over: "file.renamed:2",
    steps.swap: "frozen.saved frozen.cleared waited.saved:2 waited.cleared:2 accepted.saved accepted.cleared",
}
"""Points that more than one step passes; with the mode that promises most."""
AT_START: dict[str, Step] = {
    "start.instance": steps.nothing,
    "start.engine": steps.nothing,
    "start.rolled_back": steps.interrupted_copy,
}
ELSEWHERE = {"start.swept", "aside.reason", "aside.moved", "load.prepared", "load.ingested"}
ELSEWHERE |= {"write.cleared", "keyspaces.saved", "transaction.prepared", "transaction.decided"}
"""Tests of their own pass these."""


def pairs(passed: dict[Step, str]) -> list[tuple[str, Step]]:
    """Each point with the step that passes it."""
    return [(point, step) for step, points in passed.items() for point in points.split()]


def test_every_point_is_passed() -> None:
    assert {point for point, _ in pairs(WHERE)} | set(AT_START) | ELSEWHERE == set(POINTS)
    source = Path(steps.__file__).parents[3] / "operator" / "stele" / "member"
    text = "".join(path.read_text() for path in source.rglob("*.py") if path.name != "failpoints.py")
    for name in POINTS:
        prefix, _, kind = name.partition(".")
        derived = kind in {"saved", "cleared"} or prefix == "block"
        assert derived or f'failpoints.hit("{name}")' in text, name


class Round:
    """One death of the target and what comes after it."""

    def __init__(self, world: World, point: str, power: str) -> None:
        self.world, self.made, self.point, self.power = world, world.made, point, power
        world.begin_round()

    @property
    def member(self) -> MemberProcess:
        return self.made.members[TARGET]

    async def start(self, **extra: str) -> None:
        power = {"POWER": "1"} if self.power else {}
        await self.member.start(**extra, **power)

    async def ready(self) -> None:
        await self.made.hello(self.member)
        await self.made.publish()
        await self.made.served()

    async def die_in(self, step: Step) -> None:
        process = self.member.process
        assert isinstance(process, Forked)
        self.member.folder.with_suffix(".point").write_text(self.point)
        process.send_signal(signal.SIGUSR1)
        work = asyncio.ensure_future(step(self.world))
        death = asyncio.ensure_future(process.wait())
        await asyncio.wait({work, death}, timeout=steps.REACHED_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({death}, timeout=2.0)
        if not death.done():
            death.cancel()
            if work.done():
                await work
            raise AssertionError(f"{self.point} was not reached")
        work.cancel()
        problem = (await asyncio.gather(work, return_exceptions=True))[0]
        assert problem is None or isinstance(problem, (asyncio.CancelledError, *steps.TROUBLE)), problem
        assert process.returncode == EXIT_CODE
        self.member.process = None

    async def dies_at_start(self, point: str) -> None:
        await self.start(STELE_CRASH_POINT=point)
        assert self.member.process is not None
        assert await self.member.process.wait() == EXIT_CODE

    async def look(self, *, same_master: bool = False) -> None:
        """Start again; nothing that was acknowledged or promised is lost, nothing is offline.

        The order that it died in comes again, of the same master, and of the next.
        """
        world, order = self.world, self.made.orders.get(TARGET)
        await self.start()
        await self.made.hello(self.member)
        for partition, term in world.told.items():
            assert (await tablet(self.made, TARGET, partition)).promised >= term
        if order is not None and same_master:
            await world.repeat(order)
        self.made.epoch += 1
        if order is not None:
            await world.repeat(order)
        await world.until_quiet()
        await world.client.close()
        for member in (steps.OWNER, TARGET):
            await world.client.check(member)
        reply = await self.made.exchange(TARGET, rows=())
        held = {each.partition: each.state for each in reply.tablets}
        for partition in world.used:
            if TARGET in self.made.rows[partition].replicas:
                assert held[partition] == "READY"
        await world.client.close()


@pytest.mark.parametrize(
    ("fsync", "power", "features"),
    [sampled(fsync, "", LOG_SEGMENTS, kept=fsync == "Interval") for fsync in ("Always", "Interval", "Never")]
    + [sampled("Always", "1", LOG_SEGMENTS, kept=True), sampled("Always", "1", FIRST, kept=False)],
)
async def test_a_member_that_dies_after_any_step(
    tmp_path: Path, fsync: str, power: str, features: int
) -> None:
    async with hasty_cluster(tmp_path, 165, STELE_FSYNC=fsync) as made:
        made.features = features
        world = World(made)
        await world.form()
        await asyncio.gather(*(member.start_transfer() for member in made.members.values()))
        await made.members[TARGET].kill()
        await Round(world, "", power).look()
        deaths = [*pairs(WHERE), *(pairs(AGAIN) if fsync == "Always" else ())]
        # With the loss of power each order comes again from the other of the two masters.
        for turn, (point, step) in enumerate(deaths, bool(power)):
            this = Round(world, point, power)
            if step is steps.come_back:
                await steps.diverge(world)
                await this.start()
                await this.ready()
            await this.die_in(step)
            await this.look(same_master=turn % 2 == 0)
        for point, step in AT_START.items():
            this = Round(world, point, power)
            await step(world)
            await this.dies_at_start(point)
            await this.look()
        this = Round(world, "ingest.ingested", power)
        await this.die_in(steps.ingest)
        await this.dies_at_start("start.swept")
        await this.look()
        await made.same_everywhere()
        assert await made.members[TARGET].stop() == 0
        assert (tmp_path / f"m{TARGET}" / FOLDER).exists() == (features >= LOG_SEGMENTS)
        check_volume(tmp_path / f"m{TARGET}")


@pytest.mark.parametrize("features", [FIRST, LOG_SEGMENTS])
async def test_a_lost_sync_would_be_noticed(tmp_path: Path, features: int) -> None:
    """The loss of power in these tests takes what was not synced: without syncs the check fails."""
    async with hasty_cluster(tmp_path, 10, STELE_FSYNC="Never") as made:
        made.features = features
        world = World(made)
        await world.form()
        await made.members[TARGET].kill()
        this = Round(world, "write.logged:5", "1")
        await this.look()
        await this.die_in(steps.write_alone)
        with pytest.raises(AssertionError):
            await this.look()


async def test_a_volume_that_is_put_aside_is_moved_whole_whenever_it_is_interrupted(tmp_path: Path) -> None:
    async with hasty_cluster(tmp_path, 2) as made:
        made.features = LOG_SEGMENTS
        made.replicas = 1
        member = await made.add()
        made.store(0, (0,))
        await made.publish()
        await member.kill()
        parts = {path.name for path in member.folder.iterdir()} & set(STATE_OF_MEMBER)
        (member.folder / "instance").write_bytes(b"garbage")
        for point in ("aside.reason", "aside.moved", "aside.moved:2"):
            await member.start(STELE_CRASH_POINT=point)
            assert member.process is not None
            assert await member.process.wait() == EXIT_CODE
        await member.start()
        assert (await made.hello(member)).tablets == ()
        moved = [path.name for aside in (member.folder / "quarantine").iterdir() for path in aside.iterdir()]
        assert sorted(name for name in moved if name in parts and name != "tablet-meta")
        for name in parts - {"tablet-meta", "consensus-meta", "table"}:
            assert moved.count(name) == 1, (name, moved)


class Died(BaseException):
    """The process ends here."""


def die() -> None:
    raise Died


def opened(volume: Volume) -> tuple[str, RocksEngine]:
    """The UUID of the member, and its database."""
    uuid = volume.load_instance("cluster", "another").uuid
    engine = RocksEngine(volume.path(DATA), volume.path(WALS))
    try:
        volume.check_segments(engine.log_end())
    except Corrupt:
        engine.close()
        raise
    return uuid, engine


def opened_or_aside(folder: Path) -> tuple[str, RocksEngine]:
    """Open a volume as a start does."""
    volume = Volume(folder)
    volume.create_folders()
    try:
        return opened(volume)
    except Corrupt as error:
        volume.quarantine_volume(str(error))
        return opened(volume)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("moved", range(1, len(STATE_OF_MEMBER) + 1))
def test_what_was_put_aside_in_part_is_no_other_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segments: bool, moved: int
) -> None:
    """Whenever the process ended meanwhile, the next start has nothing of the member, or all is put aside."""
    volume, operation = Volume(tmp_path), keys.log_key(1, 1)
    volume.create_folders()
    volume.load_instance("cluster", "this")
    engine = RocksEngine(volume.path(DATA), volume.path(WALS))
    if segments:
        engine.move_log()
    engine.write_log([(operation, b"operation")])
    engine.write_data([(keys.tablet_prefix(1, 1), b"entry")])
    engine.flush()
    engine.sync_log()
    volume.note_log_end(volume.log_files(), engine.log_end())
    volume.write({f"{TABLETS}/1": encode_file(Superblock(TabletState.READY, 1, 1))})
    engine.close()
    hits = count(1)
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_die", lambda: None if next(hits) < moved else die())
        patch.setattr(failpoints._Armed, "name", "aside.moved")
        with suppress(Died):
            volume.quarantine_volume("it is damaged")
    uuid, engine = opened_or_aside(tmp_path)
    try:
        assert uuid == "another"
        assert engine.get_log(operation) is None
        assert engine.get(keys.tablet_prefix(1, 1)) is None
        assert list(volume.path(TABLETS).iterdir()) == []
    finally:
        engine.close()
    again, engine = opened_or_aside(tmp_path)
    engine.close()
    assert again == "another"


def check_volume(folder: Path) -> None:
    """All data is of generations that superblocks keep; a tombstone has a log only in quarantine."""
    volume = Volume(folder)
    engine = RocksEngine(folder / DATA, folder / WALS)
    blocks = dict(volume.load_all(TABLETS, Superblock))
    try:
        for partition in range(2**8):
            found = generations(engine, partition)
            block = blocks.get(partition)
            assert not isinstance(block, Corrupt)
            assert block is None or block.highest == block.newest
            assert found <= (kept_generations(block) if block else set()), (partition, block)
            if block is None or (block.state == "DELETED" and not block.quarantined):
                assert engine.log_bounds(*log_range(partition)) is None, (partition, block)
    finally:
        engine.close()


def generations(engine: RocksEngine, partition: int) -> set[int]:
    found: set[int] = set()
    begin, end = keys.tablet_prefix(partition, 0), keys.tablet_prefix(partition, 2**32 - 1)
    while page := engine.scan(begin, end, 1):
        generation = int.from_bytes(page[0][0][2 : keys.TABLET_PREFIX_BYTES], "big")
        found.add(generation)
        begin = keys.tablet_prefix(partition, generation + 1)
    return found


async def test_an_unknown_point_is_refused(tmp_path: Path) -> None:
    env = MemberProcess(0, "127.0.0.2", tmp_path, list(range(1, 8))).environment()
    for value, problem in (
        ("nowhere", "it must be one of file.aside, "),
        ("write.logged:0", "from 1 to 10^9"),
    ):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "stele.member", env={**env, "STELE_CRASH_POINT": value}, stderr=-1
        )
        _, text = await process.communicate()
        assert process.returncode == 2
        assert f"STELE_CRASH_POINT is '{value}'" in text.decode()
        assert problem in text.decode()
