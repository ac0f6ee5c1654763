"""The phases against a cluster that is a script: what is waited for, who is killed when, what a failure
says.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from typing import Any

import pytest
from rich.console import Console

from e2e.demo import phases
from e2e.demo.phases import PhaseResult, Phases
from e2e.demo.progress import PlainBoard
from e2e.demo.settings import ALL_PHASES, NO_SUCH_IMAGE, PhaseName, Settings
from e2e.demo.stage import second_tag
from e2e.demo.verify import Table
from e2e.demo.victims import Container

BALANCED = {"type": "Balanced", "status": "True", "reason": "AsDesired"}
FAILED = {"type": "Stalled", "status": "True", "reason": "UpdateFailed", "message": "ErrImagePull"}


class ScriptedCluster:
    """Answers as the API server does. After a scale it moves one tablet at each look."""

    def __init__(self, moves: int = 10, jump: int = 1) -> None:
        self.jump, self.done_at_kill = jump, 0
        self.members, self.moves, self.done, self.generation = 3, moves, moves, 1
        self.identity = {"member": 0, "operator": 0}
        self.restarts = True
        self.updates = 0
        self.image = "member:old"
        self.rows: Iterator[list[tuple[str, ...]]] = repeat([("demo-0", "demo-1")])
        self.said: list[str] = []

    async def get(self, path: str) -> dict[str, Any]:
        self.done = min(self.moves, self.done + (1 if self.done else self.jump))
        status = {
            "observedGeneration": self.generation,
            "members": {"ready": self.members, "current": self.members},
            "partitions": {"total": 271, "safe": 271},
            "migrations": {"active": self.moves - self.done, "waiting": 0},
            "conditions": [BALANCED, FAILED] if self.image == NO_SUCH_IMAGE else [BALANCED],
        }
        return {"metadata": {"generation": self.generation}, "status": status}

    async def list(self, path: str) -> list[dict[str, Any]]:
        if path.endswith("tabletrebalances"):
            counts = {"planned": {"move": self.moves}, "done": {"move": self.done}}
            name = {"name": f"plan-{self.generation}"}
            return [{"metadata": name, "spec": {"mode": "Execute"}, "status": {"phase": "Running"} | counts}]
        if path.endswith("tabletmembers"):
            return [{"metadata": {"name": f"demo-{n}"}, "status": {"owned": n}} for n in range(self.members)]
        operator = "stele-system" in path
        names = ["operator-x"] if operator else [f"demo-{n}" for n in range(self.members)]
        return [self.pod(name, "operator" if operator else "member") for name in names]

    def pod(self, name: str, container: str) -> dict[str, Any]:
        identity = f"containerd://{name}-{self.identity[container]}"
        status = {"name": container, "containerID": identity, "ready": True, "state": {"running": {}}}
        labels = {"stele.dev/component": container}
        uid = f"{name}-{self.updates}"
        metadata = {"name": name, "namespace": "n", "uid": uid, "labels": labels}
        spec = {"containers": [{"name": container, "image": self.image}]}
        return {"metadata": metadata, "spec": spec, "status": {"containerStatuses": [status]}}

    async def kubectl(self, env: Mapping[str, str], *words: str) -> str:
        self.said.append(" ".join(words[2:]).partition("=2")[0])
        if words[2] == "annotate":
            self.updates += 1
            return ""
        if words[2] == "patch":
            self.image = json.loads(words[-1].removeprefix("--patch="))["spec"]["images"]["member"]
            self.updates += self.image != NO_SUCH_IMAGE
            return ""
        self.members = int(words[-1].split("=")[1])
        self.generation += 1
        self.done = 0
        return ""

    async def command(self, env: Mapping[str, str], *words: str, seconds_max: float = 0) -> str:
        self.said.append(" ".join(words[3:5]))
        self.updates += words[0] == "helm"
        self.image = "member:new"
        return ""

    async def table(self, api: Any, namespace: str, cluster: str) -> Table:
        return Table(tuple(next(self.rows)))

    async def kill(self, env: Mapping[str, str], victim: Container) -> str:
        self.said.append(f"kill {victim.pod} at {self.done}")
        self.identity[victim.name] += self.restarts
        self.done = max(self.done, self.done_at_kill if victim.name == "operator" else 0)
        return "killed"


class SilentClients:
    """Clients of which nothing is asked here."""

    def __init__(self) -> None:
        self.tick: dict[str, Any] = {}
        self.phases: list[str] = []

    def check(self) -> None:
        pass

    async def phase(self, name: str) -> None:
        self.phases.append(name)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("POLL_SECONDS", 0.001), ("SAFE_HELD_SECONDS", 0.01)):
        monkeypatch.setattr(phases, name, seconds)
    monkeypatch.setattr(phases, "RESTART_SECONDS_MAX", 0.3)


async def run(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> tuple[list[PhaseResult], SilentClients]:
    monkeypatch.setattr(phases, "kubectl", cluster.kubectl)
    monkeypatch.setattr(phases, "kill", cluster.kill)
    monkeypatch.setattr(phases, "command", cluster.command)
    monkeypatch.setattr(phases, "read_table", cluster.table)
    clients, board = SilentClients(), PlainBoard(Console(quiet=True))
    wanted = Settings(quiet_seconds=0.01, safe_seconds_max=0.3, **settings)
    made = Phases(wanted, {}, cluster, clients, board)  # type: ignore[arg-type]
    return await made.run(), clients


async def test_the_whole_course(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ScriptedCluster()
    results, clients = await run(cluster, monkeypatch)
    assert [each.name for each in results] == list(ALL_PHASES) == clients.phases
    assert [each.error for each in results] == [""] * 5
    assert cluster.said[:4] == [
        "scale tabletcluster/demo --replicas=4",
        "kill demo-3 at 10",
        "annotate tabletcluster/demo stele.dev/restartedAt",
        "scale tabletcluster/demo --replicas=3",
    ]
    assert cluster.said[4] in {f"kill operator-x at {done}" for done in (2, 3)}
    assert 0 < (results[-1].open_at_kill or 0) <= 8
    assert [each.moves.done.total() for each in results] == [0, 10, 0, 0, 10]


async def test_moves_that_were_too_fast_for_the_kill_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ScriptedCluster(moves=1)
    results, _ = await run(cluster, monkeypatch)
    assert (results[-1].open_at_kill, results[-1].error) == (None, "")
    assert not any("operator" in said for said in cluster.said)


async def test_moves_that_jump_past_the_middle_are_still_killed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ScriptedCluster(moves=20, jump=17)
    results, _ = await run(cluster, monkeypatch)
    assert cluster.said[-1] in {"kill operator-x at 17", "kill operator-x at 18"}
    assert results[-1].open_at_kill in (2, 3)
    assert any("85% of the moves were done before" in event for event in results[-1].events)


async def test_a_cluster_that_never_gets_safe_ends_the_course(monkeypatch: pytest.MonkeyPatch) -> None:
    results, _ = await run(ScriptedCluster(moves=10_000_000), monkeypatch)
    assert [each.name for each in results] == [PhaseName.QUIET, PhaseName.SCALE_UP]
    assert "migrations under way" in results[-1].error


async def test_a_member_that_does_not_come_back_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ScriptedCluster()
    cluster.restarts = False
    results, _ = await run(cluster, monkeypatch, phases=(PhaseName.KILL_MEMBER,))
    assert "does not run again" in results[-1].error


@pytest.mark.parametrize("upgraded", [False, True])
async def test_an_image_that_does_not_exist_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, upgraded: bool
) -> None:
    cluster = ScriptedCluster()
    before = (PhaseName.UPGRADE,) if upgraded else ()
    results, _ = await run(cluster, monkeypatch, phases=(*before, PhaseName.IMAGE_CHANGE))
    assert not any(each.error for each in results)
    assert any("ErrImagePull" in event for event in results[-1].events)
    assert "rollout undo" in cluster.said
    assert cluster.image == ("member:old" if upgraded else second_tag("member"))


@pytest.mark.parametrize("lacks", [1, 2])
async def test_members_whose_copies_are_missing_are_counted(
    monkeypatch: pytest.MonkeyPatch, lacks: int
) -> None:
    cluster = ScriptedCluster()
    whole = [("demo-0", "demo-1"), ("demo-1", "demo-2")]
    seen = [[("demo-1",), ("demo-1", "demo-2")], [("demo-1",), ("demo-1",)]]
    cluster.rows = chain([whole, seen[lacks - 1]], repeat(whole))
    results, _ = await run(cluster, monkeypatch, phases=(PhaseName.ROLLING_UPDATE,))
    assert [each.members_missing for each in results] == [lacks]
