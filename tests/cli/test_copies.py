"""`copies` with real member processes, and what `why` says of what is copied."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from stele.adapters.kubernetes.api import NotFound
from stele.adapters.kubernetes.console import Console
from stele.core.control import commands as m
from stele.explain.why import copied_lines, failing_lines
from stele.model import TabletRebalance
from tests.cli.conftest import Run
from tests.cli.test_tablets import shell
from tests.member.harness.cluster import Client, Cluster, cluster, eventually, key_in


@pytest.fixture(autouse=True)
def members_of_the_fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake API server knows pods only; these are the members that it would list."""

    async def members(self: Console, name: str | None = None) -> list[object]:
        if name not in (None, "demo"):
            raise NotFound(f'there is no TabletCluster "{name}"')
        return [SimpleNamespace(metadata=SimpleNamespace(name=each)) for each in ("m0", "m1", "m2")]

    monkeypatch.setattr(Console, "members", members)


def opening(**more: object) -> m.OpenSession:
    return m.OpenSession("s1-7", (0, 1), 60.0, destination=1, engine="Spark", **more)  # type: ignore[arg-type]


async def held_bytes(made: Cluster) -> int:
    """What the member itself reports of its only session."""
    (session,) = (await made.exchange(0, rows=())).sessions or ()
    return session.held_bytes


async def opened(made: Cluster) -> None:
    assert await Client(made).set(0, key_in(0, 4), b"v" * 1000)
    await eventually(lambda: made.command(0, opening(bytes_per_second=5_000_000)), lambda r: r.code == "OK")


async def test_sessions_are_listed_and_silent_members_are_named(run: Run, tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, partitions=4) as made, shell(run, tmp_path, made) as ask:
        assert (await ask("copies", "-o", "json")).json["sessions"] == []
        await opened(made)
        held_before = await held_bytes(made)
        ran = await ask("copies", "--cluster", "demo", "-o", "json")
        (one,) = ran.json["sessions"]
        assert {name: one[name] for name in ("session", "source", "destination", "engine", "tablets")} == {
            "session": "s1-7",
            "source": "m0",
            "destination": "m1",
            "engine": "Spark",
            "tablets": 2,
        }
        assert one["bytes"] > 1000
        assert (one["limit_bytes_per_second"], one["ended"]) == (5_000_000, "")
        # None at first; some, once the database has compacted a file of the checkpoint.
        assert held_before <= one["held_bytes"] <= await held_bytes(made)
        assert 0 < one["lease_left_seconds"] <= 60
        (silent,) = ran.json["silent"]
        assert "m2" in silent
        assert "the sessions of a member are not listed" in ran.err
        head, row = (await ask("copies")).out.splitlines()
        assert head.split()[:5] == ["SESSION", "SOURCE", "DESTINATION", "ENGINE", "TABLETS"]
        assert row.split()[:5] == ["s1-7", "m0", "m1", "Spark", "2"]
        wide = (await ask("copies", "-o", "wide")).out.splitlines()
        assert wide[0].split()[-2:] == ["LIMIT", "NOTE"]
        assert wide[1].split()[-2:] == ["5.0", "-"]


async def test_a_session_is_cancelled_by_name(run: Run, tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, partitions=4) as made, shell(run, tmp_path, made) as ask:
        await opened(made)
        folder = tmp_path / "m0" / "checkpoints" / "s1-7"
        assert folder.exists()
        unknown = await ask("copies", "cancel", "s1-8")
        assert (unknown.code, 'SESSION is "s1-8"; the open sessions are: s1-7' in unknown.err) == (2, True)
        done = await ask("copies", "cancel", "s1-7", "--cluster", "demo")
        assert done.out.startswith("s1-7 of m0 is cancelled")
        assert not folder.exists()
        sessions = (await made.exchange(0, rows=())).sessions
        assert sessions is not None
        assert [each.ended for each in sessions] == ["cancelled by a user (kubectl stele copies cancel)"]
        row = (await ask("copies", "-o", "wide")).out.splitlines()[1]
        assert "   ended   " in row
        assert row.endswith("cancelled by a user (kubectl stele copies cancel)")
        again = await ask("copies", "cancel", "s1-7")
        assert (again.code, "the open sessions are: none" in again.err) == (2, True)


async def test_a_cluster_that_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, partitions=4, replicas=1) as made, shell(run, tmp_path, made) as ask:
        ran = await ask("copies", "--cluster", "other")
        assert (ran.code, "other" in ran.err) == (1, True)


def plan(name: str, **status: object) -> TabletRebalance:
    destination = {
        "member": "demo-3",
        "engine": "Direct",
        "engineReason": "Spark failed for this destination: NO_EXECUTORS: none could be placed",
        "bytesPlanned": 2_000_000,
        "bytesCopied": 500_000,
        "megabytesPerSecond": "1.5",
        "tasks": 2,
        "retries": 1,
        "failures": 1,
    }
    found = TabletRebalance.read(
        {
            "kind": "TabletRebalance",
            "metadata": {"name": name},
            "spec": {"cluster": "demo"},
            "status": {"phase": "Running", "destinations": [destination], **status},
        }
    )
    assert isinstance(found, TabletRebalance)
    return found


def test_why_tells_what_is_copied_by_whom_and_why() -> None:
    over = plan("demo-1-1", phase="Done", finishedAt="2030-01-01T12:00:00Z")
    assert list(copied_lines([over, plan("demo-1-2")])) == [
        "demo-1-2 to demo-3: 500.0 kB of about 2.0 MB copied by Direct "
        "(Spark failed for this destination: NO_EXECUTORS: none could be placed), 1.5 MB/s; "
        "2 tasks, 1 retries, 1 failed sessions"
    ]


def test_why_says_which_copies_failed_and_how_often() -> None:
    text = "COPY_FAILED: its log was gone; 3 copies of it have failed in a row"
    refusals = [{"reason": "COPY_FAILED", "partition": 5, "message": text}]
    over = plan("demo-1-1", refusals=refusals, finishedAt="2030-01-01T12:00:00Z")
    assert list(failing_lines([over, plan("demo-1-2", refusals=refusals)])) == [
        f"demo-1-2: partition 5: {text}"
    ]


async def test_no_session_is_opened_twice_by_a_question(run: Run, tmp_path: Path) -> None:
    """Listing asks and changes nothing: the lease runs on."""
    async with cluster(tmp_path, 1, partitions=4, replicas=1) as made, shell(run, tmp_path, made) as ask:
        await made.order(0, m.OpenSession("s1-9", (0,), 60.0))
        before = (await ask("copies", "-o", "json")).json["sessions"][0]["lease_left_seconds"]
        await asyncio.sleep(0.3)
        after = (await ask("copies", "-o", "json")).json["sessions"][0]["lease_left_seconds"]
        assert after < before
