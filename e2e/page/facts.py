"""A cluster for the page, without any process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stele.core.control.commands import OK, ExchangeReply, Stats
from stele.core.control.operations.copy_session import CopySession, Engine
from stele.core.control.operations.move import begin
from stele.core.control.state import State
from stele.core.placement.migration import Migration, Type
from stele.core.table.table import Member, Partition, PartitionTable
from stele.model import TabletCluster, TabletMember, TabletRebalance
from stele.web.facts import Facts, Key

EVIL = '<img src=x onerror="document.body.dataset.evil=1"><script>document.body.dataset.evil=1</script>'
KEY = ("stele", "demo")


def rows_of(partitions: int, members: int, replicas: int = 2) -> tuple[Partition, ...]:
    """Rows that are spread over the members."""
    return tuple(
        Partition(1, tuple((number + number // members + each) % members for each in range(replicas)))
        for number in range(partitions)
    )


def state_of(rows: Sequence[Partition], members: int, epoch: int = 3) -> State:
    known = {index: Member(index, f"demo-{index}", f"uuid-{index}", "") for index in range(members)}
    state = State(epoch, PartitionTable(tuple(rows), known), 1, members, 0.0, recovered=True)
    for index in known:
        state.membership.observe((), known, 0.0)
        liveness = state.membership.liveness[index]
        liveness.answered_seconds = 99.0
        liveness.report = report(index, reads=100 * index)
    return state


def report(index: int, **stats: Any) -> ExchangeReply:
    return ExchangeReply(OK, "", f"uuid-{index}", "cluster", 1, 3, 0, 1, stats=Stats(**stats))


def cluster_of(
    members: int, partitions: int, message: str = "as desired", phase: str = "Running"
) -> TabletCluster:
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": "Tested",
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return TabletCluster.model_validate(
        {
            "metadata": {"name": KEY[1], "namespace": KEY[0]},
            "spec": {"members": members, "partitions": partitions, "storage": {"size": "1Gi"}},
            "status": {
                "phase": phase,
                "message": message,
                "conditions": [ready],
                "members": {"ready": members},
            },
        }
    )


def member_of(index: int, state: str = "Active") -> TabletMember:
    return TabletMember.model_validate(
        {
            "metadata": {"name": f"demo-{index}", "namespace": KEY[0]},
            "spec": {"cluster": KEY[1], "index": index},
            "status": {"state": state, "node": "node-a"},
        }
    )


def plan_of(name: str, began: str, **status: Any) -> TabletRebalance:
    meta = {"name": name, "namespace": KEY[0], "creationTimestamp": began}
    return TabletRebalance.model_validate(
        {"metadata": meta, "spec": {"cluster": KEY[1]}, "status": {"phase": "Running", **status}}
    )


def facts_of(
    members: int = 3,
    partitions: int = 12,
    states: Mapping[int, str] | None = None,
    message: str = "as desired",
    plans: Sequence[TabletRebalance] = (),
    *,
    epoch: int = 3,
) -> Facts:
    """Facts of a cluster at rest; `states` are of members that are not Active."""
    found = [member_of(index, (states or {}).get(index, "Active")) for index in range(members)]
    state = state_of(rows_of(partitions, members), members, epoch)
    return Facts(state, cluster_of(members, partitions, message), found, plans, 100.0)


def copy_to(facts: Facts, partition: int, destination: int) -> None:
    """Let a partition's last backup move to a member, which copies it directly."""
    row = facts.state.table.partitions[partition]
    last = len(row.replicas) - 1
    source = row.replicas[last]
    assert source is not None
    migration = Migration(partition, Type.MOVE, source, last, -1, destination, -1, last)
    operation = begin(f"m-{partition}", migration, row, 90.0)
    facts.state.operations.begin(operation)
    session = CopySession(f"s-{partition}", source, destination, {partition: operation.id}, {}, 95.0)
    session.engine, session.copied_bytes = Engine.DIRECT, 5
    facts.state.operations.begin(session)


@dataclass
class Known:
    """A source with one cluster, and perhaps others; implements web.facts.Source. `seconds` is the time.

    Facts that are None are of a cluster whose master does not run.
    """

    shown: Facts | None
    why_not: str = ""
    seconds: float = 0.0
    others: dict[Key, Facts | None] = field(default_factory=dict)

    def refusal(self) -> str:
        return self.why_not

    def clusters(self) -> Sequence[Key]:
        return [KEY, *self.others]

    def facts(self, key: Key) -> Facts | None:
        return self.others.get(key, self.shown)
