"""What was copied to whom, as a plan's status and the metrics show it. Pure."""

from collections.abc import Iterator

from stele.core.control.operations.copy_session import Copied, Engine, Wave
from stele.core.control.rebalance.copy_scheduling import part_of, records_of
from stele.core.control.state import Record, State
from stele.core.table.ids import MemberIndex
from stele.model.cluster import EngineChoice
from stele.model.rebalance import CopyDestination

REASON_LETTERS_MAX = 1024


def destinations_of(record: Record, state: State, now: float) -> tuple[CopyDestination, ...]:
    """All members that a plan copies to, those with the most bytes first; what is under way counts."""
    found = [
        _destination(copied, _parts(record, state, member), now)
        for member, copied in record.destinations.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.bytes_planned, each.member)))


def _parts(record: Record, state: State, member: MemberIndex) -> list[tuple[Wave, int]]:
    """Waves of the plan to one member that are under way, and how much they copied for it."""
    mine = (wave for wave in state.waves.values() if wave.destination == member and not wave.counted)
    return [
        (wave, part_of(state, record, wave))
        for wave in mine
        if any(each is record for each in records_of(state, wave))
    ]


def _destination(copied: Copied, flying: list[tuple[Wave, int]], now: float) -> CopyDestination:
    size = copied.bytes_copied + sum(part for _, part in flying)
    end = now if flying or copied.ended_seconds is None else copied.ended_seconds
    seconds = 0.0 if copied.began_seconds is None else max(0.001, end - copied.began_seconds)
    return CopyDestination(
        member=copied.member,
        engine=None if copied.engine is None else EngineChoice(copied.engine.value),
        engine_reason=copied.engine_reason[:REASON_LETTERS_MAX],
        bytes_planned=copied.bytes_planned,
        bytes_copied=size,
        megabytes_per_second=f"{size / seconds / 1e6:.1f}" if seconds else "",
        tasks=copied.tasks + sum(wave.tasks for wave, _ in flying),
        retries=copied.retries + sum(wave.retries for wave, _ in flying),
        failures=copied.failures,
    )


def totals(state: State) -> Iterator[tuple[str, str, Copied]]:
    """(destination, engine, what was copied in this reign), with what is under way."""
    found = {key: _copy_of(copied) for key, copied in state.copied.items()}
    for wave in state.waves.values():
        if wave.engine is not None and not wave.counted:
            new = Copied(state.name_of(wave.destination))
            entry = found.setdefault((wave.destination, wave.engine), new)
            entry.bytes_copied += wave.copied_bytes
            entry.tasks += wave.tasks
            entry.retries += wave.retries
    for (_, engine), copied in sorted(found.items(), key=_by_place):
        yield copied.member, engine.value, copied


def _by_place(entry: tuple[tuple[MemberIndex, Engine], Copied]) -> tuple[MemberIndex, str]:
    (member, engine), _ = entry
    return member, engine.value


def _copy_of(copied: Copied) -> Copied:
    return Copied(
        copied.member,
        bytes_copied=copied.bytes_copied,
        tasks=copied.tasks,
        retries=copied.retries,
        failures=copied.failures,
    )
