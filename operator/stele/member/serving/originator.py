"""Runs transactions across partitions for the clients of this member (docs/internals/transactions.md).

A transaction goes on when its client is gone: until it is over, its participants keep locks. The owners of
partitions are told up to which number all transactions of this member are over, so that they can forget
outcomes.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from stele.core.formats import TRANSACTIONS
from stele.core.kv import two_phase
from stele.core.kv.commands import Failure, Reply
from stele.core.kv.seen import SeenOperations
from stele.core.kv.transaction import too_long
from stele.core.kv.two_phase import Answered, Send, Status, TxId, Verb
from stele.errors import SteleError, Unavailable, Uncertain
from stele.member import limits
from stele.member.background import Background
from stele.member.replication.table_cache import TableCache
from stele.member.serving.router import RequestRouter
from stele.member.serving.verdicts import Dropped, DroppedTransactions
from stele.member.storage import failpoints
from stele.ports.transactions import PartitionPart
from stele.wire.replies import BadRepliesError, decode_replies
from stele.wire.storage.volume import Instance
from stele.wire.transaction import Transaction
from stele.wire.two_phase import (
    ASK,
    DECIDE,
    END,
    HISTORY,
    MARK,
    PREPARE,
    AskMessage,
    EndMessage,
    IdMessage,
    PartMessage,
    command,
    split_answer,
)

log = logging.getLogger("stele.transactions")

RUNNING_MAX = 10_000
"""Transactions of this member that are not over; further ones are refused."""
AGAIN_SECONDS_MIN, AGAIN_SECONDS_MAX = 0.1, 2.0
"""Pause before a verdict is sent, or asked for, once more."""
MARK_SECONDS = 5.0
"""Interval in which partitions are told which transactions are over."""

ABORTED = Failure("TRYAGAIN", "the transaction was not done: a partition did not answer in time; retry")


@dataclass(eq=False)
class _Running:
    """One transaction. `told` is what its client waits for."""

    id: TxId
    keyspace: bytes
    parts: Mapping[int, PartitionPart]
    seen: SeenOperations | None
    deadline: float
    told: "asyncio.Future[Mapping[int, list[Reply]] | Reply]"
    driver: two_phase.Originator = field(init=False)
    history: bytes = b""
    replies: dict[int, list[Reply]] = field(default_factory=dict)
    refusal: Reply = field(default_factory=lambda: ABORTED)
    size: int = 0
    sent: bool = False

    def __post_init__(self) -> None:
        self.driver = two_phase.Originator(list(self.parts))

    def fail(self, error: SteleError) -> None:
        """Tell the client, which may be gone."""
        if not self.told.done():
            self.told.set_exception(error)
            self.told.exception()


@dataclass(eq=False)
class TransactionOriginator:
    """`ports.Transactions`."""

    _router: RequestRouter
    _table: TableCache
    _instance: Instance
    _background: Background

    def __post_init__(self) -> None:
        self._number = 0
        self._running: dict[int, _Running] = {}
        self._histories: dict[int, tuple[int, bytes]] = {}
        self._touched: dict[int, int] = {}
        self._dropped = DroppedTransactions(self._router)
        self._stopping = self._marking = self._settling = False
        self._mark_at = 0.0

    @property
    def available(self) -> bool:
        return self._table.features >= TRANSACTIONS

    @property
    def running(self) -> int:
        """Number of transactions that this process goes on with."""
        return len(self._running)

    def is_live(self, id: TxId) -> bool:
        """Return whether this process goes on with the transaction."""
        mine = (self._instance.uuid, self._instance.incarnation) == (id.member, id.incarnation)
        return mine and id.number in self._running

    def stop(self) -> None:
        """Begin no more."""
        self._stopping = True

    async def run(
        self, keyspace: bytes, parts: Mapping[int, PartitionPart], seen: SeenOperations | None
    ) -> Mapping[int, list[Reply]] | Reply:
        if self._stopping or len(self._running) + len(self._dropped) >= RUNNING_MAX:
            why = "it is stopping" if self._stopping else f"{RUNNING_MAX} are not over"
            return Failure("TRYAGAIN", f"this member begins no transaction: {why}; nothing was done: retry")
        now = self._background.now()
        self._number += 1
        id = TxId(self._instance.uuid, self._instance.incarnation, self._number)
        told = self._background.loop.create_future()
        deadline = now + two_phase.TRANSACTION_SECONDS_MAX
        running = self._running[id.number] = _Running(id, keyspace, parts, seen, deadline, told)
        self._background.spawn(self._drive(running))
        return await asyncio.shield(told)

    # -- one transaction

    async def _drive(self, running: _Running) -> None:
        """Go on until it is over, whatever becomes of its client."""
        driver, pause = running.driver, AGAIN_SECONDS_MIN
        try:
            if not await self._begin(running):
                return
            while not driver.over:
                lost = False
                sends = driver.next()
                for send, result in zip(sends, await self._all(running, sends), strict=True):
                    lost |= self._take(running, send, result)
                self._tell(running)
                if lost:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, AGAIN_SECONDS_MAX)
        finally:
            running.fail(Uncertain("this member stopped; the transaction may or may not be done"))
            if running.sent and not driver.ended:
                self._drop(running)
            del self._running[running.id.number]

    def _drop(self, running: _Running) -> None:
        """Leave it to the owners; until its participants know the verdict, no mark may say that they do."""
        driver, number = running.driver, running.id.number
        self._dropped.add(Dropped(running.id, driver.coordinator, running.history, tuple(driver.others)))
        for each in running.parts:
            self._touched[each] = max(number, self._touched.get(each, 0))

    async def _begin(self, running: _Running) -> bool:
        """Learn the name of the coordinator's data; return False, with an error told, if nobody answers."""
        coordinator = running.driver.coordinator
        version = self._table.rows[coordinator].version
        known = self._histories.get(coordinator)
        if known is not None and known[0] == version:
            running.history = known[1]
            return True
        name = b"%s/%d/%d" % (running.id.member.encode(), running.id.incarnation, running.id.number)
        try:
            (reply,) = await self._router.execute(coordinator, b"", [command(HISTORY, name)])
        except SteleError as error:
            running.fail(Unavailable(f"{error.text} (before a transaction began, of which nothing was done)"))
            return False
        if not isinstance(reply, bytes):
            running.told.set_result(reply)
            return False
        running.history = reply
        self._histories[coordinator] = version, reply
        return True

    async def _all(self, running: _Running, sends: list[Send]) -> list[Reply | SteleError]:
        if len(sends) == 1:
            return [await self._send(running, sends[0])]
        return list(await asyncio.gather(*(self._send(running, send) for send in sends)))

    async def _send(self, running: _Running, send: Send) -> Reply | SteleError:
        """Send one message and return the answer, or why there is none."""
        self._touched[send.partition] = max(running.id.number, self._touched.get(send.partition, 0))
        running.sent = True
        try:
            return await self._answer(running, send)
        except SteleError as error:
            return error
        except TimeoutError:
            return Uncertain(f"partition {send.partition} did not answer in time")

    async def _answer(self, running: _Running, send: Send) -> Reply:
        partition, part = send.partition, running.parts[send.partition]
        if send.verb in (Verb.ASK, Verb.END):
            (reply,) = await self._router.execute(partition, b"", [self._verdict_message(running, send)])
            return reply
        left = running.deadline - self._background.now()
        message = PartMessage(
            running.id,
            running.driver.coordinator,
            running.history,
            sorted(running.parts),
            Transaction([(each[0], each[1], each[2]) for each in part.watches], part.commands),
        )
        verb = PREPARE if send.verb is Verb.PREPARE else DECIDE
        # A Decide ends by itself, and says then whether it may have been done; one that is not waited for
        # might still be done.
        async with asyncio.timeout(max(0.0, left) if verb == PREPARE else None):
            (reply,) = await self._router.execute(
                partition, running.keyspace, [command(verb, message)], seen=running.seen, track=part.track
            )
        return reply

    def _verdict_message(self, running: _Running, send: Send) -> list[bytes]:
        if send.verb is Verb.ASK:
            return command(ASK, AskMessage(running.id, running.history))
        verdict = running.driver.verdict
        assert verdict is not None
        return command(END, EndMessage(running.id, verdict))

    def _take(self, running: _Running, send: Send, result: Reply | SteleError) -> bool:
        """Take an answer; return whether there was none."""
        driver = running.driver
        if isinstance(result, Unavailable) and send.verb is Verb.DECIDE:
            # Nobody has run it, and nobody will.
            driver.answered(send, Status.REFUSED)
            return False
        if isinstance(result, Failure) and send.verb is not Verb.END:
            # It did not run: another transaction has the lock, or the owner does not know the message.
            running.refusal = result
            if send.verb is Verb.PREPARE:
                driver.answered(send, Status.REFUSED)
                return False
            driver.lost(send)
            return True
        try:
            if isinstance(result, SteleError):
                raise result
            status, reply = split_answer(result)
        except SteleError:
            driver.lost(send)
            return True
        driver.answered(send, self._note(running, send, status, reply))
        if send.verb is Verb.PREPARE:
            failpoints.hit("transaction.prepared")
        elif send.verb is Verb.DECIDE:
            failpoints.hit("transaction.decided")
        return False

    def _note(self, running: _Running, send: Send, status: Status, reply: Reply) -> Status:
        """Keep what the client is answered; a part whose replies are too long is refused."""
        if status is Status.REFUSED:
            running.refusal = reply
        elif isinstance(reply, list):
            running.replies[send.partition] = reply
            running.size += sum(len(each) for each in reply if isinstance(each, bytes))
            if running.size > limits.REQUEST_REPLY_BYTES_MAX and status is Status.PREPARED:
                running.refusal = too_long(running.size)
                return Status.REFUSED
        elif status is Status.COMMITTED and isinstance(reply, bytes) and reply:
            with suppress(BadRepliesError):
                (known,) = decode_replies(reply)
                if isinstance(known, list):
                    running.replies[send.partition] = known
        return status

    def _tell(self, running: _Running) -> None:
        """Answer the client as soon as the outcome is known."""
        outcome, told = running.driver.outcome, running.told
        if outcome is None or told.done():
            return
        if outcome is Answered.UNCERTAIN:
            text = "the partition that decides it lost its owner or its data; it may or may not be done"
            running.fail(Uncertain(f"transaction across partitions: {text}"))
        elif outcome is Answered.ABORTED:
            told.set_result(running.refusal)
        elif len(running.replies) < len(running.parts):
            running.fail(Uncertain("the transaction was done, and its replies were lost"))
        else:
            told.set_result(running.replies)

    # -- what is over

    def every_second(self) -> None:
        """Tell partitions from time to time which transactions are over, and end those that were dropped."""
        now = self._background.now()
        if not self._touched or now < self._mark_at:
            return
        self._mark_at = now + MARK_SECONDS
        if self._dropped and not self._settling:
            self._settling = True
            self._background.spawn(self._settle())
        if not self._marking:
            self._marking = True
            self._background.spawn(self._mark_all())

    async def _settle(self) -> None:
        try:
            await self._dropped.settle()
        finally:
            self._settling = False

    async def _mark_all(self) -> None:
        try:
            for partition in list(self._touched):
                low = min([*self._running, *self._dropped.at(partition)], default=self._number + 1)
                newest = self._touched[partition]
                if await self._mark(partition, low) and self._touched[partition] == newest < low:
                    del self._touched[partition]
        finally:
            self._marking = False

    async def _mark(self, partition: int, low: int) -> bool:
        message = IdMessage((self._instance.uuid, self._instance.incarnation, low))
        try:
            reply: Reply = 1
            while reply == 1:
                (reply,) = await self._router.execute(partition, b"", [command(MARK, message)])
        except SteleError as error:
            log.debug("partition %d is not told which transactions are over: %s", partition, error)
            return False
        return reply == 0
