"""Events of a cluster and of what they are about; what is said again is counted."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from stele.adapters.kubernetes.api import EVENTS, MEMBERS, REBALANCES, Api, Kind, NotFound
from stele.core.control.requests import NamedMove
from stele.core.control.state import AboutMember, AboutPlan, AboutRequest, ClusterEvent, Subject
from stele.master.events import (
    EVENT_REPEAT_SECONDS,
    EVENTS_MAX,
    MESSAGE_LETTERS_MAX,
    REMEMBERED_MAX,
    WAITING_MAX,
    EventRecorder,
    Reference,
    reference_to,
)
from stele.model import TabletCluster
from tests.master.harness import formed

MEMBER = reference_to(MEMBERS, "ns", "demo-1", "m")
PLAN = reference_to(REBALANCES, "ns", "demo-1-1", "p")


class FakeApi:
    """Keeps Events by name."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}

    async def create(self, kind: Kind, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        assert (kind, namespace) == (EVENTS, body["metadata"]["namespace"])
        assert body["metadata"]["name"] not in self.events
        self.events[body["metadata"]["name"]] = body
        return body

    async def merge(self, kind: Kind, namespace: str, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        if name not in self.events:
            raise NotFound(name)
        self.events[name] |= fields
        return self.events[name]

    def about(self, uid: str) -> list[tuple[str, int]]:
        involved = [each for each in self.events.values() if each["involvedObject"]["uid"] == uid]
        return [(each["message"], each["count"]) for each in involved]


class Scene:
    def __init__(self) -> None:
        self.api, self.moment = FakeApi(), datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
        self.known: dict[Subject, Reference] = {AboutMember(1): MEMBER}
        self.recorder = EventRecorder(cast("Api", self.api), self.known.get, lambda: self.moment)
        spec = {"members": 3, "storage": {"size": "1Gi"}}
        found = TabletCluster.read(
            {"metadata": {"name": "demo", "namespace": "ns", "uid": "c"}, "spec": spec}
        )
        assert isinstance(found, TabletCluster)
        self.cluster = found

    async def post(self, message: str, about: Subject | None = None, seconds: float = 0.0) -> None:
        self.moment += timedelta(seconds=seconds)
        await self.recorder.post(self.cluster, [ClusterEvent("Why", message, about=about)])


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_an_event_about_a_member_involves_it_and_another_one_the_cluster(scene: Scene) -> None:
    await scene.post("back", AboutMember(1))
    of_cluster, of_member = scene.api.events.values()
    cluster = {"apiVersion": "stele.dev/v1alpha1", "kind": "TabletCluster", "name": "demo"}
    cluster |= {"namespace": "ns", "uid": "c"}
    assert (of_cluster["involvedObject"], of_cluster["related"]) == (cluster, MEMBER)
    assert (of_member["involvedObject"], of_member["related"]) == (MEMBER, cluster)
    assert of_member["metadata"]["name"].startswith("demo-1.")


@pytest.mark.parametrize("about", [None, AboutMember(2), AboutRequest("gone", "u")])
async def test_an_event_without_an_object_of_its_own_is_the_clusters(
    scene: Scene, about: Subject | None
) -> None:
    await scene.post("gone", about)
    (event,) = scene.api.events.values()
    assert "related" not in event
    await scene.recorder.post_waiting(scene.cluster)
    assert scene.api.about("c") == [("gone", 1)]
    assert len(scene.api.events) == 1


async def test_an_event_about_a_plan_waits_for_its_object(scene: Scene) -> None:
    await scene.post("started", AboutPlan("1-1"))
    assert scene.api.about("c") == [("started", 1)]
    scene.known[AboutPlan("1-1")] = PLAN
    for _ in range(2):
        await scene.recorder.post_waiting(scene.cluster)
    assert scene.api.about("p") == [("started", 1)]
    assert scene.api.about("c") == [("started", 1)]


async def test_events_that_wait_for_an_object_are_few_and_forgotten(scene: Scene) -> None:
    for number in range(WAITING_MAX + 5):
        await scene.post(f"{number}", AboutPlan("1-1"))
    scene.known[AboutPlan("1-1")] = PLAN
    await scene.recorder.post_waiting(scene.cluster)
    assert [text for text, _ in scene.api.about("p")] == [f"{n}" for n in range(5, WAITING_MAX + 5)]
    await scene.post("later", AboutPlan("2-1"))
    await scene.recorder.post_waiting(scene.cluster)
    scene.known[AboutPlan("2-1")] = PLAN
    await scene.recorder.post_waiting(scene.cluster)
    assert ("later", 1) not in scene.api.about("p")


async def test_what_is_said_again_is_counted(scene: Scene) -> None:
    await scene.post("silent", AboutMember(1))
    await scene.post("silent", AboutMember(1), EVENT_REPEAT_SECONDS)
    await scene.post("silent", AboutMember(1), EVENT_REPEAT_SECONDS)
    assert scene.api.about("c") == scene.api.about("m") == [("silent", 3)]
    for event in scene.api.events.values():
        assert (event["firstTimestamp"], event["lastTimestamp"]) == (
            "2030-01-01T12:00:00Z",
            "2030-01-01T12:20:00Z",
        )
    await scene.post("silent", AboutMember(1), EVENT_REPEAT_SECONDS + 1)
    await scene.post("silent, too")
    assert scene.api.about("m") == [("silent", 3), ("silent", 1)]
    assert scene.api.about("c") == [("silent", 3), ("silent", 1), ("silent, too", 1)]


async def test_an_event_that_is_gone_is_posted_again(scene: Scene) -> None:
    await scene.post("silent")
    scene.api.events.clear()
    await scene.post("silent", seconds=1.0)
    assert scene.api.about("c") == [("silent", 1)]


async def test_only_the_last_events_are_remembered(scene: Scene) -> None:
    long = "x" * (MESSAGE_LETTERS_MAX + 1)
    for number in range(REMEMBERED_MAX + 1):
        await scene.post(f"{number}{long}")
    assert len(scene.recorder._posted) == REMEMBERED_MAX
    assert all(len(key[2]) == MESSAGE_LETTERS_MAX for key in scene.recorder._posted)
    await scene.post(f"0{long}")
    await scene.post(f"{REMEMBERED_MAX}{long}")
    assert [count for _, count in scene.api.about("c")] == [1] * REMEMBERED_MAX + [2, 1]


async def test_of_one_decision_only_so_many_are_posted(scene: Scene) -> None:
    await scene.recorder.post(scene.cluster, [ClusterEvent("Why", f"{n}") for n in range(EVENTS_MAX + 1)])
    assert len(scene.api.events) == EVENTS_MAX


async def test_events_of_members_and_plans_name_them() -> None:
    harness = await formed(3, 6)
    harness.kill(1)
    await harness.ticks(5, 1.0)
    harness.revive(1)
    await harness.until_quiet()
    await harness.apply(members=4)
    about = {(event.reason, event.about) for event in harness.world.events}
    assert {("MemberJoined", AboutMember(3)), ("MemberUnreachable", AboutMember(1))} <= about
    assert ("MemberReturned", AboutMember(1)) in about
    plans = {event.about for event in harness.world.events if event.reason.startswith("Rebalance")}
    assert AboutPlan(harness.state.plan_id or "1-1") in plans
    assert all(isinstance(each, AboutPlan) for each in plans)
    lacking = {reason for reason, subject in about if reason.startswith("Member") and subject is None}
    assert not lacking


async def test_the_end_of_a_users_plan_is_about_it() -> None:
    harness = await formed(3, 6)
    row = harness.table().partitions[0]
    spare = ({0, 1, 2} - row.members).pop()
    giver = f"demo-{row.replicas[1]}"
    harness.world.ask("mine", uid="u", moves=(NamedMove(0, giver, f"demo-{spare}"),))
    await harness.until_quiet()
    about = [event.about for event in harness.world.events if event.reason == "MovesDone"]
    assert about == [AboutRequest("mine", "u")]
