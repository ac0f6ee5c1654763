"""Objects in files: what a master relies on, and files that somebody changed."""

from pathlib import Path
from typing import Any

import pytest

from stele.adapters.kubernetes.api import CLUSTERS, CONFIG_MAPS, EVENTS, MEMBERS, PODS, AlreadyExists
from stele.errors import BadInput, Conflict, Corrupt, Uncertain
from stele.playground.api import FileApi, answer
from stele.playground.cluster import Wanted, ensure_cluster
from stele.playground.limits import CONFIG_MAP_BYTES_MAX
from stele.playground.objects import NAMESPACE, ObjectFiles

MAP = {"metadata": {"name": "a"}, "data": {"rows": "1 2\n3 4\n"}}


@pytest.fixture
def files(tmp_path: Path) -> ObjectFiles:
    return ObjectFiles(tmp_path)


def test_what_was_written_is_read_again_word_for_word(files: ObjectFiles, tmp_path: Path) -> None:
    made = files.create(CONFIG_MAPS, MAP)
    ensure_cluster(files, Wanted(partitions=8))
    files.create(PODS, {"metadata": {"name": "demo-0"}, "spec": {}})
    again = ObjectFiles(tmp_path)
    assert again.get(CONFIG_MAPS, "a") == made
    assert again.list(CLUSTERS) == files.list(CLUSTERS)
    assert again.list(PODS) == files.list(PODS)
    assert "  rows: |\n    1 2\n    3 4\n" in (tmp_path / "table" / "a.yaml").read_text()
    newer = again.patch(CONFIG_MAPS, "a", {"metadata": {"labels": {"x": "y"}}})
    assert int(newer["metadata"]["resourceVersion"]) > int(files.list(PODS)[0]["metadata"]["resourceVersion"])


def test_only_the_newest_version_is_replaced(files: ObjectFiles) -> None:
    first = files.create(CONFIG_MAPS, MAP)
    second = files.replace(CONFIG_MAPS, {**first, "data": {"rows": "5"}})
    with pytest.raises(Conflict):
        files.replace(CONFIG_MAPS, {**first, "data": {"rows": "6"}})
    assert files.get(CONFIG_MAPS, "a") == second
    with pytest.raises(AlreadyExists):
        files.create(CONFIG_MAPS, MAP)
    files.delete(CONFIG_MAPS, "a", "another uid")
    assert files.find(CONFIG_MAPS, "a") is not None
    files.delete(CONFIG_MAPS, "a", second["metadata"]["uid"])
    with pytest.raises(Conflict):
        files.replace(CONFIG_MAPS, {**files.create(CONFIG_MAPS, MAP), "metadata": second["metadata"]})


def test_specs_have_generations_and_statuses_do_not(files: ObjectFiles) -> None:
    ensure_cluster(files, Wanted())
    changed = files.patch(CLUSTERS, "demo", {"spec": {"members": 4}, "status": {"epoch": 9}})
    assert (changed["metadata"]["generation"], changed["spec"]["members"]) == (2, 4)
    assert "epoch" not in changed["status"]
    shown = files.patch_status(CLUSTERS, "demo", {"epoch": 3}, changed["metadata"]["resourceVersion"])
    assert (shown["metadata"]["generation"], shown["status"]["epoch"]) == (2, 3)
    with pytest.raises(Conflict):
        files.patch_status(CLUSTERS, "demo", {"epoch": 4}, changed["metadata"]["resourceVersion"])
    assert files.patch_status(CLUSTERS, "demo", {"epoch": 3}) is shown


def test_watchers_hear_in_order_and_events_are_not_kept(files: ObjectFiles, tmp_path: Path) -> None:
    heard: list[tuple[str, bool]] = []
    files.changed.append(lambda kind, stored, gone: heard.append((kind.kind, gone)))
    pod = files.create(PODS, {"metadata": {"name": "demo-0"}})
    files.delete(PODS, "demo-0", pod["metadata"]["uid"])
    assert files.get(PODS, "demo-0")["metadata"]["deletionTimestamp"]
    files.delete(PODS, "demo-0", pod["metadata"]["uid"], grace_seconds=0)
    files.create(EVENTS, {"metadata": {"generateName": "demo."}, "reason": "MemberJoined"})
    assert heard == [("Pod", False), ("Pod", False), ("Pod", True), ("Event", False)]
    assert not list((tmp_path / "objects").rglob("*.yaml"))


def test_a_disk_that_refuses_leaves_what_was_stored(files: ObjectFiles, tmp_path: Path) -> None:
    first = files.create(CONFIG_MAPS, MAP)
    (tmp_path / "table" / ".a.yaml.new").mkdir()
    with pytest.raises(Uncertain, match="cannot be written"):
        files.replace(CONFIG_MAPS, {**first, "data": {}})
    assert files.get(CONFIG_MAPS, "a") == first == ObjectFiles(tmp_path).get(CONFIG_MAPS, "a")


@pytest.mark.parametrize("text", ["", "x: [", "- 1", "metadata: {name: 3}", "metadata: {name: a}", "\x00"])
def test_a_file_that_somebody_damaged_is_named(files: ObjectFiles, tmp_path: Path, text: str) -> None:
    files.create(CONFIG_MAPS, MAP)
    (tmp_path / "table" / "a.yaml").write_text(text)
    with pytest.raises(Corrupt, match=r"table/a\.yaml"):
        ObjectFiles(tmp_path)


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (CONFIG_MAPS, {"metadata": {"name": "../a"}}, "metadata.name is '../a'"),
        (CONFIG_MAPS, {"metadata": {}}, "metadata.name is ''"),
        (CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"x": "y" * CONFIG_MAP_BYTES_MAX + "z"}}, "bytes"),
        (CLUSTERS, {"metadata": {"name": "demo"}, "spec": {"members": 0}}, "spec.members is 0"),
        (MEMBERS, {"metadata": {"name": "demo-0"}, "spec": {}}, "spec.cluster"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused(files: ObjectFiles, kind: Any, body: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        files.create(kind, body)
    assert files.list(kind) == []


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Wanted(members=17), "--members is 17; expected 1 to 16"),
        (Wanted(members=0), "--members is 0"),
        (Wanted(replicas=0), "spec.replicas is 0"),
        (Wanted(partitions=9), "spec.partitions is 9 but was 8"),
    ],
)
def test_what_up_cannot_change_is_named(files: ObjectFiles, wanted: Wanted, said: str) -> None:
    before = ensure_cluster(files, Wanted(partitions=8))
    with pytest.raises(BadInput, match=said):
        ensure_cluster(files, wanted)
    assert files.list(CLUSTERS) == [before]


@pytest.mark.parametrize(
    "changes", [{"security": {"members": {"tls": "Required"}}}, {"migration": {"engine": "Auto"}}]
)
def test_a_spec_that_would_wait_for_ever_is_refused(files: ObjectFiles, changes: Any) -> None:
    ensure_cluster(files, Wanted())
    files.patch(CLUSTERS, "demo", {"spec": {"migration": {"paused": True}}})
    ensure_cluster(files, Wanted())
    files.patch(CLUSTERS, "demo", {"spec": changes})
    with pytest.raises(BadInput, match=rf"spec\.{next(iter(changes))}.* in cluster\.yaml"):
        ensure_cluster(files, Wanted())


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/v1/namespaces/x/configmaps/none", None, 404),
        ("GET", "/api/v1/namespaces/x/nothing", None, 404),
        ("GET", "/", None, 404),
        ("PUT", "/api/v1/namespaces/x/configmaps", {}, 422),
        ("PUT", "/api/v1/namespaces/x/configmaps/a", {"metadata": {"name": "b"}}, 422),
        ("PUT", "/api/v1/namespaces/x/configmaps/b", {}, 404),
        ("PUT", "/api/v1/namespaces/x/configmaps/a", [], 422),
        ("POST", "/api/v1/namespaces/x/configmaps", None, 422),
        ("POST", "/api/v1/namespaces/x/configmaps", {"metadata": 3}, 422),
        ("POST", "/api/v1/namespaces/x/configmaps", {"metadata": {"name": ["a"]}}, 422),
        ("POST", "/api/v1/namespaces/x/configmaps", {"metadata": {"name": "b"}, "data": {"a": 1}}, 422),
        ("POST", "/api/v1/namespaces/x/pods", {"metadata": {"name": "b", "labels": [1]}}, 422),
        ("PATCH", "/api/v1/namespaces/x/configmaps/a", {"metadata": {"annotations": 3}}, 422),
        ("PATCH", "/api/v1/namespaces/x/pods/a/status", {"status": "x"}, 422),
        ("DELETE", "/api/v1/namespaces/x/configmaps/a", {"preconditions": 3}, 422),
        ("BREW", "/api/v1/namespaces/x/configmaps/a", None, 422),
    ],
)
def test_a_bad_request_is_answered(
    files: ObjectFiles, method: str, path: str, body: Any, status: int
) -> None:
    first = files.create(CONFIG_MAPS, MAP)
    found, said = answer(files, method, path, {}, body)
    assert (found, bool(said["message"])) == (status, True)
    assert files.list(CONFIG_MAPS) == [first]
    assert files.list(PODS) == []


async def test_clients_cannot_change_what_is_stored(files: ObjectFiles) -> None:
    api = FileApi(files)
    body: dict[str, Any] = {"metadata": {"name": "a"}, "data": {"x": "1"}}
    made = await api.create(CONFIG_MAPS, NAMESPACE, body)
    body["data"]["x"] = made["data"]["x"] = "2"
    assert files.get(CONFIG_MAPS, "a")["data"] == {"x": "1"}
