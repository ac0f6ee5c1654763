"""Some members with a keyspace of mode Invalidation, and links that are slow, cut, or full while one stops.

Everything that happens is one `step`, chosen by the caller: in which order messages arrive, how time passes,
who restarts, which lists of members are known where. A value is the version of its source, which changes
before the cache is told. The rule: no hit is older than what was acknowledged when it was read.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from stele.core.kv.cover import Listing
from stele.core.kv.local_cache import Misses
from stele.core.kv.local_keyspaces import LocalKeyspaces, Moment
from stele.core.tablet.leases import LeaseGrantor, held_until

LEASE = 1.0
KEYSPACE = b"k"
BYTES = 1 << 20


class StaleHitError(AssertionError):
    """A hit is older than an acknowledged write."""


@dataclass(eq=False)
class Session:
    """One that `reader` began; what is sent after it is cut is lost."""

    reader: int
    granter: int
    down: deque[tuple] = field(default_factory=deque)
    up: deque[tuple] = field(default_factory=deque)
    cut: bool = False


@dataclass(eq=False)
class Member:
    """One process. `known` is what its volume says of the lists of others."""

    index: int
    state: LocalKeyspaces
    grantor: LeaseGrantor
    version: int = 0
    list: frozenset[int] = frozenset()
    known: bool = False
    sessions: dict[int, Session] = field(default_factory=dict)
    inbound: dict[int, Session] = field(default_factory=dict)


@dataclass(eq=False)
class Write:
    """A change of a key by its one writer, until it is acknowledged."""

    key: bytes
    value: int
    member: int = -1
    number: int = -1


class World:
    """See the module. `cover_from` and the like are replaced by planted bugs."""

    def __init__(self, members: int, keys: int = 1, *, joined: int | None = None) -> None:
        self.now = 0.0
        self.lists = [frozenset(range(joined or members))]
        self.members = [self._process(index) for index in range(members)]
        self.source = {b"%d" % key: 0 for key in range(keys)}
        self.acked = dict(self.source)
        self.writes: dict[bytes, Write] = {}
        self.fills: deque[tuple[Member, Misses, bytes, int]] = deque()
        self.hits = self.done = self.refused_fills = 0

    def _process(self, index: int, before: "Member | None" = None) -> Member:
        known = before is not None and before.known
        started_later = self.now + LEASE if before is not None else 0.0
        state = LocalKeyspaces(Listing(started_later, known_before=known))
        state.use({KEYSPACE: BYTES})
        member = Member(index, state, LeaseGrantor(self.now, LEASE), known=known)
        if before is not None and before.version:
            self._use_list(member, before.version, before.list)
        return member

    def asked_at(self, asked: float) -> float:
        """Return from when a lease counts."""
        return asked

    # -- what can happen

    def take_list(self, index: int) -> None:
        """The member gets the next list that it lacks and is on."""
        member = self.members[index]
        for version in range(member.version + 1, len(self.lists) + 1):
            if index in self.lists[version - 1]:
                self._use_list(member, version, self.lists[version - 1])
                return

    def _use_list(self, member: Member, version: int, members: frozenset[int]) -> None:
        member.version, member.list = version, members
        others = members - {member.index}
        member.state.list_changed(version, others, self.now)
        for gone in member.sessions.keys() - others:
            member.sessions.pop(gone).cut = True

    def dial(self, index: int, other: int) -> None:
        """Begin a session; the one before has ended for both."""
        member, granter = self.members[index], self.members[other]
        before = member.sessions.get(other)
        if other not in member.list or index not in granter.list or (before is not None and not before.cut):
            return
        member.sessions[other] = granter.inbound[index] = Session(index, other)
        member.state.session_began(other)

    def cut(self, index: int, other: int) -> None:
        """Lose what is on its way; nobody notices."""
        session = self.members[index].sessions.get(other)
        if session is not None:
            session.cut = True
            session.down.clear()
            session.up.clear()

    def notice(self, index: int, other: int) -> None:
        """The member that dialled sees that its session has ended."""
        session = self.members[index].sessions.get(other)
        if session is not None and session.cut:
            del self.members[index].sessions[other]
            self.members[index].state.cover.session_ended(other)

    def heartbeat(self, index: int) -> None:
        for session in self.members[index].sessions.values():
            if not session.cut:
                session.up.append(("ask", self.now))

    def up(self, index: int, other: int) -> None:
        """The next message of a member arrives at the one that it dialled."""
        session = self.members[index].sessions.get(other)
        granter = self.members[other]
        if session is None or session.cut or not session.up or granter.inbound.get(index) is not session:
            return
        kind, what = session.up.popleft()
        if kind == "ask":
            granter.state.listing.heard(index, self.now)
            seconds, _ = granter.grantor.renew(index, self.now)
            session.down.append(("lease", what, seconds, granter.version))
        else:
            self._finish(granter, granter.state.rounds.answered(index, what))

    def down(self, index: int, other: int) -> None:
        """The next message of the member that was dialled arrives."""
        session, member = self.members[index].sessions.get(other), self.members[index]
        if session is None or session.cut or not session.down:
            return
        kind, *what = session.down.popleft()
        if kind == "lease":
            asked, seconds, version = what
            member.state.cover.renewed(other, held_until(self.asked_at(asked), seconds), version)
        else:
            number, keys = what
            member.state.drop(KEYSPACE, keys)
            session.up.append(("answer", number))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for member in self.members:
            self._finish(member, member.state.rounds.expired(self.now))
            if member.list and member.state.listing.takes_writes(self.now, LEASE):
                member.known = True

    def restart(self, index: int) -> None:
        before = self.members[index]
        for session in (*before.sessions.values(), *before.inbound.values()):
            session.cut = True
        self.members[index] = self._process(index, before)
        for write in self.writes.values():
            if write.member == index:
                write.member = -1
        self.fills = deque(each for each in self.fills if each[0] is not before)

    def connected(self) -> None:
        """All is well for a moment: everybody asks everybody, and all messages arrive."""
        for one, other in permutations(range(len(self.members)), 2):
            self.dial(one, other)
        for member in self.members:
            self.heartbeat(member.index)
        for arrive in (self.up, self.down, self.up):
            for session in [each for member in self.members for each in member.sessions.values()]:
                while self._waiting(session, arrive):
                    arrive(session.reader, session.granter)

    def _waiting(self, session: Session, arrive: Callable[[int, int], None]) -> bool:
        if session.cut or self.members[session.granter].inbound.get(session.reader) is not session:
            return False
        return bool(session.up if arrive == self.up else session.down)

    def end(self, index: int) -> None:
        """The process ends."""
        self.restart(index)
        self.members[index].list = frozenset()

    # -- clients

    def run(self, member: Member, args: Sequence[bytes], misses: Misses) -> tuple[object, list[bytes]]:
        state = member.state
        ran = state.run(state.caches[KEYSPACE], [args], misses, Moment(self.now, 1))
        return ran.replies[0], ran.told

    def write(self, index: int, key: bytes, *, delete: bool) -> None:
        """The key's writer changes the source and then the cache; or repeats what was not answered."""
        member = self.members[index]
        write = self.writes.get(key)
        if index not in self.lists[-1]:
            return  # Clients do not connect to members that have left.
        if write is None:
            self.source[key] += 1
            write = self.writes[key] = Write(key, self.source[key])
        elif write.member >= 0:
            return
        if not member.list or not member.state.takes_writes(self.now, LEASE):
            return
        write.member = index
        _, told = self.run(member, [b"DEL", key] if delete else [b"SET", key, b"%d" % write.value], Misses())
        self.tell(member, write, told)

    def tell(self, member: Member, write: Write, told: list[bytes]) -> None:
        write.number = member.state.rounds.begin(member.grantor.granted(self.now))
        for session in member.inbound.values():
            if not session.cut:
                session.down.append(("drop", write.number, told))
        if not member.state.rounds.waits(write.number):
            self._finish(member, [write.number])

    def _finish(self, member: Member, numbers: Sequence[int]) -> None:
        for key, write in list(self.writes.items()):
            if write.member == member.index and write.number in numbers:
                self.acknowledged(member, write)
                self.acked[key] = write.value
                self.done += 1
                del self.writes[key]

    def acknowledged(self, member: Member, write: Write) -> None:
        """A write is about to be acknowledged."""

    def read(self, index: int, key: bytes) -> None:
        """A hit is checked; after a miss the client reads the source, and will fill."""
        member = self.members[index]
        if not member.list:
            return
        misses = Misses()
        value, _ = self.run(member, [b"GET", key], misses)
        if value is None:
            self.fills.append((member, misses, key, self.source[key]))
            return
        self.hits += 1
        assert isinstance(value, bytes)
        if int(value) < self.acked[key]:
            raise StaleHitError(f"member {index}: {value!r} after {self.acked[key]} at {self.now}")

    def fill(self, place: int) -> None:
        """A client stores what it has read from the source."""
        if self.fills:
            self.fills.rotate(-place % len(self.fills))
            member, misses, key, value = self.fills.popleft()
            reply, _ = self.run(member, [b"SET", key, b"%d" % value, b"NX"], misses)
            self.refused_fills += reply is None


def walk(world: World, seed: int, steps: int, *, lists: bool = False, restarts: bool = False) -> None:
    """Take random steps. With `lists` members join and leave; nothing else than steps happens."""
    chance = random.Random(seed)
    for index in range(len(world.members)):
        world.take_list(index)
    for _ in range(steps):
        _step(world, chance, lists, restarts)


def _step(world: World, chance: random.Random, lists: bool, restarts: bool) -> None:
    one, other = chance.sample(range(len(world.members)), 2)
    key = chance.choice(list(world.source))
    steps_of: list[tuple[float, Callable[[], None]]] = [
        (8, lambda: world.down(one, other)),
        (8, lambda: world.up(one, other)),
        (4, lambda: world.heartbeat(one)),
        (2, lambda: world.dial(one, other)),
        (1, world.connected),
        (2, lambda: world.wait(chance.choice((0.02, 0.1, 0.1, 0.6)))),
        (6, lambda: world.read(one, key)),
        (4, lambda: world.fill(chance.randrange(4))),
        (2, lambda: world.write(one, key, delete=chance.random() < 0.5)),
        (0.3, lambda: world.cut(one, other)),
        (0.6, lambda: world.notice(one, other)),
        (2 if lists else 0.2, lambda: world.take_list(one)),
        (0.1 if restarts else 0, lambda: world.restart(one)),
        (0.15 if lists else 0, lambda: _change_list(world, chance)),
    ]
    (step,) = chance.choices([each for _, each in steps_of], [weight for weight, _ in steps_of])
    step()


def _change_list(world: World, chance: random.Random) -> None:
    """Add the next member, or remove one. Its process may go on, but those that left before it have ended."""
    now, size = world.lists[-1], len(world.members)
    new = max(max(each) for each in world.lists) + 1
    if new < size and len(now) < 3:
        world.lists.append(now | {new})
    elif len(now) > 2:
        for member in world.members:
            if member.list and member.index < new and member.index not in now:
                world.end(member.index)
        world.lists.append(now - {chance.choice(sorted(now))})
