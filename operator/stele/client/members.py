"""HTTP client of a cluster's members: routing, and calls with descriptive errors. Thread-safe."""

import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import urllib3
from urllib3.connection import HTTPSConnection
from urllib3.connectionpool import HTTPSConnectionPool
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.response import BaseHTTPResponse

from stele.adapters.tls.dialled import Secured
from stele.adapters.tls.identity import TRUSTED, read_contexts, trusting
from stele.adapters.tls.peer import Expected, holders
from stele.core.security.identity import Role
from stele.core.security.level import InternalTls
from stele.core.security.rotation import GRACE_SECONDS
from stele.errors import BadInput, Conflict, Corrupt, Refused, Stale, SteleError, Unavailable, Uncertain
from stele.wire.copy.bulk import BulkMember, BulkTable
from stele.wire.unreadable import UNREADABLE
from stele.wire.urls import http_root, is_host

ADMIN_PORT = 7001
CALL_SECONDS_MAX = 300.0
ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Largest answer of a member that is read as a whole."""
REFUSAL_BYTES_MAX = 64 * 1024
"""Bytes of an error that are read."""
PIECE_BYTES = 64 * 1024
DETAIL_CHARACTERS_MAX = 2000
PLACES_MAX = 1000
"""Destinations whose idle connections are kept: two ports of each member."""
IDLE_MAX = 32
"""Idle connections kept per destination: more than there are threads."""
_KINDS: dict[str, type[SteleError]] = {
    "STALE_VERSION": Stale,
    "NOT_OWNER": Stale,
    "NOT_STAGED": Stale,
    "UNCERTAIN": Uncertain,
    "BUSY": Unavailable,
    "UNAVAILABLE": Unavailable,
    "DISK_ERROR": Unavailable,
    "SOURCE": Unavailable,
    "DUPLICATE_KEY": Conflict,
    "LOAD_CONFLICT": Conflict,
    "BAD_INPUT": BadInput,
    "TOO_LARGE": BadInput,
}
_table = msgspec.json.Decoder(BulkTable).decode
TLS_MISSING = (
    "the members of this cluster take only TLS, and option tlsFolder (--tls-folder) is not set: name a "
    "folder with tls.crt, tls.key and ca.crt of the Secret CLUSTER-admin-tls"
)
Address = tuple[str, int]


class Place(NamedTuple):
    """A port of a member: `admin`, or that of its transfer process.

    With TLS, `member` is the name that its certificate has, empty for any member's.
    """

    host: str
    port: int
    secured: bool = False
    member: str = ""
    admin: bool = False


def parse_addresses(text: str) -> list[Address]:
    """Parse HOST[:PORT], several separated by commas; the default is the admin port. Raises BadInput."""
    addresses = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon:
            host, port = part, str(ADMIN_PORT)
        good_port = port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535
        if not good_port or not is_host(host.strip("[]")):
            raise BadInput(f"address is '{text}'; expected HOST or HOST:PORT of a member, 7001 by default")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise BadInput("address is empty; expected HOST or HOST:PORT of a member, 7001 by default")
    return addresses


@dataclass(frozen=True, slots=True)
class _Tls:
    """What members are dialled with: `shown` with the own certificate, which is of `cluster`, `trusting`
    without."""

    shown: ssl.SSLContext
    trusting: ssl.SSLContext
    cluster: str


def _read_tls(folder: str) -> _Tls:
    """Raises BadInput for files that cannot be used."""
    try:
        contexts = read_contexts(Path(folder))
        trusted = trusting((Path(folder) / TRUSTED).read_bytes())
    except (OSError, BadInput) as error:
        text = error.text if isinstance(error, BadInput) else str(error)
        raise BadInput(
            f"tlsFolder is '{folder}', which cannot be used: {text}; expected tls.crt, tls.key and ca.crt of "
            "the Secret CLUSTER-admin-tls"
        ) from None
    named = holders(contexts.certificate)
    if len(named) != 1 or named[0].role is not Role.ADMIN:
        raise BadInput(f"tlsFolder is '{folder}', whose certificate is not that of an admin of a cluster")
    return _Tls(contexts.dialling, trusted, named[0].cluster)


class Members:
    """Client of the members. `table` is that of the last `refresh`, and is fetched on first use.

    With a folder that has the certificate of an admin, members are asked by TLS, and bulk data goes by TLS
    where they take that.
    """

    def __init__(self, addresses: Sequence[Address], tls_folder: str = "") -> None:
        """Raises BadInput for a folder that cannot be used."""
        self.seeds = list(addresses)
        self._folder = tls_folder
        self._tls = _read_tls(tls_folder) if tls_folder else None
        self._pools: dict[Place, HTTPSConnectionPool] = {}
        self._lock = threading.Lock()
        self._known: BulkTable | None = None
        self._http = urllib3.PoolManager(
            PLACES_MAX, maxsize=IDLE_MAX, timeout=CALL_SECONDS_MAX, retries=False
        )

    @property
    def table(self) -> BulkTable:
        return self._known or self.refresh()

    def refresh(self) -> BulkTable:
        """Fetch the newest table of the members that answer. Raises Unavailable when none does."""
        known, secured = self._known, self._tls is not None
        addresses = [Place(*seed, secured=secured, admin=True) for seed in self.seeds]
        if known is not None:
            addresses += [self.admin(member.index) for member in known.members]
        tables, last_error = [], "no member was named"
        for address in dict.fromkeys(addresses):
            try:
                tables.append(_table(self.call(address, "GET", "/v1/bulk/table")))
            except BadInput:
                raise
            except SteleError as error:
                last_error = str(error)
        if not tables:
            raise Unavailable(
                f"no member answers: {last_error}; check the address and that the cluster is running"
            )
        best = max(tables, key=lambda table: table.versions)
        if not best.rows:
            raise Unavailable("the members have no table yet: wait until the TabletCluster is Ready")
        self._known = best
        return best

    def admin(self, member: int) -> Place:
        found, secured = self._find(member), self._tls is not None
        return Place(found.address, self.table.admin_port, secured, found.name, admin=True)

    def transfer(self, member: int) -> Place:
        """Return where its bulk data goes. Raises BadInput where that needs TLS."""
        table, found = self.table, self._find(member)
        if table.tls is InternalTls.REQUIRED and self._tls is None:
            raise BadInput(TLS_MISSING)
        secured = self._tls is not None and table.tls.dials_tls
        return Place(found.address, table.transfer_port, secured, found.name)

    def _find(self, member: int) -> BulkMember:
        for known in self.table.members:
            if known.index == member:
                return known
        raise Stale(f"member {member} is not in the table")

    def call(
        self, place: Address | Place, method: str, path: str, body: bytes | None = None, token: str = ""
    ) -> bytes:
        """Return the response body. Raises the member's error, Unavailable when there is no answer,
        and Corrupt when it has more than ANSWER_BYTES_MAX."""
        with self.request(place, method, path, body, token) as response:
            answer = _start(response, ANSWER_BYTES_MAX)
            if len(answer) > ANSWER_BYTES_MAX:
                raise Corrupt(f"{place[0]}:{place[1]} answered with more than {ANSWER_BYTES_MAX} bytes")
            return answer

    @contextmanager
    def request(
        self, place: Address | Place, method: str, path: str, body: bytes | None = None, token: str = ""
    ) -> Iterator[BaseHTTPResponse]:
        """Yield a response to be read in the block; errors are those of `call`.

        A response that is not read to its end closes its connection.
        """
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            with closing(self._send(Place(*place), method, path, body, headers)) as answer:
                if answer.status == HTTPStatus.UPGRADE_REQUIRED and Place(*place).admin:
                    raise BadInput(TLS_MISSING)
                if answer.status >= 300:
                    raise _error(f"{place[0]}:{place[1]}", answer.status, _start(answer, REFUSAL_BYTES_MAX))
                yield answer
        except (OSError, HTTPError) as error:
            cause = _cause(error)
            raise Unavailable(f"{place[0]}:{place[1]}: {str(cause) or type(cause).__name__}") from error

    def _send(
        self, place: Place, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> BaseHTTPResponse:
        """Send a request, again if a kept connection was closed meanwhile: every call can be repeated."""
        ask = partial(
            self._pool(place).request if place.secured else self._http.request,
            method,
            path if place.secured else http_root(place.host, place.port) + path,
            body=body,
            headers=headers,
            preload_content=False,
            decode_content=False,
        )
        try:
            return ask()
        except ProtocolError as error:
            if isinstance(_cause(error), TimeoutError):
                raise
            return ask()

    def _pool(self, place: Place) -> HTTPSConnectionPool:
        """Return the connections to a member, which its certificate has to name."""
        with self._lock:
            pool = self._pools.get(place)
            if pool is None:
                assert self._tls is not None
                context = self._tls.shown if place.admin else self._tls.trusting
                expected = Expected(self._tls.cluster, (Role.MEMBER,), place.member)
                pool = self._pools[place] = _MemberPool(
                    place.host,
                    place.port,
                    maxsize=IDLE_MAX,
                    timeout=CALL_SECONDS_MAX,
                    retries=False,
                    assert_hostname=False,
                    ssl_context=context,
                    secured=Secured(context, expected, GRACE_SECONDS),
                )
            return pool

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._http.clear()
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only what is given: Spark tasks fetch the table themselves, and read the folder."""
        return Members, (self.seeds, self._folder)


class _MemberConnection(HTTPSConnection):
    """Sends nothing before it is known who answers."""

    def __init__(self, *arguments: Any, secured: Secured, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._secured = secured

    def connect(self) -> None:
        super().connect()
        assert isinstance(self.sock, ssl.SSLSocket)
        self._secured.check(self.sock.getpeercert())


class _MemberPool(HTTPSConnectionPool):
    ConnectionCls = _MemberConnection


def _cause(error: BaseException) -> BaseException:
    """Return the cause below the library's errors, which repeat the URL."""
    return _cause(error.__cause__) if error.__cause__ else error


def _start(answer: BaseHTTPResponse, bytes_max: int) -> bytes:
    """Read a body, of one that is longer than `bytes_max` a bit more than that."""
    found = bytearray()
    while len(found) <= bytes_max and (piece := answer.read(PIECE_BYTES)):
        found += piece
    return bytes(found)


def _error(place: str, status: int, body: bytes) -> SteleError:
    try:
        answer = msgspec.json.decode(body, type=dict[str, str])
    except UNREADABLE:
        answer = {"detail": body[:DETAIL_CHARACTERS_MAX].decode(errors="replace").strip()}
    code, detail = answer.get("code", ""), answer.get("detail", "")[:DETAIL_CHARACTERS_MAX]
    # It takes only TLS now, and the next table says so.
    needs_tls = status == HTTPStatus.UPGRADE_REQUIRED
    default = Unavailable if needs_tls or (status >= 500 and status != 507) else Refused
    kind = BadInput if status == 400 and code not in _KINDS else _KINDS.get(code, default)
    return kind(f"{place}: {detail}", code or None)
