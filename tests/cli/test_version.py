"""`version`: of this program, of what runs, and what differs."""

from pathlib import Path

import pytest
from aiohttp import web

import stele
from stele.cli.version import skew
from tests.cli.conftest import Run
from tests.cli.served_objects import cluster, listing, member, pod
from tests.cli.test_tablets import Shell

OWN = stele.__version__


async def test_members_and_operators_are_asked(run: Run, tmp_path: Path) -> None:
    operator = pod("op-1", "operator", of="")
    operator["metadata"] |= {"namespace": "far", "labels": {"app.kubernetes.io/name": "stele-operator"}}
    stored = {
        "tabletclusters": [cluster()],
        "tabletmembers": [member(0), member(1)],
        "pods": [pod("demo-0", "member"), operator],
    }

    async def proxied(request: web.Request) -> web.Response:
        numbers = {"demo-0:7004": "99.1.0", "op-1:8080": OWN}
        number = numbers.get(request.match_info["pod"])
        if number is None:
            return web.json_response({"kind": "Status", "message": "no such pod"}, status=404)
        # Older ones have no revision.
        more = ',revision="5eed"' if number == OWN else ""
        return web.Response(text=f'# HELP x\nstele_build_info{{version="{number}"{more}}} 1.0\n')

    async with listing(tmp_path, lambda: stored, proxied=proxied) as path:
        ask = Shell(run, path)
        ran = await ask("version", "demo")
        lines = [line.split() for line in ran.out.splitlines()]
        assert lines[:5] == [
            ["COMPONENT", "NAME", "VERSION"],
            ["kubectl", "stele", "-", OWN],
            ["operator", "far/op-1", OWN],
            ["member", "demo-0", "99.1.0"],
            ["member", "demo-1", "unknown"],
        ]
        assert ran.out.splitlines()[5:] == [
            "this command is older than 99.1.0, which runs there: update it",
            "a member is newer than its operator: update the operator first (helm upgrade)",
        ]
        found = (await ask("version", "demo", "-o", "json")).json
        assert (found["version"], len(found["running"]), len(found["skew"])) == (OWN, 3, 2)
        missing = await ask("version", "demi")
        assert (missing.code, 'there is no TabletCluster "demi"' in missing.err) == (1, True)


def test_without_a_cluster_nothing_is_asked(run: Run) -> None:
    assert run("version").out == f"{OWN}\n"
    assert run("version", "-o", "json").json == {"version": OWN}


@pytest.mark.parametrize(
    ("members", "operator", "said"),
    [
        ([OWN, OWN], OWN, []),
        (["", ""], "", []),
        (["0.0.9", OWN], OWN, ["members run 0.0.9,", "this command is newer than 0.0.9"]),
        (["0.0.9", "0.0.10"], "0.0.10", ["members run 0.0.9, 0.0.10:", "this command is newer than 0.0.9"]),
        (["7.0.dev1"], "8.0", ["this command is older than 8.0"]),
    ],
)
def test_what_differs(members: list[str], operator: str, said: list[str]) -> None:
    running = [("member", f"m{n}", number) for n, number in enumerate(members)]
    found = skew([("operator", "o", operator), *running])
    assert [each.startswith(text) for each, text in zip(found, said, strict=True)] == [True] * len(said)
