"""The copy function: copies tablets from a source's streams into files in `staging/<session>/`.

It depends on neither Spark nor asyncio: Spark tasks and a member's transfer process run the same code. A
tablet arrives fragment by fragment: the next one is requested when the previous is written, synced and
recorded. Fragments of several tablets take turns, so that one file is synced while another stream is read.
Running it twice, late or concurrently is harmless: file names are unique, records and the manifest are linked
into place by the first run to finish, and nothing outside the session's directory is touched. If that
directory is removed meanwhile, the copy fails.
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

from stele.adapters.tls.dialled import Secured
from stele.core.control.commands import CopyItem, OpId
from stele.core.copy.fragments import round_robin
from stele.errors import Corrupt, Refused, SteleError, Unavailable
from stele.transfer.client.fragment_writer import BlockWriter, FragmentWriter, SstWriter
from stele.transfer.client.malloc import tune_malloc
from stele.transfer.client.stream_client import StreamClient
from stele.wire.copy.blocks import BlockReader, End
from stele.wire.copy.fragments import FIRST
from stele.wire.copy.jobs import (
    BLOCKS_TABLET_BYTES_MAX,
    MANIFEST_FORMAT,
    CopyJob,
    Fragment,
    Line,
    Manifest,
    decode_manifest,
)
from stele.wire.unreadable import UNREADABLE

ATTEMPTS_MAX = 5
"""Attempts per fragment."""
BACKOFF_SECONDS = 0.2
BACKOFF_SECONDS_MAX = 5.0
TABLETS_AT_ONCE = 4
"""Tablets per slot whose fragments take turns: a large tablet delays others by one fragment at a time."""

# Called with the bytes received since the last call; negative when an attempt starts over. May raise.
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
    secured: Callable[[], Secured | None] = lambda: None,
) -> None:
    """Copy these tablets of the job; call `finished` with each manifest, at once for completed tablets.

    `staging` is the destination's directory of that name; `again` is called when a fragment is restarted.
    `secured` says for each connection what it is made with.
    Raises Unavailable (SOURCE) or Corrupt (BAD_STREAM) after ATTEMPTS_MAX attempts at a fragment, Stale or
    BadInput (SOURCE) when the source rejects the request, Refused (NO_SPACE) for a full disk, and anything
    that `progress` raises.
    """
    source = StreamClient(job.source_url, job.token, job.session, secured)
    folder = staging / job.session
    tune_malloc()

    def take_turn(copy: _TabletCopy) -> bool:
        manifest = copy.step()
        if manifest is not None:
            finished(manifest)
        return manifest is not None

    try:
        folder.mkdir(exist_ok=True)
        with ThreadPoolExecutor(1, thread_name_prefix="sync") as syncing:
            shared = _Job(source, folder, syncing, progress, again, job.blocks)
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
    """Return the manifest of exactly this copy if it is complete; another format does not count."""
    try:
        name = f"{item.partition}.json"
        manifest = decode_manifest((folder / name).read_bytes(), f"{folder.name}/{name}")
    except FileNotFoundError:
        return None
    except Corrupt as wrong:
        if wrong.code == "UNKNOWN_FORMAT":
            return None
        raise Corrupt(wrong.text, "BAD_STREAM") from None
    same = (manifest.source_generation, manifest.generation) == (item.source_generation, item.generation)
    return manifest if same and manifest.session == folder.name else None


@dataclass(frozen=True, slots=True)
class _Job:
    """Shared by the tablets of one job; `syncing` writes their files to disk, small ones as `blocks`."""

    source: StreamClient
    folder: Path
    syncing: Executor
    progress: Progress
    again: Callable[[], None]
    blocks: bool

    def writer(self, path: Path, item: CopyItem) -> FragmentWriter:
        """Return what writes a fragment of the tablet."""
        small = self.blocks and 0 < item.bytes <= BLOCKS_TABLET_BYTES_MAX
        return BlockWriter(path, item) if small else SstWriter(path, item)


class _TabletCopy:
    """A tablet being copied. After every other step, everything received is on disk and recorded."""

    def __init__(self, job: _Job, item: CopyItem) -> None:
        self._job, self._item = job, item
        self._fragments: list[Fragment] = []
        self._arrived: tuple[_Arrival, Future[Fragment]] | None = None
        self._attempts = 0
        self._begun = False

    def step(self) -> Manifest | None:
        """Receive one fragment, or record it once it is on disk.

        Returns the manifest after the last fragment, or when the copy was complete before.
        """
        if not self._begun:
            self._begun = True
            manifest = find_manifest(self._job.folder, self._item)
            if manifest is not None:
                self._job.progress(manifest.bytes)
                return manifest
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
        """Remove a file that no record names yet."""
        if self._arrived is not None:
            with suppress(OSError, SteleError):
                (self._job.folder / self._arrived[1].result().file).unlink()
            self._arrived = None

    @property
    def _at(self) -> str:
        return self._fragments[-1].next if self._fragments else FIRST

    def _find_fragments(self) -> None:
        """Load the records of an earlier run, up to the first gap."""
        while (fragment := self._read_line(len(self._fragments))) is not None:
            self._fragments.append(fragment)
            self._job.progress(fragment.bytes)

    def _line(self, number: int) -> Path:
        return self._job.folder / f"{self._item.partition}-{self._item.generation}.{number}.line"

    def _read_line(self, number: int) -> Fragment | None:
        """Return the record of a fragment, if it belongs to this copy, is next in order, and its file
        exists."""
        try:
            line = _decode_line(self._line(number).read_bytes())
        except (FileNotFoundError, *UNREADABLE):
            return None
        expected = (MANIFEST_FORMAT, self._job.source.session, self._item.source_generation, self._at)
        fragment = line.fragment
        if (line.format, line.session, line.source_generation, fragment.at) != expected or not fragment.next:
            return None
        if fragment.file and _size(self._job.folder / fragment.file) != fragment.file_bytes:
            return None
        return fragment

    def _receive(self) -> None:
        """Fetch the next fragment; its file is synced while others are fetched."""
        arrival = _Arrival(self._job, self._item)
        try:
            arrival.fetch(self._at)
        except (Unavailable, Corrupt):
            self._job.progress(-arrival.came)
            raise
        self._arrived = arrival, self._job.syncing.submit(arrival.finish)

    def _take(self, arrival: "_Arrival", finished: Future[Fragment]) -> Manifest | None:
        """Record the fragment whose file is on disk now."""
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
        """Link the record; if another run linked one first, use that."""
        number = len(self._fragments)
        line = Line(MANIFEST_FORMAT, self._job.source.session, self._item.source_generation, fragment)
        if self._link(self._line(number), line, fragment):
            return fragment
        first = self._read_line(number)
        if first is None:  # Of an earlier session of this name, or its file is gone.
            self._line(number).unlink(missing_ok=True)
            raise Unavailable(f"partition {self._item.partition}: removed a stale record", "SOURCE")
        return first

    def _publish(self, fragments: list[Fragment], applied: OpId) -> Manifest:
        """Link the manifest; the first run to do so wins."""
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
            raise Unavailable(f"partition {self._item.partition}: another copy of it is running", "SOURCE")
        return first

    def _link(self, target: Path, content: Line | Manifest, newest: Fragment) -> bool:
        """Write a file that names `newest`, and link it into place.

        It is not synced, unlike the data: after a loss of power the member restarts and the copy is lost
        anyway, and a torn record names no file with a matching crc32c. Returns False when the name is taken
        because another run of the same copy finished first, whose files are as good; the file of `newest` is
        then removed, as it is on a disk error.
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
    """One attempt at one fragment, with `came` bytes received. Leaves a complete file or nothing."""

    def __init__(self, job: _Job, item: CopyItem) -> None:
        self._job, self._item = job, item
        self._name = f"{item.partition}-{uuid.uuid4().hex}"
        self._part = job.folder / f"{self._name}.part"
        self.came = 0
        self.at = ""
        self.end: End
        self._writer: FragmentWriter

    def fetch(self, at: str) -> None:
        """Write the fragment at this position to a file; afterwards `end` is the stream's last block."""
        self.at = at
        self._writer = self._job.writer(self._part, self._item)
        try:
            self.end = self._checked(self._receive(self._writer, at).end, at)
        except BaseException:
            self._job.source.close()
            self._writer.drop()
            raise

    def finish(self) -> Fragment:
        """Return the fragment once its file is on disk under its final name. Runs in any thread."""
        try:
            file_bytes, file_crc32c = self._writer.finish()
            file = f"{self._name}{self._writer.suffix}" if self._writer.entries else ""
            if file:
                self._part.rename(self._job.folder / file)
        except BaseException:
            self._writer.drop()
            raise
        end, writer = self.end, self._writer
        counts = (writer.entries, writer.bytes)
        return Fragment(self.at, end.next, end.namespaces, *counts, file, file_bytes, file_crc32c)

    def _checked(self, end: End | None, at: str) -> End:
        expected = (self._item.partition, self._item.source_generation)
        if end is None or (end.partition, end.generation) != expected:
            raise Corrupt(f"requested {expected} (partition, generation), received {end}", "BAD_STREAM")
        if (end.applied is None) is not bool(end.next) or end.next == at:
            raise Corrupt(
                f"{self._origin()}: the fragment at {at} names {end.next!r} as the next one", "BAD_STREAM"
            )
        return end

    def _receive(self, writer: FragmentWriter, at: str) -> BlockReader:
        try:
            reader = BlockReader(self._job.source.open(self._item, at).read)
            for keys, values in reader:
                writer.write(keys, values)
                received = reader.bytes - self.came
                self.came = reader.bytes
                self._job.progress(received)
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
