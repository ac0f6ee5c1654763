"""The state of one connection, and what its commands need of the server."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from stele.core.kv.acl import User
from stele.core.kv.commands import Failure, parse_integer
from stele.core.kv.keyspaces import undeclared_failure
from stele.core.kv.local_cache import Misses
from stele.core.kv.seen import SeenOperations
from stele.core.kv.written import WrittenOperations
from stele.member.resp.access import DEFAULT, Access, Account
from stele.member.resp.cluster_answers import ClusterAnswers
from stele.member.resp.pubsub import Connection as PushConnection
from stele.member.resp.pubsub import PubSub, Subscriptions
from stele.member.resp.scan import Positions
from stele.member.resp.slot_changes import SlotChanges
from stele.member.resp.tracking import Tracking
from stele.member.resp.transactions import Transaction
from stele.member.turn_budget import TurnBudget
from stele.ports.key_value_service import KeyValueService
from stele.wire.resp import Answer, Request


class Connection(PushConnection, Protocol):
    """Where messages to a client wait, and what changes of its rights do to it."""

    def cut(self) -> None: ...

    def update_access(self) -> None: ...


@dataclass(slots=True)
class ClientSession:
    """State of one connection. `cluster`: it speaks the Redis Cluster protocol.

    `connection` has the queue of messages to it, and is None once it has ended; `subscriptions` is None until
    it subscribes; `only_pubsub`: as in Redis, a subscriber of RESP2 may do little else. `seen` is what it has
    seen, of a connection that backups may answer; `reads`: it is on the port for that. `written` is what it
    wrote in Async keyspaces, None until it does; `misses` are those in keyspaces with mode Invalidation.
    `withheld` counts the
    replies that are not sent from now on (CLIENT REPLY). `guard` is what its requests are checked with, None
    when it may do all; `account` is the user that it is, None when it has not authenticated, by `credential`,
    one of the user's. `tls` is the version of TLS, empty without; `certificate` has the names in that of the
    client.
    """

    id: int
    address: str
    keyspace: bytes = b"default"
    database: bytes = b"0"
    name: bytes = b""
    library: dict[bytes, bytes] = field(default_factory=dict)
    resp3: bool = False
    quitting: bool = False
    cluster: bool = False
    reads: bool = False
    transaction: Transaction = field(default_factory=Transaction)
    seen: SeenOperations | None = None
    written: WrittenOperations | None = None
    misses: Misses = field(default_factory=Misses)
    connection: Connection | None = None
    subscriptions: Subscriptions | None = None
    only_pubsub: bool = False
    tracking: Tracking | None = None
    withheld: float = 0
    user: bytes = DEFAULT
    guard: User | None = None
    account: Account | None = None
    credential: str = ""
    tls: str = ""
    certificate: tuple[str, ...] = ()

    @property
    def hears(self) -> bool:
        """Whether it gets anything without asking."""
        return bool(self.subscriptions) or self.tracking is not None

    def disconnected(self) -> None:
        """Forget the connection, which has ended."""
        self.connection = None

    def update_mode(self) -> None:
        """Set `only_pubsub` after a change of the protocol or of the subscriptions."""
        self.only_pubsub = not self.resp3 and bool(self.subscriptions)

    def withholds(self) -> bool:
        """Count one reply; return whether the client asked not to get it (CLIENT REPLY)."""
        withheld = self.withheld > 0
        self.withheld -= withheld
        return withheld

    def reset(self) -> None:
        """Return to the state of a new connection."""
        self.keyspace, self.database, self.name, self.resp3 = b"default", b"0", b"", False
        self.transaction.reset()
        self.misses = Misses()
        self.withheld = 0
        if self.seen is not None:
            self.seen.set_readonly(self.reads)

    def remember(self, seen: SeenOperations) -> SeenOperations:
        """Remember from now on what it sees."""
        self.seen = seen
        return seen

    def remember_writes(self, written: WrittenOperations) -> WrittenOperations:
        """Remember from now on what it writes in Async keyspaces."""
        self.written = written
        return written

    def line(self) -> str:
        """Return its line of CLIENT LIST."""
        parts = {"id": str(self.id), "addr": self.address, "name": self.name.decode("ascii", "replace")}
        parts |= {"db": self.database.decode(), "resp": "3" if self.resp3 else "2"}
        parts["user"] = self.user.decode("ascii", "replace")
        parts["tls"] = self.tls or "no"
        parts |= (self.subscriptions or Subscriptions()).facts()
        return " ".join(f"{key}={value}" for key, value in parts.items())


class Server(Protocol):
    """The part of the RESP server that session commands use."""

    access: Access
    store: KeyValueService
    positions: Positions
    turn_budget: TurnBudget
    pubsub: PubSub
    cluster_port: int
    read_port: int
    slot_changes: SlotChanges
    cluster_answers: ClusterAnswers
    stopping: bool

    def seen_of(self, session: ClientSession) -> SeenOperations | None: ...

    def written_of(self, session: ClientSession) -> WrittenOperations | None: ...

    def read_backups(self, session: ClientSession, readonly: bool) -> None: ...

    def sessions(self) -> Iterable[ClientSession]: ...

    def facts(self) -> dict[str, str | int]: ...


Command = Callable[[Server, ClientSession, Request], Answer | Awaitable[Answer]]


def is_local(server: Server, session: ClientSession) -> bool:
    """Return whether the connection's keyspace has mode Invalidation: nothing of it is in any partition."""
    return session.keyspace in server.store.local.keyspaces


def undeclared(server: Server, keyspace: bytes) -> Failure | None:
    """Return the error for a keyspace that clients may not use because no Keyspace declares it."""
    only = server.store.only
    return undeclared_failure(keyspace) if only and keyspace not in only else None


class RefusedError(Exception):
    """The request is answered with `-ERR <text>` and changes nothing."""


def parse_number(raw: bytes, text: str) -> int:
    """Return an argument that is a number. Raises RefusedError with the text."""
    try:
        return parse_integer(raw)
    except ValueError:
        raise RefusedError(text) from None
