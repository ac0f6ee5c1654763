"""Keyspaces with `mode: Invalidation` at this member: see `core.kv.cover` for who answers what.

What other members drop is sent on the connections that they dialled, as are the leases that cover them.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from stele.core.formats import INVALIDATION_MODE
from stele.core.kv.commands import REPLY_BYTES_MAX, WRITES, Reply
from stele.core.kv.cover import Listing
from stele.core.kv.local_cache import LocalCache, Misses
from stele.core.kv.local_commands import fitting
from stele.core.kv.local_keyspaces import LocalKeyspaces, Moment
from stele.core.tablet.leases import LeaseGrantor, held_until
from stele.errors import Unavailable, Uncertain
from stele.member import limits
from stele.member.background import Background
from stele.member.replication.links import Inbound, Link
from stele.member.replication.table_cache import TableCache
from stele.member.tracking.near_caches import NearCaches
from stele.ports.local_caches import LOCAL
from stele.wire import peer
from stele.wire.storage.keys import user_tail

LOOK_SECONDS = 0.02
"""Interval of looks whether this member takes writes."""


class LocalCaches:
    """Implements ports.local_caches.LocalCaches. `sessions` are connections that other members dialled."""

    def __init__(
        self,
        table: TableCache,
        grantor: LeaseGrantor,
        sessions: Callable[[], Iterable[Inbound]],
        near_caches: NearCaches,
        background: Background,
    ) -> None:
        self._table = table
        self._grantor = grantor
        self._sessions = sessions
        self._near_caches = near_caches
        self._background = background
        self._me = table.me
        self._state = LocalKeyspaces(self._listing())
        self._catalog: object = None
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._lease_seconds = grantor.lease_seconds
        self._was_covered = self._stopping = False
        self.keyspaces = table.keyspaces.local
        self.told = 0

    def _listing(self) -> Listing:
        known = self._table.known_as == self._table.me >= 0
        return Listing(self._grantor.until_at_start, known_before=known)

    # -- ports.local_caches

    @property
    def covered(self) -> bool:
        return self._state.covered(self._background.now())

    def read(self, keyspace: bytes, commands: Sequence[Sequence[bytes]], misses: Misses) -> list[Reply]:
        cache, now = self._cache(keyspace), self._now()
        number = next((at for at, args in enumerate(commands) if args[0].upper() in WRITES), len(commands))
        if cache is None or self._stopping or not number:
            return []
        number = max(1, fitting(commands[:number], cache, now.unix_ms, limits.REPLY_BYTES))
        return self._state.run(cache, commands[:number], misses, now).replies

    async def execute(
        self,
        keyspace: bytes,
        commands: Sequence[Sequence[bytes]],
        misses: Misses,
        room: int = REPLY_BYTES_MAX,
        *,
        writer: int = 0,
        whole: bool = False,
    ) -> list[Reply]:
        if any(args[0].upper() in WRITES for args in commands):
            await self._until_writable()
        cache, now = self._checked(keyspace), self._now()
        runs = commands[: fitting(commands, cache, now.unix_ms, room)]
        if whole and len(runs) < len(commands):
            return []
        ttl_ms = self._table.keyspaces.settings_of(keyspace).ttl_seconds * 1000
        ran = self._state.run(cache, runs, misses, now, ttl_ms)
        self._tell_clients(keyspace, ran.changed, writer)
        if ran.told:
            await self._tell_members(keyspace, ran.told)
        return ran.replies

    async def clear(self, keyspace: bytes) -> None:
        await self._until_writable()
        self._checked(keyspace)
        self._state.drop(keyspace, None)
        self._near_caches.invalidate(peer.Invalidate(LOCAL))
        await self._tell_members(keyspace, None)

    def count(self, keyspace: bytes) -> int:
        cache = self._cache(keyspace)
        return 0 if cache is None else len(cache)

    @property
    def caches(self) -> Iterable[LocalCache]:
        """The entries of each keyspace."""
        self._refresh()
        return self._state.caches.values()

    def info(self) -> dict[str, str | int]:
        """Return the fields of INFO."""
        caches = [*self.caches]
        return {
            "local_cache_entries": sum(map(len, caches)),
            "local_cache_bytes": sum(each.held_bytes for each in caches),
            "local_cache_hits": sum(each.hits for each in caches),
            "local_cache_misses": sum(each.misses for each in caches),
            "local_cache_evicted": sum(each.evicted for each in caches),
            "local_cache_covered": int(self.covered),
        }

    # -- what clients and members are told

    def _tell_clients(self, keyspace: bytes, keys: Sequence[bytes], writer: int = 0) -> None:
        if keys:
            names = [user_tail(keyspace, key) for key in keys]
            self._near_caches.invalidate(peer.Invalidate(LOCAL, names, writer))

    async def _tell_members(self, keyspace: bytes, keys: list[bytes] | None) -> None:
        """Have keys dropped by all other members, all keys for None; they have changed here."""
        leases = self._grantor.granted(self._background.now())
        number = self._state.rounds.begin(leases)
        message = peer.DropKeys(keyspace, number, keys)
        size = sum(map(len, keys or ()))
        for session in [each for each in self._sessions() if each.format >= INVALIDATION_MODE]:
            self.told += session.push(message, size)
        if self._state.rounds.waits(number):
            self._waiting[number] = self._background.loop.create_future()
            await self._waiting[number]

    def _finish(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            waiting = self._waiting.pop(number, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    # -- what members say

    def on_drop(self, link: Link, message: peer.DropKeys) -> None:
        """Another member has changed keys."""
        self._refresh()
        self._state.drop(message.keyspace, message.keys)
        if message.keys is None:
            self._near_caches.invalidate(peer.Invalidate(LOCAL))
        else:
            self._tell_clients(message.keyspace, message.keys)
        link.send(peer.KeysDropped(message.number))

    def on_dropped(self, sender: Inbound, message: peer.KeysDropped) -> None:
        """Another member has dropped what this one changed, up to a number."""
        self._finish(self._state.rounds.answered(sender.sender, message.number))

    def on_lease(self, link: Link, lease: peer.Lease) -> None:
        """Another member covers this one."""
        self._lease_seconds = max(self._lease_seconds, lease.seconds)
        until = held_until(lease.at, lease.seconds)
        self._state.cover.renewed(link.member, until, lease.list_version)

    def on_heartbeat(self, sender: Inbound) -> None:
        """Another member, which has this one on its list, asks for a lease."""
        self._state.listing.heard(sender.sender, self._background.now())

    def session_began(self, link: Link) -> None:
        """Drop everything: what this member had to say before may be lost."""
        self._state.session_began(link.member)
        self._lapse()

    def session_ended(self, member: int) -> None:
        """What this member says from now on is lost."""
        self._state.cover.session_ended(member)

    def list_changed(self) -> None:
        """Use the list of members that is on the volume."""
        table = self._table
        if table.me != self._me:
            self._me = table.me
            self._state.listing_changed(self._listing())
        others = table.members.keys() - {table.me} if table.me in table.members else None
        self._state.list_changed(table.member_list_version, others, self._background.now())

    # -- time

    def tick(self) -> None:
        """Answer writes whose members answer no hits any more."""
        self._finish(self._state.rounds.expired(self._background.now()))
        if self._was_covered and not self.covered:
            self._lapse()
        self._was_covered = self.covered

    def every_second(self) -> bool:
        """Drop expired entries. Return whether the volume lacks that all members have this one on their
        lists."""
        for cache in self.caches:
            self._tell_clients(cache.keyspace, cache.expire(self._now().unix_ms))
        self._takes_writes()
        return self._state.listing.known and self._table.note_known()

    def _lapse(self) -> None:
        """Have clients drop what may change without this member hearing of it."""
        if self.keyspaces:
            self._near_caches.invalidate(peer.Invalidate(LOCAL))

    def _now(self) -> Moment:
        return Moment(self._background.now(), int(self._background.wall() * 1000))

    # -- whether there are entries, and writes

    def _cache(self, keyspace: bytes) -> LocalCache | None:
        self._refresh()
        return self._state.caches.get(keyspace)

    def _checked(self, keyspace: bytes) -> LocalCache:
        cache = self._cache(keyspace)
        if cache is None:
            raise Unavailable(f"the mode of keyspace {keyspace.decode()} has changed; retry")
        return cache

    def _refresh(self) -> None:
        """Use the catalog that is in use."""
        keyspaces = self._table.keyspaces
        if keyspaces.catalog is not self._catalog:
            self._catalog = keyspaces.catalog
            bytes_max = {each: keyspaces.settings_of(each).local_cache_bytes for each in self.keyspaces}
            self._state.use(bytes_max)

    def _takes_writes(self) -> bool:
        lease_seconds = max(self._lease_seconds, self._grantor.lease_seconds)
        return self._table.me >= 0 and self._state.takes_writes(self._background.now(), lease_seconds)

    async def _until_writable(self) -> None:
        deadline = self._background.now() + limits.WAIT_SECONDS_MAX
        while self._stopping or not self._takes_writes():
            if self._stopping:
                raise Unavailable("this member is stopping; connect to another")
            if self._background.now() >= deadline:
                raise Unavailable(self._why_not())
            await asyncio.sleep(LOOK_SECONDS)

    def _why_not(self) -> str:
        missing = sorted(self._state.listing.missing())
        if missing:
            return f"members {missing} may not know this new member yet; connect to another member, or retry"
        return "this member lacks the latest list of members; connect to another member, or retry"

    # -- the end

    def stop(self) -> None:
        """Take no more requests."""
        self._stopping = True

    @property
    def busy(self) -> bool:
        """Whether writes are unanswered."""
        return bool(self._waiting)

    def abandon(self) -> None:
        """Answer all pending writes: some members may still answer hits of what they replace."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.done():
                each.set_exception(Uncertain("this member stops before all others have dropped the keys"))
