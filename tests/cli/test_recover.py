"""`kubectl stele recover`: what it lists, what it writes, and what it refuses."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from stele.cli import recover
from stele.model import TabletCluster
from tests.cli.conftest import Run

UID = "6f0e0d0c-0000-4000-8000-000000000000"
SPEC = {"members": 2, "partitions": 31, "storage": {"size": "1Gi"}}


def claim(index: int, generation: int = 0, **spec: Any) -> dict[str, Any]:
    copy = {"generation": generation, "spec": SPEC | spec}
    annotations = {"stele.dev/cluster-spec": json.dumps(copy)} if generation else {}
    return {
        "metadata": {"name": f"demo-{index}", "annotations": annotations},
        "spec": {"volumeName": f"pv-{index}"},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    }


class Desk:
    """A console for one namespace; notes what is written."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.found = [claim(0, 3, members=3), claim(1, 2)]
        self.present: list[TabletCluster] = []

    async def clusters(self) -> list[TabletCluster]:
        return self.present

    async def claims(self, cluster: str, uid: str) -> list[dict[str, Any]]:
        assert (cluster, uid) == ("demo", UID)
        return self.found

    async def set_aside(self, claim: dict[str, Any]) -> None:
        self.written.append(("aside", claim["metadata"]["name"]))

    async def make_cluster(self, name: str, spec: dict[str, Any]) -> None:
        self.written.append(("make", name, spec))

    async def change_cluster(self, name: str, spec: dict[str, Any]) -> None:
        self.written.append(("change", name, spec))


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk()
    monkeypatch.setattr(recover.Where, "ask", lambda _self, question: asyncio.run(question(made)))
    return made


def volumes(*lost: str, policy: str = "Merge") -> dict[str, Any]:
    return {"bootstrap": {"volumes": {"clusterUID": UID, "policy": policy, "acceptLoss": list(lost)}}}


def present(uid: str, version_sum: int = 0, **bootstrap: Any) -> TabletCluster:
    stored = {"metadata": {"name": "demo", "uid": uid}, "spec": SPEC | bootstrap}
    return TabletCluster.model_validate(stored | {"status": {"versionSum": version_sum}})


def test_it_creates_the_cluster_from_the_newest_copy_of_its_spec(run: Run, desk: Desk) -> None:
    assert run("recover", "demo", "--from-uid", UID).out.splitlines() == [
        "CLAIM    STATUS   CAPACITY   VOLUME",
        "demo-0   Bound    1Gi        pv-0",
        "demo-1   Bound    1Gi        pv-1",
        "demo is created; see: kubectl stele status demo",
    ]
    assert desk.written == [("make", "demo", SPEC | {"members": 3} | volumes())]


def test_a_dry_run_prints_the_spec_and_changes_nothing(run: Run, desk: Desk) -> None:
    shown = run("recover", "demo", "--from-uid", UID, "--dry-run", "--policy", "MostRecent").out
    assert f"clusterUID: {UID}" in shown
    assert "policy: MostRecent" in shown
    assert "partitions: 31" in shown
    assert desk.written == []


def test_a_volume_that_exists_is_set_aside_before_its_loss_is_accepted(run: Run, desk: Desk) -> None:
    desk.present = [present("new", **volumes())]
    lines = run("recover", "demo", "--from-uid", UID, "--accept-loss", "demo-1").out.splitlines()
    assert lines[2].endswith("left out")
    assert desk.written == [("aside", "demo-1"), ("change", "demo", volumes("demo-1"))]


@pytest.mark.parametrize(
    ("uid", "bootstrap", "text"),
    [
        (UID, {}, "it was not deleted"),
        ("other", {}, "exists and does not take these volumes"),
        ("other", {"bootstrap": {"volumes": {"clusterUID": "7"}}}, "exists and does not take these volumes"),
    ],
)
def test_a_cluster_that_exists_is_left_alone(
    run: Run, desk: Desk, uid: str, bootstrap: dict[str, Any], text: str
) -> None:
    desk.present = [present(uid, **bootstrap)]
    ran = run("recover", "demo", "--from-uid", UID)
    assert ran.code == 1
    assert text in ran.err
    assert desk.written == []


def test_a_recovered_cluster_loses_no_volume(run: Run, desk: Desk) -> None:
    desk.present = [present("new", 31, **volumes())]
    ran = run("recover", "demo", "--from-uid", UID, "--accept-loss", "demo-1")
    assert (ran.code, desk.written) == (1, [])
    assert "there is nothing to recover" in ran.err


def test_without_a_copy_of_the_spec_a_file_has_to_give_it(run: Run, desk: Desk, tmp_path: Path) -> None:
    desk.found = [claim(0), claim(1)]
    ran = run("recover", "demo", "--from-uid", UID)
    assert ran.code == 2
    assert "give it with -f FILE" in ran.err
    file = tmp_path / "demo.yaml"
    for text, said in (
        ("{", "cannot be read"),
        ("kind: Pod", "is not one TabletCluster"),
        ("{kind: TabletCluster, metadata: {name: demo}, spec: {members: 0}}", "is invalid"),
        (json.dumps({"kind": "TabletCluster", "metadata": {"name": "x"}, "spec": SPEC}), "expected demo"),
    ):
        file.write_text(text)
        ran = run("recover", "demo", "--from-uid", UID, "-f", str(file))
        assert (ran.code, said in ran.err) == (2, True), ran.err
    file.write_text(json.dumps({"kind": "TabletCluster", "metadata": {"name": "demo"}, "spec": SPEC}))
    assert run("recover", "demo", "--from-uid", UID, "-f", str(file)).code == 0
    assert desk.written == [("make", "demo", SPEC | volumes())]
