"""CLIENT TRACKING of one connection: which of its reads are tracked, and how it hears of changes.

The replies are those of Redis 7.0. Messages of changes are written between replies (`push`). A connection
that reads too slowly gets one message to drop everything, instead of a queue.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from stele.core.kv.acl import User
from stele.core.kv.commands import ARITIES, WRITES, Failure, Simple, parse_integer, text_of, wrong_number
from stele.core.kv.transaction import EXEC
from stele.member.resp.push import PushQueue
from stele.member.resp.transactions import Transaction
from stele.ports.key_value_service import KeyValueService
from stele.ports.near_caches import TooManyBroadcastsError, Track
from stele.wire.resp import Answer, Request, SetOf, encode_push

CHANNEL = b"__redis__:invalidate"
SOURCE = "tracking"

CLIENT_PREFIXES_MAX = 256
"""Prefixes of one connection: each is compared with all others."""

INVALIDATIONS_BYTES_MAX = 256 * 1024
"""Messages of changes that wait for one connection; above it they become one message to drop everything."""

OK = Simple("OK")
_SYNTAX = Failure("ERR", "syntax error")


class Output(Protocol):
    """Where messages to a client wait."""

    @property
    def pushes(self) -> PushQueue: ...


class Session(Protocol):
    """The part of a client's session that is used here."""

    id: int
    keyspace: bytes
    resp3: bool
    only_pubsub: bool
    guard: User | None
    transaction: Transaction
    tracking: "Tracking | None"

    @property
    def connection(self) -> Output | None: ...


class Server(Protocol):
    """The part of the RESP server that is used here."""

    store: KeyValueService

    def sessions(self) -> Iterable[Session]: ...


class Tracking:
    """What a connection has asked for with CLIENT TRACKING ON; a ports.near_caches.CachingClient.

    `caching`: CLIENT CACHING is in effect for the next command, or for the transaction that it begins.
    `redirect` is the connection that hears of changes, if it is another one.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.options: frozenset[bytes] = frozenset()
        self.redirect: Session | None = None
        self.caching = self._spent = self.broken = False

    @property
    def id(self) -> int:
        return self._session.id

    @property
    def keyspace(self) -> bytes:
        return self._session.keyspace

    # -- requests

    def next(self, name: bytes) -> bool:
        """Return whether what the next request reads is tracked; `name` is in upper case."""
        if self._spent and self._session.transaction.queue is None:
            self.caching = self._spent = False
        self._spent = self.caching and name != b"CLIENT"
        if b"OPTIN" in self.options:
            return self.caching
        return not (b"OPTOUT" in self.options and self.caching)

    def begin(self, store: KeyValueService, partition: int, keys: Sequence[bytes]) -> Track | None:
        """Begin a request that reads these keys; None when the owner has to remember nothing."""
        noloop = b"NOLOOP" in self.options
        if not keys and not noloop:
            return None
        tracked = [] if b"BCAST" in self.options else keys
        return store.near_caches.begin(self, partition, tracked, noloop=noloop)

    def keys(self, commands: Iterable[Request]) -> list[bytes]:
        """Return the keys that single-key commands for an owner read."""
        found: list[bytes] = []
        for command in commands:
            if command[0] == EXEC and self._session.transaction.queue is not None:
                found += self.keys(self._session.transaction.queue.commands)
            elif (name := command[0].upper()) in ARITIES and name not in WRITES:
                found.append(command[1])
        return found

    # -- messages

    def keyspace_changed(self) -> None:
        """Have everything dropped that was broadcast: messages have keys without their keyspace."""
        if b"BCAST" in self.options:
            self.invalidate_all()

    def invalidate(self, keys: Sequence[bytes]) -> None:
        """Have keys dropped, after the replies to all requests that have begun.

        Of broadcasts, only keys that the user may know of: the others it cannot have read.
        """
        guard = self._session.guard
        if guard is not None and b"BCAST" in self.options:
            keys = [key for key in keys if guard.may_know(self.keyspace, key)]
        if keys:
            self._send(keys)

    def invalidate_all(self) -> None:
        """Have everything dropped."""
        self._send(None)

    def _send(self, keys: Sequence[bytes] | None) -> None:
        receiver = self.redirect or self._session
        if receiver.connection is None:
            self._broken()
        elif receiver.resp3 or (self.redirect is not None and receiver.only_pubsub):
            _queue(receiver.connection.pushes, keys, receiver.resp3)

    def _broken(self) -> None:
        """Say that the connection that should hear of changes has ended."""
        mine = self._session
        if self.redirect is not None and mine.connection is not None:
            self.broken = True
            if mine.resp3:
                message = encode_push([b"tracking-redir-broken", self.redirect.id], resp3=True)
                mine.connection.pushes.replace(message, SOURCE)


def _queue(pushes: PushQueue, keys: Sequence[bytes] | None, resp3: bool) -> None:
    message = _encode(keys, resp3)
    if keys is None or pushes.bytes_of(SOURCE) + len(message) > INVALIDATIONS_BYTES_MAX:
        pushes.replace(_encode(None, resp3), SOURCE)
    else:
        pushes.send(message, SOURCE)


def _encode(keys: Sequence[bytes] | None, resp3: bool) -> bytes:
    items: list[Answer] = [b"invalidate"] if resp3 else [b"message", CHANNEL]
    return encode_push([*items, None if keys is None else list(keys)], resp3)


# -- commands


class _RefusedError(Exception):
    """The request is answered with an error and changes nothing."""


def tracking(server: Server, session: Session, request: Request) -> Answer:
    """Answer CLIENT TRACKING."""
    if len(request) < 3:
        return wrong_number(b"client|tracking")
    try:
        options, prefixes, redirect = _parse(server, request)
        switch = request[2].upper()
        if switch == b"ON":
            _check(session.tracking, options, prefixes)
            _check_prefixes(_prefixes_of(server, session), prefixes)
            _turn_on(server, session, options, prefixes, redirect)
        elif switch == b"OFF":
            turn_off(server, session)
        else:
            return _SYNTAX
    except (_RefusedError, TooManyBroadcastsError) as refused:
        return Failure("ERR", str(refused))
    return OK


def _parse(server: Server, request: Request) -> tuple[frozenset[bytes], list[bytes], Session | None]:
    options: set[bytes] = set()
    prefixes: list[bytes] = []
    redirect: Session | None = None
    rest = iter(request[3:])
    for raw in rest:
        word = raw.upper()
        if word in (b"REDIRECT", b"PREFIX"):
            value = next(rest, None)
            if value is None:
                raise _RefusedError("syntax error")
            if word == b"PREFIX":
                prefixes.append(value)
            elif redirect is not None:
                raise _RefusedError("A client can only redirect to a single other client")
            else:
                redirect = _find(server, value)
        elif word in (b"BCAST", b"OPTIN", b"OPTOUT", b"NOLOOP"):
            options.add(word)
        else:
            raise _RefusedError("syntax error")
    return frozenset(options), prefixes, redirect


def _find(server: Server, raw: bytes) -> Session:
    try:
        id = parse_integer(raw)
    except ValueError as error:
        raise _RefusedError(str(error)) from None
    found = next((each for each in server.sessions() if each.id == id), None)
    if found is None:
        raise _RefusedError("The client ID you want redirect to does not exist")
    return found


_SWITCHED = (
    "You can't switch {} mode{} before disabling tracking for this client, and then re-enabling it with a "
    "different mode."
)


def _check(before: Tracking | None, options: frozenset[bytes], prefixes: list[bytes]) -> None:
    """Raise _RefusedError for options that exclude each other, or the present mode."""
    known = frozenset() if before is None else before.options
    if prefixes and b"BCAST" not in options:
        raise _RefusedError("PREFIX option requires BCAST mode to be enabled")
    if before is not None and (b"BCAST" in known) is not (b"BCAST" in options):
        raise _RefusedError(_SWITCHED.format("BCAST", " on/off"))
    if b"BCAST" in options and not options.isdisjoint({b"OPTIN", b"OPTOUT"}):
        raise _RefusedError("OPTIN and OPTOUT are not compatible with BCAST")
    if {b"OPTIN", b"OPTOUT"} <= options:
        raise _RefusedError("You can't specify both OPTIN mode and OPTOUT mode")
    if {b"OPTIN", b"OPTOUT"} <= options | known:
        raise _RefusedError(_SWITCHED.format("OPTIN/OPTOUT", ""))


def _prefixes_of(server: Server, session: Session) -> list[bytes]:
    """Return the prefixes of a connection, in their order as bytes."""
    return [] if session.tracking is None else server.store.near_caches.prefixes_of(session.tracking)


def _check_prefixes(existing: list[bytes], prefixes: list[bytes]) -> None:
    if len(existing) + len(prefixes) > CLIENT_PREFIXES_MAX:
        raise _RefusedError(
            f"{len(existing) + len(prefixes)} prefixes of this client exceed the limit of"
            f" {CLIENT_PREFIXES_MAX}; use shorter ones"
        )
    if not any(later.startswith(each) for each, later in pairwise(sorted([*existing, *prefixes]))):
        return
    text = "Prefix '{}' overlaps with {} prefix '{}'. Prefixes for a single client must not overlap."
    for at, prefix in enumerate(prefixes):
        for kind, others in (("an existing", existing), ("another provided", prefixes[at + 1 :])):
            other = next((each for each in others if _overlap(each, prefix)), None)
            if other is not None:
                raise _RefusedError(text.format(text_of(prefix), kind, text_of(other)))


def _overlap(one: bytes, other: bytes) -> bool:
    return one.startswith(other) or other.startswith(one)


def _turn_on(
    server: Server,
    session: Session,
    options: frozenset[bytes],
    prefixes: list[bytes],
    redirect: Session | None,
) -> None:
    state, caches = session.tracking or Tracking(session), server.store.near_caches
    if b"BCAST" in options:
        caches.broadcast(state, prefixes or [b""])
    if session.tracking is None:
        session.tracking = state
        caches.open(state)
    state.options, state.redirect, state.broken = options, redirect, False


def turn_off(server: Server, session: Session) -> None:
    """End the tracking of a connection, if there is any."""
    if session.tracking is not None:
        server.store.near_caches.close(session.tracking)
        session.tracking = None


def caching(server: Server, session: Session, request: Request) -> Answer:
    """Answer CLIENT CACHING."""
    if len(request) != 3:
        return wrong_number(b"client|caching")
    state, word = session.tracking, request[2].upper()
    if state is None:
        text = (
            "CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode"
        )
        return Failure("ERR", f"{text} enabled")
    mode = _CACHING.get(word)
    if mode is None:
        return _SYNTAX
    if mode not in state.options:
        text = (
            f"CLIENT CACHING {word.decode()} is only valid when tracking is enabled in {mode.decode()} mode."
        )
        return Failure("ERR", text)
    state.caching = True
    return OK


_CACHING: Mapping[bytes, bytes] = {b"YES": b"OPTIN", b"NO": b"OPTOUT"}


def get_redirection(server: Server, session: Session, request: Request) -> Answer:
    """Answer CLIENT GETREDIR."""
    if len(request) != 2:
        return wrong_number(b"client|getredir")
    state = session.tracking
    if state is None:
        return -1
    return 0 if state.redirect is None else state.redirect.id


def tracking_info(server: Server, session: Session, request: Request) -> Answer:
    """Answer CLIENT TRACKINGINFO."""
    if len(request) != 2:
        return wrong_number(b"client|trackinginfo")
    state = session.tracking
    return {
        b"flags": SetOf([b"off"] if state is None else _flags(state)),
        b"redirect": get_redirection(server, session, request),
        b"prefixes": _prefixes_of(server, session),
    }


TRACKING_COMMANDS: Mapping[bytes, Callable[[Server, Session, Request], Answer]] = {
    b"TRACKING": tracking,
    b"CACHING": caching,
    b"GETREDIR": get_redirection,
    b"TRACKINGINFO": tracking_info,
}


def _flags(state: Tracking) -> list[bytes]:
    flags = [b"on"]
    for option, also in (
        (b"BCAST", b""),
        (b"OPTIN", b"caching-yes"),
        (b"OPTOUT", b"caching-no"),
        (b"NOLOOP", b""),
    ):
        if option in state.options:
            flags += [option.lower(), *([also] if also and state.caching else [])]
    return [*flags, *([b"broken_redirect"] if state.broken else [])]
