"""Machines of `core.control` for cases as text: one operation, and the repair of one row."""

from typing import Any

from stele.core.control.commands import (
    CopyReport,
    ExchangeReply,
    LearnerReport,
    OpId,
    Reason,
    Result,
    SessionInfo,
    SessionReport,
    SessionTablet,
    SilentPeer,
    TabletReport,
)
from stele.core.control.failover.reinitialize import reset_lost_partitions
from stele.core.control.failover.repair import repair
from stele.core.control.failure_detector import MemberLiveness, MemberObject, Timing
from stele.core.control.operations import copy_session, move
from stele.core.control.operations.cluster_state import ChangeInput, StateChange
from stele.core.control.operations.copy_session import CopySession, Engine, Job
from stele.core.control.operations.move import MigrationOperation, begin
from stele.core.control.operations.promotion import Promotion
from stele.core.control.state import State
from stele.core.formats import FIRST
from stele.core.placement import migration
from stele.core.table.table import Member, Partition, PartitionTable
from tests.fakes.spec import desired_spec
from tests.golden.script import shown

TIMING = Timing(heartbeat=1.0, lease=3.0, grace=30.0)
MEMBERS = {index: Member(index, f"demo-{index}", f"uuid-{index}", "10.0.0.1") for index in range(4)}
Row = tuple[int, tuple[int | None, ...]]
FACTS = (
    "state",
    "features",
    "agreed",
    "failure",
    "blames_spark",
    "wants_job",
    "copied_bytes",
    "tasks",
    "retries",
)
"""What some operations have besides their step."""


def report_of(stamp: int = 0, **fields: Any) -> ExchangeReply:
    fields = {"incarnation": 1, "epoch": 1, "member_list_version": 1, "number": 1, **fields}
    return ExchangeReply("OK", "", "uuid", "cluster", stamp=stamp, **fields)


class OperationMachine:
    """One operation of partition 0: what it sends, and what becomes of the answers."""

    def __init__(self) -> None:
        self._operation: Any = None
        self._sent: list[tuple[int, Any]] = []
        self._now = 0.0

    def parts(self) -> list[Any]:
        return [self._operation]

    def state(self) -> dict[str, str]:
        operation = self._operation
        if operation is None:
            return {}
        step = getattr(operation, "step", None) or operation.stage
        reason = getattr(operation, "reason", "")
        sent = [f"{member} {shown_command(command)}" for member, command in operation.commands(self._now)]
        state = {"step": step.name + (f", {reason}" if reason else ""), "sends": "; ".join(sent) or "nothing"}
        facts = {name: getattr(operation, name, None) for name in FACTS}
        return state | {name: shown(value) for name, value in facts.items() if value}

    def promotion(self, row: Row, term: int, *live: int, dead: str = "") -> None:
        self._operation = Promotion(0, Partition(*row), term, live, bool(dead), 0.0, "p")

    def migrate(self, row: Row, kind: str, *numbers: int | None) -> None:
        """`kind` and the arguments of that function of `core.placement.migration`."""
        self._operation = begin("m", getattr(migration, kind)(0, *numbers), Partition(*row), 0.0)

    def resume(
        self,
        row: Row,
        result: tuple[int, ...],
        learner: Any = "STREAMING",
        copy: Any = "COPYING",
        **facts: Any,
    ) -> str | None:
        """A new master reads that owner and destination 2 report migration `m`, with this result.

        `theirs` and `base` are what the destination reports instead; `refused`: it will not accept.
        """
        refused, theirs = "refused" in facts, facts.get("theirs", result)
        learner_report = LearnerReport("m", 0, 2, learner, 0, result=result)
        copy_report = CopyReport("m", 0, facts.get("base", row[0]), copy, 3, "", theirs, refused)
        self._operation = move.resume(learner_report, copy_report, Partition(*row), self._now)
        return None if self._operation else "not resumed"

    def resume_session(self, *partitions: int, engine: str = "", fetch: str = "", **ended: str) -> str | None:
        """A new master reads of a session of member 1 for member 2; `fetch`: member 2 reports a copy.

        `ended` is why the session ended; `opening`: its checkpoint is being made.
        """
        tablets = tuple(SessionTablet(partition, 3, OpId(4, 1), 100) for partition in (6, 7))
        info = None if "opening" in ended else SessionInfo("s", "secret", tablets)
        reported = SessionReport("s", 0, 0, ended.get("ended", ""), 2, engine, info)
        generations = dict.fromkeys(partitions, 4)
        self._operation = copy_session.resume(reported, 1, generations, bool(fetch), self._now)
        if self._operation is None:
            return "not resumed"
        self._operation.partitions.update({p: f"m{p}" for p in partitions})
        return None

    def state_change(self) -> None:
        self._operation = StateChange()

    def drives(self, desired: str, id: str, **facts: int) -> None:
        """One decision: members 0 and 1 are there, or those that are named `mINDEX=process`.

        `features` are those that all members speak.
        """
        members = {int(name[1:]): process for name, process in facts.items() if name[0] == "m"}
        busy, stamp = facts.get("busy", 0), facts.get("stamp", 7)
        features = facts.get("features", FIRST)
        given = ChangeInput(desired, self._now, busy, stamp, 3, members or {0: 1, 1: 1}, features)
        self._operation.drive(given, lambda: id)

    def forgets(self, *members: int) -> None:
        self._operation.forget(frozenset(members))

    def session(self, *partitions: int, whole: str = "") -> None:
        """A copy of these from member 1 to member 2; `whole`: no tablet in fragments."""
        ids, generations = {p: f"m{p}" for p in partitions}, dict.fromkeys(partitions, 4)
        self._operation = CopySession("s", 1, 2, ids, generations, 0.0, not whole)

    def opens(self, *partitions: int) -> None:
        """The source has snapshots of these."""
        tablets = tuple(SessionTablet(partition, 3, OpId(4, 1), 100) for partition in partitions)
        ((member, command),) = self._operation.commands(self._now)
        result = Result(session=SessionInfo("s", "secret", tablets))
        self._operation.on_result(member, command, result, self._now)

    def engine(self, name: str) -> None:
        self._operation.engine = Engine(name)

    def rate(self, bytes_per_second: int) -> None:
        self._operation.bytes_per_second = bytes_per_second

    def job(self, state: str, copied: int = 0, tasks: int = 0, retries: int = 0) -> None:
        """What the copier says."""
        self._operation.on_job(Job(state, copied, tasks=tasks, retries=retries))

    def fail(self, code: str) -> None:
        self._operation.fail(Reason(code))

    def lists(self, *sessions: str, ended: str = "") -> None:
        """What the source says of its sessions."""
        self._operation.on_session_report([SessionReport(each, ended=ended) for each in sessions])

    def row(self) -> str:
        operation = self._operation
        return text_of(operation.result if isinstance(operation, MigrationOperation) else operation.row)

    def now(self, seconds: float) -> None:
        self._now = seconds

    def answers(
        self, member: int, code: str = "OK", last: Any = None, wait_ms: int = 0, late: str = ""
    ) -> None:
        """Answer what is sent to the member; `late`: what was sent to it before that."""
        result = Result(code, "why", wait_ms, None if last is None else OpId(*last), generation=3)
        sent = self._operation.commands(self._now)
        for whom, command in self._sent if late else sent:
            if whom == member:
                self._operation.on_result(member, command, result, self._now)
        self._sent = sent

    def reports(self, member: int, learner: str = "", copy: str = "", incarnation: int = 1) -> None:
        """What it says of the migration, as an owner or as a destination."""
        state: Any = learner or copy
        learners = (LearnerReport("m", 0, 2, state, 0),) if learner else ()
        copies = (CopyReport("m", 0, 4, state, 3, error="disk"),) if copy else ()
        report = report_of(incarnation=incarnation, learners=learners, copies=copies)
        self._operation.on_report(member, f"demo-{member}", report, self._now)


def shown_command(command: Any) -> str:
    fields = (getattr(command, name) for name in command.__struct_fields__)
    return " ".join([type(command).__name__, *(text_of(each) for each in fields if each != "")])


def text_of(value: Any) -> str:
    if hasattr(value, "__struct_fields__"):
        return ":".join(text_of(getattr(value, name)) for name in value.__struct_fields__)
    return (
        ",".join(map(text_of, value)) + "," * (len(value) == 1) if isinstance(value, tuple) else shown(value)
    )


class RepairMachine:
    """One row at a master that leads in epoch 1, and its members; all hold it and answered in second 100."""

    def __init__(self) -> None:
        self._state = State(1, PartitionTable((), {}), 1, 4, 0.0)

    def parts(self) -> list[Any]:
        return []

    def cluster(self, row: Row) -> None:
        self._state = State(1, PartitionTable((Partition(*row),), MEMBERS), 1, 4, 0.0, recovered=True)
        for index in MEMBERS:
            self._state.membership.liveness[index] = MemberLiveness(
                index, 0.0, MemberObject(index, f"demo-{index}")
            )
            self.reports(100, index, "READY" if index in row[1] else None)

    def state(self) -> dict[str, str]:
        state = self._state
        row = state.table.partitions[0]
        lines = {"row": f"{row.version}:{text_of(row.replicas)}"}
        if 0 in state.table.staged:
            lines["staged"] = f"{state.table.staged[0].version}:{text_of(state.table.staged[0].replicas)}"
        if (promotion := state.operations.promotions.get(0)) is not None:
            known = "dead" if promotion.owner_dead else "perhaps alive"
            live = ",".join(map(str, promotion.live))
            lines["promotion"] = f"{promotion.step.name} in term {promotion.term} of {live}, owner {known}"
        if (reset := state.operations.resets.get(0)) is not None:
            lines["reset"] = f"at {shown(reset.member)}"
        facts = {
            "waits for an answer": 0 in state.failover.shrinking,
            "fenced": 0 in state.failover.fenced,
            "lost": 0 in state.failover.lost,
        }
        lines |= {name: "yes" for name, holds in facts.items() if holds}
        return lines

    def reports(
        self,
        sent: float,
        member: int,
        tablet: str | None = "READY",
        **facts: int,
    ) -> None:
        """What a member says that was asked at `sent`; `-`: it has no tablet.

        `silent`: whom it misses; `behind=1`: it does not know the present table.
        """
        liveness, zero = self._state.membership.liveness[member], OpId(0, 0)
        known: Any = (
            None if tablet is None else TabletReport(0, tablet, 4, zero, zero, facts.get("promised", 0), 0)
        )
        peers = (SilentPeer(facts["silent"], 60_000),) if "silent" in facts else ()
        tablets = () if known is None else (known,)
        liveness.on_report(
            report_of(self._state.table.stamp.value + facts.get("behind", 0), tablets=tablets, silent=peers),
            sent,
        )
        liveness.evaluate(sent)

    def decides(self, now: float, on_loss: str = "Wait") -> list[str] | None:
        """Show what is reported to users."""
        for liveness in self._state.membership.liveness.values():
            liveness.note_loss(now, TIMING)
        spec = desired_spec(4, 3, TIMING, on_partition_loss=on_loss)
        repair(self._state, spec, now)
        reset_lost_partitions(self._state, spec, now)
        events = [f"{event.reason}: {event.message}" for event in self._state.events]
        self._state.events.clear()
        return events or None

    def answers(self, member: int, code: str = "OK", last: Any = None) -> None:
        """Answer what is sent to the member, of a promotion or of a reset."""
        state = self._state
        operation = state.operations.promotions.get(0) or state.operations.resets[0]
        result = Result(code, last=None if last is None else OpId(*last))
        for whom, command in operation.commands(0.0):
            if whom == member:
                operation.on_result(member, command, result, 0.0)

    def dies(self, member: int) -> None:
        """It is proven that its process ended."""
        liveness = self._state.membership.liveness[member]
        liveness.dead_incarnation, liveness.ended = 1, True

    def stores(self) -> None:
        self._state.apply(self._state.table.staged)
        self._state.table.staged.clear()
        for operation in list(self._state.operations.by_row.values()):
            self._state.operations.end(operation)
