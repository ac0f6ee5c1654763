"""A cluster's members over HTTP: who owns what, and calls that name what went wrong. Threads may share it."""

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
"""Of so many, idle connections are kept: of two ports of each member."""
IDLE_MAX = 32
"""Connections to one place: more than threads that call."""
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
    """HOST[:PORT], several with commas between; the port is a member's admin port. Raise BadInput."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon:
            host, port = part, str(ADMIN_PORT)
        good_port = port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535
        if not good_port or not is_host(host.strip("[]")):
            raise BadInput(f"address is '{text}'; expected HOST or HOST:PORT of a member, 7001 by default")
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise BadInput("address is empty; expected HOST or HOST:PORT of a member, 7001 by default")
    return found


class Members:
    """Calls to members. `table` is as of the last `refresh`; it is read at the first use."""

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
        """The table of the member that knows most, of those that answer. Raise Unavailable when none does."""
        known = self._known
        places = list(self.seeds)
        if known is not None:
            places += [(member.address, known.admin_port) for member in known.members]
        found, told = [], "no member was named"
        for place in dict.fromkeys(places):
            try:
                found.append(_table(self.call(place, "GET", "/v1/bulk/table")))
            except SteleError as error:
                told = str(error)
        if not found:
            raise Unavailable(f"no member answers: {told}; is the address right, and is the cluster up?")
        best = max(found, key=lambda table: sum(version for version, _ in table.rows))
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
        """The answer's body. Raise the error that the member tells, Unavailable when there is no answer."""
        with self.request(place, method, path, body) as response:
            return response.read()

    @contextmanager
    def request(
        self, place: Address, method: str, path: str, body: bytes | None = None, token: str = ""
    ) -> Iterator[BaseHTTPResponse]:
        """An answer that is read while the block runs; as `call`. One that is not read to its end takes its
        connection with it.
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
        """Once more when a connection that was kept is closed by now: every call may be repeated."""
        try:
            return self._http.request(
                method, url, body=body, headers=headers, preload_content=False, decode_content=False
            )
        except ProtocolError as error:
            if not again or isinstance(_cause(error), TimeoutError):
                raise
            return self._send(method, url, body, headers, again=False)

    def close(self) -> None:
        """Close what is open and not in use."""
        self._http.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        """Tasks of Spark get the addresses, and ask for the table themselves."""
        return Members, (self.seeds,)


def _cause(error: BaseException) -> BaseException:
    """What is below the errors of the library, which repeat the URL."""
    return _cause(error.__cause__) if error.__cause__ else error


def _error(place: str, status: int, body: bytes) -> SteleError:
    try:
        told = msgspec.json.decode(body, type=dict[str, str])
    except UNREADABLE:
        told = {"detail": body[:DETAIL_CHARACTERS_MAX].decode(errors="replace").strip()}
    code, detail = told.get("code", ""), told.get("detail", "")[:DETAIL_CHARACTERS_MAX]
    default = Unavailable if status >= 500 and status != 507 else Refused
    kind = BadInput if status == 400 and code not in _KINDS else _KINDS.get(code, default)
    return kind(f"{place}: {detail}", code or None)
