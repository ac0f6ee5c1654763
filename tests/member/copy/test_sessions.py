"""Copy sessions at their source and at their destination: leases, limits, what they hold, what they leave."""

import asyncio
import json
import os
from pathlib import Path

import msgspec
import pytest

from stele.core.control import commands as m
from stele.core.copy.pacing import SPACE_MARGIN_BYTES
from stele.member import limits
from stele.member.copy.fetches import POLL_SECONDS_MAX, POLL_SECONDS_MIN, poll_seconds
from stele.member.storage.volume import CHECKPOINTS, DATA, STAGING
from stele.ports.engine import View
from stele.wire import control as wire
from stele.wire.copy.bulk import EXPORT_PREFIX
from stele.wire.copy.jobs import CopyJobStatus, SessionFile, stream_file
from stele.wire.storage.keys import meta_key
from stele.wire.storage.volume import APPLIED, decode_state
from tests.member.harness.cluster import eventually
from tests.member.harness.single_member import P, SingleMember


async def owning(made: SingleMember) -> SingleMember:
    """This member owns partition P alone, with one entry."""
    made.node.peers.connect = lambda: None  # type: ignore[method-assign]
    await made.receive("c")
    await made.command(m.CloseSession("s-c"))
    await made.store((0,), by=1)
    await made.until_quiet()
    return made


def opening(name: str = "s", lease: float = 60.0, **more: object) -> m.OpenSession:
    return m.OpenSession(name, (P,), lease, **more)  # type: ignore[arg-type]


def renewal(name: str = "s", lease: float = 60.0, **more: object) -> m.OpenSession:
    return m.OpenSession(name, (), lease, renew=True, **more)  # type: ignore[arg-type]


def folder(made: SingleMember, name: str = "s") -> Path:
    return made.node.volume.path(CHECKPOINTS) / name


async def told(made: SingleMember, name: str = "s") -> m.SessionReport | None:
    sessions = (await made.ask()).sessions
    assert sessions is not None
    return next((each for each in sessions if each.session == name), None)


async def ended(made: SingleMember, name: str = "s") -> str:
    """Why it ended by itself, once it did."""
    report = await eventually(lambda: told(made, name), lambda found: found is not None and bool(found.ended))
    assert report is not None
    return report.ended


async def removed(made: SingleMember, name: str = "s") -> None:
    """Its files go, a moment after it has ended."""

    async def there() -> bool:
        return folder(made, name).exists()

    await eventually(there, lambda found: not found)


@pytest.fixture(autouse=True)
def quick_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SESSION_WATCH_SECONDS", 0.02)


# -- what a session is of


@pytest.mark.parametrize("written", ["nothing", "before", "after"])
async def test_a_session_says_what_its_checkpoint_is_at(made: SingleMember, written: str) -> None:
    """Also when its tablet is written to while the checkpoint is made: before it is, or after."""
    await owning(made)
    loop, make, opened = asyncio.get_running_loop(), made.engine.checkpoint, list[str]()
    read = made.engine.open_checkpoint

    async def set_newer() -> None:
        await made.node.router.execute(P, b"default", [[b"SET", b"k", b"newer"]])

    def write() -> None:
        asyncio.run_coroutine_threadsafe(set_newer(), loop).result(10)

    def making(path: str) -> None:
        if written == "before":
            write()
        make(path)
        if written == "after":
            write()

    def reading(path: str) -> View:
        opened.append(path)
        return read(path)

    made.engine.checkpoint = making  # type: ignore[method-assign]
    made.engine.open_checkpoint = reading  # type: ignore[method-assign]
    before = made.replica.tablet.log.applied
    name = f"{EXPORT_PREFIX}s"
    assert await made.code(opening(name)) == "OK"
    (tablet,) = _description(folder(made, name)).tablets
    stored = read(str(folder(made, name) / "db")).get(meta_key(P, tablet.generation, APPLIED))
    assert stored is not None
    assert decode_state(stored).applied == tablet.applied
    assert (tablet.applied == m.OpId(*before)) is (written != "before")
    assert (made.replica.tablet.log.applied > before) is bool(opened) is (written != "nothing")


def _description(place: Path) -> SessionFile:
    return msgspec.json.decode((place / "session.json").read_bytes(), type=SessionFile)


async def test_a_session_of_small_tablets_has_streams(made: SingleMember) -> None:
    await owning(made)
    assert await made.code(opening()) == "OK"
    (tablet,) = _description(folder(made)).tablets
    assert tablet.applied == m.OpId(*made.replica.tablet.log.applied)
    names = {path.name for path in folder(made).iterdir()}
    assert names == {"session.json", stream_file(P, tablet.generation)}


@pytest.mark.parametrize("limit", ["SESSION_STREAMS_BYTES_MAX", "SESSION_STREAMS_ENTRIES_MAX"])
async def test_a_session_of_more_has_a_checkpoint(
    made: SingleMember, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(limits, limit, 0)
    await owning(made)
    assert await made.code(opening()) == "OK"
    assert str(folder(made) / "db") in made.engine.checkpoints


async def test_a_session_has_a_checkpoint_where_there_is_little_room(made: SingleMember) -> None:
    await owning(made)
    free = limits.SESSIONS_FREE_BYTES_MIN - 1
    made.node.volume.free_bytes = lambda: free  # type: ignore[method-assign]
    assert await made.code(opening()) == "OK"
    assert str(folder(made) / "db") in made.engine.checkpoints


async def test_a_tablet_that_grows_before_it_is_read_is_in_a_checkpoint(
    made: SingleMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    await owning(made)
    entries = sum(count for count, _ in made.replica.keyspaces.values())
    monkeypatch.setattr(limits, "SESSION_STREAMS_ENTRIES_MAX", entries)
    loop, view = asyncio.get_running_loop(), made.engine.view

    async def set_another() -> None:
        await made.node.router.execute(P, b"default", [[b"SET", b"another", b"1"]])

    def late() -> View:
        asyncio.run_coroutine_threadsafe(set_another(), loop).result(10)
        return view()

    made.engine.view = late  # type: ignore[method-assign,assignment]
    assert await made.code(opening()) == "OK"
    assert str(folder(made) / "db") in made.engine.checkpoints


# -- leases


async def test_a_session_that_nobody_renews_ends_and_says_so_until_it_is_closed(made: SingleMember) -> None:
    await owning(made)
    assert await made.code(opening(lease=0.1)) == "OK"
    assert folder(made).exists()
    assert await ended(made) == "its lease expired"
    await removed(made)
    assert (await made.ask()).stats.sessions == 0
    assert made.node.sessions.pin(P) == 2**62
    for again in (opening(), renewal()):
        result = (await made.ask(again)).results[0]
        assert (result.code, result.detail) == ("SESSION_LOST", "its lease expired")
    assert (await made.command(m.CloseSession("s"))).code == "OK"
    assert await told(made) is None


async def test_a_renewed_lease_lasts_and_keeps_the_log(made: SingleMember) -> None:
    await owning(made)
    assert await made.code(opening(lease=1.0)) == "OK"
    pinned = made.node.sessions.pin(P)
    assert pinned < 2**62
    renewed = (await made.ask(renewal(lease=30.0))).results[0]
    assert (renewed.code, renewed.session) == ("OK", None)
    await asyncio.sleep(1.2)
    report = await told(made)
    assert report is not None
    assert (report.ended, report.lease_left_ms > 20_000, made.node.sessions.pin(P)) == ("", True, pinned)


async def test_a_session_does_not_outlive_the_process(made: SingleMember) -> None:
    await owning(made)
    assert await made.code(opening()) == "OK"
    await made.restart()
    assert await told(made) is None
    assert await made.code(renewal()) == "SESSION_LOST"
    await made.node.sessions.collect_garbage()
    assert not folder(made).exists()


async def test_a_rate_is_written_for_the_transfer_process_and_may_change(made: SingleMember) -> None:
    await owning(made)

    def described() -> dict[str, object]:
        return json.loads((folder(made) / "session.json").read_text())  # type: ignore[no-any-return]

    first = opening(bytes_per_second=7, fragments=False)
    assert await made.code(m.OpenSession("s/2", (P,))) == "BAD_REQUEST"
    assert await made.code(first) == "OK"
    opened = (await made.ask(first)).results[0].session
    assert opened is not None
    assert described()["bytes_per_second"] == 7
    assert await made.code(renewal(bytes_per_second=9)) == "OK"
    assert (described()["bytes_per_second"], described()["token"]) == (9, opened.token)
    assert described()["fragments"] is False
    assert (await made.command(m.CloseSession("s"))).code == "OK"
    assert await made.code(renewal(bytes_per_second=5)) == "SESSION_LOST"
    assert not folder(made).exists()


# -- limits


async def test_a_damaged_description_ends_the_session_and_not_the_exchange(made: SingleMember) -> None:
    await owning(made)
    assert await made.code(opening()) == "OK"
    for damaged in (b"{", b'{"session":"\xff"}'):
        (folder(made) / "session.json").write_bytes(damaged)
        for _ in range(2):  # What was not written is written when it is asked for again.
            result = (await made.ask(renewal(bytes_per_second=1000))).results[0]
            assert (result.code, "session.json" in result.detail) == ("CORRUPT", True)


async def test_a_member_has_a_limited_number_of_sessions(
    made: SingleMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SESSIONS_PER_MEMBER_MAX", 2)
    await owning(made)
    assert [await made.code(opening(name)) for name in ("a", "b", "c")] == ["OK", "OK", "BUSY"]
    assert await made.code(opening("a")) == "OK"
    await made.command(m.CloseSession("a"))
    assert await made.code(opening("c")) == "OK"


def stream_bytes(made: SingleMember, name: str) -> int:
    """The size of the tablet's stream in a session."""
    return (folder(made, name) / stream_file(P, made.replica.generation)).stat().st_size


def fill(made: SingleMember, name: str, size: int, *, live: bool = False) -> None:
    """A file of a session's checkpoint; a live one is in the database as well."""
    path = folder(made, name) / "db"
    path.mkdir(exist_ok=True)
    (path / "1.sst").write_bytes(bytes(size))
    if live:
        os.link(path / "1.sst", made.node.volume.path(DATA) / f"{name}.sst")


async def test_a_session_that_holds_too_much_disk_ends_with_the_reason(
    made: SingleMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_SPACE_BYTES", 1150)
    await owning(made)
    for name, size, live in (("live", 5000, True), ("small", 900, False), ("large", 1100, False)):
        assert await made.code(opening(name)) == "OK"
        fill(made, name, size, live=live)
    reason, stream = await ended(made, "large"), stream_bytes(made, "live")
    assert f"holds {1100 + stream} bytes beyond the database" in reason
    assert "the limit is" in reason
    held = {each.session: each.held_bytes for each in (await made.ask()).sessions or () if not each.ended}
    assert held == {"live": stream, "small": 900 + stream}
    await removed(made, "large")


async def test_the_session_that_holds_most_ends_when_the_disk_is_nearly_full(made: SingleMember) -> None:
    await owning(made)
    nothing = f"{EXPORT_PREFIX}c"
    for name, size in (("a", 10), ("b", 20), (nothing, 0)):
        assert await made.code(opening(name)) == "OK"
        fill(made, name, size)
    free = limits.SESSIONS_FREE_BYTES_MIN - 1
    made.node.volume.free_bytes = lambda: free  # type: ignore[method-assign]
    assert f"{free} bytes of the volume are free" in await ended(made, "b")
    await ended(made, "a")
    await asyncio.sleep(0.1)
    assert list(made.node.sessions.open) == [nothing]


async def test_reasons_of_ended_sessions_are_kept_for_a_limited_number(
    made: SingleMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SESSIONS_ENDED_MAX", 2)
    await owning(made)
    for name in ("a", "b", "c"):
        assert await made.code(opening(name)) == "OK"
        await made.node.sessions.cancel(name, "cancelled")
    assert [each.session for each in (await made.ask()).sessions or ()] == ["b", "c"]


# -- the destination


class Transfer:
    """A transfer process that copies for ever."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    async def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        self.calls.append((method, path))
        status = CopyJobStatus("s", "RUNNING", 30, tasks=4, retries=1)
        return wire.encode(status)

    async def close(self) -> None:
        return


def fetching(size: int = 100) -> m.FetchDirect:
    return m.FetchDirect("s", 0, "token", (m.CopyItem(P, 1, 1, size),))


async def test_a_copy_without_room_for_it_does_not_begin(made: SingleMember) -> None:
    await owning(made)
    transfer = made.node.sessions.fetches._transfer = Transfer()  # type: ignore[assignment]
    made.node.volume.free_bytes = lambda: SPACE_MARGIN_BYTES + 99  # type: ignore[method-assign]
    refused = (await made.ask(fetching())).results[0]
    assert (refused.code, "the copy needs 100 bytes" in refused.detail) == ("NO_SPACE", True)
    assert (transfer.calls, (await made.ask()).fetches) == ([], ())
    made.node.volume.free_bytes = lambda: SPACE_MARGIN_BYTES + 100  # type: ignore[method-assign]
    assert await made.code(fetching()) == "OK"


async def test_tasks_and_retries_of_a_copy_are_reported(made: SingleMember) -> None:
    await owning(made)
    made.node.sessions.fetches._transfer = Transfer()  # type: ignore[assignment]
    assert await made.code(fetching()) == "OK"
    reply = await eventually(made.ask, lambda found: found.fetches[0].tasks > 0)
    report = reply.fetches[0]
    assert (report.copied_bytes, report.tasks, report.retries) == (30, 4, 1)


@pytest.mark.parametrize(
    ("running", "pause"), [(0.0, POLL_SECONDS_MIN), (0.1, 0.025), (60.0, POLL_SECONDS_MAX)]
)
def test_a_copy_is_asked_for_after_a_quarter_of_its_time(running: float, pause: float) -> None:
    assert poll_seconds(running) == pause


async def test_closing_a_session_stops_its_copy_and_removes_what_came(made: SingleMember) -> None:
    await owning(made)
    transfer = made.node.sessions.fetches._transfer = Transfer()  # type: ignore[assignment]
    assert await made.code(fetching()) == "OK"
    staged = made.node.volume.path(STAGING) / "s"
    staged.mkdir()
    (staged / "7-1.part").write_bytes(b"half")
    assert (await made.command(m.CloseSession("s"))).code == "OK"
    assert ("DELETE", "/v1/copies/s") in transfer.calls
    assert not staged.exists()


async def test_staging_folders_are_told_so_that_a_master_can_end_those_it_does_not_know(
    made: SingleMember,
) -> None:
    staged = made.node.volume.path(STAGING) / "of-a-dead-copier"
    staged.mkdir()
    (staged / "7-1.part").write_bytes(b"half")
    await made.node.sessions.collect_garbage()
    assert (await made.ask()).staged == ("of-a-dead-copier",)
    assert (await made.command(m.CloseSession("of-a-dead-copier"))).code == "OK"
    assert ((await made.ask()).staged, staged.exists()) == ((), False)


async def test_a_staging_folder_goes_by_itself_once_nobody_wrote_to_it_for_long(made: SingleMember) -> None:
    old = made.node.background.wall() - limits.STAGING_AGE_SECONDS - 1
    for name in ("old", "growing"):
        staged = made.node.volume.path(STAGING) / name
        staged.mkdir()
        (staged / "7-1.part").write_bytes(b"half")
        os.utime(staged / "7-1.part", (old, old))
        os.utime(staged, (old, old))
    # A large file grows, and the folder's own time does not tell.
    os.utime(made.node.volume.path(STAGING) / "growing" / "7-1.part")
    await made.node.sessions.collect_garbage()
    assert [path.name for path in made.node.volume.path(STAGING).iterdir()] == ["growing"]


async def test_sessions_may_come_and_go_while_folders_are_swept(made: SingleMember) -> None:
    """The sweep looks from another thread; what belongs to an open session stays."""
    await owning(made)
    left = made.node.volume.path(CHECKPOINTS) / "left"
    left.mkdir()
    (made.node.volume.path(STAGING) / ".hidden").mkdir()
    assert await made.code(opening("a")) == "OK"
    for turn in range(20):
        sweeping = asyncio.create_task(made.node.sessions.collect_garbage())
        assert await made.code(opening(f"b{turn}")) == "OK"
        await made.code(m.CloseSession(f"b{turn}"))
        await sweeping
    assert [path.name for path in made.node.volume.path(CHECKPOINTS).iterdir()] == ["a"]
    assert (await made.ask()).staged == ()
