"""`logs`: lines of all containers, of some, and as they come."""

import asyncio
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
        await answer.write(f"line {len(asked)}\n".encode())
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
    assert asked[0] == "container=member,follow=true,tailLines=10"
    assert asked[1].startswith("container=member,follow=true,sinceSeconds=")
    assert asked[2] == "container=member,follow=true"


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
