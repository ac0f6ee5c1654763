"""Jobs of the copier pod, the session file of a checkpoint, and the manifest of a copied tablet."""

import msgspec

from stele.core.control.commands import CopyItem, OpId, Reason, SessionTablet
from stele.core.copy.fragments import vector_fault
from stele.core.copy.states import JobState
from stele.errors import Corrupt
from stele.wire.copy.fragments import FIRST
from stele.wire.unreadable import UNREADABLE

MANIFEST_FORMAT = 2


class SourceTls(msgspec.Struct, frozen=True):
    """How processes without a certificate know the source: UID of the cluster, and its CAs, PEM.

    `grace_expired`: its certificate is taken for some days after its end.
    """

    cluster: str
    trusted: str
    grace_expired: bool = True


class CopyJob(msgspec.Struct, frozen=True):
    """Request to copy tablets into one destination's volume. `session` identifies the job.

    `source` is the name of the member to copy from. With `tls` Spark's tasks dial it with TLS; a member's
    transfer process does by the level of its member. With `blocks`, small tablets become files of blocks,
    which a member reads by itself, instead of SST files, which its database ingests.
    """

    session: str
    destination: str
    claim: str
    source_url: str
    token: str
    items: tuple[CopyItem, ...]
    executors: int = 1
    cores: int = 2
    memory: str = "896m"
    idle_seconds: int = 300
    source: str = ""
    tls: SourceTls | None = None
    blocks: bool = False


class CopyJobStatus(msgspec.Struct, frozen=True):
    """Progress of a job. `finished` are the partitions with a complete manifest.

    `tasks` is the number of Spark tasks; `retries` counts repeated tasks, and repeated copies within them.
    """

    session: str
    state: JobState
    copied_bytes: int = 0
    entries: int = 0
    finished: tuple[int, ...] = ()
    failure: Reason | None = None
    seconds: float = 0.0
    tasks: int = 0
    retries: int = 0


class SessionFile(msgspec.Struct, frozen=True):
    """`checkpoints/<session>/session.json`: what the transfer process serves, to whom, and how fast.

    Without `fragments`, each tablet is sent as a whole. `bytes_per_second` can change while it is served; 0
    means unlimited.
    """

    session: str
    token: str
    tablets: tuple[SessionTablet, ...]
    fragments: bool = True
    bytes_per_second: int = 0


class SentSession(msgspec.Struct, frozen=True):
    """Current streams of a session, and bytes sent since the transfer process opened its checkpoint."""

    session: str
    sent_bytes: int
    streams: int


class SentSessions(msgspec.Struct, frozen=True):
    """`GET /v1/sessions` of a transfer process, for the member of its pod."""

    sessions: tuple[SentSession, ...] = ()


class Fragment(msgspec.Struct, frozen=True):
    """A fragment on disk: everything from position `at` to `next` (`wire.copy.fragments`).

    `namespaces` maps each namespace to its version vector. `file` is empty when the fragment has no entries;
    `entries` and `bytes` (keys and values) are those of the file.
    """

    at: str
    next: str
    namespaces: dict[str, tuple[int, ...]]
    entries: int
    bytes: int
    file: str
    file_bytes: int
    file_crc32c: int


class Line(msgspec.Struct, frozen=True):
    """`staging/<session>/<partition>-<generation>.<n>.line`: fragment n of an unfinished copy."""

    format: int
    session: str
    source_generation: int
    fragment: Fragment


class Manifest(msgspec.Struct, frozen=True):
    """`staging/<session>/<partition>.json`: written last, so it exists only for complete copies.

    The fragments are in order, each beginning where the previous one ended.
    """

    format: int
    session: str
    partition: int
    source_generation: int
    generation: int
    applied: OpId
    fragments: tuple[Fragment, ...]

    @property
    def entries(self) -> int:
        return sum(fragment.entries for fragment in self.fragments)

    @property
    def bytes(self) -> int:
        return sum(fragment.bytes for fragment in self.fragments)

    @property
    def files(self) -> list[str]:
        return [fragment.file for fragment in self.fragments if fragment.file]


class _Format(msgspec.Struct):
    format: int


_decode_manifest = msgspec.json.Decoder(Manifest).decode
_decode_format = msgspec.json.Decoder(_Format).decode


def decode_manifest(content: bytes, name: str) -> Manifest:
    """Decode a manifest. Raises Corrupt with the file's name, UNKNOWN_FORMAT for another format."""
    try:
        written = _decode_format(content).format
        if written != MANIFEST_FORMAT:
            raise Corrupt(
                f"manifest {name}: format is {written}, expected {MANIFEST_FORMAT}: the copy was made by "
                "another version of Stele and is ignored",
                "UNKNOWN_FORMAT",
            )
        manifest = _decode_manifest(content)
    except UNREADABLE as error:
        raise Corrupt(f"manifest {name}: {error}") from None
    fault = _fault(manifest)
    if fault is not None:
        raise Corrupt(f"manifest {name}: {fault}")
    return manifest


def _fault(manifest: Manifest) -> str | None:
    """Return the contradiction in a manifest: fragments that are not contiguous, or impossible vectors."""
    at = FIRST
    for number, fragment in enumerate(manifest.fragments):
        if fragment.at != at:
            return f"fragment {number} begins at '{fragment.at}', the one before ended at '{at}'"
        if number and not at:
            return f"fragment {number} follows the last one"
        if "/" in fragment.file:
            return f"fragment {number} names the file {fragment.file!r}"
        faults = (vector_fault(vector, manifest.applied.index) for vector in fragment.namespaces.values())
        fault = next(filter(None, faults), None)
        if fault is not None:
            return f"fragment {number}: {fault}"
        at = fragment.next
    return f"it ends at '{at}', before the end of the tablet" if at else None


BLOCKS_SUFFIX = ".blocks"
BLOCKS_BYTES_MAX = 4 * 1024 * 1024
"""Of the name of a file with blocks in staging, which a member reads as a whole, and how large it may be."""

BLOCKS_TABLET_BYTES_MAX = 256 * 1024
"""Largest tablet that becomes such a file. What a member writes into its database is flushed and compacted,
so its bytes reach the disk several times; an ingested file stays as it is."""


STREAM_SUFFIX = ".stream"


def stream_file(partition: int, generation: int) -> str:
    """Return the name of the file with a small tablet's stream, in a session without a checkpoint."""
    return f"{partition}-{generation}{STREAM_SUFFIX}"


def damage_note(partition: int | str, generation: int | str) -> str:
    """Return the name of the file that marks a tablet of this session's checkpoint as damaged."""
    return f"damaged-{partition}-{generation}"
