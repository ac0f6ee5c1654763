"""HTTP client of a cluster's members: routing, and calls with descriptive errors. Thread-safe."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.response import BaseHTTPResponse

from stele.errors import BadInput, Conflict, Refused, Stale, SteleError, Unavailable, Uncertain
from stele.wire.copy.bulk import BulkTable
from stele.wire.unreadable import UNREADABLE
from stele.wire.urls import http_root, is_host

ADMIN_PORT = 7001
CALL_SECONDS_MAX = 300.0
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
Address = tuple[str, int]


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


class Members:
    """Client of the members. `table` is that of the last `refresh`, and is fetched on first use."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self.seeds = list(addresses)
        self._known: BulkTable | None = None
        self._http = urllib3.PoolManager(
            PLACES_MAX, maxsize=IDLE_MAX, timeout=CALL_SECONDS_MAX, retries=False
        )

    @property
    def table(self) -> BulkTable:
        return self._known or self.refresh()

    def refresh(self) -> BulkTable:
        """Fetch the newest table of the members that answer. Raises Unavailable when none does."""
        known = self._known
        addresses = list(self.seeds)
        if known is not None:
            addresses += [(member.address, known.admin_port) for member in known.members]
        tables, last_error = [], "no member was named"
        for address in dict.fromkeys(addresses):
            try:
                tables.append(_table(self.call(address, "GET", "/v1/bulk/table")))
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

    def admin(self, member: int) -> Address:
        return self._address(member), self.table.admin_port

    def transfer(self, member: int) -> Address:
        return self._address(member), self.table.transfer_port

    def _address(self, member: int) -> str:
        for known in self.table.members:
            if known.index == member:
                return known.address
        raise Stale(f"member {member} is not in the table")

    def call(self, place: Address, method: str, path: str, body: bytes | None = None) -> bytes:
        """Return the response body. Raises the member's error, Unavailable when there is no answer."""
        with self.request(place, method, path, body) as response:
            return response.read()

    @contextmanager
    def request(
        self, place: Address, method: str, path: str, body: bytes | None = None, token: str = ""
    ) -> Iterator[BaseHTTPResponse]:
        """Yield a response to be read in the block; errors are those of `call`.

        A response that is not read to its end closes its connection.
        """
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            with closing(self._send(method, http_root(*place) + path, body, headers)) as answer:
                if answer.status >= 300:
                    raise _error(f"{place[0]}:{place[1]}", answer.status, answer.read())
                yield answer
        except (OSError, HTTPError) as error:
            cause = _cause(error)
            raise Unavailable(f"{place[0]}:{place[1]}: {str(cause) or type(cause).__name__}") from error

    def _send(
        self, method: str, url: str, body: bytes | None, headers: dict[str, str], again: bool = True
    ) -> BaseHTTPResponse:
        """Send a request, again if a kept connection was closed meanwhile: every call can be repeated."""
        try:
            return self._http.request(
                method, url, body=body, headers=headers, preload_content=False, decode_content=False
            )
        except ProtocolError as error:
            if not again or isinstance(_cause(error), TimeoutError):
                raise
            return self._send(method, url, body, headers, again=False)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._http.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the addresses: Spark tasks fetch the table themselves."""
        return Members, (self.seeds,)


def _cause(error: BaseException) -> BaseException:
    """Return the cause below the library's errors, which repeat the URL."""
    return _cause(error.__cause__) if error.__cause__ else error


def _error(place: str, status: int, body: bytes) -> SteleError:
    try:
        answer = msgspec.json.decode(body, type=dict[str, str])
    except UNREADABLE:
        answer = {"detail": body[:DETAIL_CHARACTERS_MAX].decode(errors="replace").strip()}
    code, detail = answer.get("code", ""), answer.get("detail", "")[:DETAIL_CHARACTERS_MAX]
    default = Unavailable if status >= 500 and status != 507 else Refused
    kind = BadInput if status == 400 and code not in _KINDS else _KINDS.get(code, default)
    return kind(f"{place}: {detail}", code or None)
