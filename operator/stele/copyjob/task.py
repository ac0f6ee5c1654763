"""One Spark task: copies the items of one slice, their fragments in turn. Independent of Spark itself."""

import http.client
import logging
import os
import time
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from stele.adapters.tls.dialled import Secured, connect
from stele.adapters.tls.identity import trusting
from stele.adapters.tls.peer import Expected
from stele.copyjob.messages import SliceProgress, SliceResult, encode
from stele.core.copy.pacing import lack_of_space
from stele.core.security.identity import Role
from stele.core.security.rotation import grace_seconds
from stele.errors import BadInput, Corrupt, Refused, SteleError, Unavailable
from stele.transfer.client.copy import copy_tablets
from stele.wire.copy.jobs import CopyJob, Manifest
from stele.wire.urls import HTTPS

log = logging.getLogger(__name__)

REPORT_SECONDS = 1.0
CALLBACK_SECONDS_MAX = 2.0

# (number of the slice, number of slices, job with its items as JSON, staging directory, URL of the copier)
Slice = tuple[int, int, bytes, str, str]


def run_slice(slice_: Slice) -> bytes:
    """Copy a slice and return a `SliceResult` as JSON. Errors that a retry may cure are raised to Spark."""
    part, parts, body, staging, callback = slice_
    job = msgspec.json.decode(body, type=CopyJob)
    progress = _Progress((part, parts), job, callback, attempts_before())
    try:
        secured = _secured(job, Role.MEMBER, job.source)
        if callback.startswith(HTTPS):
            if job.tls is None:
                raise BadInput("tls is missing; expected the cluster's CA, by which tasks know the copier")
            progress.copier = _secured(job, Role.COPIER)
        if not progress.retries:
            check_space(Path(staging), sum(item.bytes for item in job.items))
        copy_tablets(
            job,
            job.items,
            staging=Path(staging),
            progress=progress.add,
            finished=progress.finish,
            again=progress.again,
            secured=lambda: secured,
        )
        progress.send()
    except (Unavailable, Corrupt) as error:
        raise RuntimeError(f"STELE[{error.code}] {error.text}") from None
    except SteleError as error:
        return encode(SliceResult(code=error.code, text=error.text, retries=progress.retries))
    finished = tuple(progress.finished)
    return encode(SliceResult(progress.bytes, progress.entries, finished, retries=progress.retries))


def _secured(job: CopyJob, role: Role, name: str = "") -> Secured | None:
    """Return how to know a part of the job's cluster; None without TLS. Raises BadInput for the CA."""
    if job.tls is None:
        return None
    expected = Expected(job.tls.cluster, (role,), name)
    grace = grace_seconds(takes_expired=job.tls.grace_expired)
    return Secured(trusting(job.tls.trusted.encode()), expected, grace)


def attempts_before() -> int:
    """Return how often Spark has tried this task before; 0 outside of Spark."""
    try:
        from pyspark import TaskContext
    except ImportError:
        return 0
    context = TaskContext.get()
    return 0 if context is None else int(context.attemptNumber())


def check_space(staging: Path, coming_bytes: int) -> None:
    """Raise Refused (NO_SPACE) when the destination's volume, which holds `staging`, lacks space."""
    try:
        usage = os.statvfs(staging)
    except OSError:
        return  # The copy itself reports the error.
    if lack := lack_of_space(coming_bytes, usage.f_bavail * usage.f_frsize):
        raise Refused(lack, "NO_SPACE")


class _Progress:
    """Adds up progress and reports it every `REPORT_SECONDS`; an unreachable copier is not an error.

    Nothing is reported to who is not the `copier`, where that is known by its certificate.
    """

    def __init__(self, place: tuple[int, int], job: CopyJob, callback: str, retries: int) -> None:
        self.bytes = self.entries = 0
        self.retries = retries
        self.finished: list[int] = []
        self.copier: Secured | None = None
        self._place, self._job, self._callback = place, job, callback
        self._next = time.monotonic() + REPORT_SECONDS

    def add(self, more: int) -> None:
        """Count bytes of one copy. Raises Refused (CANCELLED) when the copier no longer has the job."""
        self.bytes += more
        if time.monotonic() >= self._next:
            self.send()

    def again(self) -> None:
        """Count a restarted fragment."""
        self.retries += 1

    def finish(self, manifest: Manifest) -> None:
        """Count a completed tablet."""
        self.entries += manifest.entries
        self.finished.append(manifest.partition)
        self.add(0)

    def send(self) -> None:
        """Report to the copier now."""
        part, parts = self._place
        finished = tuple(self.finished)
        message = SliceProgress(part, self.bytes, self.entries, finished, parts, self.retries)
        try:
            status = self._post(encode(message))
        except (OSError, http.client.HTTPException, BadInput) as error:
            log.warning("progress of session %s could not be reported: %s", self._job.session, error)
            status = 0
        self._next = time.monotonic() + REPORT_SECONDS
        if status == 404:
            raise Refused(f"session {self._job.session} was cancelled", "CANCELLED")

    def _post(self, body: bytes) -> int:
        parts = urlsplit(self._callback)
        connection = connect((parts.hostname or "", parts.port or 0), self.copier, CALLBACK_SECONDS_MAX)
        try:
            headers = {"Authorization": f"Bearer {self._job.token}"}
            connection.request("POST", f"/v1/jobs/{self._job.session}/progress", body, headers)
            return connection.getresponse().status
        finally:
            connection.close()
