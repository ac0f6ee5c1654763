"""One suite for the API server as `adapters.kubernetes.api` shows it: a real one, and the simulation's.

What the master's safety rests on: compare-and-set by resourceVersion, identity by UID, and which error says
what.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stele.adapters.kubernetes.api import (
    CLUSTERS,
    CONFIG_MAPS,
    PODS,
    SERVICES,
    AlreadyExists,
    Api,
    NotFound,
)
from stele.adapters.kubernetes.login import Login
from stele.errors import BadInput, Conflict, Unavailable, Uncertain
from tests.contract.conftest import simulated_api
from tests.fakes.objects import body

Place = tuple[Any, str]
Object = dict[str, Any]
CONFIG_MAP_BYTES_MAX = 1 << 20


def config_map(name: str = "one", value: str = "1", **meta: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **meta}, "data": {"k": value}}


def cluster(members: int = 3, **meta: Any) -> Object:
    spec = {"members": members, "replicas": 2, "partitions": 8, "storage": {"size": "1Gi"}}
    return body(CLUSTERS, meta.pop("name", "demo"), spec, **meta)


def service(ports: tuple[int, ...], **labels: str) -> Object:
    spec = {"clusterIP": "None", "ports": [{"name": f"p{port}", "port": port} for port in ports]}
    return body(SERVICES, "one", spec, labels=labels)


def version(stored: Object) -> int:
    return int(stored["metadata"]["resourceVersion"])


def with_data(stored: Object, value: str) -> Object:
    return {**stored, "data": {"k": value}}


async def stored_data(api: Any, namespace: str) -> str:
    found = await api.get(CONFIG_MAPS, namespace, "one")
    return str(found["data"]["k"])


# -- creating, reading


async def test_an_object_has_an_identity_and_a_version(place: Place) -> None:
    api, namespace = place
    made = await api.create(CONFIG_MAPS, namespace, config_map())
    assert made["metadata"]["uid"]
    assert datetime.strptime(made["metadata"]["creationTimestamp"], "%Y-%m-%dT%H:%M:%S%z").tzinfo == UTC
    assert made["metadata"]["namespace"] == namespace
    assert version(made) > 0
    assert await api.get(CONFIG_MAPS, namespace, "one") == made


async def test_what_exists_is_not_created(place: Place) -> None:
    api, namespace = place
    made = await api.create(CONFIG_MAPS, namespace, config_map())
    with pytest.raises(AlreadyExists):
        await api.create(CONFIG_MAPS, namespace, config_map(value="2"))
    assert await api.get(CONFIG_MAPS, namespace, "one") == made


async def test_what_is_not_there_is_not_found(place: Place) -> None:
    api, namespace = place
    with pytest.raises(NotFound):
        await api.get(CONFIG_MAPS, namespace, "one")
    assert await api.find(CONFIG_MAPS, namespace, "one") is None


async def test_what_was_returned_is_a_copy(place: Place) -> None:
    api, namespace = place
    given = config_map()
    made = await api.create(CONFIG_MAPS, namespace, given)
    for each in (given, made, await api.get(CONFIG_MAPS, namespace, "one")):
        each["data"]["k"] = "changed in the hands of the client"
    (listed,) = [
        each for each in await api.list(CONFIG_MAPS, namespace, "") if each["metadata"]["name"] == "one"
    ]
    listed["data"]["k"] = "changed too"
    assert await stored_data(api, namespace) == "1"


async def test_a_list_takes_those_with_the_label_and_says_their_kind(place: Place) -> None:
    api, namespace = place
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "2", "y": "1"}), ("c", {})):
        await api.create(CONFIG_MAPS, namespace, config_map(name, labels=labels))

    async def names(selector: str) -> list[str]:
        listed = await api.list(CONFIG_MAPS, namespace, selector)
        assert {(each["apiVersion"], each["kind"]) for each in listed} <= {("v1", "ConfigMap")}
        return [each["metadata"]["name"] for each in listed if each["metadata"]["name"] in "abc"]

    assert await names("") == ["a", "b", "c"]
    assert await names("x") == ["a", "b"]
    assert await names("x=2") == ["b"]
    assert await names("x=2,y=1") == ["b"]
    assert await names("x=1,y=1") == []


# -- compare-and-set


async def test_each_change_has_a_greater_version(place: Place) -> None:
    api, namespace = place
    stored = await api.create(CONFIG_MAPS, namespace, config_map())
    for value in ("2", "3"):
        before, stored = stored, await api.replace(CONFIG_MAPS, namespace, with_data(stored, value))
        assert version(stored) > version(before)
        assert stored["metadata"]["uid"] == before["metadata"]["uid"]
    other = await api.create(CONFIG_MAPS, namespace, config_map("two"))
    assert version(other) > version(stored)


async def test_a_replacement_of_an_older_version_changes_nothing(place: Place) -> None:
    api, namespace = place
    old = await api.create(CONFIG_MAPS, namespace, config_map())
    new = await api.replace(CONFIG_MAPS, namespace, with_data(old, "2"))
    with pytest.raises(Conflict) as raised:
        await api.replace(CONFIG_MAPS, namespace, with_data(old, "3"))
    assert not isinstance(raised.value, AlreadyExists)
    assert await api.get(CONFIG_MAPS, namespace, "one") == new


async def test_a_replacement_without_a_version_wins_always(place: Place) -> None:
    api, namespace = place
    await api.create(CONFIG_MAPS, namespace, config_map())
    await api.replace(CONFIG_MAPS, namespace, config_map(value="2"))
    assert await stored_data(api, namespace) == "2"


async def test_a_replacement_of_what_is_gone_makes_nothing(place: Place) -> None:
    api, namespace = place
    made = await api.create(CONFIG_MAPS, namespace, config_map())
    await api.delete(CONFIG_MAPS, namespace, "one", None)
    with pytest.raises(NotFound):
        await api.replace(CONFIG_MAPS, namespace, with_data(made, "2"))
    assert await api.find(CONFIG_MAPS, namespace, "one") is None


async def test_another_object_of_the_name_is_not_replaced(place: Place) -> None:
    api, namespace = place
    first = await api.create(CONFIG_MAPS, namespace, config_map())
    await api.delete(CONFIG_MAPS, namespace, "one", None)
    second = await api.create(CONFIG_MAPS, namespace, config_map(value="2"))
    same_version = {**first["metadata"], "resourceVersion": second["metadata"]["resourceVersion"]}
    for meta in (first["metadata"], same_version):
        with pytest.raises(Conflict):
            await api.replace(CONFIG_MAPS, namespace, {**config_map(value="3"), "metadata": meta})
    assert await stored_data(api, namespace) == "2"


async def test_a_write_that_changes_nothing_keeps_the_version(place: Place) -> None:
    """Nobody is told of it, and who holds the version may still write."""
    api, namespace = place
    made = await api.create(CONFIG_MAPS, namespace, config_map())
    assert version(await api.replace(CONFIG_MAPS, namespace, made)) == version(made)
    shown = await api.create(CLUSTERS, namespace, cluster())
    shown = await api.patch_status(CLUSTERS, namespace, "demo", {"epoch": 1})
    again = await api.patch_status(CLUSTERS, namespace, "demo", {"epoch": 1})
    assert version(again) == version(shown)


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_what_is_too_large_is_refused_for_good(place: Place) -> None:
    api, namespace = place
    large = "x" * CONFIG_MAP_BYTES_MAX
    made = await api.create(CONFIG_MAPS, namespace, config_map(value=large))
    with pytest.raises(BadInput):
        await api.replace(CONFIG_MAPS, namespace, with_data(made, large + "x"))
    with pytest.raises(BadInput):
        await api.create(CONFIG_MAPS, namespace, config_map("two", large + "x"))
    assert await stored_data(api, namespace) == large
    assert await api.find(CONFIG_MAPS, namespace, "two") is None


# -- status

UNOBSERVED = {"observedGeneration": -1}
"""The status of a new custom resource, as its definition says."""


async def test_a_status_is_merged_and_the_spec_is_left_alone(place: Place) -> None:
    api, namespace = place
    made = await api.create(CLUSTERS, namespace, cluster())
    await api.patch_status(
        CLUSTERS, namespace, "demo", {"epoch": 1, "phase": "Running", "partitions": {"total": 8}}
    )
    status = {"phase": None, "partitions": {"safe": 8}}
    found = await api.patch_status(CLUSTERS, namespace, "demo", status)
    assert found["status"] == {**UNOBSERVED, "epoch": 1, "partitions": {"total": 8, "safe": 8}}
    assert found["spec"] == made["spec"]
    assert found["metadata"]["generation"] == made["metadata"]["generation"] == 1


async def test_a_list_in_a_status_is_replaced_as_a_whole(place: Place) -> None:
    api, namespace = place
    await api.create(CLUSTERS, namespace, cluster())
    for names in (["A", "B"], ["C"]):
        conditions = [
            {
                "type": name,
                "status": "True",
                "reason": "R",
                "message": "",
                "lastTransitionTime": "2027-01-01T00:00:00Z",
            }
            for name in names
        ]
        found = await api.patch_status(CLUSTERS, namespace, "demo", {"conditions": conditions})
        assert [each["type"] for each in found["status"]["conditions"]] == names


async def test_a_status_is_written_only_over_the_version_that_it_was_made_from(place: Place) -> None:
    api, namespace = place
    made = await api.create(CLUSTERS, namespace, cluster())
    old = made["metadata"]["resourceVersion"]
    new = await api.patch_status(CLUSTERS, namespace, "demo", {"epoch": 2}, old)
    with pytest.raises(Conflict):
        await api.patch_status(CLUSTERS, namespace, "demo", {"epoch": 1}, old)
    assert await api.get(CLUSTERS, namespace, "demo") == new


async def test_of_what_is_gone_no_status_is_written(place: Place) -> None:
    api, namespace = place
    with pytest.raises(NotFound):
        await api.patch_status(CLUSTERS, namespace, "demo", {"epoch": 1})


async def test_other_writes_leave_the_status_alone(place: Place) -> None:
    api, namespace = place
    made = await api.create(CLUSTERS, namespace, {**cluster(), "status": {"epoch": 9}})
    assert made["status"] == UNOBSERVED
    shown = await api.patch_status(CLUSTERS, namespace, "demo", {"epoch": 1})
    found = await api.replace(
        CLUSTERS, namespace, {**shown, "spec": cluster(4)["spec"], "status": {"epoch": 9}}
    )
    assert (found["spec"]["members"], found["status"]) == (4, {**UNOBSERVED, "epoch": 1})
    assert found["metadata"]["generation"] == 2


# -- deleting


async def test_only_the_object_that_is_meant_is_deleted(place: Place) -> None:
    api, namespace = place
    first = await api.create(CONFIG_MAPS, namespace, config_map())
    await api.delete(CONFIG_MAPS, namespace, "one", first["metadata"]["uid"])
    second = await api.create(CONFIG_MAPS, namespace, config_map())
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert version(second) > version(first)
    await api.delete(CONFIG_MAPS, namespace, "one", first["metadata"]["uid"])
    assert await api.get(CONFIG_MAPS, namespace, "one") == second
    await api.delete(CONFIG_MAPS, namespace, "one", second["metadata"]["uid"])
    await api.delete(CONFIG_MAPS, namespace, "one", second["metadata"]["uid"])
    assert await api.find(CONFIG_MAPS, namespace, "one") is None


async def test_what_has_a_finalizer_is_marked_and_goes_without_it(place: Place) -> None:
    api, namespace = place
    made = await api.create(CONFIG_MAPS, namespace, config_map(finalizers=["stele.dev/test"]))
    await api.delete(CONFIG_MAPS, namespace, "one", made["metadata"]["uid"])
    marked = await api.get(CONFIG_MAPS, namespace, "one")
    assert marked["metadata"]["deletionTimestamp"]
    assert version(marked) > version(made)
    await api.delete(CONFIG_MAPS, namespace, "one", made["metadata"]["uid"])
    with pytest.raises(AlreadyExists):
        await api.create(CONFIG_MAPS, namespace, config_map())
    meta = {**marked["metadata"], "finalizers": []}
    await api.replace(CONFIG_MAPS, namespace, {**marked, "metadata": meta})
    assert await api.find(CONFIG_MAPS, namespace, "one") is None


async def test_a_pod_is_there_until_its_kubelet_ended_it(place: Place) -> None:
    api, namespace = place
    container = {"name": "c", "image": "i"}
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "one", "uid": ""}]
    owners[0]["uid"] = (await api.create(CONFIG_MAPS, namespace, config_map()))["metadata"]["uid"]
    labels = {"app.kubernetes.io/component": "none"}
    spec = {"nodeName": "n", "containers": [container]}
    pod = body(PODS, "p", spec, labels=labels, ownerReferences=owners)
    made = await api.create(PODS, namespace, pod)
    await api.delete(PODS, namespace, "p", made["metadata"]["uid"])
    marked = await api.get(PODS, namespace, "p")
    assert marked["metadata"]["deletionTimestamp"]
    with pytest.raises(AlreadyExists):
        await api.create(PODS, namespace, pod)
    await api.delete(PODS, namespace, "p", made["metadata"]["uid"])
    assert (await api.get(PODS, namespace, "p"))["metadata"]["uid"] == made["metadata"]["uid"]


# -- what a server adds


async def test_what_is_written_over_a_service_keeps_what_others_said_of_it(place: Place) -> None:
    api, namespace = place
    made = await api.create(SERVICES, namespace, service((1, 2), mine="1"))
    labels = {**made["metadata"]["labels"], "theirs": "1"}
    theirs = await api.replace(
        SERVICES, namespace, {**made, "metadata": {**made["metadata"], "labels": labels}}
    )
    changed = {**theirs, "spec": {**theirs["spec"], **service((2, 3))["spec"]}}
    with pytest.raises(Conflict):
        await api.replace(SERVICES, namespace, {**changed, "metadata": made["metadata"]})
    found = await api.replace(SERVICES, namespace, changed)
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    assert found["metadata"]["labels"] == {"mine": "1", "theirs": "1"}
    assert [each["port"] for each in found["spec"]["ports"]] == [2, 3]
    assert version(await api.replace(SERVICES, namespace, found)) == version(found)


# -- nobody answers


def unreachable() -> Api:
    nowhere = SimpleNamespace(server="http://127.0.0.1:1", token=lambda: None, ssl_context=lambda: False)
    return Api(cast(Login, nowhere))


Call = Callable[[Any], Awaitable[Any]]
READS: dict[str, Call] = {
    "get": lambda api: api.get(CONFIG_MAPS, "default", "one"),
    "find": lambda api: api.find(CONFIG_MAPS, "default", "one"),
    "list": lambda api: api.list(CONFIG_MAPS, "default"),
}
WRITES: dict[str, Call] = {
    "create": lambda api: api.create(CONFIG_MAPS, "default", config_map()),
    "replace": lambda api: api.replace(CONFIG_MAPS, "default", config_map()),
    "patch_status": lambda api: api.patch_status(CLUSTERS, "default", "demo", {"epoch": 1}),
    "delete": lambda api: api.delete(CONFIG_MAPS, "default", "one", None),
}


@pytest.mark.parametrize("call", [*READS, *WRITES])
@pytest.mark.parametrize("which", ["simulated", "real"])
async def test_without_an_answer_a_write_is_uncertain_and_a_read_is_not(which: str, call: str) -> None:
    error = Unavailable if call in READS else Uncertain
    if which == "simulated":
        api = simulated_api()
        api._target._server.faults.away = True
        with pytest.raises(error):
            await (READS | WRITES)[call](api)
    else:
        async with unreachable() as real:
            with pytest.raises(error):
                await (READS | WRITES)[call](real)
