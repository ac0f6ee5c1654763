"""One loop per cluster: observe, decide, commit, act, report, and sleep until woken.

See docs/internals/operator.md, "The loop".

A decision is committed by compare-and-set before any command that rests on it is sent. Any error while
storing ends the leadership: the loop drops its memory and takes the table over again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from stele.adapters import logs
from stele.core.control.commands import ClusterState, Command, ExchangeRequest
from stele.core.control.decide import decide, stored
from stele.core.control.failover.repair import without_reachable_copy
from stele.core.control.failure_detector import MemberLiveness
from stele.core.control.invariants import BrokenInvariant
from stele.core.control.publication import exchange_request, hands_over, lacks_rows, must_hear, waited_for
from stele.core.control.state import (
    Decision,
    EnsureMember,
    FinishRestart,
    ForceDeletePod,
    Intent,
    Observation,
    RemoveMember,
    ReplacePod,
    RestartMember,
    State,
    TableCursor,
)
from stele.core.formats import SPOKEN, FormatRange
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.steps import is_above
from stele.core.table.table import Partition, shard_of, stamp_of
from stele.errors import Conflict, Stale, SteleError, Unavailable, Uncertain
from stele.master.channel import Channel
from stele.master.metrics import DECISION, RECONCILE
from stele.master.trace import Trace
from stele.model.ownership import NameLeaves, NameTaken
from stele.ports.control_loop import ClusterObjects, Copier, Members, TableStore
from stele.wire.configmap import Head, shard_count, shard_range

log = logging.getLogger(__name__)

LOST_RACE = (Conflict, Uncertain, Unavailable, Stale)
"""Errors of reads and writes: another writer was faster, or there was no answer."""


LOGGED_SECONDS = 60.0
"""Seconds until a failure that each round meets is logged again."""

WHOLE_TABLES_MAX = 16
"""Requests with the whole table that are under way at once, in all: to encode one for each of many members
in one round would keep the loop from renewing its Lease, and hold all of their bytes."""

GATHER_SECONDS_MAX = 0.25
"""Seconds that answers wait for others, at most."""

LAST_COPIES_SECONDS = 1.0
"""Seconds between two searches for partitions without a copy that can be reached."""


class Deposed(SteleError):  # noqa: N818  named as in errors
    """The table has a higher epoch: this loop ends, and so does its process if it has lost the Lease."""

    code_default = "DEPOSED"


@dataclass(frozen=True)
class Pace:
    """Intervals of the loop, in seconds.

    `busy_min` to `busy` are those between ticks while something is under way, longer the more migrations run;
    `idle` those between heartbeats, `report` between status writes.

    Answers that arrive within `gather` are handled together, sooner when all have arrived; within `hand_over`
    while clients wait for a partition whose owner changes, and at rest within `gather_member` for each member
    that there is. So long, and until a heartbeat at most, members that nothing waits for are not told of
    changed rows.
    """

    busy_min: float = 0.005
    busy: float = 0.03
    idle: float = 1.0
    exchange: float = 5.0
    gather: float = 0.02
    gather_member: float = 0.001
    hand_over: float = 0.004
    report: float = 1.0
    objects: float = 1.0
    restart: float = 1.0


def fresh_head(partitions: int, replicas: int, features: int = SPOKEN.most) -> Head:
    """Return the head of a table in which nothing is assigned yet."""
    stamp = stamp_of([0] * partitions)
    return Head(0, ClusterState.ACTIVE, partitions, replicas, 0, 0, stamp, 0, (), features)


class ClusterLoop:
    """`tick` runs one round; `run` repeats it. `wake` may be called from anywhere on the event loop.

    `spoken` are the formats that this build speaks.
    """

    def __init__(
        self,
        store: TableStore,
        members: Members,
        objects: ClusterObjects,
        copier: Copier,
        *,
        now: Callable[[], float],
        pace: Pace = Pace(),
        count_error: Callable[[str], None] = lambda code: None,
        spoken: FormatRange = SPOKEN,
    ) -> None:
        """`count_error` is called with the code of each error that does not end the loop."""
        self._store, self._members, self._objects, self._copier = store, members, objects, copier
        self._now, self._pace, self._count_error = now, pace, count_error
        self._spoken = spoken
        self._woken = asyncio.Event()
        self._channels: dict[MemberIndex, Channel] = {}
        self._head: Head | None = None
        self._shown_seconds = float("-inf")
        self._shared_seconds = float("-inf")
        self._searched_seconds = float("-inf")
        self._without_copy: frozenset[PartitionId] = frozenset()
        self._made_seconds: dict[object, float] = {}
        self._failures: dict[str, tuple[str, float]] = {}
        self._acted_seconds = float("-inf")
        self._round_seconds = 0.0
        self._epoch_above = 0
        self._trace = Trace()
        self._ending = False
        self.progressed_seconds = now()
        """Time of the last progress, see `note_progress`."""
        self.state: State | None = None

    def wake(self) -> None:
        self._woken.set()

    def end(self) -> None:
        """Have `run` return after the next round in which no clients wait for another owner.

        Until then no other hand-over begins: a partition whose owner is frozen answers nobody until another
        master leads.
        """
        self._ending = True
        self.wake()

    def note_progress(self) -> None:
        """Record progress: called in each round, at each step, and for each answer of the API server."""
        self.progressed_seconds = self._now()

    async def run(self) -> None:
        """Run until cancelled, or ended.

        Raises Deposed when another master leads, and NameTaken when the table's name is taken.
        """
        while not self.may_end:
            self.note_progress()
            began = self._now()
            try:
                with RECONCILE.time():
                    busy = await self.tick()
            except LOST_RACE as error:
                self._count_error(error.code)
                log.warning("the leadership ended and restarts: %s", error)
                await self.step_down()
                await asyncio.sleep(self._pace.restart)
                continue
            self._round_seconds = self._now() - began
            await self._sleep(self._busy_pause() if busy else self._heartbeat(), busy=busy)

    @property
    def may_end(self) -> bool:
        """Return whether it was asked to end, and no clients wait for another owner."""
        return self._ending and (self.state is None or not hands_over(self.state))

    def _busy_pause(self, answer_seconds: float = 0.0) -> float:
        """Return the seconds until members are asked again while something is under way.

        At least `busy_min` for each migration, since many fill each other's pauses; four times what a round
        and an answer take, so that asking takes at most a quarter of the time; and a quarter of the time
        since something was stored or commanded, so that what takes long is asked rarely.
        """
        running = 0 if self.state is None else len(self.state.operations.migrations)
        took, quiet = max(self._round_seconds, answer_seconds), self._now() - self._acted_seconds
        return min(max(self._pace.busy_min * max(1, running), 4 * took, quiet / 4), self._pace.busy)

    def _heartbeat(self) -> float:
        return min(self._pace.idle, self._objects.desired().timing.heartbeat)

    async def _sleep(self, seconds: float, *, busy: bool) -> None:
        """Wait for an event or the timeout; answers that arrive in quick succession are handled together."""
        try:
            # Not wait_for: in Python 3.11 it swallows a cancellation that coincides with the event.
            async with asyncio.timeout(seconds):
                await self._woken.wait()
            if any(not channel.free for channel in self._channels.values()):
                async with asyncio.timeout(min(self._gather(busy=busy), seconds / 2)):
                    await self._more_answers(busy=busy)
        except TimeoutError:
            pass
        self._woken.clear()

    async def _more_answers(self, *, busy: bool) -> None:
        """Wait for the other answers: for all of those that are due while something is under way. At rest
        members answer one by one, and each would be a round."""
        while not busy or not all(channel.answered for channel in self._channels.values()):
            self._woken.clear()
            await self._woken.wait()

    def _gather(self, *, busy: bool) -> float:
        """Return the most seconds to wait for more answers: few in a hand-over, which takes three rounds of
        messages, and more at rest where many members answer heartbeats."""
        running = () if self.state is None else self.state.operations.migrations.values()
        if any(each.holds_clients for each in running):
            return self._pace.hand_over
        at_rest = 0.0 if busy else min(self._pace.gather_member * len(self._channels), GATHER_SECONDS_MAX)
        return max(self._pace.gather, at_rest)

    async def step_down(self) -> None:
        """Drop all memory. Raises Deposed when the table has a higher epoch than ours."""
        ours = 0 if self.state is None else self.state.epoch
        self.state, self._head = None, None
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        try:
            stored_epoch = await self._store.epoch()
        except Unavailable:
            return
        if ours and stored_epoch > ours:
            raise Deposed(f"the table has epoch {stored_epoch}, ours was {ours}")

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        await self._copier.close()

    async def tick(self) -> bool:
        """Run one round. Returns whether there is work left."""
        self._objects.refresh()
        state = self.state or await self._begin()
        now = self._now()
        observed = Observation(
            now,
            self._objects.desired(),
            self._objects.member_objects(),
            tuple(answer for channel in self._channels.values() if (answer := channel.take()) is not None),
            self._copier.jobs(),
            self._copier.problem(),
            self._objects.requests(),
            self._objects.claims(),
            self._ending,
        )
        decision = self._decide(state, observed)
        self._check_epoch(state)
        changed = await self._commit(state, decision, now)
        self._trace.note(state)
        rows_wait = self._exchange(state, observed, decision.commands, busy=decision.busy)
        if state.recovered:
            # Before, it is not known which jobs go on.
            self._copier.want(decision.jobs, state)
        await self._act(decision, now)
        await self._report(state, decision, now)
        return decision.busy or changed or rows_wait

    @staticmethod
    def _decide(state: State, observed: Observation) -> Decision:
        """Decide. Raises BrokenInvariant for an error that would be a lost race elsewhere: a decision neither
        reads nor writes, so the next one would meet it again."""
        try:
            with DECISION.time():
                return decide(state, observed)
        except LOST_RACE as error:
            raise BrokenInvariant(f"a decision failed: {error}") from error

    async def _begin(self) -> State:
        desired = self._objects.desired()
        fresh = fresh_head(self._objects.partitions(), desired.replicas, self._spoken.most)
        try:
            table_snapshot = await self._store.take_over(fresh, self._epoch_above)
        except (NameTaken, NameLeaves) as error:
            await self._try(self._objects.write_blocked(error, self._now()), "status")
            raise
        self._head = head = table_snapshot.head
        logs.note(epoch=head.epoch)
        log.info("leading with epoch %d over %d members", head.epoch, len(head.members))
        self.state = State(
            head.epoch,
            table_snapshot.table,
            head.member_list_version,
            head.next_member_index,
            self._now(),
            cluster_state=head.state,
            features=head.features,
            spoken=self._spoken,
            member_tls=head.member_tls,
        )
        return self.state

    def _check_epoch(self, state: State) -> None:
        """Raise Stale when a member or the status has a higher epoch than ours.

        Such a member rejects lower epochs, and readers of the status take it for newer: take over with a
        higher epoch, or end.
        """
        refused = max((liveness.refused_epoch for liveness in state.membership.liveness.values()), default=0)
        shown = self._objects.epoch_shown()
        used = state.failover.used_epoch
        if used >= state.epoch:
            self._epoch_above = used
            raise Stale(f"the volumes have epoch {used}, ours is {state.epoch}", "STALE_EPOCH")
        highest = max(refused, shown if is_above(state.epoch, shown) else 0)
        if highest > state.epoch:
            self._epoch_above = highest
            where = "a member has seen" if highest == refused else "the status of the cluster has"
            raise Stale(f"{where} epoch {highest}, ours is {state.epoch}", "STALE_EPOCH")

    async def _commit(self, state: State, decision: Decision, now: float) -> bool:
        """Store the member list, then the rows, with one PUT per changed shard."""
        assert self._head is not None
        extended = decision.groups is not None and await self._extend(state, decision)
        rows = dict(decision.rows)
        members = decision.dictionary
        version = state.membership.list_version + (members is not None)
        listed = version != self._head.member_list_version
        values = self._head.state, self._head.features, self._head.member_tls
        changes = listed or (decision.cluster_state, decision.features, decision.member_tls) != values
        if changes or decision.next_index != self._head.next_member_index:
            known = state.table.members if members is None else members
            head = replace(
                self._head,
                state=decision.cluster_state,
                features=decision.features,
                member_tls=decision.member_tls,
                members=tuple(known.values()),
                next_member_index=decision.next_index,
                member_list_version=version,
            )
            await self._write_head(state, head)
        await self._write_shards(self._shards(state, rows))
        stored(state, rows, members, now)
        if rows:
            self._acted_seconds = now
        return bool(rows) or changes or extended

    async def _extend(self, state: State, decision: Decision) -> bool:
        """Store new groups: first the shards, with empty rows, then the head.

        Returns whether it was possible: a foreign ConfigMap in the place of a shard prevents nothing else.
        """
        assert self._head is not None
        assert decision.groups is not None
        head = replace(self._head, groups=decision.groups, features=decision.features)
        first, rows = len(state.table.partitions), state.table.stored.extended(head.groups).partitions
        numbers = range(shard_of(first), shard_count(head.rows)) if head.rows > first else ()
        shards = {number: [rows[each] for each in shard_range(number, head.rows)] for number in numbers}
        try:
            await self._write_shards(shards)
        except (NameTaken, NameLeaves) as error:
            self._count_error(error.code)
            log.warning("groups of partitions: %s", error)
            state.table.drop_staged_groups()
            return False
        await self._write_head(state, head)
        state.table.store_groups()
        return True

    async def _write_shards(self, shards: Mapping[int, Sequence[Partition]]) -> None:
        """Write shards concurrently; an error is raised only once no write is running."""
        writes = [self._store.write_shard(number, partitions) for number, partitions in shards.items()]
        for done in await asyncio.gather(*writes, return_exceptions=True):
            if isinstance(done, BaseException):
                raise done

    async def _write_head(self, state: State, head: Head) -> None:
        """Write a head, with what is derived from the table and the desired spec, unless it is the same."""
        head = replace(
            head,
            replicas=self._objects.desired().replicas,
            stamp=state.table.stamp.value,
            version_sum=state.table.version_sum,
        )
        if head != self._head:
            await self._store.write_head(head)
            self._head = head

    def _shards(self, state: State, rows: dict[PartitionId, Partition]) -> dict[int, tuple[Partition, ...]]:
        total = len(state.table.partitions)
        numbers = sorted({shard_of(partition) for partition in rows})
        return {
            number: tuple(rows.get(each, state.table.partitions[each]) for each in shard_range(number, total))
            for number in numbers
        }

    def _exchange(
        self,
        state: State,
        observed: Observation,
        commands_of: Mapping[MemberIndex, tuple[Command, ...]],
        *,
        busy: bool,
    ) -> bool:
        """Send to every member whose channel is free and that has commands, rows or a heartbeat due.

        Returns whether members wait for rows, because nothing waits for their answers.
        """
        for index in self._channels.keys() - state.membership.liveness.keys():
            self._channels.pop(index)
        request_to = self._requests(state, observed)
        waited = waited_for(state) if busy else state.membership.liveness.keys()
        tables, rows_wait = sum(channel.sends_table for channel in self._channels.values()), False
        for index, liveness in state.membership.liveness.items():
            channel, address = self._channel(state, liveness)
            if not address or not channel.free:
                continue
            commands, behind = commands_of.get(index, ()), lacks_rows(state, liveness)
            at_once = index in waited and not liveness.failed
            pause = self._interval(observed, liveness, channel, at_once=at_once, busy=busy, behind=behind)
            due = self._now() - channel.sent_seconds >= pause or liveness.end_unconfirmed
            lacks = must_hear(state, liveness, self._objects.catalog()) and not liveness.failed
            if due or commands or lacks or (behind and at_once):
                may_send_table = tables < WHOLE_TABLES_MAX and not liveness.failed
                clear = self._objects.clear_at(index)
                request, cursor = request_to(index, commands, clear=clear, may_send_table=may_send_table)
                brings = request.members or request.catalog is not None or commands
                if due or brings or (request.rows and at_once):
                    channel.send(address, request, cursor, self._pace.exchange)
                    tables += request.full
                    if commands:
                        self._acted_seconds = observed.now
                    continue
            rows_wait = rows_wait or (behind and not liveness.failed)
        return rows_wait

    def _requests(
        self, state: State, observed: Observation
    ) -> Callable[..., tuple[ExchangeRequest, TableCursor | None]]:
        """Return what makes one round's requests, with what is the same for all members."""
        if self._now() - self._searched_seconds > LAST_COPIES_SECONDS:
            self._searched_seconds = self._now()
            self._without_copy = without_reachable_copy(state, observed.desired, self._now())
        return partial(
            exchange_request,
            state,
            cluster=self._objects.volumes_uid,
            replicas=observed.desired.replicas,
            settings=observed.desired.member_settings,
            without_copy=self._without_copy,
            catalog=self._objects.catalog(),
            over_quota=self._objects.over_quota(),
        )

    def _channel(self, state: State, liveness: MemberLiveness) -> tuple[Channel, str]:
        """Return a member's channel, and its address: empty while it is not known."""
        index = liveness.index
        pod = liveness.member_object.pod if liveness.member_object is not None else None
        member = state.table.members.get(index)
        # What Kubernetes shows may be outdated: a pod shown without an address may have one.
        address = (pod.address if pod is not None else "") or (member.address if member else "")
        channel = self._channels.get(index)
        if channel is None:
            channel = self._channels[index] = Channel(index, self._members, self._now, self.wake)
        if not channel.free and address != channel.address:
            channel.abandon()
        return channel, address

    def _interval(
        self,
        observed: Observation,
        liveness: MemberLiveness,
        channel: Channel,
        *,
        at_once: bool,
        busy: bool,
        behind: bool,
    ) -> float:
        """Return the seconds between two exchanges with a member that has no commands; `behind`: it lacks
        rows. One that failed may be back, and is tried more often while it is needed."""
        heartbeat, gather = (
            observed.desired.timing.heartbeat / 2,
            self._pace.gather_member * len(self._channels),
        )
        if at_once:
            return self._busy_pause(channel.answer_seconds) if busy else heartbeat
        if liveness.failed:
            return min(heartbeat, max(self._pace.busy, gather)) if busy or behind else heartbeat
        return min(heartbeat, gather) if behind else heartbeat

    async def _act(self, decision: Decision, now: float) -> None:
        """Create and delete objects. One that fails is retried and delays no other."""
        if now - self._shared_seconds > self._pace.objects:
            self._shared_seconds = now
            await self._try(self._objects.ensure_shared(), "shared objects")
        for intent in decision.intents:
            if now - self._made_seconds.get(intent, float("-inf")) < self._pace.objects:
                continue
            self._made_seconds[intent] = now
            await self._try(self._carry_out(intent), f"member {intent.index}")

    async def _carry_out(self, intent: Intent) -> None:
        match intent:
            case EnsureMember(index):
                await self._objects.ensure_member(index)
            case RemoveMember(index, keep_volume):
                await self._objects.remove_member(index, keep_volume=keep_volume)
            case ForceDeletePod(index, pod_uid):
                await self._objects.force_delete_pod(index, pod_uid)
            case ReplacePod(index, pod_uid):
                await self._objects.replace_pod(index, pod_uid)
            case RestartMember(index, pod_uid, keep_seconds):
                await self._objects.restart_member(index, pod_uid, keep_seconds)
            case FinishRestart(index):
                await self._objects.finish_restart(index)

    async def _try(self, work: Awaitable[None], what: str) -> None:
        self.note_progress()
        try:
            await work
        except SteleError as error:
            self._count_error(error.code)
            self._log_failure(what, str(error))

    def _log_failure(self, what: str, why: str) -> None:
        """Log a failure; the same one again, which each round meets, once a minute."""
        now, (before, logged_seconds) = self._now(), self._failures.get(what, ("", float("-inf")))
        if why != before or now - logged_seconds >= LOGGED_SECONDS:
            self._failures[what] = why, now
            log.warning("%s: %s", what, why)

    async def _report(self, state: State, decision: Decision, now: float) -> None:
        """Post events at once, and the status at most once per `report` seconds, to keep migrations fast."""
        if decision.events:
            for each in decision.events:
                log.log(
                    logging.WARNING if each.warning else logging.INFO, "%s: %s", each.reason, each.message
                )
            await self._try(self._objects.post_events(decision.events), "events")
        if now - self._shown_seconds >= self._pace.report:
            self._shown_seconds = now
            assert self._head is not None
            await self._refresh_head(state)
            await self._try(self._objects.write_status(state, now), "status")

    async def _refresh_head(self, state: State) -> None:
        """Write the head when its stamp is behind the shards and no other write updated it."""
        assert self._head is not None
        await self._write_head(state, self._head)
