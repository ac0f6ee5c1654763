"""Connections to other members: one dialed to each, and those dialed by others.

A link carries what this member sends as owner, prober or forwarder; replies arrive on it in order. It
reconnects for ever, with growing pauses, and starts a new session each time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from stele.adapters.rpc.connection import Connection
from stele.adapters.tls.identity import Contexts
from stele.core.control.commands import MemberInfo
from stele.core.formats import FIRST, FormatRange
from stele.core.tablet.leases import UNKNOWN_INCARNATION
from stele.member import limits
from stele.member.replication.dialling import Encrypted, dial
from stele.member.replication.identity import Identity
from stele.member.replication.member_tls import REQUIRED
from stele.member.replication.renewal import Attempts, Held, Hold, Shown
from stele.member.replication.request import Request
from stele.wire import peer
from stele.wire.resp import ARGUMENT_BYTES

log = logging.getLogger("stele.links")

POLL_SECONDS = 0.002
OUTDATED = "a certificate that it began with is of a CA that is no longer trusted, and it was not renewed"

PUSH_BYTES = 64
"""What a message that was not requested counts for, besides its content."""


class LinkEvents(Protocol):
    def link_ready(self, link: "Link") -> None:
        """Handle the start of a new session."""
        ...

    def link_message(self, link: "Link", message: peer.Message) -> None: ...

    def link_drained(self, link: "Link") -> None: ...

    def link_resumed(self, link: "Link") -> None:
        """Send what has waited while the link was renewed."""
        ...

    def link_lost(self, link: "Link", requests: list[Request]) -> None:
        """Handle the end of a session; whether the requests were executed is unknown."""
        ...


class Link:
    """A connection that this member dials.

    `behind` are partitions with something to send; `in_flight` the sizes of unacknowledged Append messages;
    `requests` the forwarded requests, by id; `format` is that of the session; `sessions` counts them.
    While it is renewed, new requests wait for the next session, and in the end all that is sent.
    """

    def __init__(self, info: MemberInfo, port: int, identity: Identity, events: LinkEvents) -> None:
        self.member = info.index
        self.uuid, self._name = info.uuid, info.name
        self.host = info.address
        self._port = port
        self._identity = identity
        self._events = events
        self._connection: Connection | None = None
        self._successor: Connection | None = None
        self._early: list[peer.Message] = []
        self._shown = self._shown_next = Shown()
        self._attempts, self._hold, self._held = Attempts(), Hold.NOTHING, Held()
        self._heartbeats = 0
        self._ended = asyncio.Event()
        self.ready = False
        self.sessions = 0
        self.format = FIRST
        self.behind: dict[int, None] = {}
        self.in_flight: deque[int] = deque()
        self.in_flight_bytes = 0
        self.requests: dict[int, Request] = {}
        # Silence counts from when the member became known, not from the start of this process.
        self.heard_at = asyncio.get_running_loop().time()
        self._last_logged = ""
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        pause = limits.RECONNECT_SECONDS_MIN
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._dial()
            except OSError as error:
                self._log_once(f"cannot connect: {error}")
            if asyncio.get_running_loop().time() - began > limits.RECONNECT_SECONDS_MAX:
                pause = limits.RECONNECT_SECONDS_MIN
            await asyncio.sleep(pause)
            pause = min(pause * 2, limits.RECONNECT_SECONDS_MAX)

    async def _dial(self) -> None:
        loop = asyncio.get_running_loop()
        self._ended.clear()
        contexts = self._identity.tls.dialling()
        async with asyncio.timeout(limits.HELLO_SECONDS_MAX):
            if contexts is None:
                self._shown = Shown()
                await loop.create_connection(lambda: Connection(self), self.host, self._port)
            else:
                made = await self._encrypted(contexts)
                self._shown = Shown(loop.time(), (contexts.chain, made.chain))
                made.carry(Connection(self))
        try:
            await self._ended.wait()
        finally:
            if self._connection is not None:
                self._connection.close("link closed")

    async def _encrypted(self, contexts: Contexts) -> Encrypted:
        """Return a connection to this very member. Raises OSError."""
        made = await dial(contexts.dialling, self.host, self._port)
        if refusal := self._identity.tls.refusal(made.certificate, made.chain, self._name):
            made.abort()
            raise ConnectionError(f"TLS: the other side is not {self._name}: {refusal}")
        return made

    @property
    def plain(self) -> bool:
        """Whether a session goes on without TLS."""
        return self.ready and not self._shown.chains

    @property
    def encrypted(self) -> bool:
        """Whether a session goes on with TLS."""
        return self.ready and bool(self._shown.chains)

    @property
    def outdated(self) -> bool:
        """Whether a session goes on that is to be replaced by one with TLS, or with other certificates."""
        return self.ready and self._identity.tls.is_outdated(self._shown.chains)

    @property
    def due(self) -> bool:
        """Whether it is to be renewed now: it is outdated, and the attempt before was not just now."""
        return self.outdated and asyncio.get_running_loop().time() >= self._attempts.due_s

    def end_outdated(self) -> None:
        """End a session that could not be renewed long after one of its CAs was withdrawn."""
        now = asyncio.get_running_loop().time()
        if self._shown.outdated_too_long(self._identity.tls, now) and self._connection is not None:
            self._connection.close(OUTDATED)

    async def renew(self) -> None:
        """Replace the session by one with the newest certificate, at a moment when nothing is under way.

        The present one goes on when there is no such moment, or the other side refuses the next one.
        """
        before = self.sessions
        try:
            await self._replace()
        except OSError as error:
            self._log_once(f"the link goes on as it is: {error}")
        self._attempts.note(done=self.sessions > before, now=asyncio.get_running_loop().time())

    async def _replace(self) -> None:
        contexts = self._identity.tls.dialling()
        if contexts is None:
            return
        async with asyncio.timeout(limits.HELLO_SECONDS_MAX):
            made = await self._encrypted(contexts)
        self._shown_next = Shown(asyncio.get_running_loop().time(), (contexts.chain, made.chain))
        try:
            if await self._is_quiet():
                await self._greet_again(made)
            else:
                made.abort()
                self._log_once("the link goes on as it is: it was busy all the time")
        finally:
            self._release()
            self._events.link_resumed(self)

    async def _is_quiet(self) -> bool:
        """Hold traffic back until nothing is under way; return whether that came in time.

        Answers to requests may need operations that this member sends, so these go on until the last answer.
        """
        end = asyncio.get_running_loop().time() + self._attempts.hold_seconds
        self._hold = Hold.REQUESTS
        if not await self._comes(end, lambda: not (self.ready and self.requests)):
            return False
        # Once it is answered, the other side has read everything before.
        self.send(peer.Heartbeat(asyncio.get_running_loop().time()))
        self._hold = Hold.ALL
        quiet = await self._comes(end, lambda: not (self.ready and (self.in_flight or self._heartbeats)))
        return quiet and self.ready

    async def _greet_again(self, made: Encrypted) -> None:
        successor = self._successor = Connection(self)
        try:
            made.carry(successor)
        except ConnectionError:
            self._successor = None
            raise
        end = asyncio.get_running_loop().time() + limits.RENEW_ANSWER_SECONDS_MAX
        done = await self._comes(end, lambda: self.ready and successor is not self._successor)
        if not done and successor is self._successor and self._connection is not None:
            # The other side may have ended the session, so it does not go on. Nothing is under way on it.
            self._connection.close("the greeting of the next session is not answered yet")

    async def _comes(self, end: float, condition: Callable[[], bool]) -> bool:
        """Return whether it holds before that time."""
        while not condition():
            if asyncio.get_running_loop().time() >= end:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    def _release(self) -> None:
        """Send what has waited, on the session that goes on."""
        self._hold = Hold.NOTHING
        for message in self._held.take():
            self.send(message)

    def _log_once(self, text: str) -> None:
        """Log a failure once, not at each attempt."""
        if text != self._last_logged:
            self._last_logged = text
            log.warning("member %d at %s: %s", self.member, self.host, text)

    def opened(self, connection: Connection) -> None:
        identity = self._identity
        if connection is not self._successor:
            self._connection = connection
        me, formats = identity.me, identity.formats
        hello = peer.Hello(
            peer.GREETING_FORMAT,
            identity.cluster,
            me,
            identity.uuid,
            self.uuid,
            formats,
            identity.incarnation,
        )
        connection.send(hello)
        asyncio.get_running_loop().call_later(limits.HELLO_SECONDS_MAX, self._check_welcome, connection)

    def _check_welcome(self, connection: Connection) -> None:
        if not self.ready and self._connection is connection:
            connection.close("no answer to the greeting")

    def received(self, connection: Connection, message: peer.Message) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        if connection is self._successor:
            self._received_early(connection, message)
        elif self.ready and connection is self._connection:
            self._heartbeats = max(0, self._heartbeats - isinstance(message, peer.Lease))
            self._events.link_message(self, message)
        elif isinstance(message, peer.Welcome) and message.uuid == self.uuid:
            self._greeted(connection, message.formats)
        elif isinstance(message, peer.HelloRejected):
            self._log_once(f"refused: {message.code}: {message.detail}")
        else:
            connection.close(f"unexpected {type(message).__name__} before the greeting")

    def _received_early(self, connection: Connection, message: peer.Message) -> None:
        """Keep it until the session before has ended: what the other side sent on that one comes first."""
        if isinstance(message, peer.HelloRejected):
            self._log_once(f"refused: {message.code}: {message.detail}")
            return
        if isinstance(message, peer.Welcome):
            connection.greeted()
        self._early.append(message)

    def _greeted(self, connection: Connection, formats: FormatRange) -> None:
        common = self._identity.formats.common(formats)
        if common is None:
            text = f"UNKNOWN_FORMAT: it speaks {formats}, this member {self._identity.formats}"
            self._log_once(f"refused: {text}: upgrade the older one")
            connection.close(text)
            return
        self.ready, self.format = True, common
        self.sessions += 1
        connection.greeted()
        self._last_logged = ""
        log.info("member %d at %s: connected, format %d", self.member, self.host, common)
        self._release()
        self._events.link_ready(self)

    def _succeed(self, connection: Connection) -> None:
        """Let the next session begin on this connection: the one before has ended."""
        self._connection, self._successor, self._shown = connection, None, self._shown_next
        early, self._early = self._early, []
        for message in early:
            if connection is self._connection:
                self.received(connection, message)

    def require(self, features: int) -> None:
        """End a session of a format below the cluster's features: the other side lacks what is in force."""
        if self.ready and self.format < features and self._connection is not None:
            self._connection.close(_lacks(self.format, features))

    def drained(self, connection: Connection) -> None:
        self._events.link_drained(self)

    def closed(self, connection: Connection, reason: str) -> None:
        if connection is self._successor:
            self._successor, self._early = None, []
            self._log_once(f"the session goes on as it is: {reason}")
        elif connection is self._connection:
            if self.ready and self._successor is None:
                self._log_once(f"disconnected: {reason}")
            self._connection = None
            self._end_session()
            if self._successor is None:
                self._ended.set()
            else:
                self._succeed(self._successor)

    def _end_session(self) -> None:
        was_ready, self.ready = self.ready, False
        self.behind.clear()
        self.in_flight.clear()
        self.in_flight_bytes = self._heartbeats = 0
        lost = self.take_requests()
        if was_ready or lost:
            self._events.link_lost(self, lost)

    def take_requests(self) -> list[Request]:
        """Return forwarded requests without a reply; later replies no longer match any."""
        requests, self.requests = list(self.requests.values()), {}
        return requests

    @property
    def takes_requests(self) -> bool:
        """Return whether requests may be sent now: the session stays until they are answered."""
        return self.ready and self._hold is Hold.NOTHING

    @property
    def has_room(self) -> bool:
        """Return whether more operations may be sent now."""
        return (
            self.ready
            and self._hold is not Hold.ALL
            and self._connection is not None
            and not self._connection.full
            and self.in_flight_bytes < limits.PEER_WINDOW_BYTES
            and len(self.in_flight) < limits.PEER_WINDOW_MESSAGES
        )

    @property
    def full(self) -> bool:
        """Whether the member does not read, so that what may be lost should not be sent."""
        if self._hold is Hold.ALL:
            return self._held.full
        return self._connection is None or not self.ready or self._connection.full

    def send(self, message: peer.Message, size: int = 0, *, now: bool = False) -> None:
        """Send it, or keep it while all waits. `size` is that of long content; `now`: the turn's last one."""
        if self._hold is Hold.ALL:
            self._held.add(message, size)
        elif self._connection is not None and self.ready:
            self._heartbeats += isinstance(message, peer.Heartbeat)
            self._connection.send(message, now=now)

    def send_append(self, items: list[peer.AppendItem], size: int) -> None:
        self.in_flight.append(size)
        self.in_flight_bytes += size
        self.send(peer.Append(items), now=True)

    def acknowledged(self) -> None:
        """Handle the acknowledgement of the oldest Append."""
        if self.in_flight:
            self.in_flight_bytes -= self.in_flight.popleft()

    async def stop(self) -> None:
        for connection in (self._successor, self._connection):
            if connection is not None:
                connection.close("link closed")
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class InboundConnections:
    """Connections dialed by others: at most one per member, and a few that have not sent a greeting yet."""

    def __init__(self, identity: Identity, take: Callable[["Inbound", peer.Message], None]) -> None:
        self.identity = identity
        self.take = take
        self._greeting: dict[Inbound, None] = {}
        self._members: dict[int, Inbound] = {}

    def accept(self) -> Connection:
        """Return the handler of a connection that is about to open."""
        return Connection(Inbound(self))

    def add(self, inbound: "Inbound") -> None:
        """Add a connection without a greeting, replacing the oldest such one: members greet as soon as
        they connect."""
        if len(self._greeting) >= limits.GREETINGS_MAX:
            next(iter(self._greeting)).close(f"{limits.GREETINGS_MAX} newer connections wait for a greeting")
        self._greeting[inbound] = None

    def greeted(self, inbound: "Inbound") -> None:
        """Replace the member's previous connection: it dials again only after losing that one, which may
        not be noticed here."""
        self._greeting.pop(inbound, None)
        before = self._members.get(inbound.sender)
        self._members[inbound.sender] = inbound
        if before is not None:
            before.close("the member dialled again")

    def remove(self, inbound: "Inbound") -> None:
        self._greeting.pop(inbound, None)
        if self._members.get(inbound.sender) is inbound:
            del self._members[inbound.sender]

    def require(self, features: int) -> None:
        """As `Link.require`, for all of them."""
        for inbound in [each for each in self._members.values() if each.format < features]:
            inbound.close(_lacks(inbound.format, features))

    def require_tls(self) -> None:
        """End the sessions without TLS."""
        for inbound in [each for each in self._members.values() if each.plain]:
            inbound.close(REQUIRED)

    def end_outdated(self) -> None:
        """End sessions that the other side has not renewed long after its CA was withdrawn: it may have no
        certificate that is valid now."""
        now = asyncio.get_running_loop().time()
        for inbound in self.sessions():
            if inbound.shown.outdated_too_long(self.identity.tls, now):
                inbound.close(OUTDATED)

    def session(self, member: int) -> "Inbound | None":
        """Return the connection that a member dialed, if there is one."""
        return self._members.get(member)

    def sessions(self) -> list["Inbound"]:
        """Return the connections that members dialed."""
        return list(self._members.values())

    def close_all(self, reason: str) -> None:
        for inbound in [*self._greeting, *self._members.values()]:
            inbound.close(reason)

    def __len__(self) -> int:
        return len(self._greeting) + len(self._members)


def _lacks(number: int, features: int) -> str:
    return f"the session has format {number}, the cluster uses {features} now"


FORWARDS = (peer.Forward, peer.ForwardTracked, peer.ForwardScan, peer.ForwardCount, peer.ForwardClear)
_Forward = peer.Forward | peer.ForwardScan | peer.ForwardCount | peer.ForwardClear


def forwarded_bytes(message: peer.Message) -> int:
    """Estimate the memory of a waiting forwarded request, in bytes."""
    commands = message.commands if isinstance(message, peer.Forward) else []
    if isinstance(message, peer.ForwardTracked):
        commands = [*commands, message.tracked]
    return limits.REQUEST_OVERHEAD_BYTES + sum(
        len(arg) + ARGUMENT_BYTES for args in commands for arg in (*args, b"")
    )


class Inbound:
    """A connection dialed by another member.

    Its greeting is checked first; an invalid one closes the connection.
    """

    def __init__(self, all: InboundConnections) -> None:
        self._all = all
        self._connection: Connection | None = None
        self._forwards: deque[peer.Message] = deque()
        self._forwards_bytes = 0
        self._pushed_bytes = 0
        self.shown = Shown()
        self.sender = -1
        self.incarnation = UNKNOWN_INCARNATION
        self.format = FIRST

    def opened(self, connection: Connection) -> None:
        self._connection = connection
        self.shown = Shown(asyncio.get_running_loop().time(), (connection.chain,) if connection.chain else ())
        self._all.add(self)
        asyncio.get_running_loop().call_later(limits.HELLO_SECONDS_MAX, self._check_greeting)

    def _check_greeting(self) -> None:
        if self.sender < 0 and self._connection is not None:
            self._connection.close("no greeting")

    def received(self, connection: Connection, message: peer.Message) -> None:
        if self.sender >= 0 and isinstance(message, FORWARDS) and (connection.full or self._forwards):
            self._wait(message)
        elif self.sender >= 0:
            self._all.take(self, message)
        elif isinstance(message, peer.Hello):
            self._greet(connection, message)
        else:
            connection.close(f"{type(message).__name__} from {connection.peer} before the greeting")

    def _greet(self, connection: Connection, hello: peer.Hello) -> None:
        rejection = self._rejection(connection, hello)
        if rejection is not None:
            connection.send(rejection)
            connection.close(f"greeting from {connection.peer} refused: {rejection.code}: {rejection.detail}")
            return
        identity = self._all.identity
        self.sender, self.format = hello.sender, min(hello.formats.most, identity.formats.most)
        self.incarnation = hello.incarnation or UNKNOWN_INCARNATION
        self._all.greeted(self)
        connection.greeted()
        connection.send(peer.Welcome(identity.uuid, identity.formats))

    def _rejection(self, connection: Connection, hello: peer.Hello) -> peer.HelloRejected | None:
        identity = self._all.identity
        name = identity.name_of(hello.sender)
        if refusal := identity.tls.refusal(connection.certificate, connection.chain, name):
            return peer.HelloRejected("WRONG_CERTIFICATE", refusal)
        if hello.format != peer.GREETING_FORMAT or identity.formats.common(hello.formats) is None:
            sides = f"member {hello.sender} speaks {hello.formats}, member {identity.me} {identity.formats}"
            return peer.HelloRejected("UNKNOWN_FORMAT", f"{sides}: upgrade the older one")
        if hello.cluster != identity.cluster:
            return peer.HelloRejected("WRONG_CLUSTER", f"this is cluster {identity.cluster}")
        if hello.recipient_uuid != identity.uuid:
            return peer.HelloRejected("WRONG_MEMBER", f"this is member {identity.uuid}")
        if hello.sender < 0 or identity.uuid_of(hello.sender) != hello.sender_uuid:
            return peer.HelloRejected(
                "UNKNOWN_MEMBER", f"index {hello.sender} is not {hello.sender_uuid} here"
            )
        return None

    def send(self, message: peer.Message, *, now: bool = False) -> None:
        if self._connection is not None:
            self._connection.send(message, now=now)

    @property
    def ended(self) -> bool:
        return self._connection is None

    @property
    def plain(self) -> bool:
        """Whether it is a connection without TLS."""
        return self._connection is not None and self._connection.certificate is None

    @property
    def full(self) -> bool:
        """Whether the member does not read."""
        return self._connection is not None and self._connection.full

    def push(self, message: peer.Message, size: int) -> bool:
        """Send what the member did not request; return False when it has ended.

        A member that reads too slowly is disconnected: it takes what it misses for lost.
        """
        connection = self._connection
        if connection is None:
            return False
        self._pushed_bytes = self._pushed_bytes + size + PUSH_BYTES if connection.full else 0
        if self._pushed_bytes > limits.PEER_PUSHES_BYTES_MAX:
            connection.close(f"member {self.sender} does not read: {self._pushed_bytes} bytes wait for it")
            return False
        connection.send(message)
        return True

    def _wait(self, message: _Forward) -> None:
        """Queue the request until replies to earlier ones are read."""
        size = forwarded_bytes(message)
        if self._forwards_bytes + size > limits.FORWARDS_WAITING_BYTES_MAX:
            text = f"requests of {self._forwards_bytes} bytes wait until this member's answers are read"
            self.send(peer.Forwarded(message.id, "Unavailable", text, b""))
            return
        self._forwards.append(message)
        self._forwards_bytes += size

    def drained(self, connection: Connection) -> None:
        """Handle read replies: take waiting requests, in order."""
        while self._forwards and not connection.full:
            message = self._forwards.popleft()
            self._forwards_bytes -= forwarded_bytes(message)
            self._all.take(self, message)

    def closed(self, connection: Connection, reason: str) -> None:
        self._connection = None
        self._all.remove(self)
        if self.sender < 0:
            log.warning("connection closed: %s", reason)
        elif connection.invalid:
            log.error("member %d: connection closed: %s", self.sender, reason)

    def close(self, reason: str, *, invalid: bool = False) -> None:
        if self._connection is not None:
            self._connection.close(reason, invalid=invalid)
