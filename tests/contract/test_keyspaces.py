"""Keyspace objects, their catalog and their statuses, on a simulated and on a real API server."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stele.adapters.kubernetes.api import CONFIG_MAPS, KEYSPACES
from stele.adapters.kubernetes.keyspace_store import KeyspaceStore
from stele.core.control.commands import ClearKeyspaces, ClusterState, ExchangeReply, KeyspaceSize
from stele.core.control.failure_detector import MemberLiveness, MemberObject
from stele.core.control.state import State
from stele.core.formats import FIRST, SPOKEN
from stele.core.kv.keyspaces import KEYSPACES_MAX, NO_CATALOG, Catalog, Mode, Reads, Settings, Undeclared
from stele.core.table.groups import GROUPS_MAX, PartitionGroup, PartitionGroups
from stele.core.table.table import Member, Partition, PartitionTable
from stele.errors import Conflict, Corrupt
from stele.master import keyspaces
from stele.master.cache import Cache
from stele.master.keyspaces import KeyspaceObjects
from stele.master.placements import waits_until
from stele.master.status_writer import show
from stele.model import Keyspace, Unreadable
from stele.model.conditions import find_condition
from stele.model.ownership import NameTaken
from tests.fakes.objects import body
from tests.fakes.spec import desired_spec

NOON = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "1"}
NAME = "demo-keyspaces"
HOUR, DAY = Settings(ttl_seconds=3600), Settings(ttl_seconds=86_400)


def store_of(api: Any, namespace: str, owner: dict[str, str] = OWNER) -> KeyspaceStore:
    return KeyspaceStore(api, namespace, NAME, owner, {"stele.dev/cluster": "demo"})


async def test_of_two_masters_one_stores_the_next_version(place: tuple[Any, str]) -> None:
    first, second = store_of(*place), store_of(*place)
    assert await first.load() == await second.load() == NO_CATALOG
    await first.save(Catalog(1, {"a": HOUR}))
    with pytest.raises(Conflict):
        await second.save(Catalog(1, {"a": DAY}))
    assert await second.load() == Catalog(1, {"a": HOUR})
    await second.save(Catalog(2, {"a": DAY}))
    with pytest.raises(Conflict):
        await first.save(Catalog(2))
    assert await first.load() == Catalog(2, {"a": DAY})


async def test_a_config_map_of_others_is_left_alone(place: tuple[Any, str]) -> None:
    await store_of(*place, owner=OWNER | {"name": "other", "uid": "2"}).save(Catalog(1))
    with pytest.raises(NameTaken, match=NAME):
        await store_of(*place).load()


async def test_a_deleted_or_damaged_config_map_is_noticed(place: tuple[Any, str]) -> None:
    api, namespace = place
    store = store_of(*place)
    await store.save(Catalog(1))
    found = await api.get(CONFIG_MAPS, namespace, NAME)
    await api.replace(CONFIG_MAPS, namespace, {**found, "data": {"format": "9"}})
    with pytest.raises(Corrupt, match="format is '9'"):
        await store.load()
    await api.delete(CONFIG_MAPS, namespace, NAME, None)
    with pytest.raises(Conflict, match="was deleted"):
        await store.save(Catalog(2))


class Scene:
    """A cluster of two members, and the master's view of its keyspaces."""

    def __init__(self, api: Any, namespace: str) -> None:
        self.api, self.namespace, self.clock = api, namespace, NOON
        self.cache = Cache(lambda _kind, _stored: None)
        entries = {i: Member(i, f"demo-{i}", f"uuid-{i}", "10.0.0.1") for i in (0, 1)}
        table = PartitionTable((Partition(1, (0, 1)),), entries)
        self.state = State(1, table, 1, 2, 0.0, recovered=True, features=SPOKEN.most)
        for index in entries:
            self.report(index, 0)
        self.reachable, self.undeclared = {0, 1}, Undeclared.ALLOW
        self.desired = desired_spec()
        self.take_over()

    def take_over(self) -> None:
        store = store_of(self.api, self.namespace)
        self.objects = KeyspaceObjects(self.api, self.cache, store, self.namespace, "demo")

    def report(self, index: int, version: int, cleared: int = 0) -> None:
        """A member says which catalog it uses, and for which it has cleared keyspaces."""
        liveness = self.state.membership.liveness.setdefault(index, MemberLiveness(index, 0.0))
        liveness.member_object = MemberObject(index, f"demo-{index}")
        liveness.report = ExchangeReply(
            "OK", "", "u", "c", 1, 1, 0, 1, catalog_version=version, cleared=cleared
        )

    async def declare(self, name: str, /, **spec: Any) -> None:
        made = body(KEYSPACES, name, {"cluster": "demo", **spec})
        self.cache.put(KEYSPACES, await self.api.create(KEYSPACES, self.namespace, made))

    async def change(self, name: str, /, **spec: Any) -> None:
        stored = await self.api.get(KEYSPACES, self.namespace, name)
        changed = {**stored, "spec": {**stored["spec"], **spec}}
        self.cache.put(KEYSPACES, await self.api.replace(KEYSPACES, self.namespace, changed))

    async def delete(self, name: str) -> None:
        stored = await self.api.get(KEYSPACES, self.namespace, name)
        await self.api.delete(KEYSPACES, self.namespace, name, None)
        if not await self.look(name):
            self.cache.remove(KEYSPACES, stored)

    async def look(self, name: str) -> bool:
        """Whether it is there; the watch brings what became of it."""
        stored = await self.api.find(KEYSPACES, self.namespace, name)
        if stored is not None:
            self.cache.put(KEYSPACES, stored)
        elif (before := self.cache.get(KEYSPACES, self.namespace, name)) is not None:
            self.cache.remove(KEYSPACES, before)
        return stored is not None

    async def round(self) -> Catalog:
        waits = waits_until(self.state, self.desired)
        await self.objects.ensure(self.state, self.reachable, self.undeclared, waits)
        for stored, status in self.objects.statuses(self.state, self.clock):
            await show(self.api, self.cache, KEYSPACES, stored, status)
        stored_catalog = await store_of(self.api, self.namespace).load()
        assert stored_catalog == self.objects.catalog, "it is stored before anyone sees it"
        return stored_catalog

    async def counted(self, name: str, after_seconds: float, *reports: tuple[int, int]) -> tuple[int, int]:
        """Return what the status shows after members have reported entries and bytes."""
        self.clock += timedelta(seconds=after_seconds)
        for index, size in enumerate(reports):
            self.state.membership.liveness[index].keyspaces = (KeyspaceSize(name, *size),)
        await self.round()
        status = (await self.api.get(KEYSPACES, self.namespace, name))["status"]
        return status["entries"], status["bytes"]

    async def ready(self, name: str) -> tuple[str, str, int, str]:
        status = (await self.api.get(KEYSPACES, self.namespace, name))["status"]
        found = {each["type"]: each for each in status["conditions"]}
        true = [each for each in ("Ready", "Reconciling", "Stalled") if found[each]["status"] == "True"]
        assert len(true) == 1
        return true[0], found["Ready"]["reason"], status["catalogVersion"], found["Ready"]["message"]


@pytest.fixture
def scene(place: tuple[Any, str]) -> Scene:
    return Scene(*place)


async def test_without_keyspaces_nothing_is_stored(scene: Scene) -> None:
    assert await scene.round() == NO_CATALOG
    assert await scene.api.find(CONFIG_MAPS, scene.namespace, NAME) is None


async def test_the_catalog_says_what_holds_for_the_undeclared(scene: Scene) -> None:
    scene.undeclared = Undeclared.REFUSE
    assert await scene.round() == Catalog(1, {}, Undeclared.REFUSE), "also without any Keyspace"
    await scene.declare("sessions", ttl=3600)
    assert await scene.round() == Catalog(2, {"sessions": HOUR}, Undeclared.REFUSE)
    scene.take_over()
    assert (await scene.round()).version == 2
    scene.undeclared = Undeclared.ALLOW
    assert await scene.round() == Catalog(3, {"sessions": HOUR})


async def test_a_dropped_keyspace_is_undeclared_at_once(scene: Scene) -> None:
    scene.undeclared = Undeclared.REFUSE
    await dropped(scene)
    assert await scene.round() == Catalog(3, {}, Undeclared.REFUSE)
    scene.report(0, 3, cleared=3)
    scene.report(1, 3)
    assert await scene.round() == Catalog(4, {}, Undeclared.REFUSE)


async def test_a_keyspace_is_ready_when_all_members_use_it(scene: Scene) -> None:
    await scene.declare("sessions", ttl=3600)
    assert await scene.round() == Catalog(1, {"sessions": HOUR})
    assert (await scene.ready("sessions"))[:3] == ("Reconciling", "WaitsForMembers", 1)
    scene.report(0, 1)
    await scene.round()
    assert (await scene.ready("sessions"))[3].endswith("yet: demo-1")
    scene.report(1, 1)
    assert await scene.round() == Catalog(1, {"sessions": HOUR})
    assert (await scene.ready("sessions"))[:3] == ("Ready", "AsDesired", 1)

    await scene.declare("other", reads="Available")
    await scene.round()
    assert (await scene.ready("sessions"))[:3] == ("Ready", "AsDesired", 1), "its settings did not change"
    assert (await scene.ready("other"))[:3] == ("Reconciling", "WaitsForMembers", 2)
    await scene.change("sessions", ttl=86_400)
    assert (await scene.round()).keyspaces["sessions"] == DAY
    assert (await scene.ready("sessions"))[:3] == ("Reconciling", "WaitsForMembers", 3)
    await scene.delete("sessions")
    assert "sessions" not in (await scene.round()).keyspaces


async def test_a_status_shows_entries_and_bytes(scene: Scene) -> None:
    await scene.declare("sessions")
    assert await scene.counted("sessions", 0, (1, 20), (2, 40)) == (0, 0)
    assert await scene.counted("sessions", 9, (1, 20), (2, 40)) == (0, 0)
    assert await scene.counted("sessions", 1, (1, 20), (2, 40)) == (3, 60)
    before = (await scene.api.get(KEYSPACES, scene.namespace, "sessions"))["metadata"]["resourceVersion"]
    assert await scene.counted("sessions", 9, (100, 2000), (2, 40)) == (3, 60)
    after = (await scene.api.get(KEYSPACES, scene.namespace, "sessions"))["metadata"]["resourceVersion"]
    assert after == before, "nothing was written"
    assert await scene.counted("sessions", 1) == (102, 2040)


async def test_a_small_change_is_shown_later(scene: Scene) -> None:
    await scene.declare("sessions")
    await scene.counted("sessions", 0, (100, 1000))
    assert await scene.counted("sessions", 10) == (100, 1000)
    assert await scene.counted("sessions", 299, (110, 1100)) == (100, 1000)
    assert await scene.counted("sessions", 1) == (110, 1100)


async def test_what_a_silent_member_reported_is_left_out(scene: Scene) -> None:
    await scene.declare("sessions")
    await scene.counted("sessions", 0, (100, 1000), (100, 1000))
    scene.reachable = {1}
    assert await scene.counted("sessions", 10) == (100, 1000)


async def test_a_new_master_does_not_write_sizes_at_once(scene: Scene) -> None:
    await scene.declare("sessions")
    await scene.counted("sessions", 0, (100, 1000))
    assert await scene.counted("sessions", 10) == (100, 1000)
    scene.take_over()
    assert await scene.counted("sessions", 60, (0, 0)) == (100, 1000)
    assert await scene.counted("sessions", 10) == (0, 0)


async def test_members_are_told_which_keyspaces_may_not_grow(scene: Scene) -> None:
    assert scene.objects.over_quota is None
    await scene.declare("sessions", quota={"entries": 100})
    await scene.counted("sessions", 0, (50, 1), (49, 1))
    assert scene.objects.over_quota == ()
    await scene.counted("sessions", 1, (50, 1), (50, 1))
    assert scene.objects.over_quota == ("sessions",)
    await scene.change("sessions", quota={"entries": 100, "bytes": "1Gi"})
    await scene.counted("sessions", 1, (50, 1), (49, 2**30))
    assert scene.objects.over_quota == ("sessions",)
    await scene.counted("sessions", 1, (50, 1), (49, 1))
    assert scene.objects.over_quota == ()


async def quota_reached(scene: Scene) -> tuple[str, str] | None:
    status = (await scene.api.get(KEYSPACES, scene.namespace, "sessions"))["status"]
    found = (each for each in status["conditions"] if each["type"] == "QuotaReached")
    return next(((each["status"], each["reason"]) for each in found), None)


async def test_a_status_says_that_the_quota_is_reached(scene: Scene) -> None:
    await scene.declare("sessions")
    await scene.counted("sessions", 0, (99, 1))
    await scene.counted("sessions", 10)
    assert await quota_reached(scene) is None
    await scene.change("sessions", quota={"entries": 100})
    await scene.counted("sessions", 0)
    assert await quota_reached(scene) == ("False", "BelowQuota")
    assert await scene.counted("sessions", 10, (100, 1)) == (100, 1), "it differs little, and counts"
    assert await quota_reached(scene) == ("True", "AtQuota")
    assert (await scene.ready("sessions"))[0] == "Reconciling", "nothing but the new settings"
    for index in (0, 1):
        scene.report(index, 2)
    await scene.round()
    assert (await scene.ready("sessions"))[:2] == ("Ready", "AsDesired")
    await scene.change("sessions", quota=None)
    await scene.round()
    assert await quota_reached(scene) == ("False", "NoQuota")


async def test_the_older_of_two_counts_and_the_other_takes_over(scene: Scene) -> None:
    await scene.declare("a", name="sessions", ttl=3600)
    await scene.declare("b", name="sessions", ttl=86_400)
    assert (await scene.round()).keyspaces == {"sessions": HOUR}
    stalled = await scene.ready("b")
    assert stalled[:3] == ("Stalled", "AlreadyDeclared", 0)
    assert stalled[3] == "Keyspace a, which is older, declares sessions already: delete one of the two"
    await scene.delete("a")
    assert (await scene.round()).keyspaces == {"sessions": DAY}
    assert (await scene.ready("b"))[:2] == ("Reconciling", "WaitsForMembers")


async def test_two_clusters_each_have_their_own_keyspace_of_one_name(scene: Scene) -> None:
    await scene.declare("a", name="sessions", ttl=3600)
    await scene.declare("b", name="sessions", ttl=86_400, cluster="other")
    assert (await scene.round()).keyspaces == {"sessions": HOUR}
    store = KeyspaceStore(scene.api, scene.namespace, "other-keyspaces", OWNER, {})
    other = KeyspaceObjects(scene.api, scene.cache, store, scene.namespace, "other")
    await other.ensure(scene.state, {0, 1})
    assert other.catalog == Catalog(1, {"sessions": DAY})
    for objects in (scene.objects, other):
        assert [status.conditions[2].status for _, status in objects.statuses(scene.state, NOON)] == ["False"]


async def test_another_master_goes_on_where_the_first_one_stopped(scene: Scene) -> None:
    await scene.declare("sessions", ttl=3600)
    await scene.round()
    before = scene.objects
    scene.state.epoch = 2
    scene.take_over()
    await scene.change("sessions", ttl=86_400)
    assert await scene.round() == Catalog(2, {"sessions": DAY})
    await scene.declare("other")
    scene.objects, scene.state.epoch = before, 1
    with pytest.raises(Conflict):
        await scene.round()
    assert before.catalog == Catalog(1, {"sessions": HOUR}), "what it could not store is not published"
    assert (await scene.round()).version == 3, "it has loaded again"


async def test_after_the_loss_of_the_config_map_the_version_goes_on(scene: Scene) -> None:
    await scene.declare("sessions", ttl=3600)
    await scene.round()
    scene.report(0, 7)
    scene.report(1, 2**50)
    await scene.api.delete(CONFIG_MAPS, scene.namespace, NAME, None)
    scene.take_over()
    assert await scene.round() == Catalog(8, {"sessions": HOUR}), "a number that jumps counts for nothing"


async def test_before_all_members_know_keyspaces_it_waits(scene: Scene) -> None:
    scene.state.operations.change.features = FIRST
    await scene.declare("sessions")
    await scene.round()
    assert (await scene.ready("sessions"))[:2] == ("Reconciling", "MembersOutdated")


def asked(scene: Scene) -> list[ClearKeyspaces | None]:
    return [scene.objects.dropped.clear_at(index) for index in (0, 1)]


async def dropped(scene: Scene) -> None:
    """A keyspace of which all members know is deleted, with its entries."""
    await scene.declare("sessions", onDelete="Drop")
    await scene.round()
    for index in (0, 1):
        scene.report(index, 1)
    await scene.delete("sessions")
    assert await scene.look("sessions"), "its finalizer keeps it"


async def test_a_keyspace_goes_after_its_entries(scene: Scene) -> None:
    await dropped(scene)
    assert await scene.round() == Catalog(3), "without it, then a version of its own for the clear"
    assert (await scene.ready("sessions"))[:2] == ("Reconciling", "Dropping")
    assert asked(scene) == [None, None], "no member has that version"
    scene.report(1, 3)
    await scene.round()
    assert asked(scene) == [None, ClearKeyspaces(3, ("sessions",))]
    scene.report(0, 3)
    scene.report(1, 3, cleared=3)
    assert (await scene.round()).version == 4
    scene.report(1, 4, cleared=3)
    await scene.round()
    assert await scene.look("sessions"), "a member may still take a late clear"
    assert asked(scene) == [None, None]
    scene.report(0, 4)
    await scene.round()
    assert not await scene.look("sessions")
    assert (await scene.round()).version == 4
    assert asked(scene) == [None, None]


async def test_another_member_clears_when_the_first_does_not_answer(scene: Scene) -> None:
    await dropped(scene)
    await scene.round()
    for index in (0, 1):
        scene.report(index, 3)
    await scene.round()
    assert asked(scene) == [ClearKeyspaces(3, ("sessions",)), None]
    scene.reachable = {1}
    await scene.round()
    assert asked(scene) == [None, ClearKeyspaces(3, ("sessions",))]


async def test_a_change_of_the_catalog_meanwhile_makes_it_begin_again(scene: Scene) -> None:
    """Owners with the later catalog refuse."""
    await dropped(scene)
    await scene.round()
    await scene.declare("other", ttl=3600)
    assert (await scene.round()).version == 4
    scene.report(0, 4, cleared=3)
    scene.report(1, 4)
    await scene.round()
    assert asked(scene) == [ClearKeyspaces(4, ("sessions",)), None]


async def test_a_new_master_clears_again(scene: Scene) -> None:
    await dropped(scene)
    await scene.round()
    for index in (0, 1):
        scene.report(index, 3, cleared=3)
    scene.take_over()
    assert (await scene.round()).version == 4, "what was cleared for version 3 says nothing to it"
    for index in (0, 1):
        scene.report(index, 4, cleared=3)
    await scene.round()
    assert asked(scene) == [ClearKeyspaces(4, ("sessions",)), None]
    assert await scene.look("sessions")


async def test_what_another_object_declares_is_kept(scene: Scene) -> None:
    await scene.declare("a", name="sessions", onDelete="Drop")
    await scene.declare("b", name="sessions", ttl=3600)
    await scene.round()
    await scene.delete("a")
    await scene.round()
    assert not await scene.look("a")
    assert scene.objects.catalog.keyspaces == {"sessions": HOUR}
    assert asked(scene) == [None, None]


async def test_the_finalizer_follows_the_spec(scene: Scene) -> None:
    await scene.declare("sessions", onDelete="Drop")
    await scene.round()
    await scene.change("sessions", onDelete="Keep")
    await scene.round()
    await scene.delete("sessions")
    assert not await scene.look("sessions")


async def test_before_all_members_can_clear_it_waits(scene: Scene) -> None:
    await dropped(scene)
    scene.state.operations.change.features = FIRST
    await scene.round()
    assert asked(scene) == [None, None]
    assert await scene.look("sessions")


async def test_without_its_cluster_a_deleted_keyspace_just_goes(scene: Scene) -> None:
    await dropped(scene)
    await keyspaces.report_without_cluster(scene.api, scene.cache, NOON)
    assert not await scene.look("sessions")


async def test_a_keyspace_of_a_cluster_that_is_not_there_says_so(scene: Scene) -> None:
    await scene.declare("sessions")
    await keyspaces.report_without_cluster(scene.api, scene.cache, NOON)
    assert (await scene.ready("sessions"))[:3] == ("Stalled", "ClusterNotFound", 0)


async def test_an_object_that_cannot_be_read_keeps_what_is_in_force(scene: Scene) -> None:
    await scene.declare("sessions", ttl=3600)
    await scene.round()
    stored = await scene.api.get(KEYSPACES, scene.namespace, "sessions")
    later = stored["metadata"] | {"resourceVersion": str(int(stored["metadata"]["resourceVersion"]) + 1)}
    unreadable = {**stored, "metadata": later, "spec": {**stored["spec"], "ttl": "soon"}}
    scene.cache.put(KEYSPACES, unreadable)
    await scene.objects.ensure(scene.state, {0, 1})
    assert scene.objects.catalog == Catalog(1, {"sessions": HOUR})
    [(_, status)] = scene.objects.statuses(scene.state, NOON)
    stalled = find_condition(status.conditions, "Stalled")
    assert stalled is not None
    assert (stalled.status, stalled.reason) == ("True", "InvalidResource")
    assert "spec.ttl is 'soon'" in stalled.message


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Keyspace can be read: they are those of a later version, after a rollback of the operator."""
    why = Unreadable("Keyspace", "", "", ())
    monkeypatch.setattr(Keyspace, "read", lambda stored: why)


async def test_an_object_that_cannot_be_read_can_be_deleted(
    scene: Scene, request: pytest.FixtureRequest
) -> None:
    await dropped(scene)
    request.getfixturevalue("unreadable")
    await scene.round()
    for index in (0, 1):
        scene.report(index, 3, cleared=3)
    await scene.round()
    for index in (0, 1):
        scene.report(index, 4, cleared=3)
    await scene.round()
    assert not await scene.look("sessions")


async def test_without_its_cluster_a_deleted_one_that_cannot_be_read_goes(
    scene: Scene, request: pytest.FixtureRequest
) -> None:
    await dropped(scene)
    request.getfixturevalue("unreadable")
    await keyspaces.report_without_cluster(scene.api, scene.cache, NOON)
    assert not await scene.look("sessions")


def test_a_cluster_has_a_limited_number_of_keyspaces() -> None:
    declared = keyspaces.Declared()
    for number in range(KEYSPACES_MAX + 1):
        declared.add(_keyspace(f"k{number}"))
    assert len(declared.settings) == KEYSPACES_MAX
    text = "1000 older Keyspaces of this cluster are the most that are possible: delete some of them"
    assert declared.refused == {f"k{KEYSPACES_MAX}": ("TooManyKeyspaces", text)}


def test_a_name_that_clients_cannot_select_is_refused() -> None:
    declared = keyspaces.Declared()
    declared.add(_keyspace("a.b"))
    reason, text = declared.refused["a.b"]
    assert (reason, text.startswith("keyspace is 'a.b'; expected 1 to 63 of a-z")) == (
        "InvalidResource",
        True,
    )


def _keyspace(name: str) -> keyspaces.Keyspace:
    made = keyspaces.Keyspace.read({"metadata": {"name": name}, "spec": {"cluster": "demo"}})
    assert isinstance(made, keyspaces.Keyspace)
    return made


# -- partitions of their own

OWN, PLACEMENT = Settings(own_partitions=True), {"partitions": 4, "replicas": 2}


def wanted(scene: Scene) -> list[tuple[str, int, int, int]]:
    return [tuple(each) for each in scene.objects.groups]


async def test_a_keyspace_gets_partitions_of_its_own(scene: Scene) -> None:
    await scene.declare("sessions", placement=PLACEMENT)
    assert await scene.round() == Catalog(1, {"sessions": OWN}), (
        "it was not declared: nobody is to use it before"
    )
    assert wanted(scene) == [("sessions", 4, 2, 1)]
    scene.report(0, 1)
    scene.report(1, 1)
    await scene.round()
    state, reason, _, text = await scene.ready("sessions")
    assert (state, reason) == ("Reconciling", "WaitsForMembers")
    assert "once every partition has an owner that has nothing of it" in text
    table = scene.state.table
    table.stage_groups(table.groups.with_group(1, "sessions", 4, 2))
    table.store_groups()
    assert await scene.round() == Catalog(1, {"sessions": OWN})
    assert (await scene.ready("sessions"))[1::2] == ("UnderReplicated", "4 of 4 partitions lack a copy")
    table.store({number: Partition(1, (0, 1)) for number in range(1, 5)})
    await scene.round()
    assert (await scene.ready("sessions"))[0] == "Ready"
    stored = await scene.api.get(KEYSPACES, scene.namespace, "sessions")
    assert stored["status"]["placement"] == {"partitions": 4, "replicas": 2}


async def test_a_keyspace_with_entries_stays_where_it_is(scene: Scene) -> None:
    """It is seen soon after clients are refused, or was known before; then all is as it was."""
    await scene.declare("sessions", placement=PLACEMENT)
    await scene.counted("sessions", 0, (3, 60))
    assert scene.objects.catalog == Catalog(1, {"sessions": Settings()})
    assert wanted(scene) == []
    scene.report(0, 1)
    scene.report(1, 1)
    await scene.round()
    state, reason, _, text = await scene.ready("sessions")
    assert (state, reason) == ("Stalled", "NotEmpty")
    assert text.startswith(
        "3 entries are in the partitions that it shares with others, and stay in use there"
    )
    await scene.counted("sessions", 10, (0, 0))
    assert scene.objects.catalog == Catalog(2, {"sessions": OWN}), "it is empty now"
    await scene.counted("sessions", 10, (1, 20))
    assert scene.objects.catalog == Catalog(3, {"sessions": Settings()})
    await scene.counted("sessions", 10, (0, 0))
    assert scene.objects.catalog.version == 3, "no member has reported with this catalog"
    scene.report(0, 3)
    scene.report(1, 3)
    scene.reachable = {0}
    assert (await scene.round()).version == 3, "a member may have entries and be silent"
    scene.reachable = {0, 1}
    assert await scene.round() == Catalog(4, {"sessions": OWN})


async def test_another_master_goes_on_with_what_is_stored(scene: Scene) -> None:
    await scene.declare("sessions", placement=PLACEMENT)
    await scene.round()
    scene.take_over()
    assert wanted(scene) == []
    assert await scene.round() == Catalog(1, {"sessions": OWN})
    assert wanted(scene) == [("sessions", 4, 2, 1)]


async def test_a_keyspace_whose_partitions_do_not_fit_shares_those_of_others(scene: Scene) -> None:
    table = scene.state.table
    for number in range(4):
        first = table.groups.end(1)
        table.stage_groups(table.groups.with_group(first, f"other{number}", 16_000, 1))
        table.store_groups()
    await scene.declare("sessions", placement={"partitions": 2000, "replicas": 2})
    assert await scene.round() == Catalog(1, {"sessions": Settings()})
    scene.report(0, 1)
    scene.report(1, 1)
    await scene.round()
    state, reason, _, text = await scene.ready("sessions")
    assert (state, reason) == ("Stalled", "TooManyPartitions")
    assert "use fewer partitions, or another cluster" in text


async def test_a_table_with_all_groups_that_are_possible_takes_no_more(scene: Scene) -> None:
    """Those of deleted keyspaces stay; the names of these can be used again."""
    table = scene.state.table
    groups = tuple(PartitionGroup(f"k{number}", number, 1, 2) for number in range(1, GROUPS_MAX + 1))
    table.stage_groups(PartitionGroups(1, groups))
    table.store_groups()
    await scene.declare("sessions", placement=PLACEMENT)
    await scene.declare("k1", placement={"partitions": 1, "replicas": 2})
    assert await scene.round() == Catalog(1, {"sessions": Settings(), "k1": OWN})
    assert wanted(scene) == [("k1", 1, 2, 1)]
    scene.report(0, 1)
    scene.report(1, 1)
    await scene.round()
    state, reason, _, text = await scene.ready("sessions")
    assert (state, reason) == ("Stalled", "TooManyPartitions")
    assert text.startswith("1000 keyspaces have had partitions of their own, and these stay")


@pytest.mark.parametrize(
    ("closed", "text"),
    [({"paused": True}, "stele.dev/paused is removed"), ({"state": ClusterState.FROZEN}, "it is Frozen")],
)
async def test_nobody_is_refused_while_no_partitions_are_added(
    scene: Scene, closed: dict[str, Any], text: str
) -> None:
    """One that waits already goes on: it may be getting them."""
    await scene.declare("before", placement=PLACEMENT)
    await scene.round()
    opened, scene.desired = scene.desired, replace(scene.desired, **closed)
    await scene.declare("sessions", placement=PLACEMENT)
    assert await scene.round() == Catalog(2, {"before": OWN, "sessions": Settings()})
    scene.report(0, 2)
    scene.report(1, 2)
    await scene.round()
    shown = await scene.ready("sessions")
    assert shown[:2] == ("Reconciling", "WaitsForMembers")
    assert f"{text}; until then it is in those that it shares" in shown[3]
    assert f"{text}; until then clients are answered TRYAGAIN" in (await scene.ready("before"))[3]
    scene.desired = opened
    assert (await scene.round()).keyspaces["sessions"] == OWN


async def test_more_copies_than_members_are_said(scene: Scene) -> None:
    table = scene.state.table
    table.stage_groups(table.groups.with_group(1, "sessions", 1, 3))
    table.store_groups()
    table.store({1: Partition(1, (0, 1))})
    await scene.declare("sessions", placement={"partitions": 1, "replicas": 3})
    await scene.round()
    scene.report(0, 1)
    scene.report(1, 1)
    await scene.round()
    state, reason, _, text = await scene.ready("sessions")
    assert (state, reason) == ("Stalled", "FewerMembersThanReplicas")
    assert text.endswith("each partition has 2 of 3 copies; raise spec.members of the TabletCluster to 3")


async def test_partitions_outlive_their_keyspace(scene: Scene) -> None:
    """Their number stays, their copies are those of the object that declares the keyspace now."""
    table = scene.state.table
    table.stage_groups(table.groups.with_group(1, "sessions", 2, 1))
    table.store_groups()
    table.store({number: Partition(1, (0,)) for number in (1, 2)})
    await scene.declare("sessions", placement=PLACEMENT)
    await scene.round()
    scene.report(0, 1)
    scene.report(1, 1)
    await scene.round()
    state, reason, _, text = await scene.ready("sessions")
    assert (state, reason) == ("Stalled", "OtherPlacement")
    assert text.startswith(
        "it has 2 partitions from an earlier Keyspace, and keeps them: create it again with"
    )
    await scene.delete("sessions")
    await scene.declare("again", name="sessions", placement={"partitions": 2, "replicas": 2})
    await scene.round()
    assert wanted(scene) == [("sessions", 2, 2, 1)]


async def test_a_replicated_keyspace_has_a_copy_at_each_member(scene: Scene) -> None:
    await scene.declare("everywhere", mode="Replicated", reads="Available")
    settings = Settings(mode=Mode.REPLICATED, reads=Reads.AVAILABLE, own_partitions=True)
    assert await scene.round() == Catalog(1, {"everywhere": settings})
    await scene.declare("one", mode="Replicated", reads="Available", placement={"partitions": 1})
    await scene.round()
    assert wanted(scene) == [("everywhere", 4, 0, 1), ("one", 1, 0, 2)]
