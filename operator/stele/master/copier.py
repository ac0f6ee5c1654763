"""The Spark jobs of one cluster's loop: submitted, polled, and cancelled when no longer needed."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from stele.adapters.spark.client import CopierClient
from stele.core.control.commands import Reason, ReasonCode
from stele.core.control.member_settings import LogLevel
from stele.core.control.operations.copy_session import CopySession, Job, Stage
from stele.core.control.state import State
from stele.core.copy.states import JobState
from stele.errors import SteleError, Unavailable
from stele.master import manifests
from stele.model import TabletCluster
from stele.model.common import quantity_bytes
from stele.wire.copy.jobs import CopyJob, CopyJobStatus, SourceTls
from stele.wire.urls import HTTPS, http_root

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
NOT_READY = "the copier pod is not ready"
PATIENCE_SECONDS = 20.0
"""Seconds that a copier may stay silent before its jobs count as failed."""


class SparkJobs:
    """Runs one task for each wanted session and keeps its newest status for the loop.

    The jobs go on when this process ends: the next master adopts their sessions. The copier ends those that
    it does not ask for.
    """

    def __init__(
        self,
        cluster: Callable[[], TabletCluster],
        url: Callable[[], str],
        trusted: Callable[[], str],
        wake: Callable[[], None],
        connect: Callable[[str], CopierClient] = CopierClient,
    ) -> None:
        """`url` returns where the copier takes jobs, `trusted` the CAs of the cluster, PEM; both are empty
        while they are not known."""
        self._cluster, self._url, self._wake, self._connect = cluster, url, wake, connect
        self._trusted = trusted
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._jobs: dict[str, Job] = {}
        self._closing = False

    def problem(self) -> str:
        """Return why Spark cannot be used now; empty when it can."""
        return "" if self._url() else NOT_READY

    def jobs(self) -> Mapping[str, Job]:
        return self._jobs

    def want(self, sessions: Sequence[CopySession], state: State) -> None:
        """Submit the jobs of these sessions, and delete those of others, but not while their files are
        ingested: a new master asks for such a job once more."""
        ingested = {id for id, each in state.operations.sessions.items() if each.stage is Stage.INGEST}
        for id in self._tasks.keys() - {session.id for session in sessions} - ingested:
            self._tasks.pop(id).cancel()
            self._jobs.pop(id, None)
        for session in sessions:
            if session.id not in self._tasks:
                work = self._follow(job_of(session, state, self._cluster()))
                self._tasks[session.id] = asyncio.get_running_loop().create_task(work)

    async def _follow(self, job: CopyJob) -> None:
        """Poll until the job ends, and delete it when it failed or is not wanted any more."""
        line = _Line(self._url, self._connect)
        try:
            if await self._poll(job, line):
                await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if not self._closing:
                # The session has ended: the copy is not needed any more.
                await self._delete(job.session, line)
            raise
        finally:
            await line.close()

    async def _poll(self, job: CopyJob, line: "_Line") -> bool:
        """Poll until the job ends, the copier refuses it, or it has been silent for too long.

        Returns whether it is done.
        """
        clock = asyncio.get_running_loop().time
        heard = clock()
        while True:
            try:
                status = await self._ask(job, line)
            except Unavailable as error:
                log.info("copier: %s", error)
                if clock() - heard > PATIENCE_SECONDS:
                    text = f"the copier did not answer for {PATIENCE_SECONDS:g} s: {error}"
                    self._note(job.session, Job(JobState.FAILED, 0, Reason(ReasonCode.COPIER_SILENT, text)))
                    return False
                await asyncio.sleep(POLL_SECONDS * 5)
                continue
            except SteleError as error:
                # A refusal: a retry would get the same answer.
                self._note(job.session, Job(JobState.FAILED, 0, Reason.of(error)))
                break
            heard = clock()
            newest = Job(status.state, status.copied_bytes, status.failure, status.tasks, status.retries)
            self._note(job.session, newest)
            if status.state == JobState.DONE:
                return True
            if status.state == JobState.FAILED:
                break
            await asyncio.sleep(POLL_SECONDS)
        await self._delete(job.session, line)
        return False

    async def _ask(self, job: CopyJob, line: "_Line") -> CopyJobStatus:
        """Return the status of the session's job; submit it when the copier knows none.

        A previous master may have submitted it, for more tablets or with other settings: then it goes on.
        """
        client = await line.client()
        await line.set_log_level(self._cluster().spec.log_level)
        return await client.status(job.session) or await client.submit(self._with_ca(job, line.url))

    def _with_ca(self, job: CopyJob, url: str) -> CopyJob:
        """Return the job with the CAs that are valid now. Raises Unavailable when they are not known.

        Tasks know the copier by them, too: a job for one with TLS dials the source with TLS, which takes it.
        """
        if job.tls is None and url.startswith(HTTPS):
            job = msgspec.structs.replace(job, tls=_source_tls(self._cluster()))
        if job.tls is None:
            return job
        if not (trusted := self._trusted()):
            raise Unavailable("the operator has not read the cluster's CA, by which Spark knows the source")
        return msgspec.structs.replace(job, tls=msgspec.structs.replace(job.tls, trusted=trusted))

    async def _delete(self, session: str, line: "_Line") -> None:
        try:
            await (await line.client()).cancel(session)
        except SteleError as error:
            log.info("copier: %s", error)

    def _note(self, session: str, job: Job) -> None:
        before = self._jobs.get(session)
        self._jobs[session] = job
        if before is None or before.state != job.state:
            self._wake()

    async def close(self) -> None:
        self._closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Line:
    """What one job asks the copier by: connections are kept, as each new one with TLS takes milliseconds."""

    def __init__(self, find: Callable[[], str], connect: Callable[[str], CopierClient]) -> None:
        self._find, self._connect = find, connect
        self._client: CopierClient | None = None
        self._log_level: LogLevel | None = None
        self.url = ""

    async def client(self) -> CopierClient:
        """Return a client of the copier, wherever that is now. Raises Unavailable."""
        if not (url := self._find()):
            raise Unavailable(NOT_READY)
        if self._client is None or url != self.url:
            await self.close()
            self._client, self.url = await self._connect(url).__aenter__(), url
            self._log_level = None
        return self._client

    async def set_log_level(self, level: LogLevel) -> None:
        """Tell the copier the level of its log, if it was not told it."""
        if level != self._log_level:
            await (await self.client()).set_log_level(level)
            self._log_level = level

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)


def _source_tls(cluster: TabletCluster) -> SourceTls:
    return SourceTls(cluster.volumes_uid, "", cluster.security.members.takes_expired)


def job_of(session: CopySession, state: State, cluster: TabletCluster) -> CopyJob:
    """Return the copy job of a session, without CAs; the destination's volume is the claim of its name.

    Members have the level of TLS of `state` or a neighbour of it, so all of them take what it dials.
    """
    spark, members = cluster.spec.spark, state.table.members
    source, destination = members[session.source], members[session.destination]
    return CopyJob(
        session=session.id,
        destination=destination.name,
        claim=destination.name,
        source_url=http_root(source.address, manifests.TRANSFER_PORT),
        token=session.token,
        items=session.items,
        executors=spark.executors,
        cores=spark.cores,
        memory=f"{quantity_bytes(spark.memory) // (1 << 20)}m",
        idle_seconds=spark.idle_seconds,
        source=source.name,
        tls=_source_tls(cluster) if state.tls.level.dials_tls else None,
    )
