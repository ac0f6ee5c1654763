"""Requests that other members forward to this one, because their rows name it as the owner."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stele.core.tablet.log import OpId
from stele.errors import Stale, SteleError
from stele.member import limits
from stele.member.replication.links import Inbound
from stele.member.replication.request import Request
from stele.member.replication.tablet_store import TabletStore
from stele.member.serving.forwarding import error_message, request_of, result_message
from stele.member.serving.router import RequestRouter
from stele.wire import peer
from stele.wire.storage.keys import KEYSPACE_BYTES_MAX


@dataclass(eq=False)
class ForwardedRequests:
    """Has the router run them, and sends back the outcome, or a newer row when the sender's is outdated."""

    _tablets: TabletStore
    _router: RequestRouter

    def __post_init__(self) -> None:
        self._table = self._tablets.table

    def take(self, sender: Inbound, message: Any) -> None:
        """Run a forwarded request, or answer that the sender's row is outdated.

        A stopping member runs nothing more: STALE_VERSION without a row makes the sender retry.
        """
        if self._router.stopping:
            sender.send(peer.Forwarded(message.id, "STALE_VERSION", "", b""))
            return
        if not 0 <= message.partition < len(self._table.rows):
            text = f"partition {message.partition} is not in this member's table"
            sender.send(peer.Forwarded(message.id, "Unavailable", text, b""))
            return
        if len(message.keyspace) > KEYSPACE_BYTES_MAX or not message.keyspace.isascii():
            text = f"keyspace {message.keyspace[:80]!r} cannot exist"
            sender.send(peer.Forwarded(message.id, "BadInput", text, b""))
            return
        if self._is_stale(message):
            self._answer_stale(sender, message)
            return
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        request = request_of(message, sender.sender, future)
        request.deadline = loop.time() + limits.WAIT_SECONDS_MAX
        operations: list[OpId | None] = []
        if isinstance(message, peer.Forward) and message.wants_op:
            request.saw = operations.append
        future.add_done_callback(partial(self._answer, sender, message, request, operations))
        self._router.submit(request)

    def _is_stale(self, message: Any) -> bool:
        """Return whether the sender's row, by which it chose this member, is outdated."""
        row = self._table.row_of(message.partition)
        if message.version > row.version:
            return False
        if row.owner != self._table.me:
            return True
        replica = self._tablets.replicas.get(message.partition)
        return replica is None or bool(message.version < replica.owner_since)

    def _answer_stale(self, sender: Inbound, message: Any) -> None:
        row = self._table.row_of(message.partition)
        value = (row.version, row.replicas)
        sender.send(peer.Forwarded(message.id, "STALE_VERSION", "", b"", value))

    def _answer(
        self,
        sender: Inbound,
        message: Any,
        request: Request,
        operations: Sequence[OpId | None],
        future: "asyncio.Future[Any]",
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, Stale):
            self._answer_stale(sender, message)
        elif isinstance(error, SteleError):
            sender.send(error_message(message.id, error))
        elif error is not None:
            raise error
        else:
            operation = operations[-1] if operations else None
            sender.send(result_message(message.id, request.kind, future.result(), operation))
