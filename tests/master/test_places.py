"""Where members are and how much they are given: zones, weights, and what is read of nodes."""

from typing import Any, cast

import pytest

from stele.adapters.kubernetes.api import NotFound
from stele.core.control.failure_detector import NodeState
from stele.errors import Refused, Unavailable
from stele.master.nodes import DOUBT_SECONDS, REFRESH_SECONDS, Nodes
from tests.master.harness import Harness, formed

ZONE = "topology.kubernetes.io/zone"


def zoned(harness: Harness) -> bool:
    zones = harness.world.zones
    rows = harness.table().partitions
    return all(len({zones[index] for index in row.members}) == len(row.members) for row in rows)


async def test_copies_are_in_different_zones_from_the_first_row_on() -> None:
    harness = Harness(members=4, partitions=16)
    harness.world.zones.update({0: ("a",), 1: ("a",), 2: ("b",), 3: ("b",)})
    await harness.until_quiet()
    assert zoned(harness)
    assert all(row.version == 1 for row in harness.table().partitions)


async def test_zones_that_change_move_copies() -> None:
    harness = Harness(members=4, partitions=16)
    harness.world.zones.update({0: ("a",), 1: ("b",), 2: ("a",), 3: ("b",)})
    await harness.until_quiet()
    harness.world.zones.update({0: ("a",), 1: ("a",), 2: ("b",), 3: ("b",)})
    await harness.until_quiet()
    assert zoned(harness)


async def test_nothing_is_placed_while_it_was_not_looked_where_a_member_is() -> None:
    harness = Harness(members=3, partitions=8)
    harness.world.zones[1] = None
    await harness.ticks(30, 0.1)
    assert not any(row.version for row in harness.table().partitions)
    harness.world.zones[1] = ("a",)
    await harness.until_quiet()
    assert all(row.version for row in harness.table().partitions)


async def test_a_heavier_member_gets_more() -> None:
    harness = await formed(members=3, partitions=40, replicas=1)
    harness.world.weights[2] = 2
    await harness.until_quiet()
    assert len(harness.held(2)) == 20
    assert len(harness.held(0)) == len(harness.held(1)) == 10
    assert harness.state.rebalance.progress is None


class Api:
    def __init__(self) -> None:
        self.answer: Exception | dict[str, str] = {ZONE: "a"}
        self.asked = 0
        self.stored: Exception | dict[str, Any] | None = None

    async def get(self, _kind: object, _namespace: str, _name: str) -> dict[str, Any]:
        self.asked += 1
        if isinstance(self.stored, Exception):
            raise self.stored
        if self.stored is not None:
            return self.stored
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"metadata": {"labels": self.answer}}


async def test_nodes_are_read_once_and_again_after_a_while() -> None:
    api = Api()
    nodes = Nodes(cast("Any", api))
    assert nodes.path("n", (ZONE,)) is None
    for now in (0.0, 10.0):
        await nodes.refresh(["n", "n"], now)
    assert (nodes.path("n", (ZONE,)), nodes.problem((ZONE,), ["n"]), api.asked) == (("a",), "", 1)
    api.answer = {ZONE: "b"}
    await nodes.refresh(["n"], REFRESH_SECONDS)
    assert nodes.path("n", (ZONE, "rack")) == ("b", "")
    assert "node n has no label rack" in nodes.problem((ZONE, "rack"), ["n"])


@pytest.mark.parametrize(
    ("error", "path", "said"),
    [
        (Refused("nodes is forbidden"), ("",), "needs get on nodes"),
        (NotFound("gone"), ("",), "no label"),
        (Unavailable("no answer"), None, ""),
    ],
)
async def test_nodes_that_cannot_be_read(error: Exception, path: tuple[str] | None, said: str) -> None:
    api = Api()
    api.answer = error
    nodes = Nodes(cast("Any", api))
    await nodes.refresh(["n"], 0.0)
    assert nodes.path("n", (ZONE,)) == path
    problem = nodes.problem((ZONE,), ["n"])
    assert said in problem
    assert bool(said) == bool(problem)


def node(*taints: str, ready: str = "True") -> dict[str, Any]:
    return {
        "metadata": {"labels": {ZONE: "a"}},
        "spec": {"taints": [{"key": each} for each in taints]},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


async def test_a_node_is_as_its_object_says_and_keeps_its_labels_when_it_is_gone() -> None:
    api = Api()
    nodes = Nodes(cast("Any", api))
    answers: list[tuple[Any, NodeState]] = [
        (node(), NodeState.READY),
        (node(ready="Unknown"), NodeState.NOT_READY),
        (node("node.kubernetes.io/out-of-service", ready="False"), NodeState.OUT_OF_SERVICE),
        (NotFound("no node"), NodeState.GONE),
        (Unavailable("no answer"), NodeState.GONE),
        (Refused("403"), NodeState.UNKNOWN),
    ]
    assert nodes.state("n") is NodeState.UNKNOWN
    for number, (answer, state) in enumerate(answers):
        api.stored = answer
        await nodes.refresh(["n"], number * DOUBT_SECONDS, DOUBT_SECONDS)
        assert nodes.state("n") is state
        assert nodes.path("n", (ZONE,)) == ("a",)
    assert nodes.unreadable().endswith(
        "403; the operator's ServiceAccount needs get on nodes (rbac.clusterScoped)"
    )
