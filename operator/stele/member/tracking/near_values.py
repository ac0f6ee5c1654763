"""Values of other members' partitions that this member keeps for keyspaces with a `nearCache`.

A forwarded read of GETs alone is answered from here when all of its keys are here. The member is a client of
its own near caches: it drops what those have to drop, so such a read is as old as a value in one of them. A
value that its owner changed while the read was under way is not kept, nor one beyond its expiry.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stele.core.kv.commands import Reply
from stele.core.kv.keyspaces import NearCache
from stele.member.replication.keyspaces import Keyspaces
from stele.member.replication.request import Request, RequestKind
from stele.member.tracking.near_caches import NearCaches

_GET = (b"GET", b"get")
VALUE_BYTES = 300
"""Python's overhead of a key and its value."""


@dataclass(slots=True)
class _Value:
    value: bytes | None
    until: float


class _KeyspaceValues:
    """The values of one keyspace; a ports.near_caches.CachingClient. `fills` are reads under way, by key."""

    def __init__(self, id: int, keyspace: bytes) -> None:
        self.id, self.keyspace = id, keyspace
        self.values: dict[bytes, _Value] = {}
        self.fills: dict[bytes, list[_Fill]] = {}
        self.held_bytes = 0

    def invalidate(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.drop(key)
            for fill in self.fills.get(key, ()):
                fill.changed(key)

    def invalidate_all(self) -> None:
        self.invalidate([*self.values, *self.fills])

    def drop(self, key: bytes) -> None:
        known = self.values.pop(key, None)
        if known is not None:
            self.held_bytes -= VALUE_BYTES + len(key) + len(known.value or b"")

    def keep(self, key: bytes, value: _Value, bytes_max: int) -> None:
        """Keep a value as the most recent one, and drop the least recent ones beyond `bytes_max`."""
        self.drop(key)
        self.values[key] = value
        self.held_bytes += VALUE_BYTES + len(key) + len(value.value or b"")
        while self.held_bytes > bytes_max:
            self.drop(next(iter(self.values)))


class _Fill:
    """A read under way, as the outcome of its request: each GET is followed by the PTTL of its key."""

    def __init__(
        self, outcome: Any, keys: list[bytes], filled: Callable[["_Fill", list[Reply]], None]
    ) -> None:
        self._outcome = outcome
        self.keys = keys
        self.stale: set[bytes] = set()
        self._filled = filled

    def changed(self, key: bytes) -> None:
        self.stale.add(key)

    def done(self) -> bool:
        return bool(self._outcome.done())

    def set_result(self, replies: list[Reply]) -> None:
        self._filled(self, replies)
        self._outcome.set_result(replies[::2])

    def set_exception(self, error: BaseException) -> None:
        self._filled(self, [])
        self._outcome.set_exception(error)


class NearValues:
    """Answers forwarded reads of keyspaces with a near cache, or keeps what their owners answer."""

    def __init__(self, keyspaces: Keyspaces, caches: NearCaches, now: Callable[[], float]) -> None:
        self._keyspaces = keyspaces
        self._caches = caches
        self._now = now
        self._values: dict[bytes, _KeyspaceValues] = {}
        self._ids = 0
        self.hits = self.misses = 0

    def answer(self, request: Request) -> list[Reply] | None:
        """Return the replies to a request that would be forwarded; None when its owner has to be asked.

        Then its outcome is changed so that what the owner answers is kept.
        """
        settings = self._keyspaces.settings_of(request.keyspace).near_cache
        if settings is None or request.kind is not RequestKind.EXECUTE:
            return None
        if request.track is not None or request.version:
            return None  # A client's own near cache, or another member's client.
        if request.saw is not None and self._caches.backs_up(request.partition):
            return None  # This member, as a backup, may have answered the connection with a newer value.
        if any(len(args) != 2 or args[0] not in _GET for args in request.commands):
            return None
        mine, keys = self._of(request.keyspace), [args[1] for args in request.commands]
        found = self._found(mine, request.partition, keys)
        if found is None:
            self.misses += len(keys)
            self._fill(mine, request, keys, settings)
            return None
        self.hits += len(keys)
        return found

    def _of(self, keyspace: bytes) -> _KeyspaceValues:
        mine = self._values.get(keyspace)
        if mine is None:
            self._ids -= 1
            mine = self._values[keyspace] = _KeyspaceValues(self._ids, keyspace)
            self._caches.open(mine)
        return mine

    def _found(self, mine: _KeyspaceValues, partition: int, keys: list[bytes]) -> list[Reply] | None:
        now = self._now()
        known = [mine.values.get(key) for key in keys]
        if any(each is None or each.until <= now for each in known) or not self._caches.is_vouched(partition):
            return None
        return [each.value for each in known if each is not None]

    def _fill(self, mine: _KeyspaceValues, request: Request, keys: list[bytes], settings: NearCache) -> None:
        began, track = self._now(), self._caches.begin(mine, request.partition, keys)

        def filled(fill: _Fill, replies: list[Reply]) -> None:
            for key in fill.keys:
                mine.fills[key].remove(fill)
                if not mine.fills[key]:
                    del mine.fills[key]
            if not track.lost and self._caches.is_vouched(request.partition):
                self._keep(mine, fill, replies, began, settings)

        fill = _Fill(request.future, keys, filled)
        for key in keys:
            mine.fills.setdefault(key, []).append(fill)
        request.fill([part for key in keys for part in ([b"GET", key], [b"PTTL", key])], fill, track)

    def _keep(
        self, mine: _KeyspaceValues, fill: _Fill, replies: list[Reply], began: float, settings: NearCache
    ) -> None:
        for key, value, left_ms in zip(fill.keys, replies[::2], replies[1::2], strict=False):
            if key in fill.stale or not (value is None or isinstance(value, bytes)):
                continue
            seconds = float(settings.seconds)
            if isinstance(left_ms, int) and left_ms >= 0:
                seconds = min(seconds, left_ms / 1000)
            mine.keep(key, _Value(value, began + seconds), settings.bytes)

    def tick(self) -> None:
        """Forget the keyspaces that have no near cache any more."""
        for keyspace in [
            each for each in self._values if self._keyspaces.settings_of(each).near_cache is None
        ]:
            self._caches.close(self._values.pop(keyspace))
