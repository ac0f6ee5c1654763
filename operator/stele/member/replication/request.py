"""A client's request on its way: one partition, its commands, and the waiting client."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

from stele.core.kv.commands import REPLY_BYTES_MAX, Reply, is_write
from stele.core.kv.dedup import ONCE
from stele.core.kv.transaction import EXEC
from stele.core.tablet.log import OpId
from stele.errors import SteleError
from stele.member import limits
from stele.ports.near_caches import Track
from stele.wire.two_phase import TX


class RequestKind(IntEnum):
    EXECUTE = 0
    SCAN = 1
    COUNT = 2
    CLEAR = 3


class Request:
    """`future` receives the outcome: a future of asyncio, or a `ports.Outcome`.

    `index` is the operation to commit before the reply; `reads` whether a lease is needed for it; `wrote`
    whether anything was logged here, of `bytes`, by `writes` commands; `version` the row version of a
    forwarded one; `room` the bytes that its replies may use, and `reply_bytes` those used; `work_bytes` those
    of stored values that its commands read and wrote; `early` says that it is answered without waiting for
    the commit, where this member may (`delayed_replies`); `losses` how many owners were lost meanwhile, and
    `maybe_done` whether one of them may have executed it; `track` what the owner remembers for a near cache;
    `saw`, if any, gets the operation that the replies depend on, None for an unknown one; `catalog` is the
    latest version of the catalog of keyspaces that allows it, 0 for any.
    """

    __slots__ = (
        "after", "bytes", "catalog", "commands", "deadline", "early", "future", "index", "keyspace", "kind",
        "limit", "losses", "maybe_done", "order", "partition", "queued_bytes", "reads", "replies",
        "reply_bytes", "room", "saw", "track", "version", "work_bytes", "writes", "wrote",
    )  # fmt: skip

    def __init__(self, kind: RequestKind, partition: int, keyspace: bytes, future: Any) -> None:
        self.kind = kind
        self.partition = partition
        self.keyspace = keyspace
        self.future = future
        self.commands: Sequence[Sequence[bytes]] = ()
        self.after = b""
        self.catalog = 0
        self.limit = 0
        self.room = REPLY_BYTES_MAX
        self.losses = 0
        self.bytes = 0
        self.queued_bytes = 0
        self.reply_bytes = 0
        self.work_bytes = 0
        self.maybe_done = False
        self.deadline = 0.0
        self.order = 0
        self.version = 0
        self.early = False
        self.index = 0
        self.reads = False
        self.writes = 0
        self.wrote = False
        self.replies: list[Reply] = []
        self.track: Track | None = None
        self.saw: Callable[[OpId | None], None] | None = None

    @property
    def may_repeat(self) -> bool:
        """Whether executing it twice has the effect of once."""
        if self.kind is RequestKind.CLEAR:
            return False
        return self.kind is not RequestKind.EXECUTE or not any(
            args and (is_write(args[0]) or args[0] == EXEC) for args in self.commands
        )

    @property
    def entries(self) -> int:
        """The maximum number of entries that the owner handles for it."""
        return min(self.limit, limits.SCAN_KEYS_MAX) if self.kind is RequestKind.SCAN else len(self.commands)

    @property
    def may_write(self) -> bool:
        return not self.may_repeat or any(args and args[0] in (ONCE, TX) for args in self.commands)

    def takes(self, size: int) -> bool:
        """Return whether there is room for another reply of `size` bytes, and count it.

        A single reply may exceed REPLY_BYTES when there is room for it.
        """
        reply_bytes = self.reply_bytes + size
        if reply_bytes > min(self.room, limits.REPLY_BYTES) and (self.replies or size > self.room):
            return False
        self.reply_bytes = reply_bytes
        return True

    def fill(self, commands: Sequence[Sequence[bytes]], outcome: Any, track: Track) -> None:
        """Change what is asked for, so that a near cache can keep the answer."""
        self.commands, self.future, self.track = commands, outcome, track

    def reset(self) -> None:
        """Return a request that logged nothing to its initial state."""
        self.index = 0
        self.reads = self.early = False
        self.replies = []
        self.reply_bytes = self.work_bytes = 0

    def done(self, value: Any) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def failed(self, error: SteleError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
