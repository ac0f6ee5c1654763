"""Services in real member processes: told in order with their own indexes, balanced, and contained."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio

from stele.core.control import commands as m
from stele.core.formats import SPOKEN
from tests.member.harness.cluster import Client, Cluster, cluster, eventually, key_in
from tests.member.services.recording import heard, install, story

P = 0
S, D = "SOURCE", "DESTINATION"


Note = tuple[str, str, list[int], str]


def notes(end: str, indexes: list[int], kind: str, *methods: str) -> list[Note]:
    """What a service writes down of one migration; unless it is said, of one that is committed."""
    return [(method, end, indexes, kind) for method in methods or ("before", "commit")]


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three members with a recorder."""
    async with cluster(tmp_path, 3, partitions=4, **install(tmp_path)) as made:
        yield made


async def until(folder: Path, member: int, expected: list[Note]) -> None:
    async def told() -> list[Note]:
        return story(folder, member, P)

    await eventually(told, lambda found: found == expected)


async def abort(made: Cluster, id: str, *members: int) -> None:
    for index in members:
        await made.order(index, m.Abort(id, P))


async def test_the_state_of_a_service_moves_with_the_owner(made: Cluster, tmp_path: Path) -> None:
    id = await made.learn(P, 2, "MOVE", (2, 1))
    (tmp_path / "told" / "state").write_text("last")
    await made.finish(id, P, 2, (2, 1))
    await until(tmp_path, 0, notes(S, [0, -1], "MOVE", "before", "prepare", "prepare", "commit"))
    await until(tmp_path, 2, notes(D, [-1, 0], "MOVE"))
    (commit,) = [each for each in heard(tmp_path, 2, P) if each["what"] == "commit"]
    assert commit["entries"] == [["from", "m0"], ["state", "last"]]
    assert not commit["serves"], "nothing is asked of a service before it took over"
    assert {each["id"] for each in heard(tmp_path, 0, P) + heard(tmp_path, 2, P)} == {id}
    assert story(tmp_path, 1, P) == []
    await made.same(P, 1, 2, keyspace="@recorder")


async def test_every_type_is_told_to_every_member_whose_index_changes(tmp_path: Path) -> None:
    async with cluster(tmp_path, 4, partitions=4, replicas=3, **install(tmp_path)) as made:
        await made.migrate(P, 3, "MOVE", (0, 3, 2))
        owner = notes(S, [0, 0], "MOVE", "before", "prepare", "commit")
        await until(tmp_path, 0, owner)
        replaced = notes(S, [1, -1], "MOVE")
        await until(tmp_path, 1, replaced)
        third = notes(D, [-1, 1], "MOVE")
        await until(tmp_path, 3, third)

        made.store(P, (0, 3))
        await made.publish()
        cleared = notes(S, [2, -1], "CLEAR")
        await until(tmp_path, 2, cleared)

        await made.command(1, m.DeleteTablet(P, made.version(P)))
        await made.migrate(P, 1, "COPY", (0, 3, 1))
        owner += notes(S, [0, 0], "COPY", "before", "prepare", "commit")
        await until(tmp_path, 0, owner)
        second = [*replaced, *notes(D, [-1, 2], "COPY")]
        await until(tmp_path, 1, second)

        made.store(P, (0, 1))
        await made.publish()
        await until(tmp_path, 3, [*third, *notes(S, [1, -1], "SHIFT_UP")])
        await until(tmp_path, 1, [*second, *notes(D, [2, 1], "SHIFT_UP")])

        await made.command(2, m.DeleteTablet(P, made.version(P)))
        await made.migrate(P, 2, "SHIFT_DOWN", (2, 1, 0))
        owner += notes(S, [0, 2], "SHIFT_DOWN", "before", "prepare", "prepare", "commit")
        await until(tmp_path, 0, owner)
        await until(tmp_path, 2, [*cleared, *notes(D, [-1, 0], "SHIFT_DOWN")])


async def test_a_promoted_backup_is_told_and_knows_what_was_prepared(made: Cluster, tmp_path: Path) -> None:
    await made.migrate(P, 2, "MOVE", (2, 1))
    await made.members[2].kill()
    await made.lose(2)
    await until(tmp_path, 1, notes(D, [1, 0], "SHIFT_UP"))
    assert heard(tmp_path, 1, P)[-1]["entries"] == [["from", "m0"], ["state", "first"]]


@pytest.mark.parametrize("frozen", [False, True])
async def test_what_is_aborted_is_rolled_back_at_both(made: Cluster, tmp_path: Path, frozen: bool) -> None:
    id = await made.learn(P, 2, "MOVE", (2, 1))
    if frozen:
        await made.order(0, m.HandOver(id, P))
    await abort(made, id, 0, 2)
    await abort(made, id, 0, 2)
    prepares = ["prepare"] * (2 if frozen else 1)
    await until(tmp_path, 0, notes(S, [0, -1], "MOVE", "before", *prepares, "rollback"))
    await until(tmp_path, 2, notes(D, [-1, 0], "MOVE", "before", "rollback"))
    assert await Client(made).set(1, key_in(P, made.partitions), b"goes on")


@pytest.mark.parametrize("who", [0, 2])
@pytest.mark.parametrize("committed", [False, True])
async def test_a_member_that_restarts_in_the_middle_ends_what_was_begun(
    made: Cluster, tmp_path: Path, who: int, committed: bool
) -> None:
    """It is killed when all is agreed; the row comes, or the migration is void."""
    id = await made.learn(P, 2, "MOVE", (2, 1))
    handed = await made.command(0, m.HandOver(id, P))
    row = m.Row(P, made.version(P) + 1, (2, 1))
    await made.order(2, m.Accept(id, row, handed.last))
    await made.members[who].kill()
    made.store(P, (2, 1) if committed else (0, 1), by=1 if committed else 2)
    await made.publish()
    await made.members[who].start()
    await made.publish()
    await abort(made, id, 0, 2)
    end = "commit" if committed else "rollback"
    for member in (0, 2):

        async def ends(member: int = member) -> list[str]:
            return [each["what"] for each in heard(tmp_path, member, P) if each["what"] != "prepare"]

        await eventually(ends, lambda found: found == ["before", end])
    assert await Client(made).set(1, key_in(P, made.partitions), b"goes on")


async def test_an_owner_that_forgot_its_learner_rolls_back_at_its_start(
    made: Cluster, tmp_path: Path
) -> None:
    id, row = made.id(), made.rows[P]
    await made.members[2].kill()  # So that nothing is promised to the learner.
    learn = m.AddLearner(id, P, row.version, 2, "MOVE", (2, 1))
    await made.order(0, learn)
    await made.restart(0)
    await until(tmp_path, 0, notes(S, [0, -1], "MOVE", "before", "prepare", "rollback"))


@pytest.mark.parametrize("harm", ["fail-before", "fail-prepare", "slow-before"])
async def test_a_service_that_fails_does_not_keep_a_copy_away(
    made: Cluster, tmp_path: Path, harm: str
) -> None:
    (tmp_path / "told" / harm).touch()
    await made.migrate(P, 2, "COPY", (0, 1, 2))
    assert made.rows[P].replicas == (0, 1, 2)
    assert await Client(made).set(1, key_in(P, made.partitions), b"goes on")
    assert "service recorder: " in made.members[0].log()


async def test_an_owner_is_not_replaced_when_a_service_cannot_hand_over(
    made: Cluster, tmp_path: Path
) -> None:
    id = await made.learn(P, 2, "MOVE", (2, 1))
    (tmp_path / "told" / "fail-prepare").touch()
    refused = await made.command(0, m.HandOver(id, P))
    assert refused.code == "SERVICE_FAILED"
    assert "recorder: prepare_replication failed with RuntimeError: told to fail" in refused.detail
    await abort(made, id, 0, 2)
    assert await Client(made).set(1, key_in(P, made.partitions), b"goes on")
    (tmp_path / "told" / "fail-prepare").unlink()
    await made.migrate(P, 2, "MOVE", (2, 1))


async def test_a_stuck_service_does_not_keep_the_process_from_ending(made: Cluster, tmp_path: Path) -> None:
    (tmp_path / "told" / "slow-before").touch()
    made.store(P, (0,))
    await made.publish()
    async with asyncio.timeout(15):
        assert await made.members[1].stop() == 0


async def test_namespaces_are_keyspaces_of_their_own(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, partitions=4, **install(tmp_path, boxes="Boxes")) as made:
        await made.migrate(P, 2, "MOVE", (2, 1))
        for box in ("red", "blue"):
            _, entries = await made.digest(2, P, f"@boxes/{box}")
            assert len(entries) == 1
        _, entries = await made.digest(2, P, "@boxes")
        assert entries == ()


async def test_packages_that_cannot_be_used_are_left_out(tmp_path: Path) -> None:
    installed = install(
        tmp_path, recorder="Recorder", broken="Broken", half="Half", gone="Nothing", BAD="Recorder"
    )
    async with cluster(tmp_path, 2, partitions=4, **installed) as made:
        assert await Client(made).set(1, b"key", b"value")
        assert [each["what"] for each in heard(tmp_path, 0)] == ["start"]
        text = made.members[0].log()
    for fault in (
        "service broken (recorder:Broken) is disabled: RuntimeError: cannot be made",
        "service half (recorder:Half) is disabled: TypeError: it has no method stop, before_migration",
        "service gone (recorder:Nothing) is disabled: AttributeError",
        "service BAD (recorder:Recorder) is disabled: its name must be",
    ):
        assert fault in text


async def test_after_many_migrations_each_begin_has_one_end(tmp_path: Path) -> None:
    """Moves and copies, aborted at any step or committed, with members that are killed: it adds up."""
    chance = random.Random(7)
    async with cluster(tmp_path, 3, partitions=4, **install(tmp_path)) as made:
        for _ in range(12):
            row = made.rows[P].replicas
            owner, backup = row
            assert owner is not None
            assert backup is not None
            (spare,) = {0, 1, 2} - {owner, backup}
            result = chance.choice([(spare, backup), (owner, spare), (owner, backup, spare)])
            id = await made.learn(P, spare, "COPY" if len(result) == 3 else "MOVE", result)
            if chance.random() < 0.5:
                await made.finish(id, P, spare, result)
                gone = next((m for m in (owner, backup) if m not in result), None)
                if gone is None:
                    made.store(P, (owner, backup))
                    await made.publish()
                    gone = spare
                await made.command(gone, m.DeleteTablet(P, made.version(P)))
            else:
                if chance.random() < 0.5:
                    killed = chance.choice([owner, spare])
                    await made.restart(killed)
                    await made.publish()
                await abort(made, id, owner, spare)
                await made.served()
        total = 0
        for member in (0, 1, 2):

            async def counts(member: int = member) -> dict[str, int]:
                found = [each["what"] for each in heard(tmp_path, member, P)]
                return {what: found.count(what) for what in ("before", "commit", "rollback")}

            done = await eventually(counts, lambda n: n["before"] == n["commit"] + n["rollback"])
            total += done["before"]
        assert total > 20
        for member in (0, 1, 2):
            row, told = made.rows[P].replicas, heard(tmp_path, member, P)
            if told:
                known = told[-1]["indexes"][1 if told[-1]["what"] == "commit" else 0]
                assert known == (row.index(member) if member in row else -1)


async def test_entries_that_come_and_go_are_told_to_services_that_want_to_know(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, partitions=4, **install(tmp_path, moves="Moves")) as made:
        made.features = SPOKEN.most
        await made.publish()
        key = key_in(P, 4).decode()
        async with redis.asyncio.Redis(host=made.members[0].host, port=made.ports[0]) as client:
            await client.set(key, 1)
        for member in made.members.values():
            await member.start_transfer()
        await made.move_owner(P, 2)

        async def moves(member: int) -> list[list[object]]:
            lines = (each for each in heard(tmp_path, member, P) if "keyspace" in each)
            return [[each["what"], each["keyspace"], each["keys"]] for each in lines]

        await eventually(lambda: moves(2), lambda found: found == [["arrived", "default", [key]]])
        await eventually(lambda: moves(0), lambda found: found == [["departed", "default", [key]]])
        assert await moves(1) == []


async def test_services_are_informed_of_expired_entries_at_the_owner_alone(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, partitions=4, **install(tmp_path, moves="Moves")) as made:
        keys = sorted(key_in(P, 4, number) for number in range(3))
        async with redis.asyncio.Redis(host=made.members[1].host, port=made.ports[0]) as client:
            for key in keys[:2]:
                await client.set(key, 1, px=50)
            await client.set(keys[2], 1)

        async def expired() -> list[object]:
            found = (each for each in heard(tmp_path, 0, P) if each["what"] == "expired")
            return sorted(key for each in found for key in each["keys"])

        gone = sorted(key.decode() for key in keys[:2])
        await eventually(expired, lambda found: found == gone)
        await asyncio.sleep(1.5)
        assert await expired() == gone, "once each"
        assert not [each for each in heard(tmp_path, 1, P) if each["what"] == "expired"]
