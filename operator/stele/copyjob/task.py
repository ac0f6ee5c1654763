"""One Spark task: copy the items of one slice, their fragments in turn. It needs nothing of Spark itself."""

import http.client
import logging
import time
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from stele.adapters.transfer.copy import copy_tablets
from stele.copyjob.messages import SliceProgress, SliceResult, encode
from stele.core.errors import BadInput, Corrupt, Refused, SteleError, Unavailable
from stele.wire.copyjobs import CopyJob, Manifest

log = logging.getLogger(__name__)

REPORT_SECONDS = 1.0
CALLBACK_SECONDS_MAX = 2.0

# (number of the slice, job with this slice's items as JSON, staging folder, URL of the copier)
Slice = tuple[int, bytes, str, str]


def run_slice(given: Slice) -> bytes:
    """A `SliceResult` as JSON. What another attempt may cure is raised, so that Spark tries again."""
    part, body, staging, callback = given
    job = msgspec.json.decode(body, type=CopyJob)
    progress = _Progress(part, job, callback)
    try:
        copy_tablets(job, job.items, staging=Path(staging), progress=progress.add, finished=progress.finish)
    except (Unavailable, Corrupt) as error:
        raise RuntimeError(f"STELE[{error.code}] {error.args[0]}") from None
    except SteleError as error:
        return encode(SliceResult(code=error.code, text=str(error.args[0])))
    progress.send()
    return encode(SliceResult(progress.bytes, progress.entries, tuple(progress.finished)))


class _Progress:
    """Adds up and tells the copier every `REPORT_SECONDS`; a copier that does not answer is no error."""

    def __init__(self, part: int, job: CopyJob, callback: str) -> None:
        self.bytes = self.entries = 0
        self.finished: list[int] = []
        self._part, self._job, self._callback = part, job, callback
        self._next = time.monotonic() + REPORT_SECONDS

    def add(self, more: int) -> None:
        """Bytes of one copy. Raise Refused (CANCELLED) when the copier does not know the job any more."""
        self.bytes += more
        if time.monotonic() >= self._next:
            self.send()

    def finish(self, manifest: Manifest) -> None:
        """One tablet is complete."""
        self.entries += manifest.entries
        self.finished.append(manifest.partition)
        self.add(0)

    def send(self) -> None:
        """Tell the copier now."""
        message = SliceProgress(self._part, self.bytes, self.entries, tuple(self.finished))
        try:
            status = self._post(encode(message))
        except (OSError, http.client.HTTPException, BadInput) as error:
            log.warning("progress of session %s was not told: %s", self._job.session, error)
            status = 0
        self._next = time.monotonic() + REPORT_SECONDS
        if status == 404:
            raise Refused(f"session {self._job.session} is not copied any more", "CANCELLED")

    def _post(self, body: bytes) -> int:
        parts = urlsplit(self._callback)
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port or 0, timeout=CALLBACK_SECONDS_MAX
        )
        try:
            headers = {"Authorization": f"Bearer {self._job.token}"}
            connection.request("POST", f"/v1/jobs/{self._job.session}/progress", body, headers)
            return connection.getresponse().status
        finally:
            connection.close()
