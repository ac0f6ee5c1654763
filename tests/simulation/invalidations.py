"""What owners tell clients with near caches: which change of a key each message to a client is about."""

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from stele.member.resp.tracking import Tracking
from stele.member.tracking.invalidations import Invalidations
from stele.member.tracking.near_caches import NearCaches
from stele.wire import peer
from stele.wire.storage.keys import split_tail, unpack_value

Floors = dict[bytes, int]
"""The index of the change that a message is about, or of one before it, by key; 0 when there is none."""


class Told:
    """Follows each change from the owner that applies it to the connection that hears of it.

    What is lost on the way stays in the queue and is taken for a later message: that only makes an index
    smaller than it was.
    """

    def __init__(self) -> None:
        self._index_of: dict[tuple[bytes, bytes], int] = {}
        self._applied: dict[bytes, int] = {}
        self._owner: int | None = None
        self._arrived: Floors = {}
        self._sent: dict[tuple[int, int, bytes], deque[int]] = {}
        self._pushed: dict[int, deque[Floors | None]] = {}

    def index_of(self, key: bytes, value: bytes) -> int | None:
        """Return the index of the operation that wrote a value, if that is known."""
        return self._index_of.get((key, value))

    def take(self, connection: int, keys: Sequence[bytes] | None) -> Floors:
        """Return what the next message to a connection is about; None stands for all keys."""
        queue = self._pushed.setdefault(connection, deque())
        while queue:
            floors = queue.popleft()
            if floors is None and keys is None:
                return {}
            if floors is not None and keys is not None:
                return floors
        return {}

    def watching(self) -> AbstractContextManager[Any]:
        """Watch all members for as long as it is entered."""
        stack = ExitStack()
        for of, name, watched in (
            (Invalidations, "_applied", self._watch_applied),
            (Invalidations, "_send", self._watch_sent),
            (NearCaches, "on_invalidate", self._watch_link),
            (NearCaches, "invalidate", self._watch_arrived),
            (Tracking, "_send", self._watch_pushed),
        ):
            stack.enter_context(patch.object(of, name, watched(getattr(of, name))))
        return stack

    def _watch_applied(self, real: Any) -> Any:
        def applied(owner: Invalidations, replica: Any, changes: Sequence[tuple[int, bytes]]) -> None:
            self._applied = {name: index for index, name in changes}
            for name, index in self._applied.items():
                keyspace, key = split_tail(name)
                stored = owner._tablets.engine.get(replica.prefix(keyspace) + key)
                if stored is not None:
                    self._index_of[key, unpack_value(stored)[0]] = index
            try:
                real(owner, replica, changes)
            finally:
                self._applied = {}

        return applied

    def _watch_sent(self, real: Any) -> Any:
        def send(owner: Invalidations, session: Any, message: peer.Invalidate) -> None:
            me = owner._tablets.me
            target = me if session is None else session.sender
            for name in message.names or ():
                queue = self._sent.setdefault((me, target, name), deque())
                queue.append(self._applied.get(name, 0))
            real(owner, session, message)

        return send

    def _watch_link(self, real: Any) -> Any:
        def on_invalidate(caches: NearCaches, link: Any, message: peer.Invalidate) -> None:
            self._owner = link.member
            try:
                real(caches, link, message)
            finally:
                self._owner = None

        return on_invalidate

    def _watch_arrived(self, real: Any) -> Any:
        def invalidate(caches: NearCaches, message: peer.Invalidate) -> None:
            me = caches._table.me
            owner = me if self._owner is None else self._owner
            for name in message.names or ():
                queue = self._sent.get((owner, me, name))
                self._arrived[split_tail(name)[1]] = queue.popleft() if queue else 0
            try:
                real(caches, message)
            finally:
                self._arrived = {}

        return invalidate

    def _watch_pushed(self, real: Any) -> Any:
        def send(tracking: Any, keys: Sequence[bytes] | None) -> None:
            receiver = tracking.redirect or tracking._session
            floors = None if keys is None else {key: self._arrived.get(key, 0) for key in keys}
            self._pushed.setdefault(receiver.id, deque()).append(floors)
            real(tracking, keys)

        return send
