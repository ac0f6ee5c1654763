"""Which copies may start beside those that run, so that all of them end (core.copy.waves)."""

from collections.abc import Iterator

from stele.core.control.operations.copy_session import CopySession, Stage
from stele.core.control.operations.move import Step
from stele.core.control.rebalance.copy_scheduling import expected_bytes
from stele.core.control.state import DesiredSpec, State
from stele.core.copy.waves import TABLET_SHARE, Flow, Waves, needed_log_bytes
from stele.core.placement.migration import Migration

_BEFORE_STREAMING = frozenset({Step.START, Step.ATTACH, Step.CATCH_UP, Step.COPY})


class CopyWaves:
    """The copies that run, and those admitted beside them in this decision."""

    def __init__(self, state: State, desired: DesiredSpec, now: float) -> None:
        self._state, self._desired, self._now = state, desired, now
        self._waves: Waves | None = None

    def admit(self, migration: Migration) -> bool:
        """Return whether a migration may start; it counts as running then."""
        flow = self._flow(migration, 0.0, 1.0)
        if flow is None:
            return True
        if self._waves is None:
            self._waves = Waves(self._desired.bandwidth_per_member, self._desired.log_space, self._running())
        return self._waves.admit(flow)

    def _running(self) -> Iterator[Flow]:
        """Iterate the tablets whose owner keeps its log for their copy."""
        sessions = self._state.operations.sessions
        left = {id: _share_left(session) for id, session in sessions.items()}
        for operation in self._state.operations.migrations.values():
            if operation.step in _BEFORE_STREAMING:
                share = left.get(operation.session, 0.0 if operation.copies else 1.0)
                flow = self._flow(operation.migration, self._now - operation.started_seconds, share)
                if flow is not None:
                    yield flow

    def _flow(self, migration: Migration, seconds: float, share_left: float) -> Flow | None:
        """Return what is on its way for so many seconds; None when nothing is copied."""
        state, number, destination = self._state, migration.partition, migration.destination
        owner = state.table.partitions[number].owner
        if destination is None or owner is None or not migration.copies:
            return None
        tablet = state.membership.tablet(owner, number)
        written = 0 if tablet is None else tablet.written_bytes_per_second
        return Flow(
            owner,
            destination,
            int(expected_bytes(state, number, destination) * share_left),
            written,
            int(written * seconds),
            state.rebalance.retries.parallel_max(number, self._desired.parallel_per_member),
        )


def _share_left(session: CopySession) -> float:
    if session.stage is Stage.OPEN:
        return 1.0
    if session.stage is not Stage.COPY:
        return 0.0
    return max(0.0, 1.0 - session.copied_bytes / max(1, session.bytes))


def cannot_end(state: State, desired: DesiredSpec) -> str:
    """Return why a copy that failed often cannot end at all, and what helps; empty when none is so.

    The log that one tablet's copy needs, with nothing else copied, is more than may be kept.
    """
    retries, most = state.rebalance.retries, int(desired.log_space * TABLET_SHARE)
    for number in sorted(filter(retries.tried_smaller, retries.copies_failed)):
        tablet = state.membership.tablet(state.table.partitions[number].owner, number)
        if tablet is None:
            continue
        written = tablet.written_bytes_per_second
        needed = needed_log_bytes(tablet.bytes, written, desired.bandwidth_per_member)
        if needed > most:
            return (
                f"partition {number}: {needed} bytes are written to it while its {tablet.bytes} are copied, "
                f"and {most} of its log are kept for that: raise spec.migration.bandwidthPerMember or "
                f"logSpacePerMember, or write less"
            )
    return ""
