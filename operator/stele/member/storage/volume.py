"""Files of a member's volume.

Everything here blocks; the event loop uses `MetaWriter`.
"""

import asyncio
import fcntl
import itertools
import logging
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from stele.adapters import pod_token
from stele.adapters.folders import sync_folder
from stele.adapters.segments.files import FOLDER, number_of
from stele.core.formats import FIRST, FormatRange
from stele.errors import Conflict, Corrupt, Unavailable
from stele.member import limits
from stele.member.storage import durable, failpoints
from stele.wire.admin import QuarantinedVolume
from stele.wire.copy.bulk import LOADS
from stele.wire.storage.volume import (
    MEMBER_SECURITY,
    TABLE_FILE,
    ClientSecurity,
    Consensus,
    Instance,
    LeaseFile,
    LogEnd,
    MemberSecurity,
    ServicesFile,
    Superblock,
    TableFile,
    decode_file,
    decode_table,
    encode_file,
)

log = logging.getLogger("stele.volume")

LOCK = "lock"
"""The process that holds the lock (flock) on this file is the only one that may use the volume."""
INSTANCE = "instance"
TABLETS = "tablet-meta"
CONSENSUS = "consensus-meta"
TABLE = "table"
DATA = "data"
WALS = "wals"
CHECKPOINTS = "checkpoints"
STAGING = "staging"
QUARANTINE = "quarantine"
VOLUME_PREFIX = "volume-"
REASON = "reason"
FOLDERS = (TABLETS, CONSENSUS, TABLE, CHECKPOINTS, STAGING, QUARANTINE, LOADS)
LOG_END = "log-end"
SEGMENTS_END = "segments-end"
SERVICES = "services"
"""Migrations that services were notified of and that have not ended."""
DAMAGED = "damaged"
LEASE = "lease"
"""Durations of the leases that this member grants."""
CLIENT_SECURITY = "client-security"
"""What this member demands of clients."""
STATE_OF_MEMBER = (
    *(INSTANCE, FOLDER, SEGMENTS_END, TABLETS, CONSENSUS, TABLE, DATA, WALS, LOG_END, DAMAGED, SERVICES),
    LEASE,
    CLIENT_SECURITY,
)
"""What goes to quarantine. MEMBER_SECURITY stays: an empty volume is to be no more open than before."""

T = TypeVar("T", Superblock, Consensus)


class Volume:
    """File access; paths are relative to the volume's directory. `pod_token` is this process' own."""

    def __init__(self, root: Path) -> None:
        self.root, self.pod_token = root, pod_token.make()
        self._threads = ThreadPoolExecutor(durable.PARALLEL_FILES, "files")

    def path(self, name: str) -> Path:
        return self.root / name

    def lock(self) -> None:
        """Lock the volume for this process until it ends.

        Raises Unavailable (LOCKED) while another has it.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise Unavailable(
                f"the volume {self.root} is used by another process: wait until it has ended", "LOCKED"
            ) from None

    def in_use(self) -> bool:
        """Return whether a process has locked the volume, without changing it."""
        try:
            with self.path(LOCK).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def create_folders(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        for name in FOLDERS:
            self.path(name).mkdir(exist_ok=True)
        sync_folder(self.root)

    def write(self, files: dict[str, bytes]) -> None:
        """Write files, each atomically. All are durable on return; after a crash any of them may be old."""
        durable.replace_all([f"{self.root}/{name}" for name in files], [*files.values()], self._threads)

    def _check_whole(self) -> None:
        """Raise Corrupt when the instance, the tablets or the database is missing while another is there.

        Without its database a tablet would be empty; without its instance it would be another member's.
        RocksDB does not complain when a file of its write-ahead log is missing, so that is detected here.
        What is missing of segments is found once they are open (`check_segments`).
        """
        if self.path(DAMAGED).exists():
            raise Corrupt(self.path(DAMAGED).read_text(errors="replace").strip())
        database = (self.path(DATA) / "CURRENT").exists()
        tablets = any(any(self.path(folder).iterdir()) for folder in (TABLETS, CONSENSUS))
        if tablets and not database:
            raise Corrupt(f"{self.root} has tablets but no database: {DATA}/CURRENT is missing")
        if (tablets or database) and not self.path(INSTANCE).exists():
            raise Corrupt(f"{self.root} has data but its file '{INSTANCE}' is missing")
        if self.path(LOG_END).exists():
            self._check_log_end()

    def _check_log_end(self) -> None:
        """Check the newest log file; older ones need no check, since a newer one is only used after them."""
        path = self.path(LOG_END)
        noted = decode_file(LogEnd, path.read_bytes(), str(path))
        files = self.log_files()
        newest = max(files, default="none", key=_number)
        if not files or _number(newest) < _number(noted.name):
            raise Corrupt(f"{WALS}/{noted.name} is missing; the newest file there is {newest}")
        if files.get(noted.name, noted.bytes) < noted.bytes:
            raise Corrupt(f"{WALS}/{noted.name} has {files[noted.name]} bytes, but {noted.bytes} were synced")

    def check_segments(self, end: tuple[str, int] | None) -> None:
        """Raise Corrupt when the log in segments, which ends there, lacks what was synced of it."""
        path = self.path(SEGMENTS_END)
        if not path.exists():
            return
        noted = decode_file(LogEnd, path.read_bytes(), str(path))
        if end is None:
            raise Corrupt(f"the folder {FOLDER} is missing; {noted.name} was in it")
        name, size = end
        if (number_of(name), size) < (number_of(noted.name), noted.bytes):
            raise Corrupt(f"{FOLDER}/{name} ends at {size}; of {noted.name} {noted.bytes} bytes were synced")

    def log_files(self) -> dict[str, int]:
        """Return names and sizes of the write-ahead log's files, without those that are deleted meanwhile."""
        files = files_in(self.path(WALS))
        return {name: stat.st_size for name, stat in files.items() if name.endswith(".log")}

    def note_log_end(self, synced: dict[str, int], segments: tuple[str, int] | None) -> None:
        """Record the newest of RocksDB's files and the newest segment, which were synced since they were
        measured."""
        ends = {}
        if synced:
            name = max(synced, key=_number)
            ends[LOG_END] = encode_file(LogEnd(name, synced[name]))
        if segments is not None:
            ends[SEGMENTS_END] = encode_file(LogEnd(*segments))
        if ends:
            self.write(ends)

    def mark_damaged(self, reason: str) -> None:
        """Mark the volume for quarantine at the next start."""
        durable.replace(self.path(DAMAGED), reason.encode() + b"\n")
        sync_folder(self.root)

    def check_features(self, spoken: FormatRange) -> None:
        """Raise Conflict (UNKNOWN_FORMAT) when a newer build has used the volume; it is not changed.

        A damaged table says nothing and is set aside later.
        """
        newer = f"the volume {self.root} was used by a newer build"
        try:
            features = self.features()
        except Corrupt as error:
            if error.code == "UNKNOWN_FORMAT":
                raise Conflict(f"{newer}: {error.text}; upgrade this member", error.code) from error
            return
        if features > spoken.most:
            text = f"its cluster uses format {features}, this member speaks {spoken}; upgrade this member"
            raise Conflict(f"{newer}: {text}", "UNKNOWN_FORMAT")

    def features(self) -> int:
        """Return the features that the stored table has, FIRST without one. Raises Corrupt."""
        try:
            return decode_table(self.path(TABLE_FILE).read_bytes(), TABLE_FILE).features
        except FileNotFoundError:
            return FIRST

    def load_instance(self, cluster: str, new_uuid: str) -> Instance:
        """Return the volume's identity with its incarnation incremented; `new_uuid` is for an empty volume.

        Raises Conflict (WRONG_CLUSTER) for a volume of another cluster, and Corrupt for a damaged one.
        """
        path = self.path(INSTANCE)
        old = None
        if path.exists():
            old = decode_file(Instance, path.read_bytes(), str(path))
            if old.cluster != cluster:
                raise Conflict(
                    f"the volume {self.root} belongs to cluster {old.cluster}, "
                    f"but STELE_CLUSTER_UID is {cluster}; mount the right volume or empty this one",
                    code="WRONG_CLUSTER",
                )
        self._check_whole()
        instance = Instance(cluster, old.uuid, old.incarnation + 1) if old else Instance(cluster, new_uuid, 1)
        self.write({INSTANCE: encode_file(instance)})
        failpoints.hit("start.instance")
        return instance

    def load_table(self) -> TableFile:
        """Return the stored table; an empty one when there is none, or when it is damaged, which is logged.

        A member without a table waits for the master, which has it: nothing is lost with the file.
        """
        path = self.path(TABLE_FILE)
        if not path.exists():
            return TableFile()
        try:
            return decode_table(path.read_bytes(), str(path))
        except Corrupt as error:
            log.error("the stored table is damaged and was set aside: %s", error)
            os.replace(path, path.with_suffix(".damaged"))
            return TableFile()

    def load_lease(self) -> LeaseFile | None:
        """Return the durations of leases; None when no process has written them. Raises Corrupt."""
        path = self.path(LEASE)
        return decode_file(LeaseFile, path.read_bytes(), str(path)) if path.exists() else None

    def load_client_security(self) -> ClientSecurity:
        """Return what is demanded of clients; nothing when no process has written it. Raises Corrupt."""
        path = self.path(CLIENT_SECURITY)
        if not path.exists():
            return ClientSecurity()
        return decode_file(ClientSecurity, path.read_bytes(), str(path))

    def load_member_security(self) -> MemberSecurity | None:
        """Return TLS with other members; None when no process has written it. Raises Corrupt."""
        path = self.path(MEMBER_SECURITY)
        if not path.exists():
            return None
        return decode_file(MemberSecurity, path.read_bytes(), str(path))

    def load_services(self) -> ServicesFile:
        """Return the migrations pending at the last end of the process; none, with a log line, when
        damaged."""
        path = self.path(SERVICES)
        try:
            return decode_file(ServicesFile, path.read_bytes(), str(path))
        except FileNotFoundError:
            return ServicesFile()
        except Corrupt as error:
            log.error("services cannot be notified of the end of their migrations: %s", error)
            return ServicesFile()

    def load_all(self, folder: str, kind: type[T]) -> Iterator[tuple[int, T | Corrupt]]:
        """Iterate each partition's file in `folder`, or what is wrong with it."""
        for path in sorted(self.path(folder).iterdir()):
            if not path.name.isdigit():
                continue
            try:
                yield int(path.name), decode_file(kind, path.read_bytes(), str(path))
            except Corrupt as error:
                yield int(path.name), error

    def quarantine_volume(self, reason: str) -> Path:
        """Move the member's whole state to quarantine, which leaves an empty volume.

        The instance is moved first: without it, the rest of an interrupted move is quarantined too.
        """
        folder = self._new_quarantine_folder()
        durable.replace(folder / REASON, reason.encode() + b"\n")
        failpoints.hit("aside.reason")
        for name in STATE_OF_MEMBER:
            if self.path(name).exists():
                os.rename(self.path(name), folder / name)
                failpoints.hit("aside.moved")
        sync_folder(folder)
        sync_folder(self.path(QUARANTINE))
        self.create_folders()
        return folder

    def _new_quarantine_folder(self) -> Path:
        """Create a unique directory for a quarantined volume, even for two in one second."""
        for number in itertools.count(int(time.time())):
            folder = self.path(QUARANTINE) / f"{VOLUME_PREFIX}{number}"
            if not folder.exists():
                folder.mkdir(parents=True)
                return folder
        raise AssertionError("count() ends")

    def quarantined_volumes(self) -> list[QuarantinedVolume]:
        """Return the quarantined volumes, oldest first."""
        paths = sorted(self.path(QUARANTINE).glob(VOLUME_PREFIX + "*"), key=lambda path: path.stat().st_mtime)
        return [_describe_volume(path) for path in paths]

    def purge_volume(self, name: str) -> bool:
        """Delete a quarantined volume; False when there is none of that name."""
        names = {path.name: path for path in self.path(QUARANTINE).glob(VOLUME_PREFIX + "*")}
        if name not in names:
            return False
        shutil.rmtree(names[name])
        sync_folder(self.path(QUARANTINE))
        return True

    def delete_folders(self, folder: str, keep: frozenset[str] = frozenset()) -> None:
        """Delete the directories in `folder` except those in `keep`."""
        for path in self.path(folder).iterdir():
            if path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)

    def has_room(self, size: int) -> bool:
        """Whether the log may take so many bytes."""
        return self.free_bytes() >= size + limits.LOG_FREE_BYTES_MIN

    def capacity_bytes(self) -> int:
        usage = os.statvfs(self.root)
        return usage.f_blocks * usage.f_frsize

    def free_bytes(self) -> int:
        usage = os.statvfs(self.root)
        return usage.f_bavail * usage.f_frsize


def _describe_volume(path: Path) -> QuarantinedVolume:
    reason = path / REASON
    return QuarantinedVolume(
        name=path.name,
        reason=reason.read_text(errors="replace").strip()
        if reason.exists()
        else "the move to quarantine was interrupted",
        bytes=sum(file.lstat().st_size for file in path.rglob("*")),
        since_s=path.stat().st_mtime,
    )


def files_in(folder: Path) -> dict[str, os.stat_result]:
    """Return what is in a folder by name, without what is deleted meanwhile; nothing if it is gone."""
    found: dict[str, os.stat_result] = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                found[entry.name] = entry.stat(follow_symlinks=False)
    return found


def _number(log_file: str) -> int:
    return int(log_file.removesuffix(".log"))


class MetaWriter:
    """Persists files from the event loop; requests during one write are joined in the next."""

    def __init__(self, volume: Volume, executor: Executor) -> None:
        self._volume = volume
        self._executor = executor
        self._waiting: dict[str, bytes] = {}
        self._done: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    async def stop(self) -> None:
        """Finish pending writes and accept no more: the process is about to end."""
        self._stopped = True
        if self._task is not None:
            await asyncio.wait([self._task])

    async def save(
        self,
        name: str,
        value: Superblock
        | Consensus
        | ServicesFile
        | LeaseFile
        | ClientSecurity
        | MemberSecurity
        | TableFile,
    ) -> None:
        """Persist a file; it is durable on return. Saves of one file keep their order.

        Raises Unavailable (STOPPING) after `stop`.
        """
        if self._stopped:
            raise Unavailable("this member is stopping: nothing more is written to its volume", "STOPPING")
        self._waiting[name] = encode_file(value)
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
        done = self._done
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await asyncio.shield(done)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            # Collect all requests of this turn of the loop.
            await asyncio.sleep(0)
            while self._done is not None:
                files, done = self._waiting, self._done
                self._waiting, self._done = {}, None
                try:
                    await loop.run_in_executor(self._executor, self._volume.write, files)
                except Exception as error:  # noqa: BLE001  passed on to those who wait for the files
                    done.set_exception(error)
                    done.exception()
                else:
                    done.set_result(None)
        finally:
            self._task = None
