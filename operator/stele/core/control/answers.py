"""Handles replies: which members failed or are back, which reports are credible, and their results."""

from stele.core.control.commands import (
    OK,
    WAIT,
    Abort,
    Command,
    DeleteTablet,
    ExchangeReply,
    Result,
    ResultCode,
)
from stele.core.control.failure_detector import MemberLiveness
from stele.core.control.features import lacking
from stele.core.control.publication import note_published
from stele.core.control.reported import reported_jump
from stele.core.control.state import AboutMember, Answer, Observation, State
from stele.core.table.ids import MemberIndex
from stele.core.table.steps import jump

PAUSE_HEARTBEATS = 2.0
"""Seconds between two decisions beyond which silence of members proves nothing."""


def take_in(state: State, observation: Observation) -> None:
    """Apply what Kubernetes shows of members, and their replies, since the last decision."""
    now, timing = observation.now, observation.desired.timing
    state.membership.observe(observation.members, state.table.members, now)
    if now - state.decided_seconds > PAUSE_HEARTBEATS * timing.heartbeat:
        # This process was paused, and no member was asked.
        state.membership.forgive_silence(now)
    state.decided_seconds = now
    for answer in observation.answers:
        _take_answer(state, answer, now)
    for liveness in state.membership.liveness.values():
        liveness.evaluate(now)
        _note_life(state, liveness, observation)


def _note_life(state: State, liveness: MemberLiveness, observation: Observation) -> None:
    """Report once when a member fails and when it is back."""
    member = state.table.members.get(liveness.index)
    if member is None:
        return
    before = liveness.lost_seconds
    liveness.note_loss(observation.now, observation.desired.timing)
    if before is None and liveness.lost_seconds is not None and liveness.member_object is not None:
        why = "its container ended" if liveness.ended else "it does not answer"
        text = f"{member.name} is unreachable: {why}"
        state.emit("MemberUnreachable", text, warning=True, about=AboutMember(liveness.index))
    elif before is not None and liveness.lost_seconds is None:
        text = f"{member.name} is back after {observation.now - before:.1f} s"
        state.emit("MemberReturned", text, about=AboutMember(liveness.index))


def _take_answer(state: State, answer: Answer, now: float) -> None:
    liveness = state.membership.liveness.get(answer.member)
    if liveness is None:
        return
    if answer.report is None:
        liveness.on_failure(answer.sent_seconds)
        return
    if not _is_credible(state, liveness, answer.report, now):
        return
    liveness.on_report(answer.report, answer.sent_seconds)
    if answer.member in state.table.members:
        liveness.note_problem("")
    if state.recovered:
        _note_claims(state, answer.report)
    if answer.published is not None and not answer.report.adopting:
        note_published(liveness, answer.published, answer.report)
    state.operations.change.on_report(answer.member, state.name_of(answer.member), answer.report, now)
    for command, result in zip(answer.commands, answer.report.results, strict=False):
        _route(state, answer.member, command, result, now)


def _note_claims(state: State, report: ExchangeReply) -> None:
    """Note rows and terms that a member accepted under a previous master while it was unreachable."""
    rows, promotions = state.table.partitions, state.operations.promotions
    agreed = [(row.partition, row.version) for row in report.accepted]
    agreed += [(tablet.partition, tablet.promised) for tablet in report.tablets]
    for number, version in agreed:
        if number < len(rows) and version > rows[number].version and number not in promotions:
            state.table.claim(number, version)


def _is_credible(state: State, liveness: MemberLiveness, report: ExchangeReply, now: float) -> bool:
    """Note problems of the sender. Returns whether the report is the known member's, and credible."""
    member = state.table.members.get(liveness.index)
    if report.code == ResultCode.STARTING:
        liveness.on_starting(now)
    elif report.code == ResultCode.STALE_EPOCH:
        if text := jump("epoch", state.epoch, report.epoch):
            _complain(state, liveness, "MemberNotBelieved", text)
        else:
            liveness.on_higher_epoch(report.epoch)
    elif report.code == ResultCode.WRONG_CLUSTER:
        _complain(state, liveness, "ForeignVolume", f"its volume belongs to cluster {report.cluster}")
    elif member is not None and report.uuid != member.uuid:
        if liveness.on_identity(report.uuid, member.uuid):
            text = f"{member.name} lost its volume: it is {report.uuid} now, not {member.uuid}"
            state.emit("MemberLost", text, warning=True, about=AboutMember(liveness.index))
    elif text := lacking(state, report):
        liveness.note_incompatible(text)
        _complain(state, liveness, "MemberIncompatible", text)
    elif report.code != OK:
        _complain(state, liveness, "MemberRefuses", f"{report.code}: {report.detail}")
    else:
        liveness.on_identity(report.uuid, report.uuid)
        liveness.note_incompatible("")
        text = reported_jump(state.table.stored, state.membership.list_version, report)
        if text:
            _complain(state, liveness, "MemberNotBelieved", text)
        return not text
    return False


def _complain(state: State, liveness: MemberLiveness, reason: str, text: str) -> None:
    state.warn_about(liveness, reason, f"{state.name_of(liveness.index)}: {text}", text)


def _route(state: State, member: MemberIndex, command: Command, result: Result, now: float) -> None:
    """Pass the result to the operation that sent the command."""
    operation = state.operations.get(command.id)
    if operation is not None:
        operation.on_result(member, command, result, now)
    elif isinstance(command, Abort | DeleteTablet) and result.code not in (OK, WAIT):
        text = f"{state.name_of(member)}: {command}: {result.code} {result.detail}"
        state.emit("OrderRefused", text, about=AboutMember(member))
