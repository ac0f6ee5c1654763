"""What this member tells others as an owner: which of the keys that their clients cache have changed.

It remembers the members, not their clients. A key is remembered when its read is evaluated, and a change is
sent when it is applied, on the connection that carries the answers. So a member hears of every change after
what it was answered. A write that is answered before it is applied (Async) is told both times: its old
value would stay in the caches until then, and a client that reads the new one meanwhile is remembered again.
While nothing is remembered, applying an operation costs nothing more.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from stele.core.kv.interest import Interest, Prefixes
from stele.member.replication.links import Inbound
from stele.member.replication.operations import entries_of
from stele.member.replication.replica import Replica
from stele.member.replication.request import Request
from stele.member.replication.tablet_store import TabletStore
from stele.ports.near_caches import Track
from stele.wire import peer
from stele.wire.storage.keys import is_service, split_tail

NAMES_AT_ONCE = 4_096
"""Names in one message."""

Change = tuple[int, bytes]
"""Index of an operation, and the name of a key that it changes."""
_Writer = tuple[int, int]
"""A member, and its client that does not want to hear of its own writes; (-1, 0) for all others."""
_ANYONE: _Writer = (-1, 0)
_Told = dict[tuple[Inbound | None, int], list[bytes]]
"""Names by where they are told, and the client there that wrote them; 0 for others."""


class Invalidations:
    """Whom this member has to tell what. Member `me` is told by `here`, others by their session here."""

    def __init__(
        self,
        tablets: TabletStore,
        may_read: Callable[[Replica], bool],
        session: Callable[[int], Inbound | None],
        here: Callable[[peer.Invalidate], None],
    ) -> None:
        self._tablets = tablets
        self._may_read = may_read
        self._session = session
        self._here = here
        self._interest = Interest()
        self._broadcasts: dict[Inbound | None, Prefixes] = {}
        self._broadcast_reads: set[int] = set()
        self._writers: dict[int, dict[tuple[int, int], _Writer]] = {}
        self.sent = 0

    @property
    def keys(self) -> int:
        """Number of keys that are remembered."""
        return self._interest.keys

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that this takes."""
        return self._interest.held_bytes

    # -- what is remembered

    def register(self, partition: int, track: Track) -> None:
        """Remember the keys that a request reads, in the step that evaluates it."""
        for name in track.names:
            self._interest.add(partition, name, track.member)
        if not track.names:
            self._broadcast_reads.add(partition)
        for gone in self._interest.evicted():
            self._tell(gone.partition, {(each, 0): [gone.name] for each in self._sessions(gone.readers)})
        self._watch()

    def wrote(self, replica: Replica, request: Request, track: Track) -> None:
        """Remember who wrote the operations that a request has logged."""
        owner = replica.owner
        if track.writer and owner is not None:
            writers = self._writers.setdefault(replica.partition, {})
            for index in range(request.index - request.writes + 1, request.index + 1):
                writers[owner.term, index] = track.member, track.writer

    def on_broadcast(self, sender: Inbound, message: peer.Broadcast) -> None:
        """A member asks for all keys with some prefixes."""
        self.broadcast(sender, message.prefixes)

    def broadcast(self, session: Inbound | None, prefixes: Iterable[bytes]) -> None:
        """The same; None is this member."""
        wanted = Prefixes(prefixes)
        if wanted.prefixes:
            self._broadcasts[session] = wanted
        else:
            self._broadcasts.pop(session, None)
        self._watch()

    def _watch(self) -> None:
        watched = bool(self._interest or self._broadcasts)
        self._tablets.watch(self._applied if watched else None, self.take_back)

    # -- what is told

    def changing(self, partition: int, names: Sequence[bytes]) -> None:
        """Tell of keys that a transaction across partitions is about to change, while they are locked.

        Its client may be answered before the change is applied here.
        """
        if not (self._interest or self._broadcasts):
            return
        told = _Told()
        for name in names:
            sessions = self._sessions(self._interest.take(partition, name))
            sessions.update(dict.fromkeys(_matching(self._broadcasts, name)))
            for session in sessions:
                told.setdefault((session, 0), []).append(name)
        self._tell(partition, told)

    def _applied(self, replica: Replica, changes: Sequence[Change]) -> None:
        """Tell of keys that operations have changed, which are applied.

        Broadcasts are told once, by the member that answers the writes: a backup does that, too, of what it
        logged as the owner.
        """
        self._tell_changes(replica, changes)
        writers = self._writers.get(replica.partition)
        if writers:
            last = changes[-1][0]
            self._writers[replica.partition] = {at: each for at, each in writers.items() if at[1] > last}

    def acknowledged(self, replica: Replica, request: Request) -> None:
        """Tell of the keys that a request has changed, which is about to be answered and is not applied."""
        if self._tablets.watched:
            indexes = range(request.index - request.writes + 1, request.index + 1)
            self._tell_changes(
                replica, [(at, name) for at in indexes for name, _ in entries_of(replica.records[at])]
            )

    def _tell_changes(self, replica: Replica, changes: Sequence[Change]) -> None:
        partition, told = replica.partition, _Told()
        broadcasts = self._broadcasts if replica.owner is not None or replica.waiters else {}
        for name, writer in self._written(replica, changes).items():
            readers = self._interest.take(partition, name)
            if writer[0] in readers:
                self._interest.add(partition, name, writer[0])
            sessions = self._sessions(readers)
            if broadcasts:
                sessions.update(dict.fromkeys(_matching(broadcasts, name)))
            for session in sessions:
                member = self._tablets.me if session is None else session.sender
                told.setdefault((session, writer[1] if member == writer[0] else 0), []).append(name)
        self._tell(partition, told)

    def _sessions(self, members: Iterable[int]) -> dict[Inbound | None, None]:
        """Return where to tell members; None is this one. Those without a session drop everything anyway."""
        here, found = self._tablets.me, {each: self._session(each) for each in members}
        return {session: None for each, session in found.items() if session is not None or each == here}

    def _written(self, replica: Replica, changes: Sequence[Change]) -> dict[bytes, _Writer]:
        """Return the names that changed, each with its writer if there was only one."""
        writers = self._writers.get(replica.partition)
        if not writers:
            return dict.fromkeys((name for _, name in changes), _ANYONE)
        term_at, found = replica.tablet.log.term_at, dict[bytes, _Writer]()
        for index, name in changes:
            writer = writers.get((term_at(index) or 0, index), _ANYONE)
            found[name] = writer if found.get(name, writer) == writer else _ANYONE
        return found

    def _tell(self, partition: int, told: _Told) -> None:
        for (session, writer), names in told.items():
            for at in range(0, len(names), NAMES_AT_ONCE):
                self._send(session, peer.Invalidate(partition, names[at : at + NAMES_AT_ONCE], writer))

    def _send(self, session: Inbound | None, message: peer.Invalidate) -> None:
        self.sent += len(message.names or ()) or 1
        if session is None:
            self._here(message)
        elif not session.push(message, sum(map(len, message.names or ()))):
            self._broadcasts.pop(session, None)

    # -- what is taken back

    def take_back(self, partition: int) -> None:
        """Have everything of a partition dropped."""
        members = {member for _, readers in self._interest.take_all(partition) for member in readers}
        sessions = {each for member in members if (each := self._session(member)) is not None}
        here = self._tablets.me in members
        if partition in self._broadcast_reads:
            self._broadcast_reads.discard(partition)
            sessions |= {each for each in self._broadcasts if each is not None}
            here |= None in self._broadcasts
        self._writers.pop(partition, None)
        for session in [*sorted(sessions, key=lambda each: each.sender), *([None] if here else [])]:
            self._send(session, peer.Invalidate(partition))

    def tick(self) -> None:
        """Take back what this member may not read any more: another owner may change it."""
        if not self._tablets.watched:
            return
        for partition in [*self._interest.partitions(), *sorted(self._broadcast_reads)]:
            replica = self._tablets.replicas.get(partition)
            if replica is None or not self._may_read(replica):
                self.take_back(partition)
        self._watch()


def _matching(broadcasts: Mapping[Inbound | None, Prefixes], name: bytes) -> Iterator[Inbound | None]:
    keyspace, key = split_tail(name)
    if not is_service(keyspace):
        yield from (session for session, prefixes in broadcasts.items() if prefixes.matches(key))
