"""Users say until when a member's place is kept: at the TabletMember, or at its Node."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stele.adapters.kubernetes.api import MEMBERS, NODES, PODS
from stele.master.maintenance import MAINTENANCE_UNTIL
from stele.model.conditions import find_condition
from stele.model.member import TabletMember
from tests.contract.conftest import simulated_api
from tests.contract.test_outdated import Scene
from tests.fakes.api import NAMESPACE
from tests.fakes.kstatus import kstatus
from tests.master.harness import formed
from tests.master.test_statuses import condition
from tests.master.world import TIMING

NOON = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
"""Monotonic time 0 in `Scene`."""


def after(hours: float) -> str:
    return (NOON + timedelta(hours=hours)).isoformat()


class Maintained(Scene):
    """`demo-0` runs on the node n1."""

    async def begin(self, **spec: Any) -> None:
        await super().begin(**spec)
        await self.api.create(NODES, "", {"metadata": {"name": "n1"}})
        pod = await self.api.get(PODS, self.namespace, "demo-0")
        scheduled = {**pod, "spec": {**pod["spec"], "nodeName": "n1"}}
        self.cache.put(PODS, await self.api.replace(PODS, self.namespace, scheduled))
        await self.fall_silent()

    async def fall_silent(self) -> None:
        await self.round()
        for each in self.world.member_objects():
            self.state.membership.liveness[each.index].member_object = each

    async def annotate_member(self, until: str) -> None:
        stored = await self.api.get(MEMBERS, self.namespace, "demo-0")
        stored = {**stored, "metadata": {**stored["metadata"], "annotations": {MAINTENANCE_UNTIL: until}}}
        self.cache.put(MEMBERS, await self.api.replace(MEMBERS, self.namespace, stored))

    async def annotate_node(self, until: str) -> None:
        stored = await self.api.get(NODES, "", "n1")
        stored = {**stored, "metadata": {**stored["metadata"], "annotations": {MAINTENANCE_UNTIL: until}}}
        await self.api.replace(NODES, "", stored)
        await self.world.read_nodes()

    def kept_hours(self) -> float:
        return next(iter(self.world.member_objects())).kept_until_seconds / 3600

    async def shown(self) -> dict[str, Any]:
        await self.round()
        found: dict[str, Any] = await self.api.get(MEMBERS, self.namespace, "demo-0")
        return found


@pytest.fixture
async def scene() -> Maintained:
    found = Maintained(simulated_api(), NAMESPACE)
    await found.begin()
    assert found.kept_hours() < 0
    return found


async def test_the_place_is_kept_as_the_member_says(scene: Maintained) -> None:
    await scene.annotate_member(after(2))
    assert scene.kept_hours() == 2


async def test_the_place_is_kept_as_the_node_of_a_silent_member_says(scene: Maintained) -> None:
    await scene.annotate_node(after(2))
    assert scene.kept_hours() == 2


async def test_the_node_of_a_member_that_stops_is_read_before_it_is_silent(scene: Maintained) -> None:
    for liveness in scene.state.membership.liveness.values():
        liveness.answered_seconds = 1e12
    await scene.annotate_node(after(2))
    assert scene.kept_hours() < 0
    pod = await scene.api.get(PODS, scene.namespace, "demo-0")
    leaving = {**pod["metadata"], "deletionTimestamp": after(0), "resourceVersion": "1000000"}
    scene.cache.put(PODS, {**pod, "metadata": leaving})
    await scene.world.read_nodes()
    assert scene.kept_hours() == 2


@pytest.mark.parametrize(("member", "node"), [(1, 2), (2, 1)])
async def test_the_later_of_both_times_counts(scene: Maintained, member: float, node: float) -> None:
    await scene.annotate_member(after(member))
    await scene.annotate_node(after(node))
    assert scene.kept_hours() == 2


async def test_the_annotation_of_a_node_goes_with_the_node(
    scene: Maintained, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.annotate_node(after(2))
    monkeypatch.setattr("stele.master.kubernetes.DOUBT_SECONDS", 0.0)
    await scene.api.delete(NODES, "", "n1", (await scene.api.get(NODES, "", "n1"))["metadata"]["uid"])
    await scene.world.read_nodes()
    assert scene.kept_hours() < 0


@pytest.mark.parametrize(
    "value", ["", "2 hours", "2030-01-01", "2030-01-01T12:00:00", "2030-13-01T12:00:00Z"]
)
async def test_an_invalid_time_is_reported_at_the_member_until_it_is_corrected(
    scene: Maintained, value: str
) -> None:
    await scene.annotate_member(value)
    assert scene.kept_hours() < 0
    shown = await scene.shown()
    assert kstatus(shown) == "Failed"
    member = TabletMember.read(shown)
    assert isinstance(member, TabletMember)
    stalled = condition(member.status, "Stalled")
    assert (stalled.reason, stalled.message) == (
        "InvalidResource",
        f"metadata.annotations[stele.dev/maintenance-until] of TabletMember demo-0 is {value!r}, expected an "
        "RFC 3339 time such as 2030-01-01T12:00:00Z; until it is corrected or removed, it keeps no place",
    )
    await scene.annotate_member(after(1))
    member = TabletMember.read(await scene.shown())
    assert isinstance(member, TabletMember)
    stalled = find_condition(member.status.conditions, "Stalled")
    assert stalled is not None
    assert stalled.status == "False"


async def test_an_invalid_time_at_a_node_is_reported_and_the_member_s_own_counts(scene: Maintained) -> None:
    await scene.annotate_member(after(1))
    await scene.annotate_node("x" * 5000)
    assert scene.kept_hours() == 1
    member = TabletMember.read(await scene.shown())
    assert isinstance(member, TabletMember)
    text = condition(member.status, "Stalled").message
    assert f"of Node n1 is '{'x' * 60}', expected" in text


async def test_copies_are_made_elsewhere_only_when_the_time_is_over() -> None:
    harness = await formed(members=4, partitions=24)
    before = harness.held(1)
    harness.world.kept_until_seconds[1] = harness.clock + 10 * TIMING.grace
    harness.kill(1)
    await harness.until_quiet()
    harness.clock += 5 * TIMING.grace
    await harness.until_quiet()
    rows = harness.table().partitions
    assert {number for number, row in enumerate(rows) if len(row.members) == 1} == before
    harness.clock += 5 * TIMING.grace
    await harness.until_quiet()
    assert harness.copies() == {2}
