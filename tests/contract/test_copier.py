"""One suite for `ports.control_loop.Copier`: over HTTP with a copier's board of jobs, and in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from stele.adapters.spark.client import CopierClient
from stele.core.control.commands import CopyItem, Reason
from stele.core.control.operations.copy_session import CopySession, Engine, Job, Stage
from stele.core.control.state import State
from stele.core.table.table import Member, Partition, PartitionTable
from stele.errors import Refused
from stele.master import copier as spark_jobs
from stele.master.copier import SparkJobs
from stele.ports.control_loop import Copier
from stele.transfer.jobs.board import JobBoard, Report
from stele.transfer.jobs.routes import add_job_routes
from stele.wire.copy.jobs import CopyJob
from tests.contract.test_members import serving
from tests.fakes.copier import Copier as MemoryCopier
from tests.master.test_statuses import cluster

FAILURE = "NO_EXECUTORS: none came"
FAILED = Job("FAILED", 0, Reason(*FAILURE.split(": ", 1)))
BYTES = 10
MEMBERS = {n: Member(n, f"demo-{n}", f"uuid-{n}", "10.0.0.1") for n in range(2)}
STATE = State(1, PartitionTable((Partition(1, (0,)),), MEMBERS), 1, 2, 0.0)


@dataclass
class Case:
    """`outcome` is what becomes of the jobs that begin from now on: RUNNING, DONE, or why they fail."""

    copier: Copier
    outcome: Callable[[str], None]

    async def job(self, session: str, *states: str) -> Job:
        for _ in range(400):
            job = self.copier.jobs().get(session)
            if job is not None and job.state in states:
                return job
            await asyncio.sleep(0.01)
        raise AssertionError(self.copier.jobs())


def wave(session: str) -> CopySession:
    made = CopySession(session, 0, 1, {0: "m1"}, {0: 2}, 0.0)
    made.stage, made.engine, made.token = Stage.COPY, Engine.SPARK, "t"
    made.items = (CopyItem(0, 1, 2, BYTES),)
    return made


class Runner:
    """Copies nothing."""

    outcome = "RUNNING"

    async def run(self, job: CopyJob, starting: Callable[[], None], report: Callable[[Report], None]) -> None:
        starting()
        report(Report(BYTES // 2, tasks=4))
        if self.outcome == "RUNNING":
            await asyncio.Event().wait()
        if self.outcome != "DONE":
            code, _, text = self.outcome.partition(": ")
            raise Refused(text, code)
        report(Report(BYTES, tasks=4, retries=1))


@asynccontextmanager
async def real() -> AsyncIterator[Case]:
    app, runner = web.Application(), Runner()
    add_job_routes(app, "/v1/jobs", lambda: JobBoard(runner, 4))
    async with serving(app) as port:
        url = f"http://127.0.0.1:{port}"
        jobs = SparkJobs(cluster, lambda: url, lambda: "", lambda: None, lambda _: CopierClient(url))
        yield Case(jobs, lambda outcome: setattr(runner, "outcome", outcome))
        await jobs.close()


def in_memory() -> Case:
    member = SimpleNamespace(stage=lambda *_: True)
    harness = SimpleNamespace(world=SimpleNamespace(volumes={1: member}))
    fake = MemoryCopier(harness, "RUNNING")
    return Case(fake, lambda outcome: setattr(fake, "outcome", outcome))


@pytest.fixture(params=["memory", "real"])
async def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setattr(spark_jobs, "POLL_SECONDS", 0.01)
    if request.param == "memory":
        yield in_memory()
    else:
        async with real() as made:
            yield made


async def test_what_is_wanted_begins_and_is_told(case: Case) -> None:
    assert (case.copier.problem(), dict(case.copier.jobs())) == ("", {})
    case.copier.want([wave("s-1")], STATE)
    case.copier.want([wave("s-1"), wave("s-2")], STATE)
    for session in ("s-1", "s-2"):
        assert await case.job(session, "RUNNING") == Job("RUNNING", BYTES // 2, tasks=4)


async def test_what_is_not_wanted_any_more_is_told_no_more(case: Case) -> None:
    case.copier.want([wave("s-1"), wave("s-2")], STATE)
    await case.job("s-1", "RUNNING")
    await case.job("s-2", "RUNNING")
    case.copier.want([wave("s-2")], STATE)
    assert set(case.copier.jobs()) == {"s-2"}
    await asyncio.sleep(0.05)
    assert set(case.copier.jobs()) == {"s-2"}


@pytest.mark.parametrize(
    ("outcome", "job"),
    [
        ("DONE", Job("DONE", BYTES, tasks=4, retries=1)),
        (FAILURE, FAILED),
    ],
)
async def test_an_end_stays_told_while_it_is_wanted(case: Case, outcome: str, job: Job) -> None:
    case.outcome(outcome)
    case.copier.want([wave("s-1")], STATE)
    ended = await case.job("s-1", "DONE", "FAILED")
    assert (ended.state, ended.failure) == (job.state, job.failure)
    assert ended.copied_bytes == job.copied_bytes or job.failure
    case.outcome("RUNNING")
    case.copier.want([wave("s-1")], STATE)
    await asyncio.sleep(0.05)
    assert case.copier.jobs()["s-1"] == ended


async def test_what_is_wanted_again_begins_anew(case: Case) -> None:
    case.outcome(FAILURE)
    case.copier.want([wave("s-1")], STATE)
    await case.job("s-1", "FAILED")
    case.copier.want([], STATE)
    assert dict(case.copier.jobs()) == {}
    await asyncio.sleep(0.05)
    case.outcome("RUNNING")
    case.copier.want([wave("s-1")], STATE)
    assert (await case.job("s-1", "RUNNING")).failure is None
