"""The API server of a playground: the paths of Kubernetes on files, in the process and on a Unix socket."""

import json
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from stele.adapters.kubernetes.api import REQUEST_SECONDS, AlreadyExists, Api, NotFound
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
    name, given = found["name"], _given(body)
    match method, name:
        case "GET", None:
            return {"items": files.list(kind, query.get("labelSelector", "")), "metadata": {}}
        case "GET", _:
            return files.get(kind, name)
        case "POST", None:
            return files.create(kind, given)
        case "PUT", _ if name is not None:
            return files.replace(kind, given)
        case "PATCH", _ if name is not None and found["status"]:
            version = str((given.get("metadata") or {}).get("resourceVersion", ""))
            return files.patch_status(kind, name, given["status"], version)
        case "PATCH", _ if name is not None:
            return files.patch(kind, name, given)
        case "DELETE", _ if name is not None:
            uid = (given.get("preconditions") or {}).get("uid")
            files.delete(kind, name, uid, given.get("gracePeriodSeconds"))
            return {"kind": "Status"}
    raise BadInput(f"a playground does not take {method} {path[:200]}")


def _given(body: Any) -> Object:
    """Return the body. Raises BadInput for one whose parts are not objects."""
    if body is None:
        return {}
    parts = (body.get(key, {}) for key in ("metadata", "spec", "status")) if isinstance(body, dict) else (0,)
    if not all(isinstance(each, dict) for each in parts):
        raise BadInput("the body is not an object with objects as metadata, spec and status")
    return {"metadata": {}, "status": {}, **body}


class _NoLogin:
    server = "http://playground"

    def token(self) -> str | None:
        return None

    def ssl_context(self) -> ssl.SSLContext:
        raise NotImplementedError("a playground has no TLS")


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
