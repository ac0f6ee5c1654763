"""Bugs of Kudu's tablet copy that must not come back here, each by its number.

What a number stands for is in its first sentence; the commits are in Apache Kudu's history.
"""

import asyncio
import random
from pathlib import Path

import msgspec

from stele.core.control import commands as m
from stele.core.kv.commands import KEY_BYTES_MAX, VALUE_BYTES_MAX
from stele.core.kv.dedup import CLIENT_ID_BYTES_MAX, CLIENTS_MAX, REPLY_BYTES_MAX
from stele.core.table.table import Partition
from stele.core.tablet.follower import Code, Tablet
from stele.core.tablet.log import Log
from stele.core.tablet.owner import Flow, LearnerState, LogPosition, Owner
from stele.errors import Corrupt
from stele.member import limits
from stele.member.storage.volume import CONSENSUS, TABLETS
from stele.wire import peer
from stele.wire.copy.bulk import EXPORT_PREFIX
from stele.wire.frames import FRAME_BYTES_MAX, encode_frame
from stele.wire.storage.keys import KEYSPACE_BYTES_MAX, SERVICE
from stele.wire.storage.log_record import Change, batch_record, put_record
from tests.member.harness.cluster import Client, cluster, key_in
from tests.member.harness.single_member import OTHER, THIRD, P, SingleMember
from tests.simulation.quiet_cluster import QuietCluster

ONE, TWO = put_record(1, b"default", b"k", b"1", 0), put_record(1, b"default", b"k", b"2", 0)
START = m.StartTabletCopy("copy", P, 1, OTHER)


# -- what a copy is made of


async def test_kudu_951_copies_at_the_same_time_do_not_mix(made: SingleMember, tmp_path: Path) -> None:
    """KUDU-951: two copies of one tablet at a time wrote over each other's files.

    Sessions are told apart by their ids; the first that is ingested wins, the other changes nothing.
    """
    assert await made.code(START) == "OK"
    made.stage("one")
    made.stage("two", m.OpId(1, 9))
    assert await made.code(m.Ingest("one", (P,))) == "OK"
    generation = made.replica.generation
    assert await made.code(m.Ingest("two", (P,))) == "OK"
    assert (made.replica.tablet.log.applied, made.replica.generation) == ((1, 5), generation)
    assert (tmp_path / "staging" / "two" / "two.sst").exists()


async def test_kudu_1046_a_copy_is_at_the_operation_that_its_data_says(made: SingleMember) -> None:
    """KUDU-1046, 1047: metadata were read at another moment than the log: a copy claimed what it had not.

    Where the data is stands in the data itself; a manifest that says otherwise is refused.
    """
    assert await made.code(START) == "OK"
    for applied in (m.OpId(1, 6), m.OpId(1, 4), m.OpId(2, 5)):
        made.stage("s", change=lambda it, applied=applied: msgspec.structs.replace(it, applied=applied))
        assert await made.code(m.Ingest("s", (P,))) == "CORRUPT"
        assert made.replica.state.value == "COPYING"
    await made.take_in()


async def test_kudu_1726_the_superblock_is_the_last_to_reach_the_disk(made: SingleMember) -> None:
    """KUDU-1726, 2134: the superblock named blocks that were not on the disk yet.

    The old log goes, the data and that are synced, and only then the superblock is written.
    """
    assert await made.code(START) == "OK"
    steps: list[str] = []
    flush, sync, save = made.engine.flush, made.engine.sync_log, made.node.metadata.save_block

    async def save_block(*args: object) -> None:
        steps.append("superblock")
        await save(*args)  # type: ignore[arg-type]

    made.engine.flush = lambda: (steps.append("data"), flush())[1]  # type: ignore[method-assign]
    made.engine.sync_log = lambda: (steps.append("log"), sync())[1]  # type: ignore[method-assign]
    made.node.metadata.save_block = save_block  # type: ignore[method-assign]
    await made.take_in()
    assert steps == ["data", "log", "superblock"]
    await made.restart(power_lost=True)
    assert (made.replica.state.value, made.get(b"copied")) == ("READY", b"yes")


async def test_kudu_2496_a_disk_that_fails_during_a_copy_spoils_only_the_copy(made: SingleMember) -> None:
    """KUDU-2496: a disk that failed in the middle of a copy crashed the server.

    The command answers DISK_ERROR, the tablet stays COPYING, and abort and the next copy work.
    """
    assert await made.code(START) == "OK"
    made.stage("s")
    ingest = made.engine.ingest

    def fail(paths: object) -> None:
        raise OSError(5, "Input/output error")

    made.engine.ingest = fail  # type: ignore[method-assign]
    assert await made.code(m.Ingest("s", (P,))) == "DISK_ERROR"
    assert made.replica.state.value == "COPYING"
    made.engine.ingest = ingest  # type: ignore[method-assign]
    assert await made.code(m.Abort("copy", P)) == "OK"
    await made.receive("again")


# -- who remembers what


async def test_kudu_1023_a_tombstone_keeps_its_last_operation(made: SingleMember) -> None:
    """KUDU-1023: a tombstone forgot its last operation, and voted for candidates that had less.

    It stays through deletion, restarts, a copy that began, and one that was broken off by a restart.
    """
    await made.receive()
    await made.acked(made.append((1, 5), [ONE, TWO], commit=7))
    assert await made.code(m.Abort("copy", P)) == "OK"
    for step in ("deleted", "restarted", "copying", "broken off"):
        if step == "restarted":
            await made.restart()
        if step == "copying":
            await made.store((OTHER, THIRD), by=2)
            assert await made.code(m.StartTabletCopy("next", P, 3, OTHER)) == "OK"
            assert made.replica.state.value == "COPYING"
        if step == "broken off":
            await made.restart(power_lost=True)
            assert made.replica.state.value == "DELETED"
        result = (await made.ask(m.Fence(P, 3, True))).results[0]
        assert (result.code, result.last) == ("OK", m.OpId(1, 7)), step


async def test_kudu_1023_a_tablet_that_broke_keeps_its_last_operation(made: SingleMember) -> None:
    """KUDU-1023, another way: a replica that broke while it ran is replaced, not deleted."""
    await made.receive()
    await made.acked(made.append((1, 5), [ONE, TWO], commit=7))
    assert await made.code(m.Abort("copy", P)) == "OK"
    await made.receive("next")
    await made.acked(made.append((1, 5), [ONE, TWO, ONE, TWO], commit=7))
    await made.store((OTHER, 0))
    await made.store((OTHER, THIRD))
    made.node.tablets.break_off(made.replica, Corrupt("a checksum is wrong"))
    assert await made.code(m.StartTabletCopy("last", P, 3, OTHER)) == "OK"
    assert made.replica.state.value == "COPYING"
    assert (await made.ask(m.Fence(P, 4, True))).results[0].last == m.OpId(1, 9)


async def test_kudu_2123_a_tombstone_whose_promises_are_damaged_does_not_vote(
    made: SingleMember, tmp_path: Path
) -> None:
    """KUDU-2123: a tombstone without its consensus metadata voted, and could grant a term twice.

    What was promised is not known, so every term counts as promised, until it is copied for a row without it.
    """
    await made.receive()
    assert await made.code(m.Fence(P, 7, True)) == "OK"
    assert await made.code(m.Abort("copy", P)) == "OK"
    (tmp_path / CONSENSUS / str(P)).write_bytes(b"\0" * 60)
    await made.restart()
    for term in (3, 7, 8, 1000):
        assert await made.code(m.Fence(P, term, True)) == "STALE_TERM"
    assert await made.code(m.StartTabletCopy("next", P, 1, OTHER)) == "OK"
    assert await made.code(m.Fence(P, 0, True)) == "STALE_TERM"


async def test_kudu_2260_null_bytes_in_a_superblock_do_not_stop_the_member(
    made: SingleMember, tmp_path: Path
) -> None:
    """KUDU-2260: after a crash a metadata file was full of null bytes, and the server did not start.

    That tablet is offline, another is not; a new copy takes its place, under a generation never used.
    """
    await made.receive()
    generation = made.replica.generation
    made.rows[1] = m.Row(1, 2, (0, OTHER))
    path = tmp_path / TABLETS / str(P)
    path.write_bytes(b"\0" * path.stat().st_size)
    await made.restart()
    assert "was expected" in made.replica.broken
    assert 1 in made.node.replicas
    assert await made.code(m.Abort("copy", P)) == "OK"
    await made.receive("next")
    assert made.replica.generation > generation
    assert not made.replica.broken


async def test_kudu_1538_a_generation_is_never_used_twice(made: SingleMember, tmp_path: Path) -> None:
    """KUDU-1538: an id of a deleted block was given again; its late deletion took the new data.

    Generations only rise: over aborts, deletions, restarts, also when the superblock is gone.
    """
    seen = []
    for turn in range(6):
        assert await made.code(m.StartTabletCopy(f"c{turn}", P, 1, OTHER)) == "OK"
        assert made.replica.block is not None
        seen.append(made.replica.block.highest)
        if turn % 2:
            await made.take_in(f"c{turn}")
        if turn == 3:
            (tmp_path / TABLETS / str(P)).write_bytes(b"damaged")
            await made.restart()
        assert await made.code(m.Abort(f"c{turn}", P)) == "OK"
        if turn != 3:
            await made.node.migrations.collect_garbage()
    assert seen == sorted(set(seen))


async def test_kudu_701_changes_of_one_tablet_at_the_same_time_are_all_kept(made: SingleMember) -> None:
    """KUDU-701, 969: two flushes of one tablet's metadata ran at a time, and one took the other back.

    Promises of different commands in one exchange are all on the disk afterwards.
    """
    codes = (await made.ask(START, m.Fence(P, 5, True), m.Fence(P, 9, True), m.Fence(P, 7, True))).results
    assert codes[0].code == "OK"
    await made.restart(power_lost=True)
    meta = made.replica.meta
    assert (meta.promised, meta.copy is not None and meta.copy.id) == (9, "copy")


# -- copies that meet other things


async def test_kudu_1337_a_deleted_tablet_does_not_come_back_by_itself(made: SingleMember) -> None:
    """KUDU-1337: a leader that had not heard of the deletion copied the tablet again, right after it.

    Only the master begins a copy; operations, and orders of an older row, leave a tombstone alone.
    """
    await made.receive()
    assert await made.code(m.DeleteTablet(P, 1)) == "MIGRATION_ACTIVE"
    assert await made.code(m.Abort("copy", P)) == "OK"
    await made.store((OTHER,))
    await made.delete()
    for prev in ((0, 0), (1, 5)):
        assert (await made.acked(made.append(prev, [ONE]))).code == Code.NO_TABLET
    assert await made.code(START) == "STALE_VERSION"
    assert await made.code(m.Ingest("s-copy", (P,))) == "ILLEGAL_STATE"
    await made.node.migrations.collect_garbage()
    assert (made.replica.state.value, made.get(b"copied")) == ("DELETED", None)
    await made.delete()


async def test_kudu_1328_whatever_meets_a_copy_the_member_lives(made: SingleMember) -> None:
    """KUDU-1328, 1436, 1785, 1009, 1325: a copy that met a deletion, a start or another copy crashed the
    server.

    Commands in any order and at the same time, with restarts: each is answered, the states are legal ones.
    """
    rolls = random.Random(1)
    for turn in range(150):
        base, copy = made.rows[P].version, made.replica.meta.copy
        session = "none" if copy is None else f"s{copy.generation}"
        orders = [
            m.StartTabletCopy(f"c{turn % 3}", P, base, OTHER),
            m.Ingest(session, (P,)),
            m.Abort(f"c{rolls.randrange(3)}", P),
            m.DeleteTablet(P, base),
            m.Fence(P, base, True),
            m.OpenSession(f"o{turn % 4}", (P,), 60.0),
            m.CloseSession(f"o{rolls.randrange(4)}"),
            m.AddLearner("x", P, base, OTHER),
            m.HandOver("x", P),
        ]
        if copy is not None:
            made.stage(session)
        chosen = rolls.sample(orders, rolls.randrange(1, 6))
        codes = [result.code for result in (await made.ask(*chosen)).results]
        known = {"OK", "WAIT", "ALREADY_IN_PROGRESS", "ILLEGAL_STATE", "MIGRATION_ACTIVE", "NOT_OWNER"}
        assert set(codes) <= known | {"STALE_COPY", "STALE_TERM", "NOT_FOUND", "UNKNOWN_MEMBER"}, codes
        made.append((1, 5), [ONE])
        if turn % 10 == 9:
            await made.restart(power_lost=rolls.random() < 0.5)
            assert made.replica.state.value != "COPYING"
        assert not made.replica.broken
    assert made.failures == []


async def test_kudu_1853_an_aborted_copy_takes_nothing_but_its_own(made: SingleMember) -> None:
    """KUDU-1853 and its fix, KUDU-1968: what an aborted copy left was cleaned up, and live blocks with it.

    A tablet that serves keeps its data when a copy that would replace it is aborted, and after a restart.
    """
    await made.receive()
    row = made.rows[P].version
    await made.store((OTHER, 0))
    assert made.replica.meta.copy is None
    await made.store((OTHER, THIRD))
    assert await made.code(m.StartTabletCopy("back", P, row + 2, OTHER)) == "OK"
    made.stage("half", m.OpId(1, 9))
    assert made.replica.state.value == "READY"
    assert await made.code(m.Abort("back", P)) == "OK"
    assert (await made.command(m.CloseSession("half"))).code == "OK"
    await made.node.migrations.collect_garbage()
    for _ in range(2):
        assert (made.replica.state.value, made.get(b"copied")) == ("READY", b"yes")
        await made.restart()


async def test_kudu_2020_a_copy_under_way_is_said_and_not_begun_again(made: SingleMember) -> None:
    """KUDU-2020: a busy destination gave an error that the leader took for a failure: copies piled up.

    Another migration is told ALREADY_IN_PROGRESS, and the same one gets the same answer, as often as it asks.
    """
    first = (await made.ask(START)).results[0]
    assert first.code == "OK"
    assert (await made.ask(START, START)).results == (first, first)
    assert await made.code(m.StartTabletCopy("other", P, 1, OTHER)) == "ALREADY_IN_PROGRESS"
    await made.take_in()
    assert (await made.ask(START)).results[0].generation == first.generation
    assert await made.code(m.StartTabletCopy("other", P, 1, OTHER)) == "ALREADY_IN_PROGRESS"


async def test_kudu_2293_what_a_failed_cleanup_left_does_not_stop_the_next_copy(made: SingleMember) -> None:
    """KUDU-2293: a clean-up that failed left the tablet COPYING, and the next copy ended the process.

    A member that restarts in the middle is a tombstone, says that this copy failed, and takes the next.
    """
    assert await made.code(START) == "OK"
    await made.restart(power_lost=True)
    assert made.replica.state.value == "DELETED"
    assert [copy.state for copy in (await made.ask()).copies] == ["FAILED"]
    assert await made.code(START) == "ILLEGAL_STATE"
    assert await made.code(m.Abort("copy", P)) == "OK"
    await made.receive("next")


async def test_kudu_2124_other_requests_are_answered_while_a_session_opens(made: SingleMember) -> None:
    """KUDU-2124: a lock was held while a session was made, and everybody else waited for it."""
    await made.receive()
    assert await made.code(m.Abort("copy", P)) == "OK"
    await made.receive("c")
    may_end = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(path: str) -> None:
        asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result(10)

    made.engine.checkpoint = slow  # type: ignore[method-assign]
    opening = m.OpenSession(f"{EXPORT_PREFIX}s1", (P,), 60.0)
    assert await made.code(opening) == "WAIT"
    async with asyncio.timeout(5):
        assert await made.code(m.Fence(P, 3, True)) == "OK"
    may_end.set()
    await made.until_quiet()
    assert await made.code(opening) == "OK"


def test_kudu_2748_no_tablet_yet_is_no_reason_for_a_copy() -> None:
    """KUDU-2748: a server that was still starting said NOT_FOUND, and a copy replaced what it had.

    The owner asks such a member again, and counts it neither as holding anything nor as needing a copy.
    """
    tablet = Tablet(P, 0, Log(), 0)
    tablet.row = Partition(1, (0, 1))
    owner = Owner(tablet, None, None)
    owner.on_probe_result(1, 1, Code.NO_TABLET, LogPosition((0, 0), (0, 0)), 0)
    assert owner.next_step() is None
    assert not owner.ready_to_commit
    assert owner.to_probe(100.0) == [1]
    owner.on_probe_result(1, 1, Code.OK, LogPosition((0, 0), (0, 0)), 0)
    owner.next_step()
    tablet.log.append(1, 1, 1)
    owner.appended_first()
    owner.synced = 1
    assert not owner.on_ack(1, 1, Code.NO_TABLET, 1, 0)
    assert (owner.progress[1].flow, owner.progress[1].match, tablet.log.committed) == (Flow.PROBE, 0, 0)
    owner.add_learner("m", 7, 1)
    owner.on_probe_result(7, 1, Code.NO_TABLET, LogPosition((0, 0), (0, 0)), 0)
    assert owner.learner is not None
    assert owner.learner.state is LearnerState.PROBING


def test_kudu_3459_the_largest_operation_fits_into_a_message() -> None:
    """KUDU-3459: metadata outgrew the largest message, and a copy could never succeed."""
    changes = [Change(b"s" * KEYSPACE_BYTES_MAX, bytes(KEY_BYTES_MAX), bytes(VALUE_BYTES_MAX), 1)]
    changes += [Change(SERVICE, bytes(CLIENT_ID_BYTES_MAX), bytes(REPLY_BYTES_MAX + 100))]
    changes += [Change(SERVICE, bytes(CLIENT_ID_BYTES_MAX), None)] * CLIENTS_MAX
    largest = batch_record(1, changes)
    small = [ONE] * (limits.APPEND_BYTES // len(ONE))
    item = peer.AppendItem(P, 1, 1, 1, 1, 1, [*small, largest])
    assert len(encode_frame(peer.encode_message(peer.Append([item])))) < FRAME_BYTES_MAX


# -- logs


def test_kudu_452_what_a_copy_needs_is_kept_while_it_lasts(quiet: QuietCluster) -> None:
    """KUDU-452: the log was collected under a copy that still needed it.

    The log from where a learner began stays, however much is written and flushed, until the learner goes.
    """
    owner = quiet.members[0]
    owner.write(40)
    owner.flush()
    began = owner.log.applied[1]
    quiet.members[3].isolate()
    quiet.begin_migration("m", 3)
    owner.write(60)
    owner.flush()
    assert owner.log.first <= began + 1
    owner.order(m.Abort("m", P))
    owner.flush()
    assert owner.log.first > began + 1


def test_kudu_1278_a_slow_copy_ends_and_is_not_begun_again(quiet: QuietCluster) -> None:
    """KUDU-1278: while a slow copy ran the log went on; the copy was out of date when it ended, for ever.

    The log waits for the learner where the copy began, so that one copy is enough.
    """
    owner = quiet.members[0]
    owner.write(60)
    owner.flush()
    quiet.begin_migration("m", 3)
    quiet.run(3.0)
    assert owner.learner.state is LearnerState.NEEDS_COPY
    fetch = quiet.open_session("s", 3)
    owner.write(60)
    owner.flush()
    quiet.copy(fetch, 3)
    quiet.run(1.0)
    assert owner.learner.state is LearnerState.IN_SYNC


# -- processes


async def test_kudu_2443_a_tablet_without_backups_moves_and_keeps_everything(tmp_path: Path) -> None:
    """KUDU-2443: a tablet with one replica could not be moved, or was lost by the move."""
    async with cluster(tmp_path, 2, partitions=2, replicas=1) as made:
        client, key = Client(made), key_in(0, 2)
        counted: list[object] = []
        counting = asyncio.create_task(count_up(client, key, counted))
        id = await made.learn(0, 1)
        handed = await made.command(0, m.HandOver(id, 0))
        await made.accept(1, m.Row(0, 2, (1,)), id, handed.last)
        await made.publish([1])
        await asyncio.sleep(0.3)
        await made.publish()
        await asyncio.sleep(0.1)
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
        await made.members[0].kill()
        found = await Client(made).call(1, b"GET", key)
        assert isinstance(found, bytes)
        assert counted == list(range(1, len(counted) + 1))
        assert int(found) - len(counted) in {0, 1}


async def count_up(client: Client, key: bytes, counted: list[object]) -> None:
    while True:
        counted.append(await client.call(0, b"INCR", key))
