"""The transfer containers of two pods: a tablet's checkpoint read at one, its copy written at the other.

The board of jobs and the protocol on the volumes are the product's own (session.json, manifests); only HTTP
and RocksDB's files are replaced (tests/contract/test_transfer.py). A container outlives the member's process,
and a cancelled or forgotten copy may write late, as a Spark task may.
"""

import asyncio
import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from crc32c import crc32c

from stele.core.control.commands import CopyItem, SessionTablet
from stele.errors import BadInput, Conflict, Refused, Stale, SteleError, Unavailable
from stele.member.copy.transfer_client import CALL_SECONDS_MAX
from stele.member.storage.disk_full import is_disk_full
from stele.member.storage.volume import CHECKPOINTS, STAGING
from stele.transfer.__main__ import DIRECT_JOBS_PARALLEL
from stele.transfer.jobs.board import JobBoard, Report
from stele.transfer.server.checkpoint import find_tablet, read_session
from stele.wire.copy.blocks import BlockReader, End, encode_stream
from stele.wire.copy.fragments import place_text, plan
from stele.wire.copy.jobs import BLOCKS_SUFFIX, MANIFEST_FORMAT, CopyJob, Fragment, Manifest, stream_file
from stele.wire.storage import keys
from stele.wire.storage.volume import APPLIED, decode_state
from tests.fakes.disk import Disk, pack_file
from tests.fakes.loop import Handle, ProcessLoop

if TYPE_CHECKING:
    from tests.simulation.kubelet import Kubelet
    from tests.simulation.member import MemberProcess

PATIENCE_SECONDS = 2.0
LATE_SECONDS_MAX = 8.0
ATTEMPTS_MAX = 3

Entries = list[tuple[bytes, bytes]]
_json = msgspec.json.Encoder().encode
_job = msgspec.json.Decoder(CopyJob).decode


class TransferContainer:
    """See the module. It is the board's runner, too: `_running` are the sessions that it copies for."""

    def __init__(self, disk: Disk, kubelet: "Kubelet", place: str) -> None:
        self._disk, self._kubelet, self._place = disk, kubelet, place
        self._loop = ProcessLoop(kubelet.clock, place, kubelet.network)
        self._board = JobBoard(self, DIRECT_JOBS_PARALLEL, self._loop.time)
        self._running: set[str] = set()
        self._files = 0

    def client(self, process: "MemberProcess") -> "SimTransfer":
        return SimTransfer(self, process.loop)

    def end(self) -> None:
        self._loop.kill()

    # -- what HTTP would call

    def take(self, call: tuple[str, str, bytes | None], tell: Callable[[object], None]) -> None:
        """A request: `tell` gets its answer or error, unless the container ends before."""

        async def answer() -> None:
            try:
                tell(await self._answer(*call))
            except SteleError as error:
                tell(error)

        self._kubelet.clock.soon(Handle(self._loop, lambda: self._loop.create_task(answer()), ()))

    @property
    def listens(self) -> bool:
        return self._loop.alive

    async def _answer(self, method: str, path: str, body: bytes | None) -> bytes:
        """As `transfer.jobs.routes` answers, and `member.copy.transfer_client` understands it."""
        if not path.startswith("/v1/copies"):
            raise _refused(f"{path} is not simulated")
        session = path.rsplit("/", 1)[1]
        if method == "POST":
            return self._submit(body or b"")
        if method == "DELETE":
            if not await self._board.cancel(session):
                raise _refused(f"session {session} has no job here")
            return b""
        status = self._board.status(session)
        if status is None:
            raise _refused(f"session {session} has no job here")
        return _json(status)

    def _submit(self, body: bytes) -> bytes:
        try:
            return _json(self._board.submit(_job(body)))
        except (msgspec.MsgspecError, BadInput, Conflict) as error:
            raise _refused(str(error)) from None
        except SteleError as error:
            raise Unavailable(f"503 {error}") from None

    # -- copying

    async def run(self, job: CopyJob, starting: Callable[[], None], report: Callable[[Report], None]) -> None:
        """Part of `CopyRunner`. What is cancelled goes on by itself, and nobody hears of it any more."""
        starting()
        report(Report())
        self._running.add(job.session)
        work = self._loop.create_task(self._copy(job, report))
        try:
            await asyncio.shield(work)
        finally:
            self._running.discard(job.session)

    async def _copy(self, job: CopyJob, report: Callable[[Report], None]) -> None:
        finished: list[int] = []
        copied = 0
        late = self._late(len(job.items))
        for number, item in enumerate(job.items):
            tablet, entries = await self._read(job, item)
            if number == late:
                self._kubelet.network.noticed["copy late"] += 1
                await asyncio.sleep(self._loop.clock.random.uniform(0.5, LATE_SECONDS_MAX))
            try:
                copied += self._publish(job, item, tablet, entries)
            except OSError as error:
                raise Refused(
                    f"staging: {error}", "NO_SPACE" if is_disk_full(error) else "DISK_ERROR"
                ) from error
            finished.append(item.partition)
            if job.session in self._running:
                report(Report(copied, finished=tuple(finished)))

    def _late(self, items: int) -> int:
        """The item that is read, and written only when its copy may be cancelled; -1 for none."""
        random = self._loop.clock.random
        return random.randrange(items) if random.random() < self._kubelet.copy_late_part else -1

    async def _read(self, job: CopyJob, item: CopyItem) -> tuple[SessionTablet, Entries]:
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await self._fetch(job, item)
            except Unavailable:
                continue
        return await self._fetch(job, item)

    async def _fetch(self, job: CopyJob, item: CopyItem) -> tuple[SessionTablet, Entries]:
        """Ask the transfer container of the source; Unavailable when nothing comes."""
        loop, network = self._loop, self._kubelet.network
        answer = loop.create_future()
        loop.call_later(
            PATIENCE_SECONDS, _resolve, answer, Unavailable("no answer from the source", "SOURCE")
        )
        address = urlsplit(job.source_url).hostname or ""
        source = network.addresses.get(address, "nowhere")

        def arrived() -> None:
            machine = self._kubelet.at_address(address)
            if machine is None or machine.transfer is None:
                return
            outcome = machine.transfer.read(job.session, job.token, item)
            network.send(source, self._place, partial(loop.call_soon, _resolve, answer, outcome), back=True)

        network.send(self._place, source, arrived)
        found = await answer
        if isinstance(found, SteleError):
            raise found
        assert isinstance(found, tuple)
        return found

    def read(self, session: str, token: str, item: CopyItem) -> "tuple[SessionTablet, Entries] | SteleError":
        """At the source: one tablet of its session."""
        folder = self._disk.root / CHECKPOINTS / session
        stored = read_session(folder)
        entries = self._stored(folder, item)
        if stored is None or entries is None or stored.token != token:
            return BadInput(f"no session {session} here", "SOURCE")
        try:
            tablet = find_tablet(stored, item.partition, item.source_generation)
        except Stale as error:
            return Stale(str(error), "SOURCE")
        if tablet is None:
            return BadInput(f"session {session} has no partition {item.partition}", "SOURCE")
        return tablet, entries

    def _stored(self, folder: Path, item: CopyItem) -> Entries | None:
        """The entries of a checkpoint, or of a stream that the member wrote."""
        number, generation = item.partition, item.source_generation
        stream, data = folder / stream_file(number, generation), self._disk.engine.checkpoints
        if stream.exists():
            blocks = BlockReader(io.BytesIO(stream.read_bytes()).read)
            return [entry for columns in blocks for entry in zip(*columns, strict=True)]
        found = data.get(str(folder / "db"))
        return None if found is None else found.scan(*keys.tablet_range(number, generation), 1 << 30)

    def _publish(self, job: CopyJob, item: CopyItem, tablet: SessionTablet, entries: Entries) -> int:
        """The file, then its manifest; the first manifest wins."""
        session = job.session
        if session not in self._running:
            self._kubelet.network.noticed["zombie write"] += 1
        self._disk.need_room()
        folder = self._disk.root / STAGING / session
        folder.mkdir(exist_ok=True)
        target = folder / f"{item.partition}.json"
        size = sum(len(key) + len(value) for key, value in entries)
        if target.exists():
            return size
        if size > self._disk.free_bytes:
            raise Refused("no space left for what is copied", "NO_SPACE")
        manifest = Manifest(
            format=MANIFEST_FORMAT,
            session=session,
            partition=item.partition,
            source_generation=item.source_generation,
            generation=item.generation,
            applied=tablet.applied,
            fragments=tuple(self._fragments(job, folder, item, tablet, entries)),
        )
        _replace(target, _json(manifest))
        return size

    def _fragments(
        self, job: CopyJob, folder: Path, item: CopyItem, tablet: SessionTablet, entries: Entries
    ) -> Iterator[Fragment]:
        """A file for each fragment that holds anything, cut as the product does it.

        Here all tablets are small, and only those with odd numbers count as such.
        """
        blocks = job.blocks and item.partition % 2 == 1
        found = dict(entries).get(keys.meta_key(item.partition, item.source_generation, APPLIED))
        keyspaces = {} if found is None else decode_state(found).keyspaces
        planned = plan(item.partition, item.source_generation, keyspaces)
        prefix = keys.tablet_prefix(item.partition, item.generation)
        for number, each in enumerate(planned):
            mine = [(k, v) for k, v in entries if any(begin <= k < end for begin, end in each.ranges)]
            renamed = [(prefix + k[keys.TABLET_PREFIX_BYTES :], v) for k, v in mine]
            content, crc = pack_blocks(renamed) if blocks else pack_file(renamed)
            self._files += 1
            name = f"{item.partition}-{self._files}{BLOCKS_SUFFIX if blocks else '.sst'}" if mine else ""
            if name:
                self._disk.need_room()
                (folder / name).write_bytes(content)
            yield Fragment(
                at=place_text(number),
                next="" if number + 1 == len(planned) else place_text(number + 1),
                namespaces={name.decode(): tablet.versions for name in each.namespaces},
                entries=len(mine),
                bytes=sum(len(key) + len(value) for key, value in mine),
                file=name,
                file_bytes=len(content) if name else 0,
                file_crc32c=crc if name else 0,
            )


class SimTransfer:
    """ports.Transfer: the member's own container, on the same machine."""

    def __init__(self, container: TransferContainer, loop: ProcessLoop) -> None:
        self._container, self._loop = container, loop

    async def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        loop, container = self._loop, self._container
        answer = loop.create_future()
        silence = Unavailable("no answer")
        if container.listens:
            timer = loop.call_later(CALL_SECONDS_MAX, _resolve, answer, silence)
            tell = partial(loop.call_later, 0.001, _resolve, answer)
            container.take((method, path, body), tell)
        else:
            timer = loop.call_later(0.001, _resolve, answer, Unavailable("nobody listens"))
        found = await answer
        timer.cancel()
        if isinstance(found, SteleError):
            raise found
        content: bytes = found
        return content

    async def close(self) -> None:
        return


class NoTransfer:
    """A transfer process that never answers."""

    async def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        raise Unavailable("no transfer process here")

    async def close(self) -> None:
        return


def pack_blocks(entries: Entries) -> tuple[bytes, int]:
    """A file of blocks, and its crc32c; of nothing there is none."""
    if not entries:
        return b"", 0
    content = b"".join(encode_stream(entries, lambda count, size: End(0, 0, None, count, size)))
    return content, crc32c(content)


def _refused(text: str) -> Refused:
    return Refused(text, "COPY_REFUSED")


def _resolve(answer: Any, value: object) -> None:
    if not answer.done():
        answer.set_result(value)


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(path.name + ".part")
    aside.write_bytes(content)
    aside.rename(path)
