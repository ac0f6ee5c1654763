"""Sentences that explain the state of a cluster, partition or member.

All of them follow from the objects, the table, and the plan computed from both; nothing is guessed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from stele.core.placement.plan import WHOLE_CLUSTER, Migration
from stele.core.table.ids import MemberIndex, PartitionId
from stele.errors import BadInput
from stele.explain.cluster_view import ClusterView
from stele.explain.situation import planned
from stele.explain.text import places, refusal_lines
from stele.explain.units import size
from stele.model import TabletRebalance
from stele.model.conditions import Condition

LISTED_MAX = 10
"""Partitions or refusals listed in one sentence."""

_GOOD_WHEN_FALSE = frozenset({"Degraded", "Paused", "DataLoss", "Stalled", "Progressing", "Reconciling"})


class View:
    """One cluster with the plan that follows from it."""

    def __init__(self, cluster_view: ClusterView, rebalances: Sequence[TabletRebalance]) -> None:
        self.cluster_view, self.rows = cluster_view, cluster_view.table.partitions
        self.rebalances = rebalances
        self.outcome = planned(cluster_view.situation)
        self.alive = frozenset(each.index for each in self.outcome.situation.members)

    def number(self, text: str) -> PartitionId:
        """Parse the number of a partition. Raises BadInput."""
        count = len(self.rows)
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < count):
            raise BadInput(f'PARTITION is "{text}"; expected a whole number from 0 to {count - 1}')
        return int(text)

    def of_cluster(self) -> Iterator[str]:
        """Iterate what is to say of the whole cluster."""
        cluster = self.cluster_view.cluster
        phase = cluster.status.phase
        yield f"phase {phase.value if phase else 'unknown'}: {cluster.status.message or 'no message'}"
        yield from _conditions(cluster.status.conditions)
        thin = defaultdict[int, list[int]](list)
        for number in range(len(self.rows)):
            if self._alive(number) < (replicas := self._replicas(number)):
                thin[replicas].append(number)
        for replicas, numbers in sorted(thin.items()):
            yield f"fewer than {replicas} copies on live members: {places(numbers, LISTED_MAX)}"
        kinds = Counter(each.type.value for each in self.outcome.plan.migrations)
        counts = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        yield f"planned: {counts}" if counts else "nothing is planned: the table is balanced"
        yield from refusal_lines(self.outcome, LISTED_MAX)
        yield from self._refused_before(None)
        yield from failing_lines(self.rebalances)
        yield from copied_lines(self.rebalances)
        yield from self._obstacles()

    def of_partition(self, number: PartitionId) -> Iterator[str]:
        """Iterate what is to say of one partition."""
        row = self.rows[number]
        holders = [
            self._holder(index, member) for index, member in enumerate(row.replicas) if member is not None
        ]
        yield f"version {row.version}, held by {', '.join(holders) or 'no member'}"
        yield f"{self._alive(number)} of {self._replicas(number)} copies are on live members"
        steps = [each for each in self.outcome.plan.migrations if each.partition == number]
        yield from (f"planned: {self._step(each)}" for each in steps)
        if not steps:
            yield "no migration is planned"
        for refusal in self.outcome.plan.refusals:
            if refusal.partition in (number, WHOLE_CLUSTER):
                yield f"{refusal.reason}: {refusal.detail}"
        yield from self._refused_before(number)
        yield from self._obstacles()

    def of_member(self, index: MemberIndex) -> Iterator[str]:
        """Iterate what is to say of one member."""
        member, rows = self.cluster_view.members[index], self.rows
        state = member.status.state
        yield f"state {state.value if state else 'unknown'}, {size(member.status.bytes)} on its volume"
        if index not in self.cluster_view.table.members:
            yield "it has not joined: the partition table does not name it"
        yield from _conditions(member.status.conditions)
        yield from self._leaving(index)
        owned = sum(row.owner == index for row in rows)
        held_partitions = [number for number, row in enumerate(rows) if index in row.replicas]
        yield f"owns {owned} partitions and holds backups of {len(held_partitions) - owned}"
        only = [number for number in held_partitions if rows[number].members & self.alive <= {index}]
        if only:
            yield f"no other live member holds {places(only, LISTED_MAX)}"
        steps = self.outcome.plan.migrations
        incoming = sum(each.destination == index and each.copies for each in steps)
        after = sum(index in row for row in self.outcome.plan.targets)
        yield f"planned: it receives {incoming} replicas, and holds {after} afterwards"
        yield from self._obstacles()

    def _leaving(self, index: MemberIndex) -> Iterator[str]:
        member = self.cluster_view.members[index]
        if member.metadata.name in self.cluster_view.demoted:
            yield "it is to own nothing: a TabletRebalance with spec.handover names it"
        if member.status.lite != member.spec.lite:
            yield "it becomes lite when no partition names it" if member.spec.lite else "it is being promoted"
        elif member.spec.lite:
            yield "it is lite: it holds no partitions"
        if member.spec.drain:
            yield "it is being drained: spec.drain is true"
        elif member.metadata.deletion_timestamp is not None:
            yield "it is being drained: its TabletMember is being deleted"
        elif index in self.cluster_view.leaving:
            desired = self.cluster_view.cluster.spec.members
            yield f"it is being drained: spec.members of the cluster is {desired}"

    def _replicas(self, number: PartitionId) -> int:
        """Return how many replicas a partition should have."""
        situation = self.outcome.situation
        return situation.table.replicas_of(number, situation.replicas)

    def _alive(self, number: PartitionId) -> int:
        return len(self.rows[number].members & self.alive)

    def _holder(self, index: int, member: MemberIndex) -> str:
        member_object = self.cluster_view.members.get(member)
        state = member_object.status.state if member_object is not None else None
        what = "owner" if index == 0 else f"backup {index}"
        return f"{self._name(member)} ({what}, {state.value if state else 'no TabletMember'})"

    def _name(self, member: MemberIndex) -> str:
        return self.outcome.situation.names[member]

    def _step(self, each: Migration) -> str:
        parts = []
        if each.destination is not None:
            parts.append(f"{self._name(each.destination)} takes index {each.destination_new_index}")
        if each.source is not None:
            stays = each.source_new_index >= 0
            change = f"moves to index {each.source_new_index}" if stays else "leaves"
            parts.append(f"{self._name(each.source)} {change}")
        return f"{each.type.value}: {', '.join(parts)}"

    def _refused_before(self, number: PartitionId | None) -> Iterator[str]:
        """Iterate the refusals of the operator's plans, newest first; for None, those about a whole plan."""
        newest = sorted(
            self.rebalances, key=lambda each: each.metadata.creation_timestamp or "", reverse=True
        )
        lines = [
            f"{each.metadata.name}: {refusal.reason}: {refusal.message}"
            for each in newest
            for refusal in each.status.refusals
            if refusal.partition == number
        ]
        yield from lines[:LISTED_MAX]

    def _obstacles(self) -> Iterator[str]:
        if self.cluster_view.obstacles:
            yield f"migrations are blocked: {', '.join(self.cluster_view.obstacles)}"


def failing_lines(rebalances: Iterable[TabletRebalance]) -> Iterator[str]:
    """Iterate what waits or failed in running plans, with the partition and the reason."""
    for each in rebalances:
        if each.status.finished_at is not None:
            continue
        refusals = [refusal for refusal in each.status.refusals if refusal.partition is not None]
        for refusal in refusals[:LISTED_MAX]:
            yield f"{each.metadata.name}: partition {refusal.partition}: {refusal.message}"


def copied_lines(rebalances: Iterable[TabletRebalance]) -> Iterator[str]:
    """Iterate lines about the copies of running plans: destination, engine and its reason."""
    for each in rebalances:
        if each.status.finished_at is not None:
            continue
        for to in each.status.destinations[:LISTED_MAX]:
            engine = to.engine.value if to.engine else "no engine yet"
            speed = f", {to.megabytes_per_second} MB/s" if to.megabytes_per_second else ""
            done = f"{size(to.bytes_copied)} of about {size(to.bytes_planned)} copied by {engine}"
            counts = f"{to.tasks} tasks, {to.retries} retries, {to.failures} failed sessions"
            why = f" ({to.engine_reason})" if to.engine_reason else ""
            yield f"{each.metadata.name} to {to.member}: {done}{why}{speed}; {counts}"


def _conditions(conditions: Iterable[Condition]) -> Iterator[str]:
    """Iterate the conditions that differ from their normal status."""
    for each in conditions:
        at_rest = "False" if each.type in _GOOD_WHEN_FALSE else "True"
        if each.status.value != at_rest:
            yield f"{each.type} is {each.status.value} ({each.reason}): {each.message}"
