"""A thin client of the API server: plain JSON objects, and status codes as Stele's errors.

docs/decisions/0020-kubernetes-client.md explains why it is not the generated one.
"""

import asyncio
import copy
import json
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from stele.adapters.body import read_body
from stele.errors import BadInput, Conflict, Refused, SteleError, Unavailable, Uncertain

SILENCE_SECONDS = 300.0
"""Longest pause in a pod's response through the API server."""
REQUEST_SECONDS = 10.0
"""Timeout of one request; a write that times out may have been applied."""

THROTTLED = 429
"""Status code of a request that was not processed: the server has too much to do, or reads a kind's objects
anew after a change of its definition."""
THROTTLED_PAUSE_SECONDS = 1.0
"""Pause before such a request is repeated; API servers ask for as much."""
THROTTLED_REPEATS_MAX = 5
"""How often such a request is repeated."""

CLEANUP_CLOSED = sys.version_info < (3, 12, 7)
"""Whether closing ends the connections of abandoned requests; newer Pythons reject the option."""

UNANSWERED = "none"
"""Status code of a request without an answer, in the metrics."""

VERBS = {
    "GET": ("list", "get"),
    "POST": ("create", "create"),
    "PUT": ("update", "update"),
    "PATCH": ("patch", "patch"),
    "DELETE": ("deletecollection", "delete"),
}
"""Verbs of the API by HTTP method: for a kind, and for one object."""

FORWARD_PROTOCOL = "v4.channel.k8s.io"
FORWARD_BYTES_MAX = 4 * 1024 * 1024
"""Protocol of a forwarded port, and its largest message."""

REFUSAL_BYTES_MAX = 1024 * 1024
"""Largest body of a pod's answer that is an error."""

LIST_PAGE = 500
"""Objects per page of a list."""

Object = dict[str, Any]


class NotFound(SteleError):  # noqa: N818  named as in errors
    """The object does not exist."""

    code_default = "NOT_FOUND"


class AlreadyExists(Conflict):
    """An object of that name exists."""

    code_default = "ALREADY_EXISTS"


@dataclass(frozen=True)
class Kind:
    """API path of a kind of objects."""

    api: str
    plural: str
    kind: str

    def path(self, namespace: str | None, name: str | None = None, sub: str | None = None) -> str:
        root = f"/api/{self.api}" if "/" not in self.api else f"/apis/{self.api}"
        middle = f"/namespaces/{namespace}" if namespace else ""
        tail = "".join(f"/{part}" for part in (name, sub) if part)
        return f"{root}{middle}/{self.plural}{tail}"


CONFIG_MAPS = Kind("v1", "configmaps", "ConfigMap")
PODS = Kind("v1", "pods", "Pod")
SERVICES = Kind("v1", "services", "Service")
CLAIMS = Kind("v1", "persistentvolumeclaims", "PersistentVolumeClaim")
EVENTS = Kind("v1", "events", "Event")
BUDGETS = Kind("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES = Kind("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
REVISIONS = Kind("apps/v1", "controllerrevisions", "ControllerRevision")
JOBS = Kind("batch/v1", "jobs", "Job")
NODES = Kind("v1", "nodes", "Node")
SECRETS = Kind("v1", "secrets", "Secret")
SERVICE_ACCOUNTS = Kind("v1", "serviceaccounts", "ServiceAccount")
ROLE_BINDINGS = Kind("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding")
LEASES = Kind("coordination.k8s.io/v1", "leases", "Lease")
CLUSTERS = Kind("stele.dev/v1alpha1", "tabletclusters", "TabletCluster")
MEMBERS = Kind("stele.dev/v1alpha1", "tabletmembers", "TabletMember")
REBALANCES = Kind("stele.dev/v1alpha1", "tabletrebalances", "TabletRebalance")
KEYSPACES = Kind("stele.dev/v1alpha1", "keyspaces", "Keyspace")
USERS = Kind("stele.dev/v1alpha1", "tabletusers", "TabletUser")


class Login(Protocol):
    """Address and credentials, implemented by `login` and `pod_login`."""

    @property
    def server(self) -> str: ...
    def token(self) -> str | None: ...
    def ssl_context(self) -> ssl.SSLContext: ...


class Api:
    """One session with one API server.

    Reads raise Unavailable when there is no answer. Writes raise Uncertain instead, since they may have been
    applied. A 409 is Conflict (AlreadyExists for a create), 404 NotFound, 400 and 422 BadInput, 401 and 403
    Refused.
    """

    def __init__(self, login: Login, headers: Iterable[tuple[str, str]] = ()) -> None:
        """`headers` are of each request."""
        self._login, self._headers = login, tuple(headers)
        self._session: aiohttp.ClientSession | None = None
        self._answered: Callable[[], None] = lambda: None
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """Requests of this session by verb, plural of the kind, and status code."""

    async def __aenter__(self) -> "Api":
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        connector = aiohttp.TCPConnector(
            ssl=self._login.ssl_context(), limit=64, enable_cleanup_closed=CLEANUP_CLOSED
        )
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def noting(self, answered: Callable[[], None]) -> "Api":
        """Return a view of this session that calls `answered` for each response to its own requests."""
        noting = copy.copy(self)
        noting._answered = answered
        return noting

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        return await self._send("GET", kind.path(namespace, name))

    async def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the object, or None when it does not exist."""
        try:
            return await self.get(kind, namespace, name)
        except NotFound:
            return None

    async def list(
        self, kind: Kind, namespace: str | None, selector: str = "", fields: str = ""
    ) -> list[Object]:
        """List all objects of a kind, page by page, in one namespace or in all, by labels and fields."""
        objects: list[Object] = []
        query = {"limit": str(LIST_PAGE), "labelSelector": selector, "fieldSelector": fields}
        while True:
            page = await self._send("GET", kind.path(namespace), query=query)
            for item in page["items"]:
                objects.append({"apiVersion": kind.api, "kind": kind.kind, **item})
            token = page.get("metadata", {}).get("continue")
            if not token:
                return objects
            query = {**query, "continue": token}

    async def version(self) -> Object:
        """Return the version of the API server."""
        return await self._send("GET", "/version")

    async def create(self, kind: Kind, namespace: str, body: Mapping[str, Any]) -> Object:
        return await self._send("POST", kind.path(namespace), body)

    async def replace(self, kind: Kind, namespace: str, body: Mapping[str, Any]) -> Object:
        """PUT an object; with a resourceVersion in the body it is a compare-and-set."""
        return await self._send("PUT", kind.path(namespace, body["metadata"]["name"]), body)

    async def merge(self, kind: Kind, namespace: str, name: str, fields: Mapping[str, Any]) -> Object:
        """Merge these fields into an object; lists are replaced as a whole."""
        path = kind.path(namespace, name)
        return await self._send("PATCH", path, fields, None, "application/merge-patch+json")

    async def patch_spec(self, kind: Kind, namespace: str, name: str, spec: Mapping[str, Any]) -> Object:
        """Merge into the spec, for changes by users; lists are replaced as a whole."""
        return await self.merge(kind, namespace, name, {"spec": spec})

    async def annotate(
        self, kind: Kind, namespace: str, name: str, annotations: Mapping[str, str | None]
    ) -> Object:
        """Set annotations; None removes one."""
        return await self.merge(kind, namespace, name, {"metadata": {"annotations": annotations}})

    async def patch_status(
        self, kind: Kind, namespace: str, name: str, status: Mapping[str, Any], version: str = ""
    ) -> Object:
        """Merge into the status subresource; lists are replaced as a whole.

        With `version`, a resourceVersion, it raises Conflict unless the object has that version.
        """
        path = kind.path(namespace, name, "status")
        body: Object = {"status": status}
        if version:
            body["metadata"] = {"resourceVersion": version}
        return await self._send("PATCH", path, body, None, "application/merge-patch+json")

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str | None, grace_seconds: int | None = None
    ) -> None:
        """Delete the object with that UID and no other of its name; succeeds if it is gone already."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            await self._send("DELETE", kind.path(namespace, name), body)
        except (NotFound, Conflict):
            return

    async def delete_all(self, kind: Kind, namespace: str, selector: str) -> None:
        """Delete the objects with these labels."""
        await self._send("DELETE", kind.path(namespace), query={"labelSelector": selector})

    async def to_pod(
        self,
        method: str,
        place: tuple[str, str],
        path: str,
        query: Mapping[str, str],
        read: Callable[[aiohttp.ClientResponse], Awaitable[bytes]],
    ) -> tuple[int, bytes]:
        """Return status and body, by `read`, of a request that is proxied to `place` (as `through_pod`)."""
        assert self._session is not None, "use the client inside `async with`"
        way = f"{PODS.path(*place)}/proxy{path}"
        url, headers = self._login.server.rstrip("/") + way, self._authorization()
        try:
            async with self._session.request(
                method, url, params=query, headers=headers, allow_redirects=False
            ) as answer:
                return answer.status, await read(answer)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _unanswered(method, way, error) from error

    @asynccontextmanager
    async def through_pod(
        self, method: str, place: tuple[str, str], path: str, body: Any, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the response of `place`, a namespace and a pod with its port, to be read in the block.

        A body may be JSON or a stream of any length. Without an answer of status 200, it raises as a GET
        does: the request may be repeated.
        """
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        way = f"{PODS.path(*place)}/proxy{path}"
        async with self._long(method, way, data=data, headers=headers) as answer:
            yield answer

    @asynccontextmanager
    async def log(
        self, namespace: str, pod: str, query: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the log of a container, to be read in the block. Raises as a GET does."""
        async with self._long("GET", PODS.path(namespace, pod, "log"), query=query) as answer:
            yield answer

    @asynccontextmanager
    async def _long(
        self,
        method: str,
        path: str,
        *,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield an answer of status 200 that may be of any length, and may pause."""
        assert self._session is not None, "use the client inside `async with`"
        given = {**(headers or {}), **self._authorization()}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS, sock_read=SILENCE_SECONDS)
        url = self._login.server.rstrip("/") + path
        try:
            async with self._session.request(
                method, url, params=query, data=data, headers=given, timeout=timeout, allow_redirects=False
            ) as answer:
                if answer.status >= 300:
                    raise await refusal_of(path, answer)
                yield answer
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _unanswered("GET", path, error) from error

    @asynccontextmanager
    async def forward(
        self, namespace: str, pod: str, port: int
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Yield a connection to a port of a pod, see `port_forward`. Raises as a GET does."""
        assert self._session is not None, "use the client inside `async with`"
        path = PODS.path(namespace, pod, "portforward")
        try:
            socket = await self._session.ws_connect(
                self._login.server.rstrip("/") + path,
                params={"ports": str(port)},
                protocols=(FORWARD_PROTOCOL,),
                headers=self._authorization(),
                max_msg_size=FORWARD_BYTES_MAX,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise error_of("GET", path, error.status, error.message) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _unanswered("GET", path, error) from error
        async with socket:
            yield socket

    def _authorization(self) -> dict[str, str]:
        token = self._login.token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> Object:
        status, text = await self._exchange(method, path, body, query, content)
        for _ in range(THROTTLED_REPEATS_MAX):
            if status != THROTTLED:
                break
            await asyncio.sleep(THROTTLED_PAUSE_SECONDS)
            status, text = await self._exchange(method, path, body, query, content)
        if status < 300:
            parsed: Object = json.loads(text)
            return parsed
        raise error_of(method, path, status, text)

    async def _exchange(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> tuple[int, str]:
        assert self._session is not None, "use the client inside `async with`"
        headers = {"Accept": "application/json", "Content-Type": content, **self._authorization()}
        data = None if body is None else json.dumps(body).encode()
        url = self._login.server.rstrip("/") + path
        asked = _verb_and_kind(method, path)
        try:
            async with self._session.request(method, url, data=data, params=query, headers=headers) as answer:
                text = await answer.text(errors="replace")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self.requests[*asked, UNANSWERED] += 1
            raise _unanswered(method, path, error) from error
        self.requests[*asked, str(answer.status)] += 1
        self._answered()
        return answer.status, text


async def refusal_of(path: str, answer: aiohttp.ClientResponse) -> SteleError:
    """Return the error that a pod answers to what may be repeated, as to a GET."""
    text = (await read_body(answer, REFUSAL_BYTES_MAX)).decode(errors="replace")
    return error_of("GET", path, answer.status, text)


def _verb_and_kind(method: str, path: str) -> tuple[str, str]:
    """Return what a path of the API asks for, as in Kubernetes' rules of access."""
    if not path.startswith("/api"):
        return "get", path.strip("/")
    parts = path.split("/")[3 if path.startswith("/api/") else 4 :]
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    for_all, for_one = VERBS[method]
    return (for_one if len(parts) > 1 else for_all), parts[0]


def _unanswered(method: str, path: str, error: Exception) -> SteleError:
    kind = Unavailable if method == "GET" else Uncertain
    return kind(f"{method} {path}: no answer from the API server ({type(error).__name__}: {error})")


def error_of(method: str, path: str, status: int, text: str) -> SteleError:
    """Return the error for a status code of the API server."""
    message = f"{method} {path}: {status} {_message(text)}"
    if status == 404:
        return NotFound(message)
    if status == 409:
        return AlreadyExists(message) if _reason(text) == "AlreadyExists" else Conflict(message)
    if status in (400, 413, 415, 422):
        return BadInput(message)
    if status in (401, 403):
        return Refused(message, "FORBIDDEN")
    if status == THROTTLED or method == "GET":
        return Unavailable(message)
    return Uncertain(message)


def _parsed(text: str) -> Object:
    try:
        parsed = json.loads(text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _reason(text: str) -> str:
    return str(_parsed(text).get("reason", ""))


def _message(text: str) -> str:
    return str(_parsed(text).get("message", text[:200]))
