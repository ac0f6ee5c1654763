"""What the master asks of the copier pod, the session file of a checkpoint, and a tablet's manifest."""

from typing import Literal

import msgspec

from stele.wire.messages import CopyItem, OpId, SessionTablet

MANIFEST_FORMAT = 1


class CopyJob(msgspec.Struct, frozen=True):
    """Copy these tablets into one destination's volume. `session` is the identity of the job."""

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


class CopyJobStatus(msgspec.Struct, frozen=True):
    """How far a job is. `finished` are the partitions whose manifest is complete."""

    session: str
    state: Literal["QUEUED", "STARTING", "RUNNING", "DONE", "FAILED"]
    copied_bytes: int = 0
    entries: int = 0
    finished: tuple[int, ...] = ()
    error: str = ""
    seconds: float = 0.0


class SessionFile(msgspec.Struct, frozen=True):
    """`checkpoints/<session>/session.json`: what the transfer process may serve, and to whom."""

    session: str
    token: str
    tablets: tuple[SessionTablet, ...]


class Manifest(msgspec.Struct, frozen=True):
    """`staging/<session>/<partition>.json`: written last, so it exists only for a complete copy."""

    format: int
    session: str
    partition: int
    source_generation: int
    generation: int
    applied: OpId
    entries: int
    bytes: int
    file: str
    file_bytes: int
    file_crc32c: int


def damage_note(partition: int | str, generation: int | str) -> str:
    """Name of a file in a session's folder: reading this tablet's checkpoint met damage, which it tells."""
    return f"damaged-{partition}-{generation}"
