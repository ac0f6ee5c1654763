"""The RESP server, through which any Redis client can read and write all data at any member.

It has the listening sockets, the open connections (`connection`) and what they share.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count

from stele.adapters.tls.acceptor import TlsAcceptor
from stele.core.control.member_settings import ClientTls
from stele.core.kv.commands import Failure
from stele.core.kv.seen import SeenOperations, SeenTotal
from stele.core.kv.written import WrittenOperations, WrittenTotal
from stele.member.resp.access import NOBODY, Access
from stele.member.resp.batching import BatchCollector, ConnectionBatch, leading
from stele.member.resp.budget import ReplyBytes
from stele.member.resp.cluster_answers import ClusterAnswers
from stele.member.resp.connection import ClientConnection, ClientPort
from stele.member.resp.failures import failure_of
from stele.member.resp.limits import RespServerLimits
from stele.member.resp.pubsub import PubSub
from stele.member.resp.push import Pushes
from stele.member.resp.scan import Positions
from stele.member.resp.session import ClientSession
from stele.member.resp.slot_changes import SlotChanges
from stele.member.resp.tracking import turn_off
from stele.member.turn_budget import TurnBudget
from stele.ports.key_value_service import KeyValueService
from stele.wire.resp import Request, encode_all

log = logging.getLogger(__name__)

LINGER_LOOK_SECONDS = 0.01
"""Interval of checks, while the member stops, whether clients have read their replies."""


async def start_resp_server(
    store: KeyValueService,
    hosts: str | Sequence[str],
    port: int,
    limits: RespServerLimits | None = None,
    *,
    turn_budget: TurnBudget | None = None,
    pubsub: PubSub | None = None,
    access: Access | None = None,
    tls: TlsAcceptor | None = None,
    first_id: int = 1,
) -> "RespServer":
    """Listen for clients; port 0 picks a free one (see `port`). Raises OSError when it cannot listen."""
    server = RespServer(
        store, limits or RespServerLimits(), turn_budget, pubsub, access=access, tls=tls, first_id=first_id
    )
    await server.listen(hosts, port)
    return server


class RespServer:
    """The listening socket and its connections. `waiting_bytes` is the sum over all connections.

    `port`, `cluster_port` and `read_port` are the ones in use, 0 for none.
    """

    def __init__(
        self,
        store: KeyValueService,
        limits: RespServerLimits,
        turn_budget: TurnBudget | None = None,
        pubsub: PubSub | None = None,
        *,
        access: Access | None = None,
        tls: TlsAcceptor | None = None,
        first_id: int = 1,
    ) -> None:
        """`turn_budget` is the one that the store uses, if any; `pubsub` one that reaches other members.

        Without `access`, every client may do everything; without `tls`, all connections are plain.

        Connections are numbered from `first_id` on, so that an id of another member is not one here.
        """
        self.store = store
        self.limits = limits
        self.positions = Positions()
        self.replies = ReplyBytes()
        self.turn_budget = turn_budget or TurnBudget(asyncio.get_running_loop().call_soon)
        self.pushes = Pushes(self.turn_budget)
        self.slot_changes = SlotChanges(self)
        self.cluster_answers = ClusterAnswers(self.turn_budget)
        self.pubsub = pubsub or PubSub(self.turn_budget)
        self.access = access or Access()
        self.access.connect(self.sessions)
        self.tls = tls
        if tls is not None:
            tls.connect(self._close_plain)
        self.collector = BatchCollector(store, failure_of, self.turn_budget, self.replies)
        self.waiting_bytes = self.port = self.cluster_port = self.read_port = 0
        self._aside, self._only = store.aside, store.only
        self._asynchronous = store.asynchronous
        self._seen_total, self._written_total = SeenTotal(), WrittenTotal()
        self._ids = count(first_id)
        self._open: set[ClientConnection] = set()
        self._unanswered: list[ClientConnection] = []
        self.stopping = False
        self._listeners: list[asyncio.Server] = []
        self._counts = {
            "total_connections_received": 0,
            "total_commands_processed": 0,
        }

    async def listen(self, hosts: str | Sequence[str], port: int) -> None:
        """Start to accept clients of any member, whose requests are forwarded to owners."""
        self.port = await self._listen(hosts, port, ClientPort.ANY)

    async def listen_cluster(self, hosts: str | Sequence[str], port: int) -> None:
        """Start to accept clients that speak the Redis Cluster protocol."""
        self.cluster_port = await self._listen(hosts, port, ClientPort.CLUSTER)

    async def listen_reads(self, hosts: str | Sequence[str], port: int) -> None:
        """Start to accept such clients on the port where backups answer reads, without READONLY too."""
        self.read_port = await self._listen(hosts, port, ClientPort.READ)

    async def _listen(self, hosts: str | Sequence[str], port: int, kind: ClientPort) -> int:
        loop = asyncio.get_running_loop()
        backlog = self.limits.backlog

        def plain() -> asyncio.Protocol:
            return ClientConnection(self, kind)

        make = plain if self.tls is None else partial(self.tls.accept, plain)
        made = await loop.create_server(make, hosts, port, backlog=backlog)
        self._listeners.append(made)
        return int(made.sockets[0].getsockname()[1])

    def _close_plain(self) -> None:
        """Close connections without TLS, if it is required now, when what they sent is answered."""
        if self.tls is not None and self.tls.demand is ClientTls.REQUIRED:
            for connection in [each for each in self._open if not each.session.tls]:
                connection.turn_away("this port takes only TLS connections now: connect again, with TLS")

    def stop(self) -> None:
        """Accept no connection and take no request from now on; those that were read are answered."""
        self.stopping = True
        for listener in self._listeners:
            listener.close()
        if self.tls is not None:
            self.tls.close()
        for connection in list(self._open):
            connection.stop()
        self._unanswered = list(self._open)

    def busy(self) -> bool:
        """Return whether a request from before `stop` has no reply."""
        self._unanswered = [connection for connection in self._unanswered if connection.busy]
        return bool(self._unanswered)

    async def close(self) -> None:
        """Close all connections, each when its client has all replies, within `linger_seconds_max`."""
        self.stop()
        loop = asyncio.get_running_loop()
        until = loop.time() + self.limits.linger_seconds_max
        while self._open and loop.time() < until:
            for connection in list(self._open):
                connection.close_if_quiet(loop.time())
            await asyncio.sleep(LINGER_LOOK_SECONDS)
        if self._open:
            log.warning("%d connections are reset: their clients still send, or do not read", len(self._open))
        for connection in list(self._open):
            connection.abort()

    def sessions(self) -> Iterable[ClientSession]:
        """Return the sessions of all open connections."""
        return [connection.session for connection in self._open]

    def facts(self) -> dict[str, str | int]:
        """Return the fields of INFO."""
        return {
            "tcp_port": self.port,
            "connected_clients": len(self._open),
            **self._tls_facts(),
            "maxclients": self.limits.clients_max,
            "waiting_bytes": self.waiting_bytes,
            "reply_bytes": self.replies.held,
            **self._counts,
            **self.pushes.facts(),
            **self.pubsub.facts(),
            **self.access.facts(),
        }

    def _tls_facts(self) -> dict[str, str | int]:
        tls = self.tls
        return {
            "client_tls": str(ClientTls.OFF if tls is None else tls.demand),
            "tls_clients": sum(bool(connection.session.tls) for connection in self._open),
            "tls_handshakes_waiting": 0 if tls is None else tls.pending,
            "tls_handshakes": 0 if tls is None else tls.done,
            "tls_handshakes_failed": 0 if tls is None else tls.failed,
            "tls_required_refused": 0 if tls is None else tls.refused,
        }

    def admit(self, connection: ClientConnection) -> str:
        """Register a connection; return why not, when there is no room.

        The client that has waited longest without an AUTH makes room.
        """
        self._counts["total_connections_received"] += 1
        most, guests_max, guests = self.limits.clients_max, self.limits.guests_max, self.access.guests
        full, guest = len(self._open) >= most, connection.session.guard is NOBODY
        if full or (guest and len(guests) >= guests_max):
            oldest = next((each for each in guests if not each.busy), None)
            if oldest is None:
                self.access.refused["full"] += 1
                if full:
                    return f"max number of clients reached: this member accepts {most} (clients_max)"
                return f"max number of clients without AUTH reached: it is {guests_max} (guests_max)"
            self.access.refused["evicted"] += 1
            oldest.give_way()
            self._open.discard(oldest)
        self._open.add(connection)
        return ""

    def forget(self, connection: ClientConnection) -> None:
        """Unregister a closed connection."""
        self._open.discard(connection)
        self.access.log_out(connection.session)
        turn_off(self, connection.session)
        self.slot_changes.end(connection.session)
        if connection.session.seen is not None:
            connection.session.seen.release()
        if connection.session.written is not None:
            connection.session.written.release()

    def count(self, commands: int) -> None:
        """Count commands that are about to run."""
        self._counts["total_commands_processed"] += commands

    def read_one(self, session: ClientSession, data: bytes) -> bytes | None:
        """Return the encoded reply to `data`, if that is one GET which may be answered now.

        A shortcut past `gather` for a client that does not pipeline; whatever else there is, is left to that.
        """
        if session.guard is not None or session.seen is not None or not self._gathers(session):
            return None
        account, keyspace = session.account, session.keyspace
        if keyspace in self._aside or (account is not None and account.rate is not None):
            return None
        replies = self.collector.read_one(keyspace, data, cluster=session.cluster)
        if replies is None:
            return None
        self.count(1)
        return encode_all(replies, session.resp3)

    def _gathers(self, session: ClientSession) -> bool:
        """Return whether requests of the connection may join a common batch."""
        if session.transaction or session.only_pubsub or session.withheld or session.tracking is not None:
            return False
        return not self._only or session.keyspace in self._only

    def gather(
        self,
        session: ClientSession,
        queue: list[Request],
        size: int,
        finish: Callable[[ConnectionBatch], None],
    ) -> ConnectionBatch | None:
        """Run the leading requests in the common batch; None when the first one cannot."""
        if not self._gathers(session):
            return None
        if session.guard is not None:
            if not self.turn_budget.fits(1):
                return ConnectionBatch([], [], 0, finish)
            queue = self._allowed(session, queue)
            if not queue:
                return None
        if session.seen is not None or session.keyspace in self._aside:
            return self._gather_here(session, queue, finish)
        written = self.written_of(session) if self._asynchronous else None
        batch = self.collector.gather(
            session.keyspace, queue, size, finish, cluster=session.cluster, written=written
        )
        if batch is not None:
            self.count(len(batch.replies))
        return batch

    def _allowed(self, session: ClientSession, queue: list[Request]) -> list[Request]:
        """Return the leading requests that the client may run at once."""
        try:
            return self.access.leading(session, leading(queue)[0])
        except Exception:
            # What leaves a callback of the loop would end the process. In its task it ends this connection.
            log.exception("requests of %s cannot be checked", session.address)
            return []

    def _gather_here(
        self, session: ClientSession, queue: list[Request], finish: Callable[[ConnectionBatch], None]
    ) -> ConnectionBatch | None:
        """Answer the leading reads of a connection that this member may answer, as a backup or from its own
        entries; None when the first one cannot be answered at once."""
        if session.keyspace in self.store.local.keyspaces:
            batch = self.collector.read_local(session.keyspace, queue, finish, session.misses)
        else:
            seen = self.seen_of(session)
            batch = None if seen is None else self.collector.read_here(session.keyspace, queue, finish, seen)
        if batch is not None:
            self.count(len(batch.replies))
        return batch

    def seen_of(self, session: ClientSession) -> SeenOperations | None:
        """Return what the connection has seen, if backups may answer it: from now on it is remembered."""
        if session.seen is None:
            since = self.store.available_since(session.keyspace)
            if since is not None:
                return session.remember(SeenOperations(self._seen_total, since))
        return session.seen

    def written_of(self, session: ClientSession) -> WrittenOperations | None:
        """Return what the connection has written, if its keyspace is Async: from now on it is remembered."""
        if session.keyspace not in self._asynchronous:
            return None
        if session.written is None:
            return session.remember_writes(WrittenOperations(self._written_total))
        return session.written

    def read_backups(self, session: ClientSession, readonly: bool) -> None:
        """Let backups answer the connection in every keyspace, or end that."""
        if session.seen is not None:
            session.seen.set_readonly(readonly)
        elif readonly:
            # What it did before was not remembered.
            since = asyncio.get_running_loop().time()
            session.remember(SeenOperations(self._seen_total, since, readonly=True))

    def new_session(self, address: str, kind: ClientPort, connection: ClientConnection) -> ClientSession:
        """Return the state of a new connection to one of the ports."""
        cluster, reads = kind is not ClientPort.ANY, kind is ClientPort.READ
        seen = SeenOperations(self._seen_total, readonly=True) if reads else None
        return ClientSession(
            next(self._ids),
            address,
            cluster=cluster,
            reads=reads,
            seen=seen,
            connection=connection,
            guard=self.access.guest,
        )

    def failure(self, error: BaseException) -> Failure:
        """Convert an error of the store to a reply. Anything but a SteleError is logged as a defect."""
        return failure_of(error)
