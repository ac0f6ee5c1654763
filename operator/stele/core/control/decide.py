"""One decision of the master (docs/operator.md, "The loop"): listen, take over, repair, plan, start, commit,
sweep.

`decide` does no I/O. The driver stores what it stages *first*, tells `stored`, and only then sends the
orders with `publication`. When storing fails in any way the driver drops the whole State and begins a new
reign: nothing in it is needed to go on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stele.core.control.cluster_state import Sight, Step
from stele.core.control.commands import (
    WAIT,
    Accept,
    AddLearner,
    CloseSession,
    CreateTablet,
    Fence,
    FetchDirect,
    HandOver,
    Ingest,
    LockState,
    OpenSession,
    Order,
    Report,
    Result,
    StartTabletCopy,
    UnlockState,
)
from stele.core.control.failover.reinitialize import answer as answer_beginning
from stele.core.control.failover.reinitialize import reset_lost_partitions
from stele.core.control.failover.repair import repair, unusable
from stele.core.control.failure_detector import Contact
from stele.core.control.gc import sweep
from stele.core.control.member_list import Dictionary, holds_data, scale, set_members, update_dictionary
from stele.core.control.rebalance.apply_requests import heed
from stele.core.control.rebalance.copy_scheduling import waiting_for_space
from stele.core.control.rebalance.planner import data_members, end_plan, make_plan, places_known
from stele.core.control.rebalance.scheduler import drive_waves, follow, note_stored, start
from stele.core.control.rebalance.user_plans import end_asked
from stele.core.control.recovery import resolve
from stele.core.control.reported import reported_jump
from stele.core.control.state import Answer, Decision, Intent, Mark, Observation, State
from stele.core.placement.assignment import assign
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.steps import jump
from stele.core.table.table import Partition, check_changes

FORMING_SECONDS = 60.0
"""A new cluster waits so long for all its members before it begins with those that are there."""

STARTING_SECONDS = 60.0
"""A take-over waits so long for a member that says that it is starting."""

PAUSE_HEARTBEATS = 2.0
"""Between two decisions; after a longer pause the master does not believe that others were silent."""

ORDERS_MAX = 2_000
"""Orders in one exchange; the others follow in the next."""


def decide(state: State, seen: Observation) -> Decision:
    """Everything to store, to send and to make now. Raises Corrupt when tables contradict each other."""
    state.happenings, state.staged = [], {}
    _look(state, seen)
    _forgive_own_pause(state, seen)
    for answer in seen.answers:
        _listen(state, answer, seen.now)
    for contact in state.contacts.values():
        contact.judge(seen.now)
        _note_life(state, contact, seen)
    if not state.settled and not _take_over(state, seen):
        return _decision(state, seen, None, (), {})
    seen = _change_state(state, seen)
    heed(state, seen)
    follow(state, seen)
    repair(state, seen.wishes, seen.now)
    reset_lost_partitions(state, seen.wishes, seen.now)
    intents = scale(state, seen)
    _assign_first(state, seen)
    end_plan(state, seen.now)
    end_asked(state, seen)
    make_plan(state, seen)
    drive_waves(state, seen)
    start(state, seen)
    dictionary = update_dictionary(state, seen)
    return _decision(state, seen, dictionary, intents, _orders(state, seen))


def _decision(
    state: State,
    seen: Observation,
    dictionary: Dictionary | None,
    intents: tuple[Intent, ...],
    orders: dict[MemberIndex, list[Order]],
) -> Decision:
    check_changes(state.table, state.staged, state.table.members if dictionary is None else dictionary)
    jobs = tuple(wave for wave in state.waves.values() if wave.wants_job)
    busy = bool(
        state.running
        or state.promotions
        or state.shrinking
        or state.waves
        or state.beginnings
        or state.staged
        or dictionary
        or not state.settled
    )
    return Decision(
        dict(state.staged),
        dictionary,
        state.next_index,
        {member: tuple(some[:ORDERS_MAX]) for member, some in orders.items()},
        intents,
        jobs,
        tuple(state.happenings),
        busy or bool(orders) or _may_start_soon(state, seen),
        state.change.wish if state.change.step is Step.COMMITTING else state.change.state,
    )


def _may_start_soon(state: State, seen: Observation) -> bool:
    """Whether something waits for its turn; what waits for space keeps nobody busy."""
    return len(state.queues) > 0 and seen.wishes.may_start and waiting_for_space(state) is None


def _change_state(state: State, seen: Observation) -> Observation:
    """Move a change of the cluster state on; from here on the wishes are those that are in force."""
    change, wishes = state.change, seen.wishes
    gone = unusable(state, wishes, seen.now)
    processes = {
        index: -1 if (report := state.contacts[index].report) is None else report.incarnation
        for index in state.table.members
        if index not in gone
    }
    before = change.step
    change.drive(
        Sight(
            wishes.state,
            seen.now,
            len(state.running) + len(state.promotions),
            state.stamp.value,
            state.member_list_version,
            processes,
        ),
        state.new_id("c"),
    )
    change.forget(gone)
    if before is Step.LOCKING and change.step is Step.WAITING and change.reason:
        text = f"{change.wish} is not in force, {change.state} is: {change.reason}"
        state.say("ClusterStateRefused", text, warning=True)
    elif change.step is Step.COMMITTING:
        state.say("ClusterStateChanged", f"{change.wish} is in force, {len(processes)} members agreed")
    paused = wishes.migration_paused or change.pending
    return replace(seen, wishes=replace(wishes, state=change.state, migration_paused=paused))


def stored(
    state: State, rows: dict[PartitionId, Partition], dictionary: Dictionary | None, now: float
) -> None:
    """The driver stored what was decided: now it holds."""
    state.apply(rows)
    if dictionary is not None:
        set_members(state, dictionary)
    note_stored(state, rows, now)
    state.staged = {}
    state.change.stored()


def _look(state: State, seen: Observation) -> None:
    """Take in what Kubernetes shows of every member."""
    shown = {each.index: each for each in seen.seen}
    for index in shown.keys() | state.table.members.keys():
        contact = state.contacts.get(index)
        if contact is None:
            contact = state.contacts[index] = Contact(index, seen.now)
        contact.look(shown.get(index), seen.now)
    for index in state.contacts.keys() - shown.keys() - state.table.members.keys():
        del state.contacts[index]


def _forgive_own_pause(state: State, seen: Observation) -> None:
    """When this process stood still nobody was asked: silence counts from now on only."""
    if seen.now - state.decided_seconds > PAUSE_HEARTBEATS * seen.wishes.timing.heartbeat:
        for contact in state.contacts.values():
            contact.since = seen.now
    state.decided_seconds = seen.now


def _note_life(state: State, contact: Contact, seen: Observation) -> None:
    """Say it once when a member is lost and when it is back."""
    member = state.table.members.get(contact.index)
    if member is None:
        return
    before = contact.lost_seconds
    contact.note_loss(seen.now, seen.wishes.timing)
    if before is None and contact.lost_seconds is not None and contact.seen is not None:
        why = "its container ended" if contact.ended else "it does not answer"
        state.say("MemberUnreachable", f"{member.name} is unreachable: {why}", warning=True)
    elif before is not None and contact.lost_seconds is None:
        state.say("MemberReturned", f"{member.name} is back after {seen.now - before:.1f} s")


def _listen(state: State, answer: Answer, now: float) -> None:
    contact = state.contacts.get(answer.member)
    if contact is None:
        return
    if answer.report is None:
        contact.failed_seconds = answer.sent_seconds
        return
    if not _is_it(state, contact, answer.report, now):
        return
    contact.hear(answer.report, answer.sent_seconds)
    if answer.member in state.table.members:
        contact.problem = ""
    if state.settled:
        _note_claims(state, answer.report)
    if answer.published is not None:
        note_published(contact, answer.published, answer.report)
    for order, result in zip(answer.orders, answer.report.results, strict=False):
        if isinstance(order, LockState | UnlockState):
            state.change.answer(answer.member, answer.report.incarnation, order, result)
        else:
            _route(state, answer.member, order, result, now)


def note_published(contact: Contact, mark: Mark, report: Report) -> None:
    """It took in what was published; with another stamp it missed something, and is told everything next."""
    contact.published = mark.number if report.stamp == mark.stamp else 0


def _note_claims(state: State, report: Report) -> None:
    """Rows and terms that a member agreed to under a master before us, while we could not ask it."""
    rows = state.table.partitions
    agreed = [(row.partition, row.version) for row in report.accepted]
    agreed += [(tablet.partition, tablet.promised) for tablet in report.tablets]
    for number, version in agreed:
        if number < len(rows) and version > rows[number].version and number not in state.promotions:
            state.claimed[number] = max(state.claimed.get(number, 0), version)


def _is_it(state: State, contact: Contact, report: Report, now: float) -> bool:
    """Whether the report is the known member's own and a good one; notes what it is otherwise."""
    member = state.table.members.get(contact.index)
    if report.code in ("STALE_EPOCH",):
        if text := jump("epoch", state.epoch, report.epoch):
            _complain(state, contact, "MemberNotBelieved", text)
            return False
        contact.refused_epoch = max(contact.refused_epoch, report.epoch)
        return False
    if report.code == "STARTING":
        contact.starting_seconds = now
        return False
    if report.code == "WRONG_CLUSTER":
        _complain(state, contact, "ForeignVolume", f"its volume belongs to cluster {report.cluster}")
        return False
    if member is not None and report.uuid != member.uuid:
        if not contact.stranger:
            text = f"{member.name} lost its volume: it is {report.uuid} now, not {member.uuid}"
            state.say("MemberLost", text, warning=True)
        contact.stranger = report.uuid
        return False
    if report.code != "OK":
        _complain(state, contact, "MemberRefuses", f"{report.code}: {report.detail}")
        return False
    contact.stranger = ""
    if text := reported_jump(state.table, state.member_list_version, report):
        _complain(state, contact, "MemberNotBelieved", text)
        return False
    return True


def _complain(state: State, contact: Contact, reason: str, text: str) -> None:
    if contact.problem != text:
        contact.problem = text
        state.say(reason, f"{state.name_of(contact.index)}: {text}", warning=True)


def _route(state: State, member: MemberIndex, order: Order, result: Result, now: float) -> None:
    """Give the answer to whoever gave the order."""
    match order:
        case StartTabletCopy() | AddLearner() | HandOver():
            running = state.running.get(order.partition)
            if running is not None and running.id == order.id:
                running.answer(order, result, now)
        case Accept():
            running = state.running.get(order.partition)
            promotion = state.promotions.get(order.partition)
            if running is not None and running.id == order.id:
                running.answer(order, result, now)
            elif promotion is not None:
                promotion.answer(member, order, result, now)
        case Fence():
            promotion = state.promotions.get(order.partition)
            if promotion is not None:
                promotion.answer(member, order, result, now)
        case CreateTablet():
            answer_beginning(state, member, order, result)
        case OpenSession() | FetchDirect() | Ingest() | CloseSession():
            wave = state.waves.get(order.session)
            if wave is not None:
                wave.answer(member, order, result, now)
        case _:
            if result.code not in ("OK", WAIT):
                state.say("OrderRefused", f"{state.name_of(member)}: {order}: {result.code} {result.detail}")


def _take_over(state: State, seen: Observation) -> bool:
    """Wait until every member answered or is gone, then stage what the master before left; True when
    settled.
    """
    gone: set[MemberIndex] = set()
    for index in state.table.members:
        contact = state.contacts[index]
        if contact.report is not None and contact.reachable(seen.now, seen.wishes.timing):
            continue
        starting = seen.now - contact.starting_seconds < seen.wishes.timing.silence
        if starting and seen.now - state.started_seconds < STARTING_SECONDS:
            return False
        if not contact.stranger and not contact.gone(seen.now, seen.wishes.timing):
            return False
        gone.add(index)
    reports = [c.report for i, c in state.contacts.items() if c.report is not None and i not in gone]
    found = resolve(state.table, reports, frozenset(gone), state.epoch)
    if _waits_for_unlisted(state, seen, found.rows):
        return False
    state.claimed.update(found.claimed)
    state.staged.update(found.rows)
    rows = {number: found.rows.get(number, row) for number, row in enumerate(state.table.partitions)}
    state.fenced = _interrupted(state, rows)
    _claim_for_others(state, rows)
    state.member_list_version = _list_version(state, reports)
    state.settled = True
    if state.table.members:
        text = f"epoch {state.epoch}: {len(reports)} members answered, {len(gone)} are gone"
        state.say("MasterTookOver", f"{text}, {len(found.rows)} rows were not stored")
    return True


def _waits_for_unlisted(state: State, seen: Observation, rows: Mapping[PartitionId, Partition]) -> bool:
    """Whether rows that members told name somebody whom the member list lacks, and who cannot be let in now.

    An older copy of the ConfigMaps was restored: they joined after it was made.
    """
    named = frozenset[MemberIndex]().union(*(row.members for row in rows.values()))
    missing = frozenset(i for i in named - state.table.members.keys() if not _can_join(state, seen, i))
    if missing - state.unlisted:
        who = ", ".join(f"member {index}" for index in sorted(missing))
        why = (
            "" if seen.wishes.join_allowed else f", and the cluster state {seen.wishes.state} forbids joining"
        )
        text = f"rows name {who}, whom the restored member list lacks: the reign begins when they answer{why}"
        state.say("MemberListOlder", text, warning=True)
    state.unlisted = missing
    return bool(missing)


def _can_join(state: State, seen: Observation, index: MemberIndex) -> bool:
    contact = state.contacts.get(index)
    if contact is None or contact.seen is None or contact.seen.pod is None or contact.seen.deleting:
        return False
    answers = contact.report is not None and contact.reachable(seen.now, seen.wishes.timing)
    return answers and not contact.stranger and seen.wishes.join_allowed


def _list_version(state: State, reports: Sequence[Report]) -> int:
    """Above every list that a member has: an older copy of the ConfigMaps was restored when one is newer, and
    members take newer lists only.
    """
    newest = max((report.member_list_version for report in reports), default=0)
    return newest + 1 if newest > state.member_list_version else state.member_list_version


def _interrupted(state: State, rows: dict[PartitionId, Partition]) -> set[PartitionId]:
    """Partitions of which a live replica promised a term that no row has: their promotion is made again."""
    found: set[PartitionId] = set()
    for index, contact in state.contacts.items():
        for tablet in contact.tablets.values():
            row = rows.get(tablet.partition)
            if row is not None and index in row.members and tablet.promised > row.version:
                found.add(tablet.partition)
    return found


def _claim_for_others(state: State, rows: dict[PartitionId, Partition]) -> None:
    """Who promised more than the version of a row that lacks it takes no copy but for a later one."""
    for index, contact in state.contacts.items():
        for tablet in contact.tablets.values():
            number = tablet.partition
            row = rows.get(number)
            if row is not None and index not in row.members and tablet.promised > row.version:
                state.claimed[number] = max(state.claimed.get(number, 0), tablet.promised)


def _assign_first(state: State, seen: Observation) -> None:
    """The first row of every partition: nobody has data yet, so nothing is asked of anybody.

    Somebody who has data and is not let in shows that the table was lost: that is not covered up.
    """
    if any(row.version for row in state.table.partitions) or seen.wishes.held or not seen.wishes.join_allowed:
        return
    if not places_known(state) or any(holds_data(contact) for contact in state.contacts.values()):
        return
    members = [each for each in data_members(state, seen.wishes, seen.now) if not each.leaving]
    patient = seen.now - state.started_seconds < FORMING_SECONDS
    if not members or (patient and len(members) < seen.wishes.members):
        return
    rows = assign(state.table, members, seen.wishes.replicas)
    state.staged.update({number: Partition(1, row) for number, row in enumerate(rows) if row})
    state.say("TableAssigned", f"{len(rows)} partitions on {len(members)} members")


def _orders(state: State, seen: Observation) -> dict[MemberIndex, list[Order]]:
    """What to send to whom; nothing to members that cannot be reached."""
    orders: dict[MemberIndex, list[Order]] = {}
    _add(orders, state.change.orders())
    for promotion in state.promotions.values():
        _add(orders, promotion.orders(seen.now))
    for beginning in state.beginnings.values():
        _add(orders, beginning.orders())
    for running in state.running.values():
        _add(orders, running.orders())
    for wave in state.waves.values():
        _add(orders, wave.orders(seen.now))
    reachable = {
        index
        for index, contact in state.contacts.items()
        if index in state.table.members and contact.reachable(seen.now, seen.wishes.timing)
    }
    for index in reachable:
        if swept := sweep(state, seen.wishes, index, state.contacts[index], seen.now):
            orders.setdefault(index, []).extend(swept)
    return {member: some for member, some in orders.items() if member in reachable}


def _add(orders: dict[MemberIndex, list[Order]], some: list[tuple[MemberIndex, Order]]) -> None:
    for member, order in some:
        orders.setdefault(member, []).append(order)


@dataclass(frozen=True, slots=True)
class Publication:
    """What one member is told besides orders. Before the reign is settled it is only asked.

    `mark` names the state of the table that it has afterwards, None when nothing is published; `known` is the
    last report of its tablets that this master has.
    """

    recipient: str
    full: bool
    rows: Sequence[tuple[PartitionId, Partition]]
    members: bool
    want_tablets: bool
    mark: Mark | None
    known: int


def publication(state: State, index: MemberIndex) -> Publication:
    """Rows that the member lacks: by what it was sent, or all of them when its stamp says otherwise."""
    member, contact = state.table.members.get(index), state.contacts[index]
    number = contact.tablets_number
    if member is None:
        return Publication("", False, (), False, False, None, number)
    if not state.settled or state.staged:
        return Publication(member.uuid, False, (), False, not state.settled, None, number)
    mark = Mark(state.stored.number, state.stamp.value)
    told = contact.report is not None and contact.report.member_list_version == state.member_list_version
    base, rows, _ = state.stored.since(contact.published)
    return Publication(member.uuid, not base, rows, not (base and told), False, mark, number)
