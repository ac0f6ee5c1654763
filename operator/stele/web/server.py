"""The application of the page: its files, and JSON about clusters. It reads only, and writes no state.

Everybody who reaches its port may read. So it listens on loopback alone, in a pod or on a user's machine, and
refuses requests that a browser sends for a page of others: those name another host than loopback (DNS
rebinding), and no other site may read an answer (no CORS).
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice

import msgspec
from aiohttp import web

from stele.adapters import http
from stele.errors import BadInput, SteleError
from stele.explain.why import View
from stele.web.facts import Facts, Key, Source
from stele.web.limits import EXPLAINING_MAX, FACTS_SHOWN_MAX, VIEW_SECONDS, VIEWS_MAX
from stele.web.view import base_of, view

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
METHODS = frozenset({"GET", "HEAD"})

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Of every answer. Pictures that the page makes itself are drawn on a canvas, and need no source."""

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True)
class StaticFile:
    """A file of the package, and the mark by which a browser knows that it has not changed."""

    body: bytes
    content_type: str
    etag: str

    @classmethod
    def of(cls, name: str, body: bytes) -> "StaticFile":
        """Return a file with the content type that its name says."""
        return cls(body, TYPES[name.rpartition(".")[2]], hashlib.sha256(body).hexdigest()[:32])


def static_files() -> dict[str, StaticFile]:
    """Return the files of the page by their names."""
    found = [each for each in files("stele.web").joinpath("static").iterdir() if each.is_file()]
    return {each.name: StaticFile.of(each.name, each.read_bytes()) for each in found}


class Views:
    """Documents that were made a moment ago, for others that ask for the same."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._made: dict[tuple[Key, str], tuple[float, bytes]] = {}

    def __len__(self) -> int:
        return len(self._made)

    def find(self, key: Key, base: str) -> bytes | None:
        """Return the document that builds on that version, unless it is old."""
        made, body = self._made.get((key, base), (float("-inf"), b""))
        return body if self._now() - made < VIEW_SECONDS else None

    def keep(self, key: Key, base: str, body: bytes) -> None:
        """Keep a document, in place of the oldest one."""
        self._made.pop((key, base), None)
        if len(self._made) >= VIEWS_MAX:
            del self._made[next(iter(self._made))]
        self._made[key, base] = self._now(), body


class Page:
    """Handlers; all answers come from memory."""

    def __init__(self, source: Source, now: Callable[[], float] = time.monotonic) -> None:
        self._source, self._views = source, Views(now)
        self._static = static_files()
        self._explaining, self._explainer = 0, asyncio.Lock()

    def application(self) -> web.Application:
        """Return the application; serve it on a loopback address only."""
        app = http.application(middlewares=[_guard], short_requests=True)
        app.router.add_get("/", self._on_file)
        app.router.add_get("/v1/clusters", self._on_clusters)
        app.router.add_get("/v1/clusters/{namespace}/{name}", self._on_view)
        app.router.add_get("/v1/clusters/{namespace}/{name}/why", self._on_why)
        app.router.add_get("/{file}", self._on_file)
        return app

    async def _on_file(self, request: web.Request) -> web.StreamResponse:
        found = self._static.get(request.match_info.get("file", "index.html"))
        if found is None:
            return _problem(404, "the page has no such file")
        answer = web.Response(body=found.body, content_type=found.content_type, charset="utf-8")
        answer.etag = found.etag
        known = request.if_none_match
        if known is not None and any(each.value == found.etag for each in known):
            answer = web.Response(status=304)
        return answer

    async def _on_clusters(self, request: web.Request) -> web.StreamResponse:
        if (refused := self._refused()) is not None:
            return refused
        return _json([list(key) for key in self._source.clusters()])

    async def _on_view(self, request: web.Request) -> web.StreamResponse:
        facts = self._facts(key := _key(request))
        if isinstance(facts, web.Response):
            return facts
        base = base_of(facts.state, request.query.get("since", ""))
        if (body := self._views.find(key, base)) is None:
            body = msgspec.json.encode(view(facts, base))
            self._views.keep(key, base, body)
        return _body(body)

    async def _on_why(self, request: web.Request) -> web.StreamResponse:
        facts = self._facts(_key(request))
        if isinstance(facts, web.Response):
            return facts
        if self._explaining >= EXPLAINING_MAX:
            return _problem(503, f"{EXPLAINING_MAX} explanations are being made; ask again in a moment")
        self._explaining += 1
        try:
            async with self._explainer:
                # In a thread: a plan of a large cluster takes seconds, for which a master cannot be held up.
                found = await asyncio.to_thread(_explain, facts, request.query.get("about", ""))
        except SteleError as error:
            return _problem(400 if isinstance(error, BadInput) else 503, error.text)
        finally:
            self._explaining -= 1
        return _json({"facts": found})

    def _refused(self) -> web.Response | None:
        """Return the answer of a process that knows nothing. A new connection may lead to another one."""
        if not (refusal := self._source.refusal()):
            return None
        answer = _problem(503, refusal)
        answer.force_close()
        return answer

    def _facts(self, key: Key) -> Facts | web.Response:
        """Return what is known, or the answer that says why nothing is."""
        if (refused := self._refused()) is not None:
            return refused
        if key not in self._source.clusters():
            return _problem(404, f"there is no TabletCluster {'/'.join(key)[:200]} here")
        facts = self._source.facts(key)
        if facts is None:
            return _problem(
                503, f"the master of {'/'.join(key)} does not run: its status and the log say why"
            )
        return facts


def _explain(facts: Facts, about: str) -> list[str]:
    """Return sentences about a partition (its number), a member (its name), or the cluster (nothing)."""
    explained = View(facts.cluster_view, facts.rebalances)
    if not about:
        found = explained.of_cluster()
    elif about.isascii() and about.isdigit():
        found = explained.of_partition(explained.number(about))
    else:
        named = [each.spec.index for each in facts.members if each.metadata.name == about]
        if not named:
            raise BadInput(f'there is no member "{about[:80]}" in this cluster')
        found = explained.of_member(named[0])
    return list(islice(found, FACTS_SHOWN_MAX))


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what changes something, and what another site's page could have sent; add the headers."""
    answer = await _guarded(request, handler)
    answer.headers.update(HEADERS)
    return answer


async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.method not in METHODS:
        answer = _problem(405, "the page reads only: GET and HEAD")
        answer.headers["Allow"] = ", ".join(sorted(METHODS))
        return answer
    if not is_loopback(request.headers.get("Host", "")):
        return _problem(421, "the host of the request is not a name of loopback: use http://127.0.0.1:PORT/")
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _problem(error.status, error.reason)


def is_loopback(host: str) -> bool:
    """Return whether a Host header names this machine: a name or address of loopback, with a port or not."""
    name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    return (name if colon else host).lower() in HOSTS and (not colon or port.isdigit())


def _key(request: web.Request) -> Key:
    return request.match_info["namespace"], request.match_info["name"]


def _json(found: object) -> web.Response:
    return _body(msgspec.json.encode(found))


def _body(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _problem(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode({"problem": text}), content_type="application/json"
    )
