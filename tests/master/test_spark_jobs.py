"""The Spark jobs of a cluster: what a copier answers, and what it does not, ends up in the loop's hands."""

import asyncio
from types import TracebackType
from typing import Any

import pytest

from stele.core.control.commands import CopyItem
from stele.core.control.member_settings import LogLevel
from stele.core.control.operations.copy_session import CopySession, Engine, Job, Stage
from stele.core.control.state import State
from stele.core.security.level import STEPS, InternalTls
from stele.core.table.table import Member, Partition, PartitionTable
from stele.errors import BadInput, Conflict, Corrupt, SteleError, Unavailable
from stele.master import copier
from stele.master.copier import SparkJobs, job_of
from stele.model import TabletCluster, crd
from stele.transfer.jobs.board import check_job
from stele.wire.copy.jobs import CopyJob, CopyJobStatus, SourceTls
from stele.wire.urls import root
from tests.master.test_statuses import cluster

SESSION, CA = "s-1", "-----BEGIN CERTIFICATE-----"
PLAIN = "http://10.0.0.9:7010"
Answer = CopyJobStatus | SteleError | None


class Client:
    """A copier that gives these answers, the last one for ever, each after `seconds`."""

    def __init__(self, *answers: Answer, seconds: float = 0.0) -> None:
        self.answers, self.seconds = list(answers), seconds
        self.urls: set[str] = set()
        self.submitted: list[CopyJob] = []
        self.cancelled: list[str] = []
        self.levels: list[LogLevel] = []

    def connect(self, url: str) -> Any:
        self.urls.add(url)
        return self

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    async def submit(self, job: CopyJob) -> CopyJobStatus | None:
        self.submitted.append(job)
        return await self.status(job.session)

    async def status(self, session: str) -> CopyJobStatus | None:
        await asyncio.sleep(self.seconds)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, SteleError):
            raise answer
        return answer

    async def set_log_level(self, level: LogLevel) -> None:
        self.levels.append(level)

    async def cancel(self, session: str) -> None:
        self.cancelled.append(session)


def state_of(address: str = "10.0.0.1", level: InternalTls = InternalTls.OFF) -> State:
    members = {n: Member(n, f"demo-{n}", f"uuid-{n}", address) for n in range(2)}
    return State(1, PartitionTable((Partition(1, (0,)),), members), 1, 2, 0.0, member_tls=level)


def wave() -> CopySession:
    made = CopySession(SESSION, 0, 1, {0: "m1"}, {0: 2}, 0.0)
    made.stage, made.engine, made.token, made.items = Stage.COPY, Engine.SPARK, "t", (CopyItem(0, 1, 2, 5),)
    return made


async def ended(client: Client, url: str = PLAIN, level: InternalTls = InternalTls.OFF, ca: str = CA) -> Job:
    """How the job ended, once the copier was told that it is not wanted any more."""
    woken = asyncio.Event()
    jobs = SparkJobs(cluster, lambda: url, lambda: ca, woken.set, client.connect)
    jobs.want([wave()], state_of(level=level))
    async with asyncio.timeout(10):
        while SESSION not in jobs.jobs() or jobs.jobs()[SESSION].state not in ("DONE", "FAILED"):
            woken.clear()
            await woken.wait()
        await asyncio.sleep(0.02)
    await jobs.close()
    return jobs.jobs()[SESSION]


@pytest.mark.parametrize(
    "refusal",
    [
        BadInput("copier answered 400: executors: 101, expected 1 to 100"),
        Conflict("copier answered 409: session s-1 has another job"),
        Corrupt("copier answered 200: hello"),
    ],
)
@pytest.mark.parametrize("before", [0, 2])
async def test_a_refusal_ends_the_job_at_once_in_its_own_words(refusal: SteleError, before: int) -> None:
    client = Client(*[CopyJobStatus(SESSION, "RUNNING")] * before, refusal)
    job = await asyncio.wait_for(ended(client), 2)
    assert (job.state, str(job.failure)) == ("FAILED", str(refusal))
    assert client.cancelled == [SESSION]
    made = wave()
    made.on_job(job)
    assert (str(made.failure), made.blames_spark) == (str(refusal), True)


@pytest.mark.parametrize("url", [PLAIN, ""])
async def test_a_copier_without_an_answer_is_given_up_after_its_patience_however_slow_it_is(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(copier, "PATIENCE_SECONDS", 0.4)
    monkeypatch.setattr(copier, "POLL_SECONDS", 0.002)
    begun = asyncio.get_running_loop().time()
    job = await ended(Client(Unavailable("copier: TimeoutError"), seconds=0.15), url)
    seconds = asyncio.get_running_loop().time() - begun
    why = "copier: TimeoutError" if url else "the copier pod is not ready"
    text = f"COPIER_SILENT: the copier did not answer for 0.4 s: UNAVAILABLE: {why}"
    assert (job.state, str(job.failure)) == ("FAILED", text)
    assert 0.4 < seconds < 4.0


async def test_each_answer_makes_the_patience_begin_anew_and_a_forgotten_job_is_posted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copier, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(copier, "POLL_SECONDS", 0.02)
    silence = [Unavailable("copier: TimeoutError")] * 2
    told = [CopyJobStatus(SESSION, "RUNNING"), None] * 4
    answers = [each for answer in told for each in (*silence, answer)]
    client = Client(*answers, CopyJobStatus(SESSION, "DONE", 5))
    begun = asyncio.get_running_loop().time()
    assert await ended(client) == Job("DONE", 5)
    assert asyncio.get_running_loop().time() - begun > 1.0
    assert len(client.submitted) >= 4, "once for each time that the copier did not know it"


async def test_a_job_goes_on_when_the_master_ends_and_the_next_one_follows_it() -> None:
    client = Client(CopyJobStatus(SESSION, "RUNNING", 3))
    for _ in range(2):
        known = asyncio.Event()
        jobs = SparkJobs(cluster, lambda: PLAIN, lambda: CA, known.set, client.connect)
        jobs.want([wave()], state_of())
        await asyncio.wait_for(known.wait(), 10)
        await jobs.close()
    assert not client.submitted, "it is the previous master's"
    assert not client.cancelled


async def test_a_job_that_is_done_stays_until_its_files_are_ingested() -> None:
    """A master that takes over meanwhile reads from the copier that nothing is left to be copied."""
    client, known = Client(CopyJobStatus(SESSION, "DONE", 5)), asyncio.Event()
    jobs, state, session = (
        SparkJobs(cluster, lambda: PLAIN, lambda: CA, known.set, client.connect),
        state_of(),
        wave(),
    )
    state.operations.begin(session)
    jobs.want([session], state)
    await asyncio.wait_for(known.wait(), 10)
    session.on_job(jobs.jobs()[SESSION])
    assert session.stage is Stage.INGEST
    jobs.want([], state)
    await asyncio.sleep(0.02)
    assert not client.cancelled
    session.close()
    jobs.want([], state)
    await asyncio.sleep(0.02)
    await jobs.close()
    assert (client.submitted, client.cancelled) == ([], [SESSION])


@pytest.mark.parametrize("level", STEPS)
async def test_where_members_dial_with_tls_spark_does_and_knows_the_source_by_the_ca(
    level: InternalTls,
) -> None:
    client = Client(None, CopyJobStatus(SESSION, "DONE"))
    await ended(client, level=level)
    (job,) = client.submitted
    assert (job.source, job.source_url) == ("demo-0", "http://10.0.0.1:7002")
    assert job.tls == (SourceTls(cluster().volumes_uid, CA) if level.dials_tls else None)


async def test_a_job_is_not_submitted_before_the_ca_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(copier, "POLL_SECONDS", 0.002)
    client = Client(None)
    job = await ended(client, level=InternalTls.DIAL, ca="")
    assert (job.state, client.submitted) == ("FAILED", [])
    assert "the operator has not read the cluster's CA" in str(job.failure)
    client = Client(CopyJobStatus(SESSION, "DONE", 5))
    assert await ended(client, level=InternalTls.DIAL, ca="") == Job("DONE", 5), (
        "a former master submitted it"
    )


async def test_tasks_of_a_copier_with_tls_know_it_by_the_ca_of_their_job() -> None:
    """Members take TLS before anyone dials with it."""
    client = Client(None, CopyJobStatus(SESSION, "DONE"))
    await ended(client, "https://10.0.0.9:7010", InternalTls.ACCEPT)
    (job,) = client.submitted
    assert job.tls == SourceTls(cluster().volumes_uid, CA)
    assert client.urls == {"https://10.0.0.9:7010"}


async def test_a_copier_that_is_elsewhere_now_is_asked_there() -> None:
    client, found = Client(*[CopyJobStatus(SESSION, "RUNNING")] * 9, CopyJobStatus(SESSION, "DONE")), [PLAIN]
    known = asyncio.Event()
    jobs = SparkJobs(cluster, lambda: found[0], lambda: CA, known.set, client.connect)
    jobs.want([wave()], state_of())
    await asyncio.wait_for(known.wait(), 10)
    found[0] = "https://10.0.0.10:7010"
    for _ in range(500):
        if len(client.urls) > 1:
            break
        await asyncio.sleep(0.02)
    await jobs.close()
    assert client.urls == {PLAIN, found[0]}


def test_addresses_of_ipv6_are_bracketed() -> None:
    assert root("fd00::9", 7010, with_tls=True) == "https://[fd00::9]:7010"
    job = job_of(wave(), state_of("fd00::1"), cluster())
    assert job.source_url == "http://[fd00::1]:7002"
    check_job(job)


@pytest.mark.parametrize("end", ["minimum", "maximum"])
@pytest.mark.parametrize("name", ["executors", "cores", "idleSeconds"])
def test_what_a_user_may_ask_of_spark_is_taken_by_the_copier(name: str, end: str) -> None:
    spec = crd.schema_of(TabletCluster)["properties"]["spec"]["properties"]["spark"]["properties"]
    given = cluster().to_dict()
    given["spec"]["spark"] = {name: spec[name][end]}
    found = TabletCluster.read(given)
    assert isinstance(found, TabletCluster)
    check_job(job_of(wave(), state_of(), found))


async def test_the_copier_hears_of_a_level_that_changes_while_a_job_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copier, "POLL_SECONDS", 0.0)
    client, level = Client(CopyJobStatus(SESSION, "RUNNING")), "INFO"

    def present() -> TabletCluster:
        found = cluster()
        return found.model_copy(update={"spec": found.spec.model_copy(update={"log_level": LogLevel(level)})})

    jobs = SparkJobs(present, lambda: PLAIN, lambda: CA, lambda: None, client.connect)
    jobs.want([wave()], state_of())
    for level in ("INFO", "DEBUG", "INFO"):  # noqa: B007  `present` reads it
        for _ in range(20):
            await asyncio.sleep(0)
    await jobs.close()
    assert client.levels == ["INFO", "DEBUG", "INFO"]
