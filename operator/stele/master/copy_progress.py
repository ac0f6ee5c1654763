"""Bytes copied to each member, for a plan's status and the metrics. Pure."""

from collections.abc import Iterator
from dataclasses import replace

from stele.core.control.operations.copy_session import Copied, CopySession
from stele.core.control.progress import RebalanceProgress
from stele.core.control.rebalance.copy_scheduling import plans_of
from stele.core.control.state import State
from stele.core.table.ids import MemberIndex
from stele.model.cluster import EngineChoice
from stele.model.rebalance import CopyDestination

REASON_LETTERS_MAX = 1024


def destinations_of(progress: RebalanceProgress, state: State, now: float) -> tuple[CopyDestination, ...]:
    """Return all members that a plan copies to, running sessions included, most bytes first."""
    destinations = [
        _destination(copied, _parts(progress, state, member), now)
        for member, copied in progress.destinations.items()
    ]
    return tuple(sorted(destinations, key=lambda each: (-each.bytes_planned, each.member)))


def _parts(progress: RebalanceProgress, state: State, member: MemberIndex) -> list[tuple[CopySession, int]]:
    """Return the plan's running sessions to one member, with the bytes copied for the plan."""
    ids = state.rebalance.operations_of(progress)
    return [
        (session, session.part_of(ids))
        for session in state.operations.sessions.values()
        if session.destination == member and not session.counted and progress in plans_of(state, session)
    ]


def _destination(copied: Copied, running: list[tuple[CopySession, int]], now: float) -> CopyDestination:
    size = copied.bytes_copied + sum(part for _, part in running)
    end = now if running or copied.ended_seconds is None else copied.ended_seconds
    seconds = 0.0 if copied.began_seconds is None else max(0.001, end - copied.began_seconds)
    return CopyDestination(
        member=copied.member,
        engine=None if copied.engine is None else EngineChoice(copied.engine.value),
        engine_reason=copied.engine_reason[:REASON_LETTERS_MAX],
        bytes_planned=copied.bytes_planned,
        bytes_copied=size,
        megabytes_per_second=f"{size / seconds / 1e6:.1f}" if seconds else "",
        tasks=copied.tasks + sum(session.tasks for session, _ in running),
        retries=copied.retries + sum(session.retries for session, _ in running),
        failures=copied.failures,
    )


def totals(state: State) -> Iterator[tuple[str, str, Copied]]:
    """Yield (destination, engine, copied in this leadership), running sessions included."""
    totals_of = {key: replace(copied) for key, copied in state.copies.copied.items()}
    for session in state.operations.sessions.values():
        if session.engine is not None and not session.counted:
            new = Copied(state.name_of(session.destination))
            entry = totals_of.setdefault((session.destination, session.engine), new)
            entry.bytes_copied += session.copied_bytes
            entry.tasks += session.tasks
            entry.retries += session.retries
    for member, engine in sorted(totals_of, key=lambda key: (key[0], key[1].value)):
        copied = totals_of[member, engine]
        yield copied.member, engine.value, copied
