"""Answers of members that are too large, of another form, without an end, or made for the terminal."""

import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from stele.adapters.kubernetes import admin_port, bulk_job
from stele.adapters.kubernetes.bulk_job import BulkJob
from stele.errors import Corrupt, SteleError
from tests.cli.conftest import Ran, Run
from tests.cli.test_tablets import Shell, answer, page_of
from tests.fakes.http import serving
from tests.fakes.pod_proxy import fake_api

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def asked(run: Run, folder: Path, handler: Handler, *words: str) -> Ran:
    """What a command says of a member whose every answer is that of the handler."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with serving(app) as url, fake_api(folder, {"m0:7001": url}) as path:
        return await Shell(run, path)(*(words or ("tablet", "m0")))


async def told(run: Run, folder: Path, body: bytes, *words: str, status: int = 200) -> Ran:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body)

    ran = await asked(run, folder, handler, *words)
    assert (ran.out, "Traceback" in ran.err) == ("", False)
    return ran


COMMANDS = [
    ["tablet", "m0"],
    ["tablet", "m0", "1"],
    ["quarantine", "list", "m0"],
    ["quarantine", "dump", "m0", "0/1"],
    ["quarantine", "restore", "m0", "0/1"],
    ["quarantine", "purge", "m0", "0/1", "--yes"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("status", [200, 409, 500])
async def test_a_large_answer_is_not_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], status: int
) -> None:
    monkeypatch.setattr(admin_port, "ANSWER_BYTES_MAX", 10_000)
    ran = await told(run, tmp_path, b" " * 10_001, *words, status=status)
    assert ran.code == 1
    assert "TOO_LARGE: m0 answered with more than 10000 bytes" in ran.err
    assert "kubectl describe pod m0" in ran.err


WRONG = {
    "no JSON": b"<html>",
    "another type": b"[]",
    "a field of another type": b'{"tablets": "x", "retention_seconds": "y", "purged": 3, "code": {}}',
    "deep": b"[" * 200_000,
    "no UTF-8": b'{"code": "\xff"}',
}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("wrong", WRONG)
async def test_an_answer_of_another_form_is_named(
    run: Run, tmp_path: Path, words: list[str], wrong: str
) -> None:
    ran = await told(run, tmp_path, WRONG[wrong], *words)
    assert ran.code == 1
    assert "CORRUPT: m0 answered /v1/" in ran.err
    assert "kubectl stele version" in ran.err


@pytest.mark.parametrize("wrong", WRONG)
async def test_an_error_of_another_form_is_shown_shortened(run: Run, tmp_path: Path, wrong: str) -> None:
    ran = await told(run, tmp_path, WRONG[wrong], status=500)
    assert ran.code == 3
    assert ran.err.startswith("kubectl stele: UNAVAILABLE: m0 answered 500: ")
    assert len(ran.err) < 1000


async def test_a_terminal_is_not_controlled(run: Run, tmp_path: Path) -> None:
    ran = await told(run, tmp_path, b'{"code": "NO", "detail": "\\u001b]0;me\\u0007\\u009b2J"}', status=409)
    assert (ran.code, ran.err) == (1, "kubectl stele: NO: m0: \\x1b]0;me\\x07\\x9b2J\n")


async def test_it_is_not_led_elsewhere(run: Run, tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        if request.path.startswith("/v1"):
            raise web.HTTPFound(f"http://{request.host}/elsewhere")
        return answer(page_of(0, None))

    ran = await asked(run, tmp_path, handler)
    assert (ran.code, "0   OWNER" in ran.out) == (3, False)
    assert "m0 answered 302" in ran.err


@pytest.mark.parametrize("after", [-1, 0, 1 << 40])
async def test_pages_without_an_end_are_not_followed(run: Run, tmp_path: Path, after: int) -> None:
    async def handler(_: web.Request) -> web.Response:
        return answer(page_of(0, after))

    begun = time.monotonic()
    ran = await asked(run, tmp_path, handler)
    assert (ran.code, ran.out) == (1, "")
    assert f"it names {after} as the next one" in ran.err
    assert time.monotonic() - begun < 60


STATUSES: dict[str, tuple[bytes, type[SteleError], str]] = {
    "large": (b" " * 2_000, Corrupt, "more than 1000 bytes"),
    "no JSON": (b"<html>", Corrupt, "job p answered with what this command cannot read"),
    "deep": (b"[" * 900, Corrupt, "cannot read"),
    "another type": (b'{"step": 1}', Corrupt, "cannot read"),
    "an error of another type": (b'{"error": "no"}', Corrupt, "cannot read"),
}


@pytest.mark.parametrize("what", STATUSES)
async def test_what_a_job_says_is_limited(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    body, kind, text = STATUSES[what]
    monkeypatch.setattr(bulk_job, "STATUS_BYTES_MAX", 1000)
    left = [body, b""]

    async def read(_: int) -> bytes:
        return left.pop(0)

    @asynccontextmanager
    async def through_pod(*_: Any) -> Any:
        yield SimpleNamespace(content=SimpleNamespace(read=read), url="/job")

    created = {"metadata": {"name": "p", "uid": "u"}}
    job = BulkJob(SimpleNamespace(through_pod=through_pod), "ns", created, None)  # type: ignore[arg-type]
    with pytest.raises(kind, match=text):
        await job.follow(lambda _: None)
