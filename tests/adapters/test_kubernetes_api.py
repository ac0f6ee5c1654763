"""The client of the API server: what it leaves behind when it is closed, and what it repeats."""

import asyncio
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from stele.adapters.kubernetes import api as kubernetes
from stele.adapters.kubernetes.api import CONFIG_MAPS, Api
from stele.adapters.kubernetes.login import Login
from stele.errors import Unavailable


def anonymous(side: int) -> ssl.SSLContext:
    """TLS without certificates: what is tested is how a session ends."""
    context = ssl.SSLContext(side)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES256-SHA:@SECLEVEL=0")
    return context


@contextmanager
def silent_server(asked: threading.Event) -> Iterator[int]:
    """A port behind which one request is read, and neither it nor the end of TLS is answered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take() -> None:
            taken, _ = listener.accept()
            with anonymous(ssl.PROTOCOL_TLS_SERVER).wrap_socket(taken, server_side=True) as connection:
                connection.recv(1 << 16)
                asked.set()
                ended.wait(10)

        ended = threading.Event()
        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            ended.set()
            thread.join()


async def give_up(port: int, asked: threading.Event) -> None:
    login = SimpleNamespace(
        server=f"https://127.0.0.1:{port}",
        token=lambda: None,
        ssl_context=lambda: anonymous(ssl.PROTOCOL_TLS_CLIENT),
    )
    async with Api(cast(Login, login)) as api:
        request = asyncio.ensure_future(api.get(CONFIG_MAPS, "default", "one"))
        await asyncio.to_thread(asked.wait, 10)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


def test_a_request_that_was_given_up_leaves_no_connection_behind_a_closed_client() -> None:
    asked = threading.Event()
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always")
        with silent_server(asked) as port:
            asyncio.run(give_up(port, asked))
            gc.collect()
    assert asked.is_set()
    assert [str(each.message) for each in left] == []


async def found_after(throttled: int, asked: list[str]) -> dict[str, str]:
    """Return an object of a server that answers so many requests with 429 first."""

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.method)
        if len(asked) <= throttled:
            text = "storage is (re)initializing"
            return web.json_response({"reason": "TooManyRequests", "message": text}, status=429)
        return web.json_response({"kind": "ConfigMap"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        login = SimpleNamespace(
            server=str(server.make_url("/")), token=lambda: None, ssl_context=lambda: False
        )
        async with Api(cast(Login, login)) as api:
            return await api.create(CONFIG_MAPS, "default", {"metadata": {"name": "one"}})


async def test_what_was_not_processed_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `kubectl` does: API servers answer so when they are busy, and after a change of a definition."""
    monkeypatch.setattr(kubernetes, "THROTTLED_PAUSE_SECONDS", 0.0)
    asked: list[str] = []
    assert await found_after(kubernetes.THROTTLED_REPEATS_MAX, asked) == {"kind": "ConfigMap"}
    assert asked == ["POST"] * (kubernetes.THROTTLED_REPEATS_MAX + 1)


async def test_a_server_that_stays_busy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "THROTTLED_PAUSE_SECONDS", 0.0)
    asked: list[str] = []
    with pytest.raises(Unavailable, match=r"configmaps: 429 storage is \(re\)initializing"):
        await found_after(100, asked)
    assert len(asked) == kubernetes.THROTTLED_REPEATS_MAX + 1
