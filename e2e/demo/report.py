"""The result: one value that is written as JSON, drawn as one table, and decides the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from e2e.cluster.command_line import EXIT_FAILED, EXIT_OK
from e2e.cluster.steps import Part
from e2e.demo.loader import Load
from e2e.demo.measure import KINDS
from e2e.demo.phases import PhaseResult
from e2e.demo.progress import size
from e2e.demo.settings import COPY_NOTHING, PhaseName
from e2e.demo.state import Moves
from e2e.demo.verify import Verification

TABLE_COLUMNS_MIN = 150
NO_SPARK = "Spark copied nothing in the whole run; the refusals and events of the rebalances say why."
NO_KILL = (
    "In phase {phase} the operator was {how}: nothing shows that it goes on after a kill amid the moves."
)
NEVER, TOO_LATE = "not killed while moves were open", "killed too late, when all moves were done"


@dataclass
class Result:
    """All that a run found. `problems` is empty if and only if every promise was kept."""

    run: str
    source: str
    records: int
    replaced: int
    setup: list[Part] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    phases: list[PhaseResult] = field(default_factory=list)
    measures: list[dict[str, Any]] = field(default_factory=list)
    clients: dict[str, Any] = field(default_factory=dict)
    verification: Verification | None = None
    seconds: float = 0.0
    failure: str = ""
    spark_expected: bool = False

    def problems(self) -> list[str]:
        """Each broken promise in a sentence."""
        found = [f"The run stopped: {self.failure}"] if self.failure else []
        found += [f"Phase {each.name} failed: {each.error}" for each in self.phases if each.error]
        found += self._course_problems()
        if self.clients.get("violations_total"):
            first = self.clients["violations"][0]
            found.append(
                f"{self.clients['violations_total']} reads broke a rule while clients ran; "
                f"the first: {first['key']}: {first['breach']} ({first['detail']})"
            )
        return found + self._verification_problems()

    def _course_problems(self) -> list[str]:
        """What the run was to show and did not."""
        missed = [
            NO_KILL.format(phase=each.name, how=NEVER if each.open_at_kill is None else TOO_LATE)
            for each in self.phases
            if each.name is PhaseName.SCALE_DOWN and not each.open_at_kill
        ]
        missed += self._update_problems()
        scaled = any(each.name is PhaseName.SCALE_UP for each in self.phases)
        if self.spark_expected and scaled and not sum(each.moves.bytes_by_spark for each in self.phases):
            return [NO_SPARK, *missed]
        return missed

    def _update_problems(self) -> list[str]:
        """Planned stops copy nothing, and no client notices them."""
        found = []
        for phase in self.phases:
            if phase.name not in COPY_NOTHING:
                continue
            if phase.moves.bytes_copied:
                found.append(f"The {phase.name} copied {phase.moves.bytes_copied} bytes; it needs no copy.")
            if phase.members_missing is None:
                found.append(f"Nobody counted the copies that were missing in the {phase.name}.")
            elif phase.members_missing > 1:
                found.append(f"Copies of {phase.members_missing} members were missing in the {phase.name}.")
            measured = next((each for each in self.measures if each["phase"] == phase.name), {})
            if unasked := [kind for kind in KINDS if not (measured.get(kind) or {}).get("count")]:
                found.append(f"No {' and no '.join(unasked)} were measured in the {phase.name}.")
            failed = {kind: measured[kind]["errors_by_code"] for kind in KINDS if measured.get(kind)}
            if any(failed.values()):
                found.append(f"Requests failed in the {phase.name}: {failed}")
        return found

    def _verification_problems(self) -> list[str]:
        if self.verification is None:
            return ["What replicas hold was not compared."]
        found = [
            f"After the run {each.key}: {each.breach} ({each.detail})"
            for each in self.verification.violations
        ]
        tally = self.verification.tally
        if tally.faults:
            counts = ", ".join(f"{count} {fault}" for fault, count in sorted(tally.faults.items()))
            found.append(f"Replicas are not as they must be: {counts}")
        return found + [
            f"  partition {each.partition} on {each.member}, {each.keyspace} {each.key[:80]!r}: {each.fault}"
            for each in tally.differences
        ]

    @property
    def exit_code(self) -> int:
        """0 when every promise was kept, else 1."""
        return EXIT_FAILED if self.problems() else EXIT_OK

    def as_json(self) -> dict[str, Any]:
        """Everything, with units in the names."""
        measures = {each["phase"]: each for each in self.measures}
        return {
            "run": self.run,
            "ok": not self.problems(),
            "problems": self.problems(),
            "seconds": round(self.seconds, 1),
            "input": {"source": self.source, "records": self.records, "replaced_records": self.replaced},
            "setup": [
                {
                    "step": each.title,
                    "begin_seconds": round(each.begin_seconds, 1),
                    "seconds": round(each.seconds, 1),
                }
                for each in self.setup
            ],
            "loads": [asdict(each) | {"megabytes_per_second": _mb(each)} for each in self.loads],
            "phases": [_phase_json(each, measures.get(each.name)) for each in self.phases],
            "clients": self.clients,
            "verification": self._verification_json(),
        }

    def _verification_json(self) -> dict[str, Any] | None:
        if self.verification is None:
            return None
        tally = self.verification.tally
        return {
            "seconds": self.verification.seconds,
            "partitions": tally.partitions,
            "replicas": tally.replicas,
            "entries_compared_by_keyspace": dict(tally.entries),
            "faults": dict(tally.faults),
            "first_differences": [
                asdict(each) | {"key": each.key.decode(errors="replace")} for each in tally.differences
            ],
            "ledger_keys_read": self.verification.keys_read,
            "ledger_violations": [asdict(each) for each in self.verification.violations],
        }


def _mb(load: Load) -> float:
    return round(load.megabytes_per_second, 2)


def _phase_json(phase: PhaseResult, measure: dict[str, Any] | None) -> dict[str, Any]:
    measured = measure or {}
    return {
        "phase": phase.name,
        "seconds": phase.seconds,
        "error": phase.error,
        "events": phase.events,
        "moves_open_when_operator_was_killed": phase.open_at_kill,
        "members_missing": phase.members_missing,
        "moves": moves_json(phase.moves, phase.seconds),
        "reads": measured.get("reads"),
        "writes": measured.get("writes"),
    }


def moves_json(moves: Moves, seconds: float) -> dict[str, Any]:
    """Migrations and bytes of one phase; the speed is over the whole phase."""
    return {
        "planned": dict(moves.planned),
        "done": dict(moves.done),
        "failed": moves.failed,
        "bytes_copied": moves.bytes_copied,
        "bytes_by_spark": moves.bytes_by_spark,
        "megabytes_per_second": round(moves.bytes_copied / seconds / 1e6, 2) if seconds else 0.0,
        "engines": list(moves.engines),
    }


def show(result: Result) -> None:
    """Draw on standard output, as wide as the table is at least."""
    console = Console()
    draw(result, console if console.width >= TABLE_COLUMNS_MIN else Console(width=TABLE_COLUMNS_MIN))


def draw(result: Result, console: Console) -> None:
    """The final table and what follows from it."""
    console.print(Group(*_parts(result)))


def _parts(result: Result) -> list[Any]:
    loads = ", ".join(
        f"{each.keyspace}: {each.entries:,} entries, {size(each.bytes)} in {each.seconds:.1f} s "
        f"({each.megabytes_per_second:.1f} MB/s)"
        for each in result.loads
    )
    kept = not result.problems()
    verdict = "Every promise was kept." if kept else "\n".join(result.problems())
    return [
        _setup_table(result),
        Text(
            f"Input: {result.source}, {result.records:,} records ({result.replaced:,} replaced by later ones)"
        ),
        Text(f"Loaded: {loads}"),
        _table(result),
        Text(_errors(result.clients.get("total"))),
        Text(_verified(result)),
        Text(verdict, style="bold green" if kept else "bold red"),
    ]


def _setup_table(result: Result) -> Table:
    """What was done before the load; parts that begin before others end were done side by side."""
    table = Table(title="Set up")
    table.add_column("part")
    table.add_column("begins after", justify="right")
    table.add_column("takes", justify="right")
    for each in result.setup:
        table.add_row(each.title, f"{each.begin_seconds:.1f} s", f"{each.seconds:.1f} s")
    return table


def _table(result: Result) -> Table:
    table = Table(title=f"Run {result.run}")
    for title in ("phase", "time", "migrations", "copied", "by Spark", "MB/s", "operations"):
        table.add_column(title, justify="left" if title in ("phase", "migrations") else "right")
    for title in ("count", "errors", "p50 ms", "p99 ms", "longest pause ms"):
        table.add_column(title, justify="right")
    measures = {each["phase"]: each for each in result.measures}
    for phase in result.phases:
        _add_rows(table, _phase_cells(phase), measures.get(phase.name))
    _add_rows(table, _total_cells(result.phases), result.clients.get("total"))
    return table


def _phase_cells(phase: PhaseResult) -> list[str]:
    moves = phase.moves
    types = ", ".join(f"{count} {name}" for name, count in sorted(moves.done.items())) or "-"
    speed = moves_json(moves, phase.seconds)["megabytes_per_second"]
    cells = [phase.name.value, f"{phase.seconds:.1f} s", types]
    return [*cells, size(moves.bytes_copied), size(moves.bytes_by_spark), f"{speed:.1f}"]


def _total_cells(phases: Sequence[PhaseResult]) -> list[str]:
    seconds = sum(each.seconds for each in phases)
    copied = sum(each.moves.bytes_copied for each in phases)
    spark = sum(each.moves.bytes_by_spark for each in phases)
    done = sum(each.moves.done.total() for each in phases)
    speed = copied / seconds / 1e6 if seconds else 0.0
    return ["all", f"{seconds:.1f} s", f"{done} migrations", size(copied), size(spark), f"{speed:.1f}"]


def _add_rows(table: Table, cells: list[str], measure: dict[str, Any] | None) -> None:
    for place, kind in enumerate(("reads", "writes")):
        measured = (measure or {}).get(kind)
        numbers = _numbers(measured) if measured else ["-"] * 5
        table.add_row(*(cells if place == 0 else [""] * len(cells)), kind, *numbers, end_section=place == 1)


def _numbers(measured: dict[str, Any]) -> list[str]:
    times = [f"{measured[name]:.1f}" for name in ("p50_ms", "p99_ms", "longest_pause_ms")]
    return [f"{measured['count']:,}", f"{measured['errors']:,}", *times]


def _errors(total: dict[str, Any] | None) -> str:
    """The errors of all phases by code."""
    parts = [
        f"{count:,} {kind} {code}"
        for kind in ("reads", "writes")
        for code, count in ((total or {}).get(kind) or {}).get("errors_by_code", {}).items()
    ]
    return f"Errors: {', '.join(parts) or 'none'}"


def _verified(result: Result) -> str:
    verification = result.verification
    if verification is None:
        return "Verified: nothing"
    tally = verification.tally
    entries = ", ".join(f"{count:,} of {name}" for name, count in tally.entries.items())
    acknowledged, doubtful = result.clients.get("acknowledged", 0), result.clients.get("doubtful", 0)
    return (
        f"Verified in {verification.seconds:.0f} s: {tally.replicas:,} replicas of {tally.partitions} "
        f"partitions, entries on replicas: {entries}; {verification.keys_read:,} keys read again, which hold "
        f"the last of {acknowledged:,} acknowledged writes ({doubtful} writes without an answer)"
    )
