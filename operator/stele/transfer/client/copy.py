"""The copy function: tablets from a source's streams into SST files below `staging/<session>/`.

It knows neither Spark nor asyncio; a Spark task and a member's transfer process run the same code (design
50-copy, "Who moves the bytes"). A tablet comes fragment by fragment: the next is asked for once the one
before is written, synced and noted, and fragments of several tablets take turns: while one's file is synced
another's stream is read. Whoever runs it twice, late, or at the same time as another does no harm: files get
names that are used once, notes and the manifest are linked into place by the first to end, and nothing
outside the session's folder is touched. When that folder was removed meanwhile, the copy fails.
"""

import errno
import http.client
import os
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stele.core.control.commands import CopyItem, OpId
from stele.core.copy.fragments import round_robin
from stele.errors import Corrupt, Refused, SteleError, Unavailable
from stele.transfer.client.malloc import tune_malloc
from stele.transfer.client.sst_writer import SstWriter
from stele.transfer.client.stream_client import StreamClient
from stele.wire.copy.blocks import BlockReader, End
from stele.wire.copy.fragments import FIRST
from stele.wire.copy.jobs import MANIFEST_FORMAT, CopyJob, Fragment, Line, Manifest, decode_manifest
from stele.wire.unreadable import UNREADABLE

ATTEMPTS_MAX = 5
"""For each fragment."""
BACKOFF_SECONDS = 0.2
BACKOFF_SECONDS_MAX = 5.0
TABLETS_AT_ONCE = 4
"""Tablets whose fragments take turns in one slot: a large one holds up the others for one fragment."""

# Called with the bytes that came since the last call, negative when an attempt starts over. May raise.
Progress = Callable[[int], None]
Finished = Callable[[Manifest], None]

_encode = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(Line).decode


def copy_tablets(
    job: CopyJob,
    items: Sequence[CopyItem],
    *,
    staging: Path,
    progress: Progress,
    finished: Finished,
    again: Callable[[], None] = lambda: None,
) -> None:
    """Copy these tablets of the job; `finished` gets each manifest, at once when it is complete already.
    `again` is called when a fragment is begun again.

    `staging` is the destination's folder of that name. Raise Unavailable (SOURCE) or Corrupt (BAD_STREAM)
    after `ATTEMPTS_MAX` attempts at a fragment, Stale or BadInput (SOURCE) for what the source refuses,
    Refused (NO_SPACE) for a full disk, and whatever `progress` raises.
    """
    source, folder = StreamClient(job.source_url, job.token, job.session), staging / job.session
    tune_malloc()

    def take_turn(copy: _TabletCopy) -> bool:
        manifest = copy.step()
        if manifest is not None:
            finished(manifest)
        return manifest is not None

    try:
        folder.mkdir(exist_ok=True)
        with ThreadPoolExecutor(1, thread_name_prefix="sync") as syncing:
            shared = _Job(source, folder, syncing, progress, again)
            copies = [_TabletCopy(shared, item) for item in items]
            try:
                round_robin(copies, take_turn, TABLETS_AT_ONCE)
            finally:
                for copy in copies:
                    copy.drop()
    except OSError as error:
        raise _disk_error(error) from error
    finally:
        source.close()


def find_manifest(folder: Path, item: CopyItem) -> Manifest | None:
    """The manifest of this very copy, if it is complete; one of another format is no copy that counts."""
    try:
        name = f"{item.partition}.json"
        manifest = decode_manifest((folder / name).read_bytes(), f"{folder.name}/{name}")
    except FileNotFoundError:
        return None
    except Corrupt as wrong:
        if wrong.code == "UNKNOWN_FORMAT":
            return None
        raise Corrupt(str(wrong.args[0]), "BAD_STREAM") from None
    same = (manifest.source_generation, manifest.generation) == (item.source_generation, item.generation)
    return manifest if same and manifest.session == folder.name else None


@dataclass(frozen=True, slots=True)
class _Job:
    """What the tablets of one job share; `syncing` brings their files to disk."""

    source: StreamClient
    folder: Path
    syncing: Executor
    progress: Progress
    again: Callable[[], None]


class _TabletCopy:
    """One tablet on its way. After every other step all that came is on disk and noted."""

    def __init__(self, job: _Job, item: CopyItem) -> None:
        self._job, self._item = job, item
        self._fragments: list[Fragment] = []
        self._arrived: tuple[_Arrival, Future[Fragment]] | None = None
        self._attempts = 0
        self._begun = False

    def step(self) -> Manifest | None:
        """One fragment received, or noted once it is on disk. The manifest when that was the last, or when
        all was there before.
        """
        if not self._begun:
            self._begun = True
            complete = find_manifest(self._job.folder, self._item)
            if complete is not None:
                self._job.progress(complete.bytes)
                return complete
            self._find_fragments()
        return self._attempt()

    def _attempt(self) -> Manifest | None:
        arrived, self._arrived = self._arrived, None
        try:
            if arrived is None:
                self._receive()
                return None
            return self._take(*arrived)
        except (Unavailable, Corrupt):
            self._attempts += 1
            if self._attempts == ATTEMPTS_MAX:
                raise
            self._job.again()
            time.sleep(min(BACKOFF_SECONDS * 2**self._attempts, BACKOFF_SECONDS_MAX))
        return None

    def drop(self) -> None:
        """Remove the file that nothing names yet."""
        if self._arrived is not None:
            with suppress(OSError, SteleError):
                (self._job.folder / self._arrived[1].result().file).unlink()
            self._arrived = None

    @property
    def _at(self) -> str:
        return self._fragments[-1].next if self._fragments else FIRST

    def _find_fragments(self) -> None:
        """What an earlier run noted, as far as it goes without a gap."""
        while (fragment := self._read_line(len(self._fragments))) is not None:
            self._fragments.append(fragment)
            self._job.progress(fragment.bytes)

    def _line(self, number: int) -> Path:
        return self._job.folder / f"{self._item.partition}-{self._item.generation}.{number}.line"

    def _read_line(self, number: int) -> Fragment | None:
        """The note of a fragment, if it is of this copy, follows the one before, and its file is there."""
        try:
            line = _decode_line(self._line(number).read_bytes())
        except (FileNotFoundError, *UNREADABLE):
            return None
        wanted = (MANIFEST_FORMAT, self._job.source.session, self._item.source_generation, self._at)
        fragment = line.fragment
        if (line.format, line.session, line.source_generation, fragment.at) != wanted or not fragment.next:
            return None
        if fragment.file and _size(self._job.folder / fragment.file) != fragment.file_bytes:
            return None
        return fragment

    def _receive(self) -> None:
        """Fetch the next fragment; its file goes to disk while others are fetched."""
        arrival = _Arrival(self._job, self._item)
        try:
            arrival.fetch(self._at)
        except (Unavailable, Corrupt):
            self._job.progress(-arrival.came)
            raise
        self._arrived = arrival, self._job.syncing.submit(arrival.finish)

    def _take(self, arrival: "_Arrival", finished: Future[Fragment]) -> Manifest | None:
        """Note the fragment that is on disk now."""
        fragment = finished.result()
        try:
            if arrival.end.applied is not None:
                return self._publish([*self._fragments, fragment], arrival.end.applied)
            self._fragments.append(self._note(fragment))
        except (Unavailable, Corrupt):
            self._job.progress(-arrival.came)
            raise
        self._attempts = 0
        return None

    def _note(self, fragment: Fragment) -> Fragment:
        """Link the note; another run's that was there first counts instead."""
        number = len(self._fragments)
        line = Line(MANIFEST_FORMAT, self._job.source.session, self._item.source_generation, fragment)
        if self._link(self._line(number), line, fragment):
            return fragment
        first = self._read_line(number)
        if first is None:  # Of a former life of this session, or its file is gone.
            self._line(number).unlink(missing_ok=True)
            raise Unavailable(f"partition {self._item.partition}: a stale note was removed", "SOURCE")
        return first

    def _publish(self, fragments: list[Fragment], applied: OpId) -> Manifest:
        """Link the manifest: the first to link it wins."""
        manifest = Manifest(
            format=MANIFEST_FORMAT,
            session=self._job.source.session,
            partition=self._item.partition,
            source_generation=self._item.source_generation,
            generation=self._item.generation,
            applied=applied,
            fragments=tuple(fragments),
        )
        target = self._job.folder / f"{manifest.partition}.json"
        if target.exists() and find_manifest(self._job.folder, self._item) is None:
            target.unlink(missing_ok=True)
        if self._link(target, manifest, fragments[-1]):
            return manifest
        first = find_manifest(self._job.folder, self._item)
        if first is None:
            raise Unavailable(f"partition {self._item.partition}: another copy of it is under way", "SOURCE")
        return first

    def _link(self, target: Path, content: Line | Manifest, newest: Fragment) -> bool:
        """Write what names `newest` to a temporary file, and give it its name.

        It is not synced, as entries are: who loses power loses the copy, because the member starts again, and
        what is torn names no file with the right crc32c.

        False when there is a file of that name: another run of the same copy ended first. Its files are as
        good; what `newest` names goes then, as it does when the disk fails.
        """
        temporary = self._job.folder / f"{target.name}.{uuid.uuid4().hex}.part"
        linked = False
        try:
            temporary.write_bytes(_encode(content))
            os.link(temporary, target)
            linked = True
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
            if newest.file and not linked:
                (self._job.folder / newest.file).unlink(missing_ok=True)
        return True


class _Arrival:
    """One attempt at one fragment, of which `came` bytes. It leaves a complete file or nothing of its own."""

    def __init__(self, job: _Job, item: CopyItem) -> None:
        self._job, self._item = job, item
        self._name = f"{item.partition}-{uuid.uuid4().hex}"
        self._part = job.folder / f"{self._name}.part"
        self.came = 0
        self.at = ""
        self.end: End
        self._writer: SstWriter

    def fetch(self, at: str) -> None:
        """Write the fragment at this place to a file; afterwards `end` is the stream's last block."""
        self.at = at
        self._writer = SstWriter(self._part, self._item)
        try:
            self.end = self._checked(self._receive(self._writer, at).end, at)
        except BaseException:
            self._job.source.close()
            self._writer.drop()
            raise

    def finish(self) -> Fragment:
        """The fragment, once its file is on disk under its name. In any thread."""
        try:
            file_bytes, file_crc32c = self._writer.finish()
            file = f"{self._name}.sst" if self._writer.entries else ""
            if file:
                self._part.rename(self._job.folder / file)
        except BaseException:
            self._writer.drop()
            raise
        end, writer = self.end, self._writer
        counts = (writer.entries, writer.bytes)
        return Fragment(self.at, end.next, end.namespaces, *counts, file, file_bytes, file_crc32c)

    def _checked(self, end: End | None, at: str) -> End:
        wanted = (self._item.partition, self._item.source_generation)
        if end is None or (end.partition, end.generation) != wanted:
            raise Corrupt(f"{wanted} (partition, generation) was asked for, {end} was sent", "BAD_STREAM")
        if (end.applied is None) is not bool(end.next) or end.next == at:
            raise Corrupt(f"{self._origin()}: the fragment at {at} says {end.next!r} is next", "BAD_STREAM")
        return end

    def _receive(self, writer: SstWriter, at: str) -> BlockReader:
        try:
            reader = BlockReader(self._job.source.open(self._item, at).read)
            for keys, values in reader:
                writer.write(keys, values)
                more = reader.bytes - self.came
                self.came = reader.bytes
                self._job.progress(more)
        except (OSError, http.client.HTTPException) as error:
            detail = f"{self._origin()}: {str(error) or type(error).__name__}"
            raise Unavailable(detail, "SOURCE") from error
        except Corrupt as error:
            raise Corrupt(f"{self._origin()}: {error}", "BAD_STREAM") from None
        return reader

    def _origin(self) -> str:
        return f"partition {self._item.partition} from {self._job.source.url}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _disk_error(error: OSError) -> Refused:
    if error.errno == errno.ENOSPC:
        return Refused(f"the volume is full: {error}", "NO_SPACE")
    if error.errno == errno.ENOENT:
        return Refused(f"the session's staging folder is gone: {error}", "CANCELLED")
    return Refused(f"staging folder: {error}", "INTERNAL")
