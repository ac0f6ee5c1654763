"""Take-over: a new leadership waits for the members and continues from their reports.

See docs/reference/protocol.md, "Take-over by a new master".
"""

from collections.abc import Mapping

from stele.core.control.failover.adoption import adopt
from stele.core.control.recovery import resolve
from stele.core.control.state import Observation, State
from stele.core.formats import FIRST
from stele.core.table.groups import newest_groups
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition

STARTING_SECONDS = 60.0
"""Seconds that a take-over waits for a member that reports that it is starting."""


def take_over(state: State, observation: Observation) -> bool:
    """Wait until every member has replied or failed, then stage what the previous master left.

    Returns True when settled.
    """
    gone: set[MemberIndex] = set()
    for index in state.table.members:
        liveness = state.membership.liveness[index]
        if liveness.report is not None and liveness.reachable(observation.now, observation.desired.timing):
            continue
        starting = observation.now - liveness.starting_seconds < observation.desired.timing.silence
        if starting and observation.now - state.started_seconds < STARTING_SECONDS:
            return False
        if not liveness.replaced_by_uuid and not liveness.gone(observation.now, observation.desired.timing):
            return False
        gone.add(index)
    known = state.membership.liveness
    reports = {i: each.report for i, each in known.items() if each.report is not None and i not in gone}
    features = max((report.features for report in reports.values()), default=FIRST)
    state.operations.change.restore_features(features)
    state.tls.restore(report.member_tls for i, report in reports.items() if i in state.table.members)
    groups = newest_groups(
        state.table.groups, len(state.table.stored.main), (each.groups for each in reports.values())
    )
    if groups != state.table.groups:
        state.table.stage_groups(groups)
        return False
    recovered = resolve(state.table.stored, reports.values(), frozenset(gone), state.epoch)
    if _waits_for_unlisted(state, observation, recovered.rows):
        return False
    for number, version in recovered.claimed.items():
        state.table.claim(number, version)
    for number, row in recovered.rows.items():
        state.table.stage(number, row)
    rows = {number: recovered.rows.get(number, row) for number, row in enumerate(state.table.partitions)}
    state.failover.fenced = _interrupted(state, rows)
    _claim_for_others(state, rows)
    state.membership.raise_list_version(report.member_list_version for report in reports.values())
    undecided = state.table.staged.keys() | state.table.claimed.keys() | state.failover.fenced
    adopted = adopt(state, reports, undecided, observation.now)
    state.recovered = True
    if state.table.members:
        text = f"epoch {state.epoch}: {len(reports)} members answered, {len(gone)} are gone"
        text += f", {len(recovered.rows)} rows were not stored"
        state.emit("MasterTookOver", text + (f", {adopted} migrations continue" if adopted else ""))
    return True


def _waits_for_unlisted(
    state: State, observation: Observation, rows: Mapping[PartitionId, Partition]
) -> bool:
    """Return whether reported rows name members that the member list lacks and that cannot join now.

    This happens after an older copy of the ConfigMaps was restored: they joined after it was made.
    """
    named = frozenset[MemberIndex]().union(*(row.members for row in rows.values()))
    missing = frozenset(i for i in named - state.table.members.keys() if not _can_join(state, observation, i))
    if state.membership.await_unlisted(missing):
        who = ", ".join(f"member {index}" for index in sorted(missing))
        text = f"rows name {who}, which the restored member list lacks: waiting for their replies"
        if not observation.desired.join_allowed:
            text += f", and the cluster state {observation.desired.state} forbids joining"
        state.emit("MemberListOlder", text, warning=True)
    return bool(missing)


def _can_join(state: State, observation: Observation, index: MemberIndex) -> bool:
    liveness = state.membership.liveness.get(index)
    shown = None if liveness is None else liveness.member_object
    if liveness is None or shown is None or shown.pod is None or shown.deleting:
        return False
    answers = liveness.report is not None and liveness.reachable(observation.now, observation.desired.timing)
    return answers and not liveness.replaced_by_uuid and observation.desired.join_allowed


def _interrupted(state: State, rows: dict[PartitionId, Partition]) -> set[PartitionId]:
    """Return partitions of which a live replica promised a term that no row has: their promotion is
    repeated."""
    interrupted: set[PartitionId] = set()
    for index, liveness in state.membership.liveness.items():
        for tablet in liveness.tablets.values():
            row = rows.get(tablet.partition)
            if row is not None and index in row.members and tablet.promised > row.version:
                interrupted.add(tablet.partition)
    return interrupted


def _claim_for_others(state: State, rows: dict[PartitionId, Partition]) -> None:
    """Let a replica that promised more than its row's version take no copy except for a later one."""
    for index, liveness in state.membership.liveness.items():
        for tablet in liveness.tablets.values():
            number = tablet.partition
            row = rows.get(number)
            if row is not None and index not in row.members and tablet.promised > row.version:
                state.table.claim(number, tablet.promised)
