"""The transfer containers of two pods: a tablet's checkpoint read at one, its copy written at the other.

The protocol on the volumes is the product's own (session.json, manifests); only HTTP and RocksDB's files are
replaced. A container outlives the member's process, so a cancelled or forgotten copy may write late.
"""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from stele.adapters.transfer.checkpoint import find_tablet, read_session
from stele.core.errors import Refused, Stale, SteleError, Unavailable
from stele.member.volume import CHECKPOINTS, STAGING
from stele.wire import keys
from stele.wire.copyjobs import MANIFEST_FORMAT, CopyJob, CopyJobStatus, Fragment, Manifest
from stele.wire.fragments import place_text, plan
from stele.wire.messages import CopyItem, SessionTablet
from stele.wire.volume import APPLIED, decode_state
from tests.simulation.disk import Disk, pack_file
from tests.simulation.loop import ProcessLoop

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
    """See the module. `jobs` are by session."""

    def __init__(self, disk: Disk, kubelet: "Kubelet", place: str) -> None:
        self._disk, self._kubelet, self._place = disk, kubelet, place
        self._loop = ProcessLoop(kubelet.clock, place, kubelet.network)
        self.jobs: dict[str, CopyJobStatus] = {}
        self._files = 0

    def client(self, process: "MemberProcess") -> "SimTransfer":
        return SimTransfer(self, process.loop)

    def end(self) -> None:
        self._loop.kill()

    # -- what HTTP would call

    def answer(self, method: str, path: str, body: bytes | None) -> bytes:
        """Raise Refused for what is unknown."""
        if method == "POST" and body is not None:
            job = _job(body)
            if job.session not in self.jobs:
                self.jobs[job.session] = CopyJobStatus(job.session, "RUNNING")
                self._loop.create_task(self._copy(job))
            return _json(self.jobs[job.session])
        session = path.rsplit("/", 1)[1]
        if method == "DELETE":
            # A copy that runs is not stopped at once: what it writes after this is a zombie's.
            self.jobs.pop(session, None)
            return b"{}"
        if session not in self.jobs:
            raise Refused(f"no copy {session} here", "NOT_FOUND")
        return _json(self.jobs[session])

    # -- copying

    async def _copy(self, job: CopyJob) -> None:
        finished: list[int] = []
        copied = 0
        late = self._late(len(job.items))
        try:
            for number, item in enumerate(job.items):
                tablet, entries = await self._read(job, item)
                if number == late:
                    self._kubelet.network.noticed["copy late"] += 1
                    await asyncio.sleep(self._loop.clock.random.uniform(0.5, LATE_SECONDS_MAX))
                copied += self._publish(job.session, item, tablet, entries)
                finished.append(item.partition)
            self._note(CopyJobStatus(job.session, "DONE", copied, finished=tuple(finished)))
        except (SteleError, OSError) as error:
            text = f"SOURCE: {error}"
            self._note(CopyJobStatus(job.session, "FAILED", copied, finished=tuple(finished), error=text))

    def _late(self, items: int) -> int:
        """The item that is read, and written only when its copy may be cancelled; -1 for none."""
        random = self._loop.clock.random
        return random.randrange(items) if random.random() < self._kubelet.copy_late_part else -1

    def _note(self, status: CopyJobStatus) -> None:
        if status.session in self.jobs:
            self.jobs[status.session] = status

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
        loop.call_later(PATIENCE_SECONDS, _resolve, answer, Unavailable("no answer from the source"))
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
        """At the source: one tablet of its checkpoint."""
        folder = self._disk.root / CHECKPOINTS / session
        stored = read_session(folder)
        data = self._disk.engine.checkpoints.get(str(folder / "db"))
        if stored is None or data is None or stored.token != token:
            return Refused(f"no session {session} here", "SOURCE")
        try:
            tablet = find_tablet(stored, item.partition, item.source_generation)
        except Stale as error:
            return error
        if tablet is None:
            return Refused(f"session {session} has no partition {item.partition}", "SOURCE")
        begin, end = keys.tablet_range(item.partition, item.source_generation)
        return tablet, data.scan(begin, end, 1 << 30)

    def _publish(self, session: str, item: CopyItem, tablet: SessionTablet, entries: Entries) -> int:
        """The file, then its manifest; the first manifest wins."""
        if session not in self.jobs:
            self._kubelet.network.noticed["zombie write"] += 1
        folder = self._disk.root / STAGING / session
        folder.mkdir(exist_ok=True)
        target = folder / f"{item.partition}.json"
        size = sum(len(key) + len(value) for key, value in entries)
        if target.exists():
            return size
        manifest = Manifest(
            format=MANIFEST_FORMAT,
            session=session,
            partition=item.partition,
            source_generation=item.source_generation,
            generation=item.generation,
            applied=tablet.applied,
            fragments=tuple(self._fragments(folder, item, tablet, entries)),
        )
        _replace(target, _json(manifest))
        return size

    def _fragments(
        self, folder: Path, item: CopyItem, tablet: SessionTablet, entries: Entries
    ) -> Iterator[Fragment]:
        """A file for each fragment that holds anything, cut as the product does it."""
        found = dict(entries).get(keys.meta_key(item.partition, item.source_generation, APPLIED))
        keyspaces = {} if found is None else decode_state(found).keyspaces
        planned = plan(item.partition, item.source_generation, keyspaces)
        prefix = keys.tablet_prefix(item.partition, item.generation)
        for number, each in enumerate(planned):
            mine = [(k, v) for k, v in entries if any(begin <= k < end for begin, end in each.ranges)]
            content, crc = pack_file([(prefix + k[keys.TABLET_PREFIX_BYTES :], v) for k, v in mine])
            self._files += 1
            name = f"{item.partition}-{self._files}.sst" if mine else ""
            if name:
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
        answer = self._loop.create_future()
        self._loop.call_later(0.001, _resolve, answer, None)
        await answer
        return self._container.answer(method, path, body)

    async def close(self) -> None:
        return


def _resolve(answer: Any, value: object) -> None:
    if not answer.done():
        answer.set_result(value)


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(path.name + ".part")
    aside.write_bytes(content)
    aside.rename(path)
