"""The copier over HTTP with driver processes whose Spark context is a fake; sources and volumes are real."""

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import msgspec
import pytest
from aiohttp import web

from e2e.bench.member_stage import free_ports
from stele.adapters.spark.client import CopierClient
from stele.copyjob import driver, drivers, pods, task
from stele.copyjob import runner as runner_module
from stele.copyjob.__main__ import make_app
from stele.copyjob.messages import Ended, SliceProgress, Start, decode_result, encode
from stele.copyjob.runner import SparkRunner
from stele.copyjob.settings import read_settings
from stele.core.control.commands import CopyItem, Reason
from stele.errors import BadInput, Conflict, Corrupt, Unavailable
from stele.transfer.client import copy
from stele.transfer.server import open_checkpoints as transfer_sessions
from stele.wire.copy.jobs import CopyJob
from tests.fakes.http import serving
from tests.transfer import checkpoints

FAKE_DRIVER = str(Path(__file__).with_name("fake_driver.py"))
PARTITIONS = 12
POD = {"POD_IP": "127.0.0.1", "POD_NAME": "copier", "POD_NAMESPACE": "ns", "STELE_SPARK_IMAGE": "i"}
NO_API = "k8s://https://127.0.0.1:1"


def fake_driver_command(descriptor):
    return (sys.executable, FAKE_DRIVER, str(descriptor))


@pytest.fixture
def staging(tmp_path):
    folder = tmp_path / "destination" / "staging"
    folder.mkdir(parents=True)
    return folder


@asynccontextmanager
async def copying(tmp_path, staging, **environment):
    """A copier and its client."""
    (port,) = free_ports(1)
    given = {
        "STELE_SPARK_MASTER": "local[2]",
        "STELE_COPIER_PORT": str(port),
        "STELE_STAGING": str(staging),
        "STELE_SCRATCH": str(tmp_path),
    }
    settings = read_settings(given | environment)
    runner = SparkRunner(settings, fake_driver_command)
    async with serving(make_app(settings, runner)[0], port) as url, CopierClient(url) as client:
        yield client, runner


@asynccontextmanager
async def source(tmp_path, tls_dir=""):
    volume = tmp_path / "source"
    (volume / "staging").mkdir(parents=True)
    tablets = {
        partition: (1, {(b"default", b"k%d" % number): (bytes(100), 0) for number in range(50)})
        for partition in range(PARTITIONS)
    }
    checkpoints.make_checkpoint(volume, "s-1", tablets)
    async with checkpoints.transfer(volume, tls_dir) as url:
        yield url


@pytest.fixture
async def url(tmp_path):
    async with source(tmp_path) as url:
        yield url


@pytest.fixture
async def copier(tmp_path, staging):
    async with copying(tmp_path, staging) as copier:
        yield copier


@pytest.fixture
def client(copier):
    return copier[0]


@pytest.fixture
def runner(copier):
    return copier[1]


@pytest.fixture
def silent_url():
    """Of a source that answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"http://127.0.0.1:{silent.getsockname()[1]}"


def job_of(url, session="s-1", **changes):
    items = tuple(CopyItem(partition, 1, 2, 5000) for partition in range(PARTITIONS))
    made = CopyJob(session, "m-1", "data-m-1", url, checkpoints.TOKEN, items, executors=1, cores=2)
    return msgspec.structs.replace(made, **changes)


async def over(client, session="s-1"):
    for _ in range(400):
        status = await client.status(session)
        if status.state in ("DONE", "FAILED"):
            return status
        await asyncio.sleep(0.05)
    raise AssertionError(status)


async def copied(client, job):
    await client.submit(job)
    status = await over(client, job.session)
    assert status.state == "DONE", status
    return status


async def until(so):
    for _ in range(1000):
        if so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not become so")


async def running(client, session="s-1"):
    for _ in range(200):
        await asyncio.sleep(0.05)
        if (await client.status(session)).state == "RUNNING":
            return
    raise AssertionError("the job does not run")


async def test_a_job_is_copied_once_and_its_driver_stays_warm(tmp_path, staging, monkeypatch):
    monkeypatch.setenv("FAKE_DRIVER_FAULT", "noise")
    async with source(tmp_path) as url, copying(tmp_path, staging) as (client, runner):
        assert await client.status("s-1") is None
        assert (await client.submit(job_of(url))).state in ("QUEUED", "STARTING")
        assert (await client.submit(job_of(url))).session == "s-1"
        with pytest.raises(Conflict, match="another job"):
            await client.submit(job_of(url, cores=3))
        status = await over(client)
        assert status.state == "DONE", status
        assert status.finished == tuple(range(PARTITIONS))
        assert status.entries == PARTITIONS * 51
        process = next(iter(runner._drivers.values()))._process
        await client.cancel("s-1")
        await client.submit(job_of(url))
        again = await over(client)
        assert (again.state, again.copied_bytes) == ("DONE", status.copied_bytes)
        assert next(iter(runner._drivers.values()))._process is process
    assert process.returncode == 0
    assert len(list((staging / "s-1").glob("*.sst"))) == PARTITIONS


async def test_idle_drivers_end_and_make_room(tmp_path, staging):
    async with source(tmp_path) as url, copying(tmp_path, staging, STELE_DRIVERS_MAX="1") as (client, runner):
        await copied(client, job_of(url))
        await client.cancel("s-1")
        await copied(client, job_of(url, destination="m-2", claim="data-m-2", idle_seconds=1))
        assert list(runner._drivers) == ["m-2"]
        await until(lambda: not runner._drivers)


async def states(client, *sessions):
    return [(await client.status(session)).state for session in sessions]


async def test_who_waits_for_a_driver_s_place_is_queued_and_not_starting(tmp_path, staging, silent_url):
    """The master gives up what stands still, and nothing stands still here: others have their turn first."""
    async with source(tmp_path) as real, copying(tmp_path, staging, STELE_DRIVERS_MAX="1") as (client, _):
        await client.submit(job_of(silent_url, session="s-0", destination="m-0", claim="data-m-0"))
        await running(client, "s-0")
        for session in ("s-1", "s-2"):
            await client.submit(job_of(real, session=session))
        await asyncio.sleep(0.5)
        assert await states(client, "s-0", "s-1", "s-2") == ["RUNNING", "QUEUED", "QUEUED"]
        await client.cancel("s-0")
        assert (await over(client)).state == "DONE"
        assert (await over(client, "s-2")).state == "FAILED"


async def test_a_job_whose_driver_starts_is_starting(tmp_path, staging, monkeypatch):
    monkeypatch.setenv("FAKE_DRIVER_FAULT", "no-executors")
    async with copying(tmp_path, staging, **POD, STELE_SPARK_MASTER=NO_API) as (client, runner):
        for session in ("s-1", "s-2"):
            await client.submit(job_of("http://127.0.0.1:1", session=session))
            jobs = int(session[-1])
            await until(lambda jobs=jobs: runner._drivers and runner._drivers["m-1"].jobs == jobs)
            assert await states(client, session) == ["STARTING"]


OTHERS = [{"executors": 2}, {"cores": 3}, {"memory": "2g"}, {"claim": "data-m-2"}]


@pytest.mark.parametrize("changes", OTHERS, ids=str)
async def test_a_job_with_other_settings_gets_a_driver_with_them(changes, url, client, runner):
    await copied(client, job_of(url))
    process = runner._drivers["m-1"]._process
    await client.cancel("s-1")
    wanted = job_of(url, **changes)
    await copied(client, wanted)
    assert process.returncode == 0
    driver = runner._drivers["m-1"]
    assert driver._start_order().slots == wanted.executors * wanted.cores
    await client.cancel("s-1")
    await copied(client, msgspec.structs.replace(wanted, idle_seconds=7))
    assert (runner._drivers["m-1"], driver.idle_seconds) == (driver, 7.0)


async def test_a_driver_with_other_settings_first_ends_what_it_copies(url, client, runner, silent_url):
    await client.submit(job_of(silent_url, session="s-0"))
    await running(client, "s-0")
    before = runner._drivers["m-1"]
    await client.submit(job_of(url, cores=3))
    await asyncio.sleep(0.5)
    assert await states(client, "s-0", "s-1") == ["RUNNING", "QUEUED"]
    assert list(runner._drivers.values()) == [before]
    await client.cancel("s-0")
    assert (await over(client)).state == "DONE"
    assert before._process.returncode == 0


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("no-start", "DRIVER: ValueError: pods is forbidden: cannot create resource"),
        ("crash", "DRIVER: the driver process ended; see the copier's log"),
    ],
)
async def test_a_driver_that_fails_fails_the_job_and_the_next_gets_another(
    monkeypatch, fault, error, url, client
):
    monkeypatch.setenv("FAKE_DRIVER_FAULT", fault)
    await client.submit(job_of(url))
    status = await over(client)
    assert (status.state, str(status.failure)) == ("FAILED", error)
    assert (await client.submit(job_of(url))).state == "FAILED"
    monkeypatch.setenv("FAKE_DRIVER_FAULT", "")
    await client.cancel("s-1")
    await copied(client, job_of(url))


async def test_no_executors_is_told_in_time_and_the_driver_is_given_up(tmp_path, staging, monkeypatch):
    monkeypatch.setenv("FAKE_DRIVER_FAULT", "no-executors")
    monkeypatch.setattr(drivers, "EXECUTOR_SECONDS_MAX", 0.3)
    async with (
        source(tmp_path) as url,
        copying(tmp_path, staging, **POD, STELE_SPARK_MASTER=NO_API) as (client, runner),
    ):
        await client.submit(job_of(url))
        status = await over(client)
        assert status.state == "FAILED"
        text = "no executor could be scheduled on the destination's node for 0.3 s"
        assert status.failure == Reason("NO_EXECUTORS", text)
        assert runner._drivers == {}


NO_SECOND_POD = (
    "0/1 nodes are available: 1 node has pod using PersistentVolumeClaim with the same name and "
    "ReadWriteOncePod access mode. preemption: 0/1 nodes are available"
)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": NO_SECOND_POD}]},
            NO_SECOND_POD,
        ),
        ({"conditions": [{"type": "PodScheduled", "status": "True"}]}, ""),
        ({"conditions": [{"type": "Ready", "status": "False", "message": "not yet"}]}, ""),
        ({}, ""),
    ],
)
async def test_why_executors_get_no_place_is_told_in_the_scheduler_s_words(
    tmp_path, staging, monkeypatch, status, said
):
    """A ReadWriteOncePod volume is one: the member's pod has it, and no executor can be given it too."""
    monkeypatch.setenv("FAKE_DRIVER_FAULT", "no-executors")
    monkeypatch.setattr(drivers, "EXECUTOR_SECONDS_MAX", 0.3)
    monkeypatch.setattr(pods.PodLogin, "ssl_context", lambda login: False)
    (tmp_path / "token").write_text("t\n")
    monkeypatch.setattr(drivers, "why_not_placed", partial(pods.why_not_placed, account=tmp_path))
    monkeypatch.setattr(drivers, "delete_executors", partial(pods.delete_executors, account=tmp_path))
    listed = [{"status": {}}, {"status": status}]
    async with (
        source(tmp_path) as url,
        pods_api([200], listed) as (api, asked),
        copying(tmp_path, staging, **POD, STELE_SPARK_MASTER=f"k8s://{api}") as (client, _),
    ):
        await client.submit(job_of(url))
        ended = await over(client)
    text = "NO_EXECUTORS: no executor could be scheduled on the destination's node for 0.3 s"
    assert str(ended.failure) == (f"{text}: {said}" if said else text)
    assert asked[0][1] == "spark-role=executor,spark-app-selector=fake-1"


async def test_what_the_source_refuses_is_not_tried_again(url, client):
    await client.submit(job_of(url, session="s-2"))
    status = await over(client, "s-2")
    assert str(status.failure).startswith("SOURCE: the source answered 404: session s-2 does not exist")


async def test_a_lost_source_fails_the_job_with_its_code(client):
    items = (CopyItem(0, 1, 2, 1),)
    await client.submit(job_of("http://127.0.0.1:1", items=items))
    status = await over(client)
    text = "partition 0 from http://127.0.0.1:1: [Errno 111] Connection refused"
    assert status.failure == Reason("SOURCE", text)


async def test_a_deleted_job_stops_its_tasks_and_may_be_posted_again(url, client, silent_url):
    await client.submit(job_of(silent_url))
    await running(client)
    await client.cancel("s-1")
    await client.cancel("s-1")
    assert await client.status("s-1") is None
    await copied(client, job_of(url))


async def test_a_job_that_is_posted_again_while_it_ends_is_known_to_its_tasks(client, runner):
    slow = "import sys, time; sys.stdin.read(); time.sleep(0.3)"
    job = job_of("http://127.0.0.1:1")
    runner._command = lambda descriptor: (sys.executable, "-c", slow)
    await client.submit(job)
    await until(lambda: runner._drivers and runner._drivers["m-1"]._process)
    ending = asyncio.create_task(client.cancel("s-1"))
    await until(lambda: not runner._drivers)
    assert not ending.done()
    await client.submit(job)
    await ending
    assert runner.progress("s-1", SliceProgress(0))
    await client.cancel("s-1")
    assert not runner.progress("s-1", SliceProgress(0))


async def test_a_job_that_is_deleted_before_spark_runs_it_is_cancelled_all_the_same():
    """As Spark does, the context cancels only what runs already."""
    may_run, cancelled, runs = threading.Event(), threading.Event(), threading.Event()

    def collect():
        may_run.wait(5)
        runs.set()
        assert cancelled.wait(5)
        raise ValueError("Job 0 cancelled part of cancelled job group run-1")

    context = SimpleNamespace(
        setJobGroup=lambda group, text, **how: None,
        cancelJobGroup=lambda group: runs.is_set() and cancelled.set(),
        parallelize=lambda given, parts: SimpleNamespace(map=lambda work: SimpleNamespace(collect=collect)),
    )
    told = []
    news = SimpleNamespace(tell=told.append)
    made = driver._Driver((context, threading.Thread), Start({}, "", "", 1, 0.0), news)
    made.begin(1, job_of("http://127.0.0.1:1"))
    made.cancel(1)
    made.cancel(2)
    may_run.set()
    await until(lambda: any(isinstance(each, Ended) for each in told))
    assert told[-1] == Ended(1, "CANCELLED", "the job was deleted")
    assert not made._unwanted


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_driver_that_hangs_ends_with_its_job_and_another_copies(
    tmp_path, monkeypatch, hangs, *, url, client, runner, silent_url
):
    monkeypatch.setattr(runner_module, "HANG_SECONDS", 60.0)
    monkeypatch.setattr(drivers, "STOP_SECONDS_MAX", 0.3)
    await client.submit(job_of(silent_url))
    await running(client)
    process = runner._drivers["m-1"]._process
    if hangs:
        os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr(runner_module, "HANG_SECONDS", 0.5)
    await asyncio.sleep(1.0)
    await client.cancel("s-1")
    await copied(client, job_of(url))
    assert (runner._drivers["m-1"]._process is not process) is hangs
    if hangs:
        assert await asyncio.wait_for(process.wait(), 5) == -signal.SIGKILL
        await asyncio.gather(*runner._stopping)
    # Executors that are made later need it, too.
    assert [path.exists() for path in tmp_path.glob("executor-m-1*")] == [True]


async def test_progress_of_an_unknown_job_is_refused(client):
    async with aiohttp.ClientSession() as http:
        url = f"{client._url}/v1/jobs/s-1/progress"
        for body in (b'{"part": 0}', b"["):
            async with http.post(url, data=body) as answer:
                assert answer.status == 404


async def test_progress_is_only_told_with_the_token_of_its_job(client, silent_url):
    job = job_of(silent_url)
    async with aiohttp.ClientSession() as http:
        url = f"{client._url}/v1/jobs/s-1/progress"
        await client.submit(job)
        await running(client)

        async def told(body, **headers):
            async with http.post(url, data=body, headers=headers) as answer:
                return answer.status

        good = encode(SliceProgress(0, 5, 1, (), 1, 0))
        assert await told(good) == 401
        for wrong in ("Bearer ", f"Bearer {job.token}x", "Bearer \xe9", job.token):
            assert await told(good, Authorization=wrong) == 401
        right = f"Bearer {job.token}"
        assert await told(good, Authorization=right) == 204
        for garbage in (b"[", b'{"x":' + b"[" * 100_000):
            assert await told(garbage, Authorization=right) == 400
        packed = {"Authorization": right, "Content-Encoding": "gzip"}
        assert await told(good, **packed) == 415
        await client.cancel("s-1")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"session": "S_1"}, "session is 'S_1', expected 1 to 63"),
        ({"destination": ""}, "destination is ''"),
        ({"claim": "a/b"}, "claim is 'a/b'"),
        ({"source_url": "file:///x"}, "source_url is 'file:///x'"),
        ({"source_url": "http://m..stele:7002"}, "source_url is 'http://m..stele:7002', expected http://"),
        ({"source_url": f"http://{'m' * 64}:7002"}, "expected http://HOST:PORT of a member's transfer"),
        ({"token": "a\r\nX: b"}, "token has 7 characters, expected 1 to 200 of printable ASCII"),
        ({"token": ""}, "token has 0 characters"),
        ({"items": (CopyItem(65_536, 1, 2),)}, "items.partition: 65536, expected 0 to 65535"),
        ({"items": (CopyItem(1, -1, 2),)}, "items.source_generation: -1, expected 0 to 4294967295"),
        ({"items": (CopyItem(1, 1, 2**32),)}, "items.generation: 4294967296, expected 0 to"),
        ({"items": (CopyItem(1, 1, 2, -5),)}, "items.bytes: -5, expected 0 to"),
        ({"memory": "lots"}, "memory is 'lots'"),
        ({"items": ()}, "items: 0, expected 1 to"),
        ({"items": (CopyItem(1, 1, 2), CopyItem(1, 1, 3))}, "items name a partition twice"),
        ({"executors": 0}, "executors: 0"),
        ({"cores": 999}, "cores: 999"),
    ],
)
async def test_a_bad_job_is_refused_with_the_field(changes, text, client):
    with pytest.raises(BadInput) as raised:
        await client.submit(job_of("http://127.0.0.1:1", **changes))
    assert text in str(raised.value)


async def test_the_client_names_a_copier_that_does_not_answer_or_is_something_else():
    async with CopierClient("http://127.0.0.1:1") as client:
        with pytest.raises(Unavailable, match=r"copier http://127\.0\.0\.1:1/v1/jobs"):
            await client.submit(job_of("http://127.0.0.1:1"))
    app = web.Application()

    async def anything(request):
        return web.Response(text="hello")

    app.router.add_get("/v1/jobs/{session}", anything)
    async with serving(app) as url, CopierClient(url) as client:
        with pytest.raises(Corrupt, match="hello"):
            await client.status("s-1")


async def test_tasks_and_what_they_began_again_are_counted(tmp_path, staging, monkeypatch):
    """The source cuts its first streams: a task begins a fragment again, within itself."""
    cut = []
    send = transfer_sessions.OpenCheckpoints.send

    async def send_once_cut(self, session, data, write):
        if len(cut) < 4:
            cut.append(len(data))
            raise ConnectionResetError("cut")
        await send(self, session, data, write)

    monkeypatch.setattr(transfer_sessions.OpenCheckpoints, "send", send_once_cut)
    big = {(b"default", b"k%d" % number): (bytes(1000), 0) for number in range(2000)}
    volume = tmp_path / "source"
    (volume / "staging").mkdir(parents=True)
    checkpoints.make_checkpoint(volume, "s-1", dict.fromkeys(range(4), (1, big)))
    items = tuple(CopyItem(partition, 1, 2, 5000) for partition in range(4))
    async with checkpoints.transfer(volume) as url, copying(tmp_path, staging) as (client, _):
        await client.submit(job_of(url, items=items))
        status = await over(client)
    assert (status.state, status.failure) == ("DONE", None)
    assert status.tasks == 4
    assert status.retries == len(cut) == 4


async def test_a_slice_without_room_for_it_is_not_begun(staging, monkeypatch):
    job = job_of("http://127.0.0.1:1")
    usage = SimpleNamespace(f_bavail=1, f_frsize=4096)
    monkeypatch.setattr(task.os, "statvfs", lambda folder: usage)
    given = (0, 1, msgspec.json.encode(job), str(staging), "http://127.0.0.1:1")
    result = decode_result(await asyncio.to_thread(task.run_slice, given))
    assert result.code == "NO_SPACE"
    assert "the copy needs 60000 bytes" in result.text
    assert list(staging.iterdir()) == []
    monkeypatch.setattr(task, "attempts_before", lambda: 1)
    monkeypatch.setattr(copy, "ATTEMPTS_MAX", 1)
    with pytest.raises(RuntimeError, match="SOURCE"):
        await asyncio.to_thread(task.run_slice, given)


@asynccontextmanager
async def pods_api(answers, listed=()):
    """As much of an API server as lists pods, and deletes them; `answers` are the statuses of deletions, the
    last one for ever.
    """
    asked = []

    async def list_pods(request):
        asked.append((request.path, request.query["labelSelector"], request.headers["Authorization"]))
        return web.json_response({"items": listed})

    async def delete(request):
        asked.append((request.path, request.query["labelSelector"], request.headers["Authorization"]))
        return web.json_response({}, status=answers.pop(0) if len(answers) > 1 else answers[0])

    app = web.Application()
    app.router.add_delete("/api/v1/namespaces/ns/pods", delete)
    app.router.add_get("/api/v1/namespaces/ns/pods", list_pods)
    async with serving(app) as url:
        yield url, asked


async def test_executors_of_an_earlier_start_are_deleted_however_long_that_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(pods, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(pods.PodLogin, "ssl_context", lambda login: False)
    (tmp_path / "token").write_text("t\n")
    async with pods_api([500, 500, 200]) as (url, asked):
        settings = read_settings(POD | {"STELE_SPARK_MASTER": f"k8s://{url}"})
        async with asyncio.timeout(10):
            await pods.sweep_leftovers(replace(settings, start="now"), tmp_path)
    selector = "spark-role=executor,stele.dev/copier=copier,stele.dev/copier-start notin (now)"
    assert asked == [("/api/v1/namespaces/ns/pods", selector, "Bearer t")] * 3


async def test_executors_of_a_lost_driver_are_deleted(monkeypatch, url, client):
    deleted = []

    async def delete(settings, selector, account=None):
        deleted.append(selector)
        return True

    monkeypatch.setattr(drivers, "delete_executors", delete)
    monkeypatch.setenv("FAKE_DRIVER_FAULT", "crash")
    await client.submit(job_of(url))
    assert (await over(client)).state == "FAILED"
    monkeypatch.setenv("FAKE_DRIVER_FAULT", "")
    await client.cancel("s-1")
    await copied(client, job_of(url))
    assert deleted == ["spark-app-selector=fake-1"]


async def test_the_engine_spark_is_held_to_the_rate_of_its_session(tmp_path, url, client):
    path = tmp_path / "source" / "checkpoints" / "s-1" / "session.json"
    rate = 40_000
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bytes_per_second": rate}))
    await client.submit(job_of(url))
    status = await over(client)
    assert status.state == "DONE"
    assert 60_000 < status.copied_bytes <= rate * (status.seconds + 0.1) * 1.01
