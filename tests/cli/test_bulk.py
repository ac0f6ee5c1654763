"""`kubectl stele load` and `dump`: what is wrong is said before a pod is made; the pod's side of a job."""

import http.client
import json
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from stele.adapters.kubernetes.api import PODS
from stele.adapters.kubernetes.bulk_pod import BulkPod, manifest, running
from stele.cli import bulk
from stele.cli.main import main
from stele.client import job_server
from stele.client.job import error_facts
from stele.errors import BadInput, Conflict

CLUSTER = {"apiVersion": "stele.dev/v1alpha1", "metadata": {"name": "demo", "uid": "1-2-3"}}


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
    made = manifest("demo-bulk", CLUSTER, "stele-sql:1", "2Gi", [])
    assert made["metadata"]["ownerReferences"][0]["uid"] == "1-2-3"
    spec, container = made["spec"], made["spec"]["containers"][0]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["activeDeadlineSeconds"] > 0
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize("image", ["", "registry.example/spark:1"])
async def test_the_pod_is_pulled_as_the_clusters_other_pods_are(image):
    class StoredError(Exception):
        pass

    def pod(image, *names):
        secrets = {"imagePullSecrets": [{"name": name} for name in names]} if names else {}
        return {"spec": {"containers": [{"image": image}], **secrets}}

    pods = [pod("registry.example/stele-spark:1"), pod("registry.example/stele-member:1", "one", "two")]
    made = {}

    class Server:
        async def get(self, kind, namespace, name):
            return CLUSTER

        async def list(self, kind, namespace, selector):
            assert (kind, namespace, selector) == (PODS, "ns", "stele.dev/cluster=demo")
            return [*pods, pods[1]]

        async def create(self, kind, namespace, body):
            made.update(body["spec"])
            raise StoredError

    with pytest.raises(StoredError):
        async with running(Server(), "ns", "demo", image, "1Gi"):
            pass
    assert made["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    assert made["containers"][0]["image"] == (image or "registry.example/stele-sql:1")


def test_the_error_inside_of_sparks_is_found():
    where = f"{Conflict.__module__}.{Conflict.__qualname__}"
    inner = f"Traceback ...\n{where}: DUPLICATE_KEY: key 'k' comes more than once\n\tat org.x"
    assert error_facts(Exception(inner)) == {
        "code": "DUPLICATE_KEY",
        "detail": "key 'k' comes more than once",
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


@contextmanager
def serving(folder: Path, program: str, monkeypatch):
    """The pod's server with a job that is this program, which gets the file's path as its argument."""
    script = folder / "job.py"
    script.write_text(program)
    monkeypatch.setattr(
        job_server.subprocess,
        "Popen",
        lambda line, popen=job_server.subprocess.Popen, **options: popen(
            [line[0], str(script), line[4]], **options
        ),
    )
    handler = type("Handler", (job_server._Handler,), {"job": job_server.Job(folder)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(place, method, path, body=None):
    connection = http.client.HTTPConnection(*place)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def until_over(place):
    for _ in range(500):
        told = json.loads(ask(place, "GET", "/job")[1])
        if told.keys() & {"result", "error"}:
            return told
        time.sleep(0.02)
    raise AssertionError("the job did not end")


def test_a_file_comes_in_a_job_runs_once_and_the_file_goes_out(tmp_path, monkeypatch):
    program = (
        "import json, sys; data = open(sys.argv[1]).read(); open(sys.argv[1], 'a').write('!')\n"
        "print('noise'); print(5); print(json.dumps({'result': {'rows': len(data)}}), flush=True)"
    )
    with serving(tmp_path, program, monkeypatch) as place:
        assert ask(place, "GET", "/file")[0] == 404
        assert ask(place, "PUT", "/file", b"12345")[0] == 200
        order = json.dumps({"command": "load", "arguments": []})
        assert ask(place, "POST", "/job", json.dumps({"command": "rm"}))[0] == 400
        assert ask(place, "POST", "/job", order)[0] == 200
        assert until_over(place) == {"result": {"rows": 5}}
        assert ask(place, "POST", "/job", order)[0] == 200
        assert ask(place, "GET", "/file") == (200, b"12345!")


async def test_a_file_that_cannot_be_written_here_is_named(tmp_path):
    async def chunks(size):
        yield bytes(size)

    @asynccontextmanager
    async def through_pod(*_):
        yield SimpleNamespace(content=SimpleNamespace(iter_chunked=chunks))

    pod = BulkPod(SimpleNamespace(through_pod=through_pod), "ns", {"metadata": {"name": "p", "uid": "u"}})
    with pytest.raises(BadInput, match="rows cannot be written: No such file or directory; name another"):
        await pod.receive(tmp_path / "gone" / "rows")
    (tmp_path / ".rows.part").symlink_to("/dev/full")
    with pytest.raises(BadInput, match="rows cannot be written: No space left on device"):
        await pod.receive(tmp_path / "rows")
    assert list(tmp_path.iterdir()) == []
    await pod.receive(tmp_path / "rows")
    assert (tmp_path / "rows").stat().st_size > 0


def test_a_file_that_cannot_be_taken_is_answered(tmp_path, monkeypatch):
    with serving(tmp_path, "", monkeypatch) as place:
        connection = http.client.HTTPConnection(*place)
        for size in ("x", "-1", "9" * 5000):
            connection.request("PUT", "/file", b"", {"Content-Length": size})
            answer = connection.getresponse()
            assert (answer.status, b"Content-Length is expected" in answer.read()) == (400, True)
        connection.close()
        (tmp_path / "data.parquet").symlink_to("/dev/full")
        status, told = ask(place, "PUT", "/file", bytes(100_000))
        assert status == 507
        assert "No space left on device; its node needs room for them" in json.loads(told)["detail"]
        assert not (tmp_path / "data.parquet").exists()


def test_a_job_that_dies_without_a_word_is_an_error(tmp_path, monkeypatch):
    with serving(tmp_path, "raise SystemExit(3)", monkeypatch) as place:
        ask(place, "POST", "/job", json.dumps({"command": "dump", "arguments": []}))
        assert "exit code 3" in until_over(place)["error"]["detail"]
