"""`kubectl stele state`: what it writes, and what it says the change waits for."""

import asyncio
from typing import Any

import pytest

from stele.cli import state, waiting
from stele.model import TabletCluster
from stele.model.cluster import ROLLBACK_COPIES
from tests.cli.conftest import Run

WAITS = "state Passive is not in force yet: 3 migrations are under way and end first"


class Desk:
    """A console for one cluster; each look at it takes the next state in force."""

    def __init__(self) -> None:
        self.spec, self.annotations = "Active", dict[str, str]()
        self.in_force = ["Active"]
        self.written: list[Any] = []

    async def cluster(self, name: str) -> TabletCluster:
        in_force = self.in_force.pop(0) if len(self.in_force) > 1 else self.in_force[0]
        paused = {
            "type": "Paused",
            "status": "True",
            "reason": "ClusterState",
            "message": WAITS,
            "lastTransitionTime": "2030-01-01T12:00:00Z",
        }
        return TabletCluster.model_validate(
            {
                "metadata": {"name": name, "annotations": self.annotations},
                "spec": {"members": 3, "storage": {"size": "1Gi"}, "state": self.spec},
                "status": {"state": in_force, "conditions": [paused]},
            }
        )

    async def change_cluster(self, name: str, spec: dict[str, Any]) -> None:
        self.written.append(spec)
        self.spec = spec["state"]

    async def annotate_cluster(self, name: str, annotations: dict[str, str | None]) -> None:
        self.written.append(annotations)
        self.annotations = {key: value for key, value in annotations.items() if value is not None}


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk()
    monkeypatch.setattr(state.Where, "ask", lambda _self, question: asyncio.run(question(made)))
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.0)
    return made


def test_it_writes_the_state_and_waits(run: Run, desk: Desk) -> None:
    desk.in_force = ["Active", "Active", "Active", "Passive"]
    lines = run("state", "demo", "passive", "--wait").out.splitlines()
    assert desk.written == [{"state": "Passive"}]
    assert lines == [
        "demo is to be Passive; Active is in force",
        f"Active is in force: {WAITS}",
        "Passive is in force",
    ]


def test_rolling_back_is_noted_for_this_change_alone(run: Run, desk: Desk) -> None:
    run("state", "demo", "Frozen", "--rollback-copies")
    assert desk.written == [{ROLLBACK_COPIES: "Frozen"}, {"state": "Frozen"}]
    run("state", "demo", "Frozen", "--rollback-copies")
    assert len(desk.written) == 2, "asked for already"
    run("state", "demo", "Active")
    assert desk.written[2:] == [{ROLLBACK_COPIES: None}, {"state": "Active"}]


def test_what_is_in_force_is_not_written_again(run: Run, desk: Desk) -> None:
    assert run("state", "demo", "Active").out == "demo is Active already\n"
    assert not desk.written


def test_a_wrong_state_is_named(run: Run, desk: Desk) -> None:
    refused = run("state", "demo", "Sleeping")
    assert refused.code == 2
    assert "'Sleeping' is not one of" in refused.err


def test_waiting_has_a_limit(run: Run, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAIT_SECONDS_MAX", 0.01)
    refused = run("state", "demo", "Passive", "--wait")
    assert refused.code == 3
    assert WAITS in refused.err
