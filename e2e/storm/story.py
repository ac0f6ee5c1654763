"""Tells what led to a violation: history of the key, rows of its partition, faults, logs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from e2e.demo.history import Outcome, Violation
from e2e.storm.clients import Operation, clock
from e2e.storm.strikes import Struck
from stele.adapters.json_lines import decode, text_of

OPERATIONS_TOLD_MAX = 40
LOG_LINES_TOLD_MAX = 250
SECONDS_BEFORE = 4.0
SECONDS_TOLD_MAX = 90.0

Row = tuple[float, int, tuple[str, ...]]


@dataclass(frozen=True)
class Scene:
    """All that was seen. `logs` has the lines of each start of each container, with their times."""

    history: Mapping[str, Sequence[Operation]]
    rows: Mapping[int, Sequence[Row]]
    struck: Sequence[Struck]
    logs: Mapping[str, Iterable[str]]


def tell(violation: Violation, partition: int, at: float, scene: Scene) -> Iterator[str]:
    """The story, line by line. `at`: when the violation was seen."""
    operations = [each for each in scene.history.get(violation.key, ()) if each.began <= at]
    since = _beginning(operations, at)
    yield f"VIOLATION at {clock(at)}: {violation.breach}: {violation.key}: {violation.detail}"
    yield f"-- history of {violation.key} (its last {OPERATIONS_TOLD_MAX} operations; began .. ended)"
    yield from map(str, operations[-OPERATIONS_TOLD_MAX:])
    yield f"-- rows of partition {partition}, the owner first"
    for moment, version, members in scene.rows.get(partition, ()):
        yield f"{clock(moment)}  version {version}: {', '.join(members)}"
    yield f"-- faults until {clock(at)}"
    for struck in sorted(scene.struck, key=lambda each: each.moment):
        if struck.moment <= at:
            yield f"{clock(struck.moment)}  {struck.text}"
    yield f"-- logs from {clock(since)} to {clock(at)} (all of them are in the folder of the run)"
    # A log that was read on from its last line on has that line twice.
    yield from _last(sorted(set(_lines(scene.logs, since, at))))


def _beginning(operations: Sequence[Operation], at: float) -> float:
    """A while before the last write that was acknowledged before the operation that showed it."""
    before = [each for each in operations if not each.reads and each.outcome is Outcome.ACKNOWLEDGED][-2:]
    first = min((each.began for each in before), default=at)
    return max(first - SECONDS_BEFORE, at - SECONDS_TOLD_MAX)


def _lines(logs: Mapping[str, Iterable[str]], since: float, until: float) -> Iterator[str]:
    for name, lines in logs.items():
        for line in lines:
            stamp, _, text = line.partition(" ")
            moment = moment_of(stamp)
            if moment is not None and since <= moment <= until:
                yield f"{clock(moment)}  {name}  {_readable(text.rstrip())}"


def _readable(line: str) -> str:
    fields = decode(line)
    return line if fields is None else "\n".join(text_of(fields))


def _last(lines: list[str]) -> list[str]:
    left_out = len(lines) - LOG_LINES_TOLD_MAX
    return [f"({left_out} lines before)", *lines[left_out:]] if left_out > 0 else lines


def moment_of(stamp: str) -> float | None:
    """Seconds of the day's time in `2026-01-02T03:04:05.123456789Z`; None for anything else."""
    whole, _, rest = stamp.removesuffix("Z").partition(".")
    try:
        seconds = datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
        return seconds + float(f"0.{rest or 0}")
    except ValueError:
        return None
