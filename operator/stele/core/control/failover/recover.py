"""Recovery: a new TabletCluster takes the volumes of one that was deleted, with their table.

See docs/operating/recover.md. Nothing is stored, sent or served by the master before every volume has
reported its table. The rows are stored as they are found; a normal take-over follows, which counts what
members accepted and continues without those that are missing. An interrupted recovery starts again: until
all rows are stored, some partition has version 0.
"""

from collections.abc import Mapping
from dataclasses import replace

from stele.core.control.state import EnsureMember, Intent, Observation, RemoveMember, State
from stele.core.control.volumes import (
    RecoveredTable,
    Recovery,
    RecoveryIncomplete,
    Volume,
    recovered_table,
    volume_of,
)
from stele.core.table.ids import MemberIndex
from stele.core.table.table import Member

ANSWER_SECONDS = 60.0
"""Seconds after which a volume's member that has not reported is named."""

Found = tuple[Mapping[MemberIndex, Member] | None, tuple[Intent, ...]]


def is_recovering(state: State, observation: Observation) -> bool:
    """Return whether the table is still to be put together from volumes."""
    # Rows of groups may stay without an assignment; those that have one are stored before all others.
    state.failover.recovering = observation.desired.recovery is not None and state.table.blank > 0
    if not state.failover.recovering:
        state.failover.volumes = {}
    return state.failover.recovering


def recover(state: State, observation: Observation) -> Found:
    """Start a member on each volume, and no other; once all have reported, stage the recovered table.

    Returns the member list to store, and which members to create or remove.
    """
    desired, claims = observation.desired, observation.claims
    assert desired.recovery is not None
    others = [each.index for each in observation.members if each.index not in claims]
    intents: list[Intent] = [EnsureMember(index) for index in sorted(claims)]
    intents += [RemoveMember(index) for index in others]
    table, incomplete = None, ""
    try:
        volumes = None if others else _volumes(state, observation, desired.recovery)
        table = None if volumes is None else _table(state, volumes, desired.recovery)
    except RecoveryIncomplete as error:
        incomplete = error.text
    if incomplete not in ("", state.failover.incomplete):
        state.emit("RecoveryIncomplete", incomplete, warning=True)
    state.failover.incomplete = incomplete
    return None if table is None else _stage(state, table), () if desired.paused else tuple(intents)


def _volumes(state: State, observation: Observation, recovery: Recovery) -> dict[MemberIndex, Volume] | None:
    """Return all volumes, None while members start. Raises RecoveryIncomplete when one stays silent."""
    if not observation.claims:
        text = f"no volume claim of cluster {recovery.cluster} has the label"
        raise RecoveryIncomplete(f"{text} stele.dev/cluster-uid={recovery.uid}: correct the UID or the name")
    volumes = state.failover.volumes = _known(state, observation)
    silent = sorted(name for index, name in observation.claims.items() if index not in volumes)
    if silent and observation.now - state.started_seconds > ANSWER_SECONDS:
        raise RecoveryIncomplete(
            f"{', '.join(silent)} did not report within {ANSWER_SECONDS:g} s: the Events and the log of each "
            "pod say why; a volume that cannot be used is left out with kubectl stele recover "
            f"{recovery.cluster} --from-uid {recovery.uid} --accept-loss NAME"
        )
    state.failover.used_epoch = max((each.report.epoch for each in volumes.values()), default=0)
    return None if silent or state.failover.used_epoch >= state.epoch else volumes


def _known(state: State, observation: Observation) -> dict[MemberIndex, Volume]:
    """Return what members reported. Rows are asked for once, and read once: they are many."""
    volumes: dict[MemberIndex, Volume] = {}
    for index, name in observation.claims.items():
        liveness, before = state.membership.liveness.get(index), state.failover.volumes.get(index)
        if liveness is None or liveness.report is None:
            continue
        same = before is not None and before.is_same(liveness.report)
        volume = before if same else volume_of(name, liveness.report)
        if volume is not None:
            volumes[index] = volume
    return volumes


def _table(state: State, volumes: Mapping[MemberIndex, Volume], recovery: Recovery) -> RecoveredTable:
    given = (recovery, *volumes.values())
    if state.failover.incomplete and given == state.failover.refused:
        raise RecoveryIncomplete(state.failover.incomplete)
    rows = {number: row for number, row in enumerate(state.table.partitions) if row.version}
    state.failover.refused = given
    return recovered_table(volumes, rows, len(state.table.stored.main), recovery)


def _stage(state: State, table: RecoveredTable) -> Mapping[MemberIndex, Member] | None:
    """Stage the groups, then their rows, then the others: without these the recovery starts again."""
    state.tls.restore(volume.report.member_tls for volume in state.failover.volumes.values())
    if table.groups != state.table.groups:
        state.table.stage_groups(table.groups)
        return None
    stored, main = state.table.partitions, state.table.stored.main
    rows = {number: row for number, row in table.rows.items() if row.version > stored[number].version}
    of_groups = {number: row for number, row in rows.items() if number not in main}
    for number, row in (of_groups or rows).items():
        state.table.stage(number, row)
    state.membership.use_indexes((*table.members, *state.membership.liveness))
    # The list is stored with the next version, so it is above that of every volume.
    state.membership.raise_list_version(table.list_versions)
    if not of_groups:
        state.emit("TableRecovered", table.summary)
    return {index: replace(each, address=_address(state, index)) for index, each in table.members.items()}


def _address(state: State, index: MemberIndex) -> str:
    liveness = state.membership.liveness.get(index)
    shown = None if liveness is None else liveness.member_object
    return "" if shown is None or shown.pod is None else shown.pod.address
