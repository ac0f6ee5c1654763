"""One suite for `ports.Transfer`, the copies of a member's own transfer process.

Over HTTP with the real one, without TLS and with, which copies in processes of its own out of a real
checkpoint; and in the simulation, whose copies may in addition write late.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from crc32c import crc32c

from stele.adapters import pod_token
from stele.core.control.commands import CopyItem, OpId, SessionTablet
from stele.core.security.level import InternalTls
from stele.errors import Refused, Unavailable
from stele.member.copy.transfer_client import LocalTransfer
from stele.member.settings import Settings
from stele.member.storage.volume import CHECKPOINTS, STAGING
from stele.transfer.__main__ import DIRECT_JOBS_PARALLEL
from stele.transfer.client.copy import find_manifest
from stele.transfer.jobs import board
from stele.wire.copy.jobs import CopyJob, CopyJobStatus, SessionFile
from stele.wire.storage import keys
from stele.wire.storage.volume import APPLIED, DataState, encode_state
from tests.fakes.bridge import Bridged, pass_time
from tests.fakes.disk import Disk
from tests.fakes.loop import Clock, ProcessLoop
from tests.fakes.network import Network
from tests.fakes.transfer import TransferContainer
from tests.transfer import checkpoints

TOKEN = checkpoints.TOKEN
P, SOURCE_GENERATION, GENERATION = 7, 3, 9
ITEM = CopyItem(P, SOURCE_GENERATION, GENERATION, 1000)
ENTRIES = {(b"default", b"k%d" % number): (b"v" * number, 0) for number in range(50)}
APPLIED_AT = OpId(2, 17)
STATES = ("QUEUED", "STARTING", "RUNNING", "DONE", "FAILED")
_status = msgspec.json.Decoder(CopyJobStatus).decode


@dataclass
class Case:
    """`source` serves the session `s-1`; `silent` takes connections and never answers."""

    transfer: Any
    staging: Path
    source: str
    silent: str
    wait: Callable[[], Awaitable[None]]

    def job(self, session: str = "s-1", source: str = "", **changes: Any) -> CopyJob:
        made = CopyJob(session, "m-1", "", source or self.source, TOKEN, (ITEM,), source="m-0")
        return msgspec.structs.replace(made, **changes)

    async def post(self, job: CopyJob) -> CopyJobStatus:
        return _status(await self.transfer.call("POST", "/v1/copies", msgspec.json.encode(job)))

    async def status(self, session: str = "s-1") -> CopyJobStatus:
        return _status(await self.transfer.call("GET", f"/v1/copies/{session}"))

    async def delete(self, session: str = "s-1") -> None:
        await self.transfer.call("DELETE", f"/v1/copies/{session}")

    async def until(self, *states: str, session: str = "s-1") -> CopyJobStatus:
        for _ in range(600):
            found = await self.status(session)
            if found.state in states:
                return found
            await self.wait()
        raise AssertionError(found)


@asynccontextmanager
async def real(folder: Path, level: InternalTls) -> AsyncIterator[Case]:
    source, destination = folder / "source", folder / "destination"
    tls = {volume: folder / f"{volume.name}-tls" for volume in (source, destination)}
    for number, (volume, place) in enumerate(tls.items()):
        (volume / STAGING).mkdir(parents=True)
        checkpoints.certify(place, f"m-{number}")
        checkpoints.set_level(volume, level)
    checkpoints.make_checkpoint(source, "s-1", {P: (SOURCE_GENERATION, ENTRIES)})
    async with AsyncExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        source_url = await stack.enter_async_context(checkpoints.transfer(source, tls[source]))
        url = await stack.enter_async_context(checkpoints.transfer(destination, tls[destination]))
        port = int(url.rpartition(":")[2])
        pod_token.write(destination, "secret")
        settings = Settings(destination, "c", "m-1", bind="127.0.0.1", transfer_port=port)
        transfer = LocalTransfer(settings, "secret")
        stack.push_async_callback(transfer.close)
        silent_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        yield Case(transfer, destination / STAGING, source_url, silent_url, lambda: asyncio.sleep(0.02))


def simulated(folder: Path) -> tuple[Case, TransferContainer]:
    clock = Clock(1)
    network = Network(clock)
    network.addresses = {"10.0.0.1": "source", "10.0.0.2": "silent"}
    machines: dict[str, Any] = {}
    kubelet: Any = SimpleNamespace(clock=clock, network=network, copy_late_part=0.0, at_address=machines.get)
    disks = {name: Disk(folder / name, clock) for name in ("source", "destination")}
    for disk in disks.values():
        disk.open()
    _make_checkpoint(disks["source"])
    machines["10.0.0.1"] = SimpleNamespace(transfer=TransferContainer(disks["source"], kubelet, "source"))
    container = TransferContainer(disks["destination"], kubelet, "destination")
    loop = ProcessLoop(clock, "destination")
    transfer = Bridged(container.client(cast(Any, SimpleNamespace(loop=loop))), loop)

    async def wait() -> None:
        pass_time(clock, 0.02)

    urls = "http://10.0.0.1:7002", "http://10.0.0.2:7002"
    return Case(transfer, disks["destination"].root / STAGING, *urls, wait), container


def _make_checkpoint(disk: Disk) -> None:
    """What a member leaves for its transfer container."""
    folder = disk.root / CHECKPOINTS / "s-1"
    folder.mkdir()
    totals = {b"default": (len(ENTRIES), 1000)}
    meta = keys.meta_key(P, SOURCE_GENERATION, APPLIED)
    disk.engine.write_data([(meta, encode_state(DataState(APPLIED_AT, totals)))])
    for (keyspace, key), (value, expire_at_ms) in ENTRIES.items():
        stored = keys.user_key(P, SOURCE_GENERATION, keyspace, key), keys.pack_value(value, expire_at_ms)
        disk.engine.write_data([stored])
    disk.engine.checkpoint(str(folder / "db"))
    tablet = SessionTablet(P, SOURCE_GENERATION, APPLIED_AT, 1000, (17, 16))
    (folder / "session.json").write_bytes(msgspec.json.encode(SessionFile("s-1", TOKEN, (tablet,))))


@pytest.fixture(params=["simulated", InternalTls.OFF, InternalTls.REQUIRED])
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Case]:
    if request.param == "simulated":
        made, container = simulated(tmp_path)
        yield made
        container.end()
    else:
        async with real(tmp_path, request.param) as found:
            yield found


async def test_a_copy_ends_with_a_manifest_of_files_that_are_there(case: Case) -> None:
    first = await case.post(case.job())
    assert (first.session, first.state in STATES[:3]) == ("s-1", True)
    done = await case.until("DONE", "FAILED")
    assert (done.state, done.failure, done.finished) == ("DONE", None, (P,))
    manifest = find_manifest(case.staging / "s-1", ITEM)
    assert manifest is not None
    assert (manifest.applied, manifest.entries) == (APPLIED_AT, len(ENTRIES) + 1)
    assert done.copied_bytes == manifest.bytes
    for fragment in manifest.fragments:
        content = (case.staging / "s-1" / fragment.file).read_bytes()
        assert (len(content), crc32c(content)) == (fragment.file_bytes, fragment.file_crc32c)


async def test_the_same_job_again_is_the_same_job(case: Case) -> None:
    await case.post(case.job())
    await case.post(case.job())
    done = await case.until("DONE", "FAILED")
    assert (await case.post(case.job())).state == done.state == "DONE"
    assert await case.status() == done


async def test_another_job_of_the_session_is_refused_until_the_first_is_deleted(case: Case) -> None:
    await case.post(case.job(source=case.silent))
    with pytest.raises(Refused) as raised:
        await case.post(case.job())
    assert raised.value.code == "COPY_REFUSED"
    assert (await case.status()).state in STATES[:3]
    await case.delete()
    await case.post(case.job())
    assert (await case.until("DONE", "FAILED")).state == "DONE"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"session": "s-1"}',
        msgspec.json.encode(CopyJob("S 1", "m-1", "", "http://10.0.0.1:1", TOKEN, (ITEM,))),
        msgspec.json.encode(CopyJob("s-1", "m-1", "", "http://10.0.0.1:1", TOKEN, ())),
        msgspec.json.encode(CopyJob("s-1", "m-1", "", "ftp://10.0.0.1:1", TOKEN, (ITEM,))),
    ],
)
async def test_what_is_no_job_is_refused(case: Case, body: bytes) -> None:
    with pytest.raises(Refused) as raised:
        await case.transfer.call("POST", "/v1/copies", body)
    assert raised.value.code == "COPY_REFUSED"
    with pytest.raises(Refused):
        await case.status()


async def test_a_session_without_a_job_is_not_known(case: Case) -> None:
    for ask in (case.status, case.delete):
        with pytest.raises(Refused) as raised:
            await ask("never-heard-of")
        assert raised.value.code == "COPY_REFUSED"


async def test_a_deleted_job_is_forgotten_and_may_begin_anew(case: Case) -> None:
    await case.post(case.job(source=case.silent))
    await case.until("RUNNING")
    await case.delete()
    for ask in (case.status, case.delete):
        with pytest.raises(Refused):
            await ask()
    assert (await case.post(case.job(source=case.silent))).state in STATES[:3]
    await case.delete()


async def test_what_the_source_refuses_fails_the_job_and_stays_told(case: Case) -> None:
    for job in (case.job("s-2"), case.job("s-3", token="wrong")):
        await case.post(job)
        failed = await case.until("DONE", "FAILED", session=job.session)
        assert (failed.state, failed.failure.code, failed.finished) == ("FAILED", "SOURCE", ())
        assert await case.post(job) == failed
        assert list((case.staging / job.session).glob("*.json")) == []


async def test_a_tablet_of_another_generation_is_not_copied(case: Case) -> None:
    other = CopyItem(P, SOURCE_GENERATION + 1, GENERATION, 1000)
    await case.post(case.job(items=(other,)))
    failed = await case.until("DONE", "FAILED")
    assert (failed.state, failed.failure.code) == ("FAILED", "SOURCE")
    assert find_manifest(case.staging / "s-1", other) is None


async def test_a_few_jobs_run_at_once_and_the_others_wait(case: Case) -> None:
    sessions = [f"w-{number}" for number in range(DIRECT_JOBS_PARALLEL + 1)]
    for session in sessions:
        await case.post(case.job(session, case.silent))
    for session in sessions[:-1]:
        await case.until("RUNNING", session=session)
    assert (await case.status(sessions[-1])).state == "QUEUED"
    await case.delete(sessions[0])
    await case.until("RUNNING", session=sessions[-1])
    for session in sessions[1:]:
        await case.delete(session)


async def test_a_job_that_nobody_asks_about_ends(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "UNASKED_SECONDS_MAX", 0.3)
    monkeypatch.setattr(board, "UNASKED_LOOK_SECONDS", 0.05)
    await case.post(case.job(source=case.silent))
    for _ in range(25):
        await case.wait()
    failed = await case.status()
    assert (failed.state, failed.failure.code) == ("FAILED", "CANCELLED")


@pytest.mark.parametrize("which", ["simulated", "real"])
async def test_without_a_process_it_is_unavailable(which: str, tmp_path: Path) -> None:
    if which == "simulated":
        made, container = simulated(tmp_path)
        container.end()
        with pytest.raises(Unavailable):
            await made.status()
    else:
        transfer = LocalTransfer(Settings(tmp_path, "c", "m-1", bind="127.0.0.1", transfer_port=1), "")
        with pytest.raises(Unavailable):
            await transfer.call("GET", "/v1/copies/s-1")
        await transfer.close()


async def test_a_closed_client_of_the_transfer_process_asks_no_more(tmp_path: Path) -> None:
    """Work that ends later than the client, such as what keeps the log's level, is told so."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        asked.set()
        await ended.wait()

    asked, ended, taken = asyncio.Event(), asyncio.Event(), list[asyncio.StreamWriter]()
    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        transfer = LocalTransfer(Settings(tmp_path, "c", "m-1", bind="127.0.0.1", transfer_port=port), "")
        under_way = asyncio.create_task(transfer.call("PUT", "/v1/log-level", b'"DEBUG"'))
        await asked.wait()
        await transfer.close()
        with pytest.raises(Unavailable):
            await under_way
        with pytest.raises(Unavailable, match="closed"):
            await transfer.call("PUT", "/v1/log-level", b'"DEBUG"')
        ended.set()
        for writer in taken:
            writer.close()
            await writer.wait_closed()
