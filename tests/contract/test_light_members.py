"""Members without data answer as real ones do, where a master without a defect relies on it.

Each script of exchanges runs at both. By design these differ, and are not compared: positions in logs (a
light member's are all the same), sizes, the terms of owners, how far owners, learners and copies are (nothing
is copied), and what is reported of process, pod and certificate.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from e2e.bench.light_members import LightMember
from stele.core.control import commands as m
from stele.core.control.member_settings import MemberSettings
from stele.core.formats import FIRST, SPOKEN
from stele.core.kv.keyspaces import Catalog, Settings
from stele.core.security.level import InternalTls
from stele.core.table.groups import NO_GROUPS, PartitionGroup, PartitionGroups
from stele.core.table.table import stamp_of
from stele.core.tablet.lifecycle import TabletState
from stele.wire import control as wire
from tests.member.harness.single_member import CLUSTER, SingleMember

PARTITIONS = 4
ME, OTHER, THIRD = 0, 1, 2
OWN = tuple(m.Row(p, 1, (ME,)) for p in range(PARTITIONS))
SHARED = (*OWN[:2], m.Row(2, 1, (OTHER, ME)), m.Row(3, 1, (OTHER, THIRD)))
NEWER = m.Row(2, 2, (ME, OTHER))
CATALOG = Catalog(3, {"orders": Settings(ttl_seconds=60), "big": Settings(own_partitions=True)})
GROUPS = PartitionGroups(2, (PartitionGroup("big", PARTITIONS, 2, 1),))
OF_GROUP = tuple(m.Row(p, 1, (ME,)) for p in range(PARTITIONS, PARTITIONS + 2))
WITH_GROUPS: dict[str, Any] = {
    "groups": GROUPS,
    "groups_version": GROUPS.version,
    "partitions": GROUPS.end(PARTITIONS),
}
CLEARED_LOOKS_MAX = 1_000

Changes = dict[str, Any]
Seen = dict[str, Any]


class Fresh(SingleMember):
    """One to which no table was published yet."""

    async def publish(self) -> Any:
        return None


def request(known: int, **changes: Any) -> m.ExchangeRequest:
    given: Changes = {
        "format": FIRST,
        "cluster": CLUSTER,
        "epoch": 1,
        "recipient": "uuid-0",
        "self_index": ME,
        "partitions": PARTITIONS,
        "replicas": 2,
        "member_list_version": 1,
        "members": tuple(
            m.MemberInfo(index, f"m{index}", f"uuid-{index}", f"127.0.0.{9 - index}")
            for index in (ME, OTHER, THIRD)
        ),
    }
    return m.ExchangeRequest(known=known, **given | changes)


def place_of(tablet: m.TabletReport) -> tuple[bool, int]:
    """Whether the tablet is there, and its generation."""
    return tablet.state is not TabletState.DELETED, tablet.generation


def seen(sent: m.ExchangeRequest, reply: m.ExchangeReply) -> Seen:
    """What both have to answer."""
    asked_last = [isinstance(each, m.Fence) for each in sent.commands]
    return {
        "status": (reply.code, reply.uuid, reply.cluster, reply.epoch, reply.incarnation),
        "table": (reply.stamp, reply.member_list_version, set(reply.rows), set(reply.members)),
        "results": [(each.code, each.generation) for each in reply.results],
        "says its last": [
            each.last is not None for each, asked in zip(reply.results, asked_last, strict=False) if asked
        ],
        "builds on what the master has": bool(sent.known) and reply.base == sent.known,
        "fenced": {each.partition: each.promised for each in reply.tablets if each.promised > NEWER.version},
        "dropped": reply.dropped,
        "accepted": reply.accepted,
        "learners": [(each.id, each.partition, each.destination) for each in reply.learners],
        "copies": [(each.id, each.partition, each.base, each.generation) for each in reply.copies],
        "groups": (reply.groups_version, reply.groups),
        "catalog": (reply.catalog_version, reply.vacant),
        "cleared": reply.cleared,
        "formats": (reply.formats, reply.features),
        "tls": (reply.member_tls, reply.plain_links),
        "nothing to wait for": (reply.stopping, reply.sessions, reply.staged, reply.in_doubt),
    }


class Asked:
    """One of both; every answer is asked for as by a master that has the last one."""

    def __init__(self, serve: Callable[[m.ExchangeRequest], Awaitable[m.ExchangeReply]]) -> None:
        self._serve = serve
        self._known = 0
        self._tablets: dict[int, tuple[bool, int]] = {}

    async def ask(self, changes: Changes) -> Seen:
        sent = wire.decode_request(wire.encode(request(self._known, **changes)))
        reply = wire.decode_reply(wire.encode(await self._serve(sent)))
        if reply.code == "OK":
            self._known = reply.number
            self._tablets |= {each.partition: place_of(each) for each in reply.tablets}
        return {**seen(sent, reply), "tablets": dict(self._tablets)}


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[tuple[Asked, Asked]]:
    """A real member and a light one that know nothing."""
    member, light = Fresh(tmp_path / "volume"), LightMember("uuid-0", CLUSTER)

    async def serve(asked: m.ExchangeRequest) -> m.ExchangeReply:
        return light.serve(asked)

    async def ask(asked: m.ExchangeRequest) -> m.ExchangeReply:
        while (reply := await member.exchange.handle(asked)).adopting:
            # A slow disk: a master asks again, too.
            await member.until_quiet()
        await member.until_quiet()
        return reply

    await member.start()
    yield Asked(ask), Asked(serve)
    await member.stop()


def commands(*given: m.Command) -> Changes:
    return {"commands": given}


MASTER_TO_COME: Changes = {"recipient": "", "epoch": 9, "partitions": 0, "members": (), "want_tablets": True}
SCRIPTS: dict[str, tuple[Sequence[Changes], Seen]] = {
    "first contact": (
        [{"recipient": "", "rows": OWN, "epoch": 7}],
        {"status": ("OK", "uuid-0", CLUSTER, 0, 1), "tablets": {}},
    ),
    "another member is meant": ([{"rows": OWN}, {"recipient": "another"}], {"results": []}),
    "another cluster": ([{"rows": OWN}, {"cluster": "another"}], {"results": []}),
    "an older master": (
        [{"rows": OWN, "epoch": 4}, {"epoch": 3, "rows": (NEWER,)}],
        {"status": ("STALE_EPOCH", "uuid-0", CLUSTER, 4, 1)},
    ),
    "a format that nobody speaks": ([{"rows": OWN}, {"format": SPOKEN.most + 1}], {"results": []}),
    "rows": (
        [{"rows": SHARED}],
        {"tablets": dict.fromkeys(range(3), (True, 1)), "builds on what the master has": False},
    ),
    "rows that it has": ([{"rows": SHARED}, {"rows": SHARED}], {"builds on what the master has": True}),
    "an older row": ([{"rows": (*SHARED[:2], NEWER, SHARED[3])}, {"rows": SHARED}], {"accepted": ()}),
    "a new master takes over": ([{"rows": SHARED}, MASTER_TO_COME], {"results": []}),
    "a tablet that its row names no more": (
        [{"rows": OWN}, {"rows": (m.Row(0, 2, (OTHER,)),)}, commands(m.DeleteTablet(0, 2))],
        {"tablets": {**dict.fromkeys(range(PARTITIONS), (True, 1)), 0: (False, 1)}, "results": [("OK", 0)]},
    ),
    "a row is accepted": ([{"rows": SHARED}, commands(m.Accept("p1", NEWER))], {"accepted": (NEWER,)}),
    "an accepted row is published": (
        [{"rows": SHARED}, commands(m.Accept("p1", NEWER)), {"rows": (NEWER,)}],
        {"accepted": (), "table": (stamp_of([1, 1, 2, 1]), 1, set(), set())},
    ),
    "a fence": (
        [{"rows": SHARED}, commands(m.Fence(2, 5, True))],
        {"results": [("OK", 0)], "says its last": [True], "fenced": {2: 5}},
    ),
    "a learner": (
        [{"rows": SHARED}, commands(m.AddLearner("m1", 0, 1, OTHER))],
        {"learners": [("m1", 0, OTHER)], "results": [("OK", 0)]},
    ),
    "a learner that is given up": (
        [{"rows": SHARED}, commands(m.AddLearner("m1", 0, 1, OTHER)), commands(m.Abort("m1", 0))],
        {"learners": []},
    ),
    "a copy": (
        [{"rows": SHARED}, commands(m.StartTabletCopy("m1", 3, 1, OTHER))],
        {"copies": [("m1", 3, 1, 1)], "results": [("OK", 1)]},
    ),
    "a copy that is given up": (
        [{"rows": SHARED}, commands(m.StartTabletCopy("m1", 3, 1, OTHER)), commands(m.Abort("m1", 3))],
        {"copies": [], "tablets": {**dict.fromkeys(range(3), (True, 1)), 3: (False, 1)}},
    ),
    "a change of the cluster's state": (
        [
            {"rows": OWN},
            commands(m.LockState("l1", "Frozen", stamp_of([1] * PARTITIONS), 1)),
            commands(m.UnlockState("l1")),
        ],
        {"results": [("OK", 0)]},
    ),
    "a session that is closed": (
        [{"rows": OWN}, commands(m.CloseSession("s1"))],
        {"results": [("OK", 0)]},
    ),
    "features": ([{"rows": OWN, "format": SPOKEN.most}, {}], {"formats": (SPOKEN, SPOKEN.most)}),
    "the level of TLS": (
        [{"rows": OWN, "settings": MemberSettings(member_tls=InternalTls.OFF)}],
        {"tls": (InternalTls.OFF, 0)},
    ),
    "a catalog, with a keyspace that has nothing here": (
        [{"rows": OWN, "format": SPOKEN.most}, {"catalog": CATALOG, "format": SPOKEN.most}, {}],
        {"catalog": (CATALOG.version, ("big",))},
    ),
    "partitions of that keyspace": (
        [
            {"rows": OWN, "format": SPOKEN.most},
            {"format": SPOKEN.most, "catalog": CATALOG},
            {"format": SPOKEN.most, "rows": OF_GROUP, **WITH_GROUPS},
            {"format": SPOKEN.most, "groups_version": GROUPS.version, "partitions": PARTITIONS + 2},
        ],
        {"catalog": (CATALOG.version, ()), "groups": (GROUPS.version, NO_GROUPS)},
    ),
    "groups that it has not heard of": (
        [{"rows": OWN}, {"rows": (NEWER,), "groups_version": GROUPS.version, "partitions": PARTITIONS + 2}],
        {"groups": (0, NO_GROUPS), "table": (stamp_of([1] * PARTITIONS), 1, set(), set())},
    ),
    "groups at a take-over": (
        [{"rows": (*OWN, *OF_GROUP), "format": SPOKEN.most, **WITH_GROUPS}, MASTER_TO_COME],
        {"groups": (GROUPS.version, GROUPS)},
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_light_member_answers_as_a_real_one(both: tuple[Asked, Asked], name: str) -> None:
    real, light = both
    steps, shown = SCRIPTS[name]
    expected: Seen = {}
    for number, changes in enumerate(steps):
        expected = await real.ask(changes)
        assert await light.ask(changes) == expected, f"step {number}"
    assert {key: expected[key] for key in shown} == shown


async def test_keyspaces_are_confirmed_as_cleared(both: tuple[Asked, Asked]) -> None:
    """A real member needs some time for it."""
    clear: Changes = {"format": SPOKEN.most, "clear": m.ClearKeyspaces(7, ("orders",))}
    for each in both:
        await each.ask({"rows": OWN, "format": SPOKEN.most, "catalog": CATALOG})
        for _ in range(CLEARED_LOOKS_MAX):
            if (cleared := (await each.ask(clear))["cleared"]) == 7:
                break
            await asyncio.sleep(0.01)
        assert cleared == 7
