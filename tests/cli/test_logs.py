"""`logs`: lines of all containers, of some, and as they come."""

import asyncio
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from stele.adapters.kubernetes import pod_logs
from stele.cli import logs
from tests.cli.conftest import Run
from tests.cli.served_objects import cluster, listing, pod
from tests.cli.test_tablets import Shell

PODS = [
    pod("demo-0", "member", "transfer"),
    pod("demo-1", "member", "transfer"),
    pod("other-0", "member", of="other"),
]
STORED = {"tabletclusters": [cluster()], "pods": PODS}


async def told(request: web.Request) -> web.Response:
    """One line, with what was asked for."""
    asked = ",".join(f"{key}={value}" for key, value in request.query.items() if key != "container")
    return web.Response(text=f"{request.query['container']} {asked}\nlast")


async def test_lines_have_their_pod_and_container(run: Run, tmp_path: Path) -> None:
    async with listing(tmp_path, lambda: STORED, log=told) as path:
        ask = Shell(run, path)
        ran = await ask("logs", "demo", "--since", "1h30m", "--tail", "5")
        assert (ran.code, ran.err) == (0, "")
        asked = "sinceSeconds=5400,tailLines=5"
        assert ran.out.splitlines()[:4] == [
            f"[demo-0/member] member {asked}",
            "[demo-0/member] last",
            f"[demo-0/transfer] transfer {asked}",
            "[demo-0/transfer] last",
        ]
        assert len(ran.out.splitlines()) == 8
        one = await ask("logs", "demo", "demo-1")
        assert {line.split("/")[0] for line in one.out.splitlines()} == {"[demo-1"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["demo", "demo-7"], 2, "MEMBER is demo-7; the pods of demo are: demo-0, demo-1"),
        (["demo", "other-0"], 2, "MEMBER is other-0"),
        (["demi"], 1, 'there is no TabletCluster "demi"'),
        (["demo", "--since", "5"], 2, "--since is 5; expected numbers with s, m, h or d"),
        (["demo", "--since", ""], 2, "--since is ;"),
        (["demo", "--tail", "-1"], 2, "--tail"),
    ],
)
async def test_what_is_wrong_is_named(
    run: Run, tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    async with listing(tmp_path, lambda: STORED, log=told) as path:
        ran = await Shell(run, path)("logs", *words)
    assert (ran.code, ran.out, said in ran.err) == (code, "", True)


async def test_a_log_that_cannot_be_read_is_named_and_others_are_printed(run: Run, tmp_path: Path) -> None:
    async def log(request: web.Request) -> web.Response:
        if request.query["container"] == "member":
            return web.json_response({"kind": "Status", "message": "is waiting to start"}, status=400)
        return web.Response(text="x\n")

    async with listing(tmp_path, lambda: STORED, log=log) as path:
        ran = await Shell(run, path)("logs", "demo", "demo-0")
    assert (ran.code, ran.out) == (1, "[demo-0/transfer] x\n")
    assert "demo-0/member: BAD_INPUT" in ran.err
    assert "is waiting to start" in ran.err


async def test_long_lines_are_cut_and_control_characters_shown(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_logs, "LINE_BYTES_MAX", 100)

    async def log(_: web.Request) -> web.Response:
        return web.Response(body=b"\x1b[2J\xff\n" + b"y" * 250 + b"\nend")

    stored = STORED | {"pods": [pod("demo-0", "member")]}
    async with listing(tmp_path, lambda: stored, log=log) as path:
        lines = (await Shell(run, path)("logs", "demo")).out.splitlines()
    assert lines[0] == "[demo-0/member] \\x1b[2J\ufffd"
    assert [len(line) - len("[demo-0/member] ") for line in lines[1:]] == [100, 100, 50, 3]


async def test_restarted_containers_and_broken_connections_are_followed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first connection breaks; then the container starts again; then there is an interrupt."""
    asked, looks, real = list[str](), 0, asyncio.sleep
    pods = [pod("demo-0", "member", start="1")]

    async def log(request: web.Request) -> web.StreamResponse:
        asked.append(",".join(f"{key}={request.query[key]}" for key in sorted(request.query)))
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(f"2026-01-02T12:00:0{len(asked)}.5Z line {len(asked)}\n".encode())
        if len(asked) > 1:
            await real(60)
        return answer

    async def sleep(seconds: float) -> None:
        nonlocal looks
        if seconds != 0.123:
            await real(seconds)
            return
        looks += 1
        while len(asked) < looks:
            await real(0.01)
        await real(0.2)
        if looks == 2:
            pods[:] = [pod("demo-0", "member", start="2", restarts=1)]
        elif looks == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.123)
    monkeypatch.setattr(logs.asyncio, "sleep", sleep)
    stored: Any = {"tabletclusters": [cluster()], "pods": pods}
    async with listing(tmp_path, lambda: stored, log=log) as path:
        ran = await Shell(run, path)("logs", "demo", "-f")
    assert (ran.code, ran.err) == (130, "")
    assert ran.out.splitlines() == [f"[demo-0/member] line {number}" for number in (1, 2, 3)]
    assert asked == [
        "container=member,follow=true,tailLines=10,timestamps=true",
        "container=member,follow=true,sinceTime=2026-01-02T12:00:00Z,timestamps=true",
        "container=member,follow=true,timestamps=true",
    ]


class NodeLog:
    """A log as a node has it, of which `lines` may be added to; it counts requests and breaks connections.

    Each connection gets what there is, the first ones no more than `cut` bytes of it.
    """

    def __init__(self, *cut: int) -> None:
        self.lines: list[tuple[datetime, str]] = []
        self.requests = 0
        self._cut = list(cut)

    def add(self, second: float, text: str) -> None:
        self.lines.append((NOON + timedelta(seconds=second), text))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.query["timestamps"] == "true"
        since = request.query.get("sinceTime")
        begin = NOON - timedelta(hours=1) if since is None else datetime.fromisoformat(since)
        if ago := request.query.get("sinceSeconds"):
            begin = NOON - timedelta(seconds=int(ago))
        text = "".join(f"{at.isoformat()} {line}\n" for at, line in self.lines if at >= begin).encode()
        self.requests += 1
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        await answer.write(text[: self._cut[0]] if self._cut else text)
        if self._cut:
            self._cut.pop(0)
            assert request.transport is not None
            request.transport.abort()
        else:
            await asyncio.Event().wait()
        return answer


NOON = datetime(2026, 1, 2, 12, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize("cut", [(), (1,), (75,), (76, 80), (9999,), (76, 0, 130)])
async def test_no_line_is_lost_or_told_twice_when_connections_break(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: tuple[int, ...]
) -> None:
    """In one second there are several lines, equal ones among them, and later ones with earlier times.

    The API server is away for some looks after each connection that breaks, while the log goes on.
    """
    node, real, looks = NodeLog(*cut), asyncio.sleep, 0
    for second, text in ((0.1, "a"), (0.2, "b"), (0.2, "b"), (0.9, "c"), (1.0, "d"), (0.95, "late")):
        node.add(second, text)

    async def sleep(seconds: float) -> None:
        nonlocal looks
        if seconds != 0.123:
            await real(seconds)
            return
        await real(0.1)
        looks += 1
        node.add(1.0 + looks, f"look {looks}")
        if looks == 12:
            raise KeyboardInterrupt

    def stored() -> dict[str, Any]:
        if node.requests and looks % 3:
            raise web.HTTPServiceUnavailable
        return {"tabletclusters": [cluster()], "pods": [pod("demo-0", "member")]}

    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.123)
    monkeypatch.setattr(logs.asyncio, "sleep", sleep)
    async with listing(tmp_path, stored, log=node.answer) as path:
        ran = await Shell(run, path)("logs", "demo", "-f", "--raw")
    assert (ran.code, ran.err) == (130, "")
    shown = ran.out.splitlines()
    assert shown == [text for _, text in node.lines][: len(shown)]
    assert len(shown) >= 6


async def test_too_many_are_not_followed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "CONTAINERS_MAX", 3)
    async with listing(tmp_path, lambda: STORED, log=told) as path:
        ran = await Shell(run, path)("logs", "demo", "-f")
    assert (ran.code, "4 containers; at most 3 are followed: name a MEMBER" in ran.err) == (1, True)


JSON_LINE = (
    '{"timestamp":"2026-01-02T12:00:00.250Z","level":"ERROR","logger":"stele.x",'
    '"message":"partition 17: no\\nway",'
    '"partition":17,"migration":"7-1","namespace":"ns","cluster":"demo","member":"demo-0","epoch":7,'
    '"exception":"Traceback\\n\\u001b[2JValueError: no"}'
)


async def in_json(_: web.Request) -> web.Response:
    return web.Response(text=f"plain\n{JSON_LINE}\n{{}}\n")


async def test_lines_of_json_are_shown_as_text(run: Run, tmp_path: Path) -> None:
    stored = STORED | {"pods": [pod("demo-0", "member")]}
    async with listing(tmp_path, lambda: stored, log=in_json) as path:
        ran = await Shell(run, path)("logs", "demo")
    assert ran.out.splitlines() == [
        "[demo-0/member] plain",
        "[demo-0/member] 2026-01-02T12:00:00.250Z ERROR stele.x: partition 17: no\\nway "
        "migration=7-1 epoch=7",
        "[demo-0/member]     Traceback",
        "[demo-0/member]     \\x1b[2JValueError: no",
        "[demo-0/member] {}",
    ]


async def test_lines_are_left_as_they_are_for_programs(run: Run, tmp_path: Path) -> None:
    stored = STORED | {"pods": [pod("demo-0", "member")]}
    async with listing(tmp_path, lambda: stored, log=in_json) as path:
        ran = await Shell(run, path)("logs", "demo", "--raw")
    assert ran.out.splitlines() == ["plain", JSON_LINE, "{}"]
