"""Transactions across partitions that were left behind: the owners of their partitions end them.

The owner of an intent asks the coordinator's partition; one that has outcomes of a process that ended tells
the participants, and then forgets them. Nothing is decided by time: that only says when to ask.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stele.core.kv.two_phase import (
    ASK_LIVE_SECONDS,
    ASK_SECONDS,
    Intent,
    Mark,
    Outcome,
    TxId,
    Verdict,
    covers,
)
from stele.core.tablet.leases import UNKNOWN_INCARNATION
from stele.errors import Corrupt, Refused, SteleError, Unavailable, Uncertain
from stele.member.background import Background
from stele.member.replication import passes
from stele.member.replication.links import Inbound
from stele.member.replication.replica import Replica
from stele.member.replication.tablet_store import TabletStore
from stele.member.serving.originator import TransactionOriginator
from stele.member.serving.participant import originators, stored_outcomes
from stele.member.serving.router import RequestRouter
from stele.member.serving.verdicts import send, verdict_of
from stele.wire.storage.volume import Instance
from stele.wire.two_phase import (
    END,
    MARK,
    OUTCOMES,
    TOLD,
    EndMessage,
    IdMessage,
    command,
    text_of_id,
)

log = logging.getLogger("stele.transactions")

ASKING_MAX = 64
"""Questions that one member has on their way."""
PARTITIONS_AT_ONCE = 64
"""Partitions that are looked at in one second for outcomes of processes that ended."""
IN_DOUBT_SECONDS = 10.0
"""Interval in which a coordinator's partition is asked again that has lost its data."""


@dataclass(eq=False)
class TransactionRecovery:
    """Looks once a second. `in_doubt` are transactions, by partition, of which nobody knows the outcome."""

    _tablets: TabletStore
    _router: RequestRouter
    _originator: TransactionOriginator
    _instance: Instance
    _session: Callable[[int], Inbound | None]
    _background: Background

    def __post_init__(self) -> None:
        self._asking: set[tuple[int, TxId]] = set()
        self._in_doubt: dict[tuple[int, TxId], float] = {}
        self._cleaning = False
        self._next = 0

    @property
    def in_doubt(self) -> list[tuple[int, TxId]]:
        return [each for each in self._in_doubt if self._holds(*each)]

    def held(self) -> list[tuple[int, TxId, Intent, float]]:
        """Return (partition, transaction, intent, age in seconds) of all locks in partitions served here."""
        now = self._background.now()
        return [
            (each.partition, id, intent, now - since)
            for each in self._locked()
            if each.locks is not None
            for id, intent, since in each.locks
        ]

    def _locked(self) -> list[Replica]:
        """Return the tablets with locks that this member serves: of one that hands over they may be over."""
        return [each for each in passes.locked(self._tablets.replicas) if each.serves]

    def is_live(self, id: TxId) -> bool:
        """Return whether the process that began the transaction is connected, or this one."""
        if id.member == self._instance.uuid:
            return self._originator.is_live(id)
        return self._incarnation_of(id.member) == id.incarnation

    async def resolve(self, id: TxId, verdict: Verdict) -> list[int]:
        """End a transaction that is in doubt by a user's verdict, in the partitions that this member owns.

        Returns these partitions. Raises Refused for one that ends by itself, or has no locks here;
        Unavailable, naming the partitions that are left, when one cannot be ended now.
        """
        here = [partition for partition, each, *_ in self.held() if each == id]
        if not here:
            text = f"transaction {text_of_id(id)} has no locks in partitions that this member owns"
            raise Refused(text, "NOT_FOUND")
        doubtful = [partition for partition, each in self.in_doubt if each == id]
        if sorted(doubtful) != sorted(here):
            text = f"transaction {text_of_id(id)} is not in doubt: it ends by itself"
            raise Refused(text, "NOT_IN_DOUBT")
        log.warning("a user ends %s in partitions %s: %s", text_of_id(id), here, verdict.name)
        errors: dict[int, SteleError] = {}
        for partition in here:
            try:
                await self._end(partition, id, verdict)
            except SteleError as error:
                errors[partition] = error
        if errors:
            done = [each for each in here if each not in errors]
            text = f"ended in partitions {done}, not in {sorted(errors)}: {next(iter(errors.values())).text}"
            raise Unavailable(text)
        return here

    def _holds(self, partition: int, id: TxId) -> bool:
        replica = self._tablets.replicas.get(partition)
        locks = replica.locks if replica is not None and replica.serves else None
        return locks is not None and id in locks.since

    def every_second(self) -> None:
        """Ask for the outcomes of intents that are old, and clean up after processes that ended."""
        now = self._background.now()
        for replica in self._locked():
            if replica.locks is not None:
                for id, intent, since in list(replica.locks):
                    self._ask_if_due(replica.partition, id, intent, now - since, now)
        self._in_doubt = {each: at for each, at in self._in_doubt.items() if self._holds(*each)}
        if not self._cleaning:
            some = self._some()
            if some:
                self._cleaning = True
                self._background.spawn(self._clean(some))

    # -- intents

    def _ask_if_due(self, partition: int, id: TxId, intent: Intent, age: float, now: float) -> None:
        key = partition, id
        if age < (ASK_LIVE_SECONDS if self.is_live(id) else ASK_SECONDS):
            return
        if key in self._asking or len(self._asking) >= ASKING_MAX or self._in_doubt.get(key, now) > now:
            return
        self._asking.add(key)
        self._background.spawn(self._ask(partition, id, intent))

    async def _ask(self, partition: int, id: TxId, intent: Intent) -> None:
        try:
            others = [each for each in intent.participants if each not in (partition, intent.coordinator)]
            verdict = await verdict_of(self._router, id, intent.coordinator, intent.history, others)
            if verdict is None:
                self._doubt(partition, id, intent)
                return
            text = "partition %d: %s of %s after its originator left it"
            log.info(text, partition, verdict.name, text_of_id(id))
            await self._end(partition, id, verdict)
        except SteleError as error:
            log.debug("partition %d: the outcome of %s is not known yet: %s", partition, id, error)
        finally:
            self._asking.discard((partition, id))

    def _doubt(self, partition: int, id: TxId, intent: Intent) -> None:
        if (partition, id) not in self._in_doubt:
            log.error(
                "partition %d: transaction %s is in doubt, because partition %d, which decides it, "
                "has lost its data; end it with 'kubectl stele tx resolve'",
                *(partition, text_of_id(id), intent.coordinator),
            )
        self._in_doubt[partition, id] = self._background.now() + IN_DOUBT_SECONDS

    async def _end(self, partition: int, id: TxId, verdict: Verdict) -> None:
        await send(self._router, partition, END, EndMessage(id, verdict))

    def _incarnation_of(self, member: str) -> int | None:
        """Return the incarnation of a member's process, None while it is not connected."""
        if member == self._instance.uuid:
            return self._instance.incarnation
        members = self._tablets.table.members.values()
        index = next((info.index for info in members if info.uuid == member), None)
        session = None if index is None else self._session(index)
        if session is None or session.incarnation == UNKNOWN_INCARNATION:
            return None
        return session.incarnation

    # -- outcomes

    def _some(self) -> list[Replica]:
        """Return the next partitions with outcomes, in turn."""
        holding = passes.holding(self._tablets.replicas, OUTCOMES)
        found = sorted(each.partition for each in holding if each.serves)
        later = [each for each in found if each >= self._next] or found
        some = later[:PARTITIONS_AT_ONCE]
        self._next = some[-1] + 1 if some else 0
        return [self._tablets.replicas[each] for each in some]

    async def _clean(self, replicas: list[Replica]) -> None:
        """Close what can be closed; whatever holds up one originator or partition holds up no other."""
        silent = set[int]()
        try:
            for replica in replicas:
                await self._clean_one(replica, silent)
        finally:
            self._cleaning = False

    async def _clean_one(self, replica: Replica, silent: set[int]) -> None:
        try:
            for first, mark in list(self._ended(replica)):
                await self._close(replica, first.member, mark, silent)
        except Corrupt as error:
            self._tablets.break_off(replica, error)

    def _ended(self, replica: Replica) -> Iterator[tuple[TxId, Mark]]:
        """Yield the first transaction of each originator whose process ended, and what is over by that."""
        for first in originators(self._tablets.engine, replica):
            incarnation = self._incarnation_of(first.member)
            if incarnation is not None and first.incarnation < incarnation:
                yield first, Mark(incarnation, 0)

    async def _close(self, replica: Replica, member: str, mark: Mark, silent: set[int]) -> None:
        """Tell participants what was decided, then forget it: its process sends nothing more.

        `silent` are partitions that did not answer in this round. What counts on them is told in a later one,
        and the mark, which covers all, comes after that.
        """
        partition, all_told = replica.partition, True
        for id, outcome in stored_outcomes(self._tablets.engine, replica, member):
            if covers(mark, id) and outcome.participants:
                all_told &= await self._tell(partition, id, outcome, silent)
        if not all_told or partition in silent:
            return
        message = IdMessage((member, mark.incarnation, mark.number))
        try:
            await self._router.execute(partition, b"", [command(MARK, message)])
        except SteleError as error:
            log.debug("partition %d: outcomes of %s are kept for now: %s", partition, member, error)
            silent.add(partition)

    async def _tell(self, partition: int, id: TxId, outcome: Outcome, silent: set[int]) -> bool:
        """Tell every participant, and then the coordinator; return whether all of them know.

        A partition without an owner answers only after 15 s, so it is asked once in a round.
        """
        ends = [(each, END, EndMessage(id, outcome.verdict)) for each in outcome.participants]
        for each, verb, message in (*ends, (partition, TOLD, IdMessage(id))):
            if each in silent:
                return False
            try:
                await send(self._router, each, verb, message)
            except SteleError as error:
                text = "partition %d: the outcome of %s is kept for now: %s"
                log.debug(text, partition, text_of_id(id), error)
                if isinstance(error, (Unavailable, Uncertain)):
                    silent.add(each)
                return False
        return True
