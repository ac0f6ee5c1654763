"""`tablet` and `quarantine` with real member processes, over a server that passes requests on to pods."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from stele.core.control.commands import OpId
from stele.wire.admin import LogRange, QuarantinedTablet, QuarantineList, TabletFacts, TabletList
from tests.cli.conftest import Ran, Run
from tests.fakes.http import serving
from tests.fakes.pod_proxy import fake_api, kubeconfig
from tests.member.harness.cluster import Client, Cluster, cluster, eventually, free_ports, key_in


@dataclass
class Shell:
    """A shell whose kubeconfig names the fake API server."""

    run: Run
    kubeconfig: Path

    async def __call__(self, *arguments: str, stdin: bytes = b"") -> Ran:
        return await asyncio.to_thread(
            lambda: self.run(*arguments, "--kubeconfig", str(self.kubeconfig), stdin=stdin)
        )


def answer(value: object) -> web.Response:
    """What a member answers."""
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def page_of(partition: int, after: int | None) -> TabletList:
    """A page of one tablet."""
    rest = (1, 0, OpId(), OpId(), 0, 0, LogRange(1, 0, 0), None, {}, True, 0, 0, "", "")
    return TabletList(
        "u", "m0", 0, 1, "", (TabletFacts(partition, "OWNER", "READY", 1, 1, (0,), *rest),), after
    )


@asynccontextmanager
async def shell(run: Run, folder: Path, made: Cluster) -> AsyncIterator[Shell]:
    pods = {f"m{i}:7001": f"http://{each.host}:{each.ports[2]}" for i, each in made.members.items()}
    async with fake_api(folder, pods) as path:
        yield Shell(run, path)


async def test_tablets_of_an_owner_and_a_backup(run: Run, tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, partitions=4) as made, shell(run, tmp_path, made) as ask:
        assert await Client(made).set(0, key_in(0, 4), b"v" * 100)
        one = (await ask("tablet", "m0", "0", "-o", "json")).json
        assert (one["partition"], one["role"], one["state"], one["entries"]) == (0, "OWNER", "READY", 1)
        everything = (await ask("tablet", "m0", "-o", "json")).json
        assert [each["partition"] for each in everything["tablets"]] == [0, 1, 2, 3]
        assert (everything["name"], everything["next"]) == ("m0", None)

        async def line() -> list[str]:
            shown = (await ask("tablet", "m1")).out.splitlines()
            assert shown[0].split()[:4] == ["PARTITION", "ROLE", "STATE", "GEN"]
            return shown[1].split()

        last = ".".join(map(str, one["last"]))
        row = await eventually(line, lambda found: found[7] == last)
        assert row[:3] + row[6:7] + row[9:11] == ["0", "BACKUP", "READY", last, "0", "1"]
        wide = (await ask("tablet", "m1", "-o", "wide")).out
        assert "LOG-SIZE" in wide
        people = (await ask("tablet", "m0", "0")).out
        assert f"Last       {last} (applied {last}" in people
        assert "OWNER, serves" in people


async def test_a_deleted_tablet_is_listed_restored_and_purged(run: Run, tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, partitions=2, replicas=1) as made, shell(run, tmp_path, made) as ask:
        assert await Client(made).set(0, key_in(0, 2), b"v")
        await made.move_owner(0, 1)
        held = (await ask("quarantine", "list", "m0", "-o", "json")).json
        (tablet,) = held["tablets"]
        item = f"{tablet['partition']}/{tablet['generation']}"
        assert item in (await ask("quarantine", "list", "m0")).out
        no = await ask("quarantine", "purge", "m0", item, stdin=b"n\n")
        assert no.code == 1
        assert (await ask("quarantine", "list", "m0", "-o", "json")).json["tablets"] == [tablet]
        refused = await ask("quarantine", "restore", "m0", item)
        assert (refused.code, "NOT_NEEDED" in refused.err) == (1, True)
        purged = await ask("quarantine", "purge", "m0", item, stdin=b"y\n")
        assert (purged.code, f"{item} of m0 is deleted" in purged.out) == (0, True)
        again = await ask("quarantine", "purge", "m0", item, "--yes")
        assert again.out == f"{item} of m0 is already gone\n"
        missing = await ask("quarantine", "restore", "m0", item)
        assert (missing.code, "NOT_FOUND" in missing.err) == (1, True)


async def test_the_entries_of_a_deleted_tablet_are_dumped(run: Run, tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, partitions=2, replicas=1) as made, shell(run, tmp_path, made) as ask:
        keys = [key_in(0, 2, number) for number in range(3)]
        for key in keys:
            assert await Client(made).set(0, key, b"v\x00" + key)
        await made.move_owner(0, 1)

        async def listed() -> list[dict[str, int]]:
            tablets: list[dict[str, int]] = (await ask("quarantine", "list", "m0", "-o", "json")).json[
                "tablets"
            ]
            return tablets

        (tablet,) = await eventually(listed, lambda tablets: tablets[0]["entries"] == 3)
        item, file = f"0/{tablet['generation']}", tmp_path / "entries.ndjson"
        dumped = await ask("quarantine", "dump", "m0", item, str(file))
        assert (dumped.code, dumped.out, dumped.err) == (0, "", f"3 entries of {item} of m0\n")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        entries = {base64.b64decode(key): base64.b64decode(value) for _, key, value, _ in lines}
        assert entries == {key: b"v\x00" + key for key in keys}
        assert {(keyspace, expires) for keyspace, _, _, expires in lines} == {("default", 0)}
        assert (await ask("quarantine", "dump", "m0", item)).out == file.read_text()

        again = await ask("quarantine", "dump", "m0", item, str(file))
        assert (again.code, "exists already" in again.err) == (2, True)
        nowhere = await ask("quarantine", "dump", "m0", item, str(tmp_path / "no" / "file"))
        assert (nowhere.code, "cannot be written: No such file" in nowhere.err) == (2, True)
        missing = await ask("quarantine", "dump", "m0", "1/7", str(tmp_path / "other"))
        assert missing.code == 2
        assert f"1/7 is not in the quarantine of m0; its tablets there are: {item}" in missing.err
        volume = await ask("quarantine", "dump", "m0", "volume-1", str(tmp_path / "other"))
        assert (volume.code, "volume-1 is a volume" in volume.err) == (2, True)
        assert not (tmp_path / "other").exists()


async def test_a_dump_that_breaks_off_leaves_no_file(run: Run, tmp_path: Path) -> None:
    async def listed(_: web.Request) -> web.Response:
        tablet = QuarantinedTablet(0, 1, 0.0, OpId(), OpId(), 2, 9)
        return answer(QuarantineList(60.0, (tablet,), ()))

    async def entries(request: web.Request) -> web.StreamResponse:
        broken = web.StreamResponse()
        await broken.prepare(request)
        await broken.write(b'["default","aw==","dg==",0]\n["def')
        assert request.transport is not None
        request.transport.close()
        return broken

    app, pod = web.Application(), "/api/v1/namespaces/ns/pods/m0:7001/proxy/v1/quarantine"
    app.router.add_get(pod, listed)
    app.router.add_get(f"{pod}/tablets/0/1/entries", entries)
    async with serving(app) as url:
        ask, file = Shell(run, kubeconfig(tmp_path, url)), tmp_path / "entries.ndjson"
        ran = await ask("quarantine", "dump", "m0", "0/1", str(file))
    assert (ran.code, "the dump is incomplete: run it again" in ran.err) == (3, True)
    assert [each.name for each in tmp_path.iterdir()] == ["kubeconfig"]


async def test_a_restored_tablet_is_ready(run: Run, tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, partitions=2, replicas=1) as made, shell(run, tmp_path, made) as ask:
        assert await Client(made).set(0, key_in(0, 2), b"v")
        await made.move_owner(0, 1)
        (tablet,) = (await ask("quarantine", "list", "m0", "-o", "json")).json["tablets"]
        await made.members[1].kill()
        item = f"{tablet['partition']}/{tablet['generation']}"

        async def restored() -> Ran:
            return await ask("quarantine", "restore", "m0", item)

        done = await eventually(restored, lambda ran: ran.code == 0)
        assert done.out == f"{item} of m0 is restored\n"
        assert (await ask("tablet", "m0", "0", "-o", "json")).json["state"] == "READY"


async def test_what_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, partitions=2, replicas=1) as made, shell(run, tmp_path, made) as ask:
        found = await ask("tablet", "m0", "9")
        assert (found.code, found.err) == (
            1,
            "kubectl stele: NOT_FOUND: m0: partition 9 does not exist at this member\n",
        )
        found = await ask("tablet", "m7")
        assert (found.code, 'pods "m7" not found' in found.err) == (1, True)
        found = await ask("tablet", "../m0")
        assert (found.code, "not found" in found.err) == (1, True)
        await made.members[0].kill()
        found = await ask("tablet", "m0")
        assert (found.code, "error trying to reach service" in found.err) == (3, True)


@pytest.mark.parametrize("item", ["", "3/", "3/x", "/1", "-1/2", "..", "3/1/2"])
def test_items_that_can_be_none(run: Run, tmp_path: Path, item: str) -> None:
    ran = run("quarantine", "purge", "--yes", "--kubeconfig", str(tmp_path), "m0", "--", item)
    assert ran.code == 2
    assert f'ITEM is "{item}"; expected PARTITION/GENERATION' in ran.err


def test_a_volume_is_restored_by_hand(run: Run) -> None:
    ran = run("quarantine", "restore", "m0", "volume-1790000000")
    assert (ran.code, "move it back by hand" in ran.err) == (2, True)


async def test_pages_are_put_together(run: Run, tmp_path: Path) -> None:
    """A member answers 1,000 tablets at most, more than a test has: pages of one here."""

    async def page(request: web.Request) -> web.Response:
        number = int(request.query.get("after", "-1")) + 1
        return answer(page_of(number, number if number < 3 else None))

    app = web.Application()
    app.router.add_get("/v1/tablets", page)
    async with serving(app) as url, fake_api(tmp_path, {"m0:7001": url}) as path:
        found = (await Shell(run, path)("tablet", "m0", "-o", "json")).json
    assert [each["partition"] for each in found["tablets"]] == [0, 1, 2, 3]
    assert (found["name"], found["next"]) == ("m0", None)


@pytest.mark.parametrize(
    "command", [["status"], ["members"], ["partitions", "d"], ["plan", "d"], ["tablet", "m"]]
)
def test_a_cluster_that_does_not_answer(run: Run, tmp_path: Path, command: list[str]) -> None:
    path = kubeconfig(tmp_path, f"http://127.0.0.1:{free_ports(1)[0]}")
    ran = run(*command, "--kubeconfig", str(path))
    assert ran.code == 3
    assert "no answer from the API server" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    ["", "a: b", "[1,2", "- 1", "\x00", "clusters: 3", json.dumps({"current-context": "x", "contexts": []})],
)
def test_a_kubeconfig_of_a_wrong_form(run: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    ran = run("status", "--kubeconfig", str(path))
    assert ran.code == 2
    assert "cannot log in" in ran.err
    assert "Traceback" not in ran.err


def test_no_kubeconfig_at_all(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    ran = run("status")
    assert ran.code == 3
    assert "cannot log in" in ran.err
