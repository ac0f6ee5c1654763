"""The copy function: one tablet from a source's stream into an SST file below `staging/<session>/`.

It knows neither Spark nor asyncio; a Spark task and a member's transfer process run the same code (design
50-copy, "Who moves the bytes"). Whoever runs it twice, late, or at the same time as another does no harm:
files get names that are used once, the manifest is linked into place by the first to end, and nothing outside
the session's folder is touched. When that folder was removed meanwhile, the copy fails.
"""

import errno
import http.client
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from crc32c import crc32c
from rocksdict import SstFileWriter

from stele.adapters.rocksdb.options import data_options
from stele.core.errors import BadInput, Corrupt, Refused, Stale, SteleError, Unavailable
from stele.wire.blocks import BlockReader
from stele.wire.copyjobs import MANIFEST_FORMAT, Manifest
from stele.wire.keys import EXPIRY_BYTES, TABLET_PREFIX_BYTES, USER, tablet_prefix
from stele.wire.messages import CopyItem

ATTEMPTS_MAX = 5
BACKOFF_SECONDS = 0.2
BACKOFF_SECONDS_MAX = 5.0
SILENCE_SECONDS_MAX = 30.0
# An entry is left out only when it expired this long ago: the clock here is not the owner's.
EXPIRED_MARGIN_MS = 600_000
READ_BYTES = 1024 * 1024

# Called with the bytes that came since the last call, negative when an attempt starts over. May raise.
Progress = Callable[[int], None]

_NEVER = bytes(EXPIRY_BYTES)
_decode_manifest = msgspec.json.Decoder(Manifest).decode
_encode = msgspec.json.Encoder().encode


def copy_tablet(
    source_url: str, token: str, session: str, item: CopyItem, *, staging: Path, progress: Progress
) -> Manifest:
    """Copy one tablet and return its manifest; at once when it is complete already.

    `source_url` is `http://host:port` of a transfer process, `staging` the destination's `staging` folder.
    Raise Unavailable (SOURCE) or Corrupt (BAD_STREAM) after `ATTEMPTS_MAX` attempts, Stale or BadInput
    (SOURCE) for what the source refuses, Refused (NO_SPACE) for a full disk, and whatever `progress` raises.
    """
    folder = staging / session
    try:
        folder.mkdir(exist_ok=True)
        done = finished(folder, item)
        if done is None:
            return _attempts(_Source(source_url, token, session), item, folder, progress)
    except OSError as error:
        raise _disk_error(error) from error
    progress(done.bytes)
    return done


def _attempts(source: "_Source", item: CopyItem, folder: Path, progress: Progress) -> Manifest:
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return _Copy(source, item, folder, progress).run()
        except (Unavailable, Corrupt):
            if attempt == ATTEMPTS_MAX:
                raise
            time.sleep(min(BACKOFF_SECONDS * 2**attempt, BACKOFF_SECONDS_MAX))
    raise AssertionError("the last attempt returns or raises")


def finished(folder: Path, item: CopyItem) -> Manifest | None:
    """The manifest of this very copy, if it is complete."""
    try:
        manifest = _decode_manifest((folder / f"{item.partition}.json").read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as wrong:
        raise Corrupt(f"manifest {folder.name}/{item.partition}.json: {wrong}", "BAD_STREAM") from None
    same = (manifest.source_generation, manifest.generation) == (item.source_generation, item.generation)
    return manifest if same and manifest.session == folder.name else None


@dataclass(frozen=True)
class _Source:
    """Where a session's streams come from."""

    url: str
    token: str
    session: str


class _Copy:
    """One attempt. It leaves either a complete manifest or nothing of its own."""

    def __init__(self, source: _Source, item: CopyItem, folder: Path, progress: Progress) -> None:
        self._source = source
        self._item, self._folder, self._progress = item, folder, progress
        self._name = f"{item.partition}-{uuid.uuid4().hex}"
        self._came = 0
        self._linked = False

    def run(self) -> Manifest:
        part = self._folder / f"{self._name}.part"
        try:
            return self._transfer(part)
        except BaseException as error:
            part.unlink(missing_ok=True)
            if not self._linked:
                (self._folder / f"{self._name}.sst").unlink(missing_ok=True)
            if isinstance(error, Unavailable | Corrupt):
                self._progress(-self._came)
            raise

    def _transfer(self, part: Path) -> Manifest:
        writer = _Writer(part, self._item)
        reader = self._receive(writer)
        end = reader.end
        wanted = (self._item.partition, self._item.source_generation)
        if end is None or (end.partition, end.generation) != wanted:
            raise Corrupt(f"{wanted} (partition, generation) was asked for, {end} was sent", "BAD_STREAM")
        file_bytes, file_crc32c = writer.finish()
        manifest = Manifest(
            format=MANIFEST_FORMAT,
            session=self._source.session,
            partition=self._item.partition,
            source_generation=self._item.source_generation,
            generation=self._item.generation,
            applied=end.applied,
            entries=writer.entries,
            bytes=writer.bytes,
            file=f"{self._name}.sst" if writer.entries else "",
            file_bytes=file_bytes,
            file_crc32c=file_crc32c,
        )
        return self._publish(part, manifest)

    def _receive(self, writer: "_Writer") -> BlockReader:
        connection = _connect(self._source.url)
        try:
            reader = BlockReader(self._ask(connection).read)
            for keys, values in reader:
                writer.write(keys, values)
                more = reader.bytes - self._came
                self._came = reader.bytes
                self._progress(more)
        except (OSError, http.client.HTTPException) as error:
            detail = f"{self._origin()}: {str(error) or type(error).__name__}"
            raise Unavailable(detail, "SOURCE") from error
        except Corrupt as error:
            raise Corrupt(f"{self._origin()}: {error}", "BAD_STREAM") from None
        finally:
            connection.close()
        return reader

    def _origin(self) -> str:
        return f"partition {self._item.partition} from {self._source.url}"

    def _ask(self, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        item = self._item
        session = f"/v1/sessions/{self._source.session}"
        path = f"{session}/partitions/{item.partition}?generation={item.source_generation}"
        connection.request("GET", path, headers={"Authorization": f"Bearer {self._source.token}"})
        response = connection.getresponse()
        if response.status != 200:
            raise _refusal(response.status, response.read(2000).decode("utf-8", "replace").strip())
        return response

    def _publish(self, part: Path, manifest: Manifest) -> Manifest:
        """Give the file its name, then link the manifest: the first to link it wins."""
        if manifest.file:
            part.rename(self._folder / manifest.file)
        target = self._folder / f"{manifest.partition}.json"
        aside = self._folder / f"{self._name}.json.part"
        try:
            _write_durably(aside, _encode(manifest))
            _sync_folder(self._folder)
            if finished(self._folder, self._item) is None:
                target.unlink(missing_ok=True)
            os.link(aside, target)
            self._linked = True
        except FileExistsError:
            return self._second(manifest)
        finally:
            aside.unlink(missing_ok=True)
        _sync_folder(self._folder)
        return manifest

    def _second(self, manifest: Manifest) -> Manifest:
        """Another run of the same copy ended first; its files are as good, ours go."""
        if manifest.file:
            (self._folder / manifest.file).unlink(missing_ok=True)
        first = finished(self._folder, self._item)
        if first is None:
            raise Unavailable(f"partition {manifest.partition}: another copy of it is under way", "SOURCE")
        return first


class _Writer:
    """An SST file under another generation. RocksDB wants the keys ascending, as the stream has them."""

    def __init__(self, path: Path, item: CopyItem) -> None:
        self.entries = 0
        self.bytes = 0
        self._path = path
        self._source_prefix = tablet_prefix(item.partition, item.source_generation)
        self._prefix = tablet_prefix(item.partition, item.generation)
        self._sst = SstFileWriter(data_options())
        self._expired_ms = int(time.time() * 1000) - EXPIRED_MARGIN_MS
        self._guard(lambda: self._sst.open(str(path)))

    def write(self, keys: list[bytes], values: list[bytes]) -> None:
        """Append what did not expire long ago. Raise Corrupt for keys of another tablet."""
        if not (keys[0].startswith(self._source_prefix) and keys[-1].startswith(self._source_prefix)):
            raise Corrupt("the stream holds keys of another tablet or generation")
        self._guard(lambda: self._append(keys, values))

    def _append(self, keys: list[bytes], values: list[bytes]) -> None:
        sst, prefix, size, count = self._sst, self._prefix, 0, 0
        for key, value in zip(keys, values, strict=True):
            if value[:EXPIRY_BYTES] != _NEVER and self._is_expired(key, value):
                continue
            sst[prefix + key[TABLET_PREFIX_BYTES:]] = value
            size += len(key) + len(value)
            count += 1
        self.entries += count
        self.bytes += size

    def _is_expired(self, key: bytes, value: bytes) -> bool:
        if key[TABLET_PREFIX_BYTES] != USER:
            return False
        return 0 < int.from_bytes(value[:EXPIRY_BYTES], "big") <= self._expired_ms

    def finish(self) -> tuple[int, int]:
        """(bytes, crc32c) of the file on disk; (0, 0) when it holds no entry and RocksDB makes none."""
        if not self.entries:
            self._path.unlink(missing_ok=True)
            return 0, 0
        self._guard(self._sst.finish)
        return _sync_and_sum(self._path)

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # rocksdict raises bare Exception
            if "No space left" in str(error):
                raise Refused(f"the volume is full: {error}", "NO_SPACE") from None
            raise Refused(f"SST file {self._path.name}: {error}", "INTERNAL") from error


def _disk_error(error: OSError) -> Refused:
    if error.errno == errno.ENOSPC:
        return Refused(f"the volume is full: {error}", "NO_SPACE")
    if error.errno == errno.ENOENT:
        return Refused(f"the session's staging folder is gone: {error}", "CANCELLED")
    return Refused(f"staging folder: {error}", "INTERNAL")


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme != "http" or not host or not port or parts.path not in ("", "/"):
        raise BadInput(f"source_url is '{url}', expected http://HOST:PORT of a member's transfer process")
    return http.client.HTTPConnection(host, port, timeout=SILENCE_SECONDS_MAX)


def _refusal(status: int, text: str) -> SteleError:
    detail = f"the source answered {status}: {text}"
    if status == 409:
        return Stale(detail, "SOURCE")
    if 400 <= status < 500 and status != 429:
        return BadInput(detail, "SOURCE")
    return Unavailable(detail, "SOURCE")


def _sync_and_sum(path: Path) -> tuple[int, int]:
    crc = size = 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        while piece := file.read(READ_BYTES):
            crc = crc32c(piece, crc)
            size += len(piece)
    return size, crc


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
