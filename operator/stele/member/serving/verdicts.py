"""Asks how a transaction across partitions ended, and tells it (docs/internals/transactions.md)."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from stele.core.kv.commands import Failure
from stele.core.kv.two_phase import Status, TxId, Verdict
from stele.errors import Refused, SteleError, Unavailable
from stele.member.serving.router import RequestRouter
from stele.wire.two_phase import (
    ASK,
    END,
    KNOWN,
    AskMessage,
    EndMessage,
    IdMessage,
    command,
    split_answer,
    text_of_id,
)

log = logging.getLogger("stele.transactions")

SETTLED_AT_ONCE = 64
"""Dropped transactions of one member that it tries to end at the same time."""


async def send(router: RequestRouter, partition: int, verb: bytes, message: Struct) -> Status:
    """Send a message and return the status. Raises SteleError, also when it did not run."""
    (reply,) = await router.execute(partition, b"", [command(verb, message)])
    if isinstance(reply, Failure):
        text = f"partition {partition} did not do what was asked: {reply.code} {reply.text}"
        raise Unavailable(text) if reply.code == "TRYAGAIN" else Refused(text, reply.code)
    return split_answer(reply)[0]


async def verdict_of(
    router: RequestRouter, id: TxId, coordinator: int, history: bytes, others: Iterable[int]
) -> Verdict | None:
    """Return how it ended: it is aborted by asking, if it was not decided. None if it is in doubt.

    When the coordinator has lost its data, what `others` know counts. Raises SteleError when one that may
    know does not answer: nobody may decide before it does.
    """
    status = await send(router, coordinator, ASK, AskMessage(id, history))
    for each in others:
        if status is not Status.UNKNOWN:
            break
        status = await send(router, each, KNOWN, IdMessage(id))
    if status is Status.UNKNOWN:
        return None
    return Verdict.COMMIT if status is Status.COMMITTED else Verdict.ABORT


class Dropped(NamedTuple):
    """What is needed to end a transaction; `others` are its participants besides the coordinator."""

    id: TxId
    coordinator: int
    history: bytes
    others: tuple[int, ...]


@dataclass(eq=False)
class DroppedTransactions:
    """Transactions of this process that it went on with no more, before all participants knew the verdict.

    Until they do, no mark at a participant may cover such a transaction.
    """

    _router: RequestRouter

    def __post_init__(self) -> None:
        self._left: dict[int, Dropped] = {}

    def __len__(self) -> int:
        return len(self._left)

    def add(self, dropped: Dropped) -> None:
        self._left[dropped.id.number] = dropped

    def at(self, partition: int) -> list[int]:
        """Return the numbers of those with a part in a partition."""
        left = self._left.items()
        return [number for number, each in left if partition in (each.coordinator, *each.others)]

    async def settle(self) -> None:
        """Try to end those that were not tried for the longest time."""
        some = list(self._left)[:SETTLED_AT_ONCE]
        for number in some:
            self._left[number] = self._left.pop(number)
        await asyncio.gather(*(self._settle(self._left[number]) for number in some))

    async def _settle(self, dropped: Dropped) -> None:
        id = dropped.id
        try:
            verdict = await verdict_of(self._router, *dropped)
            if verdict is None:
                return
            for each in dropped.others:
                await send(self._router, each, END, EndMessage(id, verdict))
        except SteleError as error:
            log.debug("%s, which was dropped, is not over yet: %s", text_of_id(id), error)
            return
        del self._left[id.number]
