"""`kubectl stele load` and `dump`: what is wrong is said before a Job is made; the pod's side of a job."""

import asyncio
import json
import re
import shlex
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from aiohttp.test_utils import TestClient, TestServer

from stele.adapters.kubernetes import bulk_job
from stele.adapters.kubernetes.api import CLUSTERS, CONFIG_MAPS, EVENTS, JOBS, PODS
from stele.adapters.kubernetes.bulk_job import BulkJob, manifest, running
from stele.bulkjob import server as job_server
from stele.bulkjob.__main__ import error_facts, parser
from stele.cli import bulk
from stele.cli.main import main
from stele.errors import BadInput, Conflict, Refused, Unavailable

CLUSTER = {"apiVersion": "stele.dev/v1alpha1", "metadata": {"name": "demo", "uid": "1-2-3"}}


CREATED = {"metadata": {"name": "p", "uid": "u"}}
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def parquet(tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1...")
    return path


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["load", "{here}/none.parquet", "--cluster", "demo"], "none.parquet cannot be read: No such file"),
        (["load", "{here}/text", "--cluster", "demo"], "is not a Parquet file: it does not begin with PAR1"),
        (["load", "{file}"], "name the TabletCluster with --cluster, or a member with --address"),
        (["load", "{file}", "--cluster", "demo", "--duplicates", "first"], "--duplicates is first"),
        (
            ["load", "{file}", "--cluster", "demo", "--memory", "2G"],
            "--memory is 2G; expected a number",
        ),
        (["load", "{file}", "--cluster", "demo", "--memory", "100Mi"], "at least 1Gi is needed"),
        (["load", "{file}", "--address", "demo..stele"], "address is 'demo..stele'; expected HOST"),
        (["load", "{file}", "--address", "m:123456"], "address is 'm:123456'; expected HOST"),
        (["dump", "{here}/new.parquet", "--address", "demo..stele"], "address is 'demo..stele'; expected"),
        (["dump", "{file}", "--cluster", "demo"], "exists already: remove it, or name another file"),
        (["dump", "{here}/no/folder.parquet", "--cluster", "demo"], "no is not a directory"),
    ],
)
def test_what_is_wrong_is_named(parquet, capsys, words, text):
    (parquet.parent / "text").write_text("key,value\n")
    given = [word.format(here=parquet.parent, file=parquet) for word in words]
    assert main(given) == 2
    assert text in capsys.readouterr().err


def test_the_pod_fits_restricted_security_and_goes_with_its_cluster():
    made = manifest(CLUSTER, "2Gi", {"image": "stele-sql:1"}, with_tls=False)
    assert made["metadata"]["ownerReferences"][0]["uid"] == "1-2-3"
    job, spec = made["spec"], made["spec"]["template"]["spec"]
    assert (job["backoffLimit"], job["activeDeadlineSeconds"] > 0, job["ttlSecondsAfterFinished"] > 0) == (
        0,
        True,
        True,
    )
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False


def test_the_pod_of_the_schedule_is_that_of_the_job_and_its_command_is_taken():
    claim, cron = yaml.safe_load_all((EXAMPLES / "dump-cronjob.yaml").read_text())
    template = cron["spec"]["jobTemplate"]["spec"]["template"]
    wanted = manifest(CLUSTER, "2Gi", {"image": "any"}, with_tls=True)["spec"]["template"]
    assert template["metadata"]["labels"] == wanted["metadata"]["labels"]

    spec, of_job = template["spec"], wanted["spec"]
    for name in ("restartPolicy", "automountServiceAccountToken", "enableServiceLinks", "securityContext"):
        assert spec[name] == of_job[name]
    volumes = [each for each in spec["volumes"] if each["name"] != "dumps"]
    assert volumes == of_job["volumes"]
    assert spec["volumes"][0]["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}

    (container,), (of_container,) = spec["containers"], of_job["containers"]
    assert container["securityContext"] == of_container["securityContext"]
    assert container["resources"] == of_container["resources"]
    assert [each for each in container["volumeMounts"] if each["name"] != "dumps"] == of_container[
        "volumeMounts"
    ]
    assert set(map(str, of_container["env"])) >= set(map(str, container["env"]))

    script = container["args"][-1].replace("\\\n", " ")
    program, *words = shlex.split(re.search("^stele-bulk .*", script, re.M)[0])
    options = parser().parse_args(words)
    assert (program, options.command) == ("stele-bulk", "dump")
    assert options.address == "demo-members:7001"
    assert options.tls_folder == bulk_job.TLS_FOLDER


class Server:
    """As much of an API server as a Job needs; `pods` and `events` are listed."""

    def __init__(self, defaults=None, pods=(), events=(), images=None):
        self.defaults, self.images = defaults, {"images": images} if images else {}
        self.listed = {PODS: list(pods), EVENTS: list(events)}
        self.jobs = {}

    async def get(self, kind, namespace, name):
        assert (kind, name) == (CLUSTERS, "demo")
        return CLUSTER | {"spec": {"members": 1, "storage": {"size": "1Gi"}, **self.images}}

    async def find(self, kind, namespace, name):
        assert (kind, namespace, name) == (CONFIG_MAPS, "ns", "stele-bulk")
        return self.defaults and {"data": self.defaults}

    async def list(self, kind, namespace, selector="", fields=""):
        wanted = {PODS: ("batch.kubernetes.io/job-name=demo-bulk-1", "")}
        assert (selector, fields) == wanted.get(kind, ("", "involvedObject.uid=u,reason=FailedCreate"))
        return self.listed[kind]

    async def create(self, kind, namespace, body):
        self.jobs["u"] = body
        return {"metadata": {"name": "demo-bulk-1", "uid": "u"}}

    async def delete(self, kind, namespace, name, uid):
        assert (kind, name) == (JOBS, "demo-bulk-1")
        del self.jobs[uid]


READY = {"metadata": {"name": "p"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


@pytest.mark.parametrize("image", ["", "registry.example/spark:1"])
async def test_the_chart_names_image_and_secrets_unless_an_option_does(image):
    defaults = {"image": "registry.example/stele-sql:1", "pullPolicy": "Always", "pullSecrets": "one,two"}
    server = Server(defaults, pods=[READY])
    async with running(server, "ns", "demo", image, "1Gi"):
        spec = server.jobs["u"]["spec"]["template"]["spec"]
    assert spec["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    assert spec["containers"][0]["image"] == (image or "registry.example/stele-sql:1")
    assert spec["containers"][0]["imagePullPolicy"] == "Always"
    assert server.jobs == {}


@pytest.mark.parametrize("defaults", [None, {"image": "chart:1", "pullPolicy": "Always"}])
@pytest.mark.parametrize(("option", "used"), [("", "spec:1"), ("option:1", "option:1")])
async def test_the_spec_names_an_image_where_no_option_does(defaults, option, used):
    server = Server(defaults, pods=[READY], images={"bulk": "spec:1", "member": "m:1"})
    async with running(server, "ns", "demo", option, "1Gi"):
        assert server.jobs["u"]["spec"]["template"]["spec"]["containers"][0]["image"] == used


async def test_without_the_charts_defaults_the_image_has_to_be_named():
    with pytest.raises(BadInput, match=r"with --image, spec\.images\.bulk of"):
        async with running(Server(), "ns", "demo", "", "1Gi"):
            pass
    server = Server(pods=[READY])
    async with running(server, "ns", "demo", "mine:1", "1Gi"):
        assert server.jobs["u"]["spec"]["template"]["spec"]["imagePullSecrets"] == []


def waiting(reason):
    return {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": reason}}}]}


@pytest.mark.parametrize(
    ("pods", "events", "error", "text"),
    [
        (
            [waiting("ErrImagePull")],
            [],
            BadInput,
            "cannot pull its image: phase Pending; ErrImagePull; set one with",
        ),
        ([{"phase": "Failed"}], [], Unavailable, "job demo-bulk-1 does not start: phase Failed"),
        ([waiting("Creating")], [], Unavailable, "does not start: phase Pending; Creating"),
        ([], [], Unavailable, "does not start: it has no pod yet"),
        ([], [{"message": "exceeded quota: q"}], Refused, "demo-bulk-1 may not start: exceeded quota: q"),
    ],
)
async def test_a_job_that_does_not_start_says_why_and_is_deleted(monkeypatch, pods, events, error, text):
    monkeypatch.setattr(bulk_job, "READY_SECONDS_MAX", 0.0)
    server = Server({"image": "i"}, [{"status": status} for status in pods], events)
    with pytest.raises(error, match=text):
        async with running(server, "ns", "demo", "", "1Gi"):
            pass
    assert server.jobs == {}


def test_the_error_inside_of_sparks_is_found():
    where = f"{Conflict.__module__}.{Conflict.__qualname__}"
    inner = f"Traceback ...\n{where}: DUPLICATE_KEY: key 'k' is repeated\n\tat org.x"
    assert error_facts(Exception(inner)) == {
        "code": "DUPLICATE_KEY",
        "detail": "key 'k' is repeated",
    }
    assert error_facts(BadInput("no file")) == {"code": "BAD_INPUT", "detail": "no file"}
    assert error_facts(ValueError("what\nmore"))["detail"] == "ValueError: what"


def run_here(program: str, tmp_path: Path, monkeypatch):
    """What `kubectl stele dump --address` makes of a job that is this program."""
    script = tmp_path / "job.py"
    script.write_text(program)
    monkeypatch.setattr(
        bulk.subprocess,
        "Popen",
        lambda line, popen=bulk.subprocess.Popen, **options: popen([line[0], str(script)], **options),
    )
    return main(["dump", str(tmp_path / "rows.parquet"), "--address", "m", "--memory", "1Gi"])


def test_what_java_prints_besides_does_no_harm(tmp_path, monkeypatch, capsys):
    program = (
        "print('OpenJDK warning: Option MaxPermSize'); print(5)\n"
        'print(\'{"result": {"rows": 7, "bytes": 1, "seconds": 1}}\'); print("VM exits")'
    )
    assert run_here(program, tmp_path, monkeypatch) == 0
    assert "7 rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    "told", ["", '{"error": {"code": "FAILED", "detail": "Java gateway process exited"}}']
)
def test_what_java_says_is_told_when_it_does_not_start(tmp_path, monkeypatch, capsys, told):
    program = f"print('Could not reserve enough space for object heap'); print({told!r})"
    assert run_here(program, tmp_path, monkeypatch) == 1
    assert "output of Java: Could not reserve enough space for object heap" in capsys.readouterr().err


@asynccontextmanager
async def serving(folder: Path, program: str):
    """The pod's server with a job that is this program, which gets command and file as arguments."""
    script = folder / "job.py"
    script.write_text(program)
    job = job_server.Job(folder, (sys.executable, str(script)))
    async with TestClient(TestServer(job_server.application(job))) as client:
        yield client


async def until_over(client):
    for _ in range(500):
        facts = await (await client.get("/job")).json()
        if facts.keys() & {"result", "error"}:
            return facts
        await asyncio.sleep(0.02)
    raise AssertionError("the job did not end")


async def test_a_file_comes_in_a_job_runs_once_and_the_file_goes_out(tmp_path):
    program = (
        "import json, sys; data = open(sys.argv[2]).read(); open(sys.argv[2], 'a').write('!')\n"
        "print('noise'); print(5); print(json.dumps({'result': {'rows': len(data)}}), flush=True)"
    )
    order = {"command": "load", "arguments": []}
    async with serving(tmp_path, program) as client:
        assert (await client.get("/file")).status == 404
        packed = {"Content-Encoding": "gzip"}
        assert (await client.put("/file", data=b"x", headers=packed)).status == 415
        assert (await client.put("/file", data=b"12345")).status == 200
        for wrong in (b"no JSON", b"[" * 100_000, b"{}", b'{"command": "rm", "arguments": []}'):
            assert (await client.post("/job", data=wrong)).status == 400
        other = {"Content-Type": "application/json; charset=none"}
        assert (await client.post("/job", data=json.dumps(order), headers=other)).status == 200
        assert await until_over(client) == {"result": {"rows": 5}}
        assert (await client.post("/job", json=order)).status == 200
        assert await (await client.get("/file")).read() == b"12345!"


async def test_a_file_that_cannot_be_written_here_is_named(tmp_path):
    async def chunks(size):
        yield bytes(size)

    @asynccontextmanager
    async def through_pod(*_):
        yield SimpleNamespace(content=SimpleNamespace(iter_chunked=chunks))

    job = BulkJob(SimpleNamespace(through_pod=through_pod), "ns", CREATED, None)
    with pytest.raises(BadInput, match="rows cannot be written: No such file or directory; name another"):
        await job.receive(tmp_path / "gone" / "rows")
    (tmp_path / ".rows.part").symlink_to("/dev/full")
    with pytest.raises(BadInput, match="rows cannot be written: No space left on device"):
        await job.receive(tmp_path / "rows")
    assert list(tmp_path.iterdir()) == []
    await job.receive(tmp_path / "rows")
    assert (tmp_path / "rows").stat().st_size > 0


async def test_a_file_that_cannot_be_taken_is_answered(tmp_path):
    async with serving(tmp_path, "") as client:
        (tmp_path / "data.parquet").symlink_to("/dev/full")
        answer = await client.put("/file", data=bytes(100_000))
        assert answer.status == 507
        assert "No space left on device; its node needs free space" in (await answer.json())["detail"]
        assert not (tmp_path / "data.parquet").exists()


@pytest.mark.parametrize("argument", ["a\0b", "\ud800", "x" * 200_000])
async def test_a_job_that_cannot_be_started_is_an_error(tmp_path, argument):
    async with serving(tmp_path, "") as client:
        await client.post("/job", json={"command": "load", "arguments": [argument]})
        assert "the job cannot be run: " in (await until_over(client))["error"]["detail"]


async def test_a_job_that_dies_without_a_word_is_an_error(tmp_path):
    async with serving(tmp_path, "raise SystemExit(3)") as client:
        await client.post("/job", json={"command": "dump", "arguments": []})
        assert "exit code 3" in (await until_over(client))["error"]["detail"]
