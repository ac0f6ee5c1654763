"""The API server of a playground: the paths of Kubernetes on files, in the process and on a Unix socket."""

import json
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from stele.adapters.kubernetes.api import CONFIG_MAPS, REQUEST_SECONDS, AlreadyExists, Api, Kind, NotFound
from stele.errors import BadInput, Conflict, SteleError
from stele.playground.files import Object
from stele.playground.objects import KINDS, ObjectFiles

OWN = "/apis/playground/v1"
"""Root of the paths that Kubernetes does not have."""

_PATH = re.compile(
    r"/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+)?/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?P<status>/status)?"
)


def answer(
    files: ObjectFiles, method: str, path: str, query: Mapping[str, str], body: Any
) -> tuple[int, Object]:
    """Return status and body of the answer to a request; never raises a SteleError."""
    try:
        return 200, _answer(files, method, path, query, body)
    except NotFound as error:
        return 404, {"kind": "Status", "message": error.text}
    except AlreadyExists as error:
        return 409, {"kind": "Status", "reason": "AlreadyExists", "message": error.text}
    except Conflict as error:
        return 409, {"kind": "Status", "message": error.text}
    except BadInput as error:
        return 422, {"kind": "Status", "message": error.text}
    except SteleError as error:
        return 500, {"kind": "Status", "message": error.text}


def _answer(files: ObjectFiles, method: str, path: str, query: Mapping[str, str], body: Any) -> Object:
    found = _PATH.fullmatch(path)
    kind = KINDS.get(found["plural"]) if found else None
    if found is None or kind is None:
        raise NotFound(f"a playground has no {path[:200]}")
    name = found["name"]
    given = _given(kind, name, body)
    match method, name:
        case "GET", None:
            return {"items": files.list(kind, query.get("labelSelector", "")), "metadata": {}}
        case "GET", _:
            return files.get(kind, name)
        case "POST", None:
            return files.create(kind, given)
        case "PUT", _ if name is not None:
            return files.replace(kind, {**given, "metadata": {**given["metadata"], "name": name}})
        case "PATCH", _ if name is not None and found["status"]:
            version = given["metadata"].get("resourceVersion", "")
            return files.patch_status(kind, name, given.get("status") or {}, version)
        case "PATCH", _ if name is not None:
            return files.patch(kind, name, given)
        case "DELETE", _ if name is not None:
            uid = (given.get("preconditions") or {}).get("uid")
            files.delete(kind, name, uid, given.get("gracePeriodSeconds"))
            return {"kind": "Status"}
    raise BadInput(f"a playground does not take {method} {path[:200]}")


class _Metadata(msgspec.Struct):
    name: str = ""
    generateName: str = ""  # noqa: N815  as in Kubernetes
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815
    labels: dict[str, str | None] | None = None
    annotations: dict[str, str | None] | None = None
    ownerReferences: list[dict[str, str | bool]] | None = None  # noqa: N815
    finalizers: list[str] | None = None


class _Preconditions(msgspec.Struct):
    uid: str | None = None


class _Body(msgspec.Struct):
    """The form of what is written, as far as this server reads it."""

    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    preconditions: _Preconditions = msgspec.field(default_factory=_Preconditions)
    gracePeriodSeconds: int | None = None  # noqa: N815


def _given(kind: Kind, name: str | None, body: Any) -> Object:
    """Return the body. Raises BadInput for one of another form, or another object."""
    try:
        read = msgspec.convert({} if body is None else body, _Body)
        if kind is CONFIG_MAPS:
            msgspec.convert(read.data or {}, dict[str, str])
    except msgspec.ValidationError as error:
        raise BadInput(f"the body is not an object of Kubernetes: {error}") from error
    if read.metadata.name and name not in (None, read.metadata.name):
        raise BadInput(f"metadata.name is {read.metadata.name[:80]!r} in the path of {name!r}")
    return {"metadata": {}, **(body or {})}


class _NoLogin:
    server = "http://playground"

    def token(self) -> str | None:
        return None

    def ssl_context(self) -> ssl.SSLContext:
        raise AssertionError("nothing connects to a playground with TLS")


class FileApi(Api):
    """The client of the process that has the files."""

    def __init__(self, files: ObjectFiles) -> None:
        super().__init__(_NoLogin())
        self._files = files

    async def _exchange(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> tuple[int, str]:
        # As text, so that nobody changes what is stored.
        given = None if body is None else json.loads(json.dumps(body))
        status, found = answer(self._files, method, path, query or {}, given)
        self._answered()
        return status, json.dumps(found)


class SocketApi(Api):
    """The client of other processes."""

    def __init__(self, path: Path) -> None:
        super().__init__(_NoLogin())
        self._path = path

    async def __aenter__(self) -> "SocketApi":
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self._path)), timeout=timeout
        )
        return self

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Object:
        """Send a request that Kubernetes has no path for."""
        return await self._send(method, f"{OWN}/{path}", body)
