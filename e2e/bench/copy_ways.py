"""The ways of moving the same tablets: cp and sync, the copy function alone, Direct, Spark cold and warm.

On the kind cluster when it is up: everything runs in pods of one node, with the source's and the
destination's volume, and Spark's executors mount the destination's. Without that cluster it is processes on
this machine, and no Spark. `copy_work.py` is what runs there; it is handed over by standard input, so that
images need not hold it.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import yaml

from e2e.bench import disk
from e2e.bench.errors import BenchError
from e2e.bench.member_stage import answers, free_ports, until
from e2e.bench.report import Column, Goal, Report, Row, factor
from e2e.bench.talk import Talker
from e2e.cluster import cache, images, kind
from e2e.cluster.steps import say
from stele.master.manifests import CopierSetup, copier_pod
from stele.model import TabletCluster
from stele.wire.pods import SPARK_SECRET_KEY, container_security, pod_security

WORK = Path(__file__).with_name("copy_work.py")
COMMAND_SECONDS_MAX = 400.0
READY_SECONDS_MAX = 180.0
MIB = 1 << 20
WITHOUT_SPARK_MIN = 0.8
CP_MIN = 0.6
COLD_SECONDS_MAX = 8.0
NAMESPACE = "stele-bench-copy"
VOLUMES = ("source", "dest")
ROUNDS, QUICK_ROUNDS = 3, 1


@dataclass(frozen=True, slots=True)
class Case:
    """So many bytes in values of one size, over 271 tablets."""

    name: str
    data_bytes: int
    value_bytes: int


FULL = (
    Case("1 GiB, 16 KiB values", 1024 * MIB, 16_384),
    Case("1 GiB, 100 B values", 1024 * MIB, 100),
    Case("4 MiB, 1 KiB values", 4 * MIB, 1_000),
)
QUICK = (Case("128 MiB, 16 KiB values", 128 * MIB, 16_384), FULL[2])
WAYS = ("cp + sync", "function, 1 process", "function, 2 processes", "Direct", "Spark, cold", "Spark, warm")

_NOTE = """\
MB/s of keys and values, the best of the rounds. of cp, of function: speed as a share of cp + sync and of the
copy function in two processes. first: until Spark began to copy. All but cp read the source's stream over
HTTP, check each block, write SST files, sync and check them."""


class Place(Protocol):
    """Where the ways are measured; `urls` are those of the source and of who takes jobs, by engine."""

    title: str
    source: str
    dest: str
    source_url: str
    jobs: dict[str, str]
    destination: str

    def work(self, *words: str) -> dict[str, Any]:
        """Run `copy_work.py` there."""
        ...

    def cool(self) -> None:
        """End Spark's drivers, so that the next job starts cold."""
        ...


def run(report: Report, quick: bool) -> None:
    """Measure every way of every case."""
    with _place() as place:
        section = report.section(f"Ways of copying 271 tablets, {place.title}", _columns(), _NOTE)
        for case in QUICK if quick else FULL:
            section.rows.extend(measure(place, case, QUICK_ROUNDS if quick else ROUNDS))
    report.goals += goals(section.rows)


def _columns() -> Sequence[Column]:
    return (
        Column("data", "case"),
        Column("way", "way"),
        Column("s", "seconds", lambda value: f"{value:.2f}"),
        Column("MB/s", "bytes_per_second", lambda value: f"{value / 1e6:,.0f}"),
        Column("of cp", "of_cp", factor),
        Column("of function", "of_function", factor),
        Column("first s", "first_seconds", lambda value: f"{value:.2f}"),
    )


def measure(place: Place, case: Case, rounds: int) -> list[Row]:
    """One row for each way that this place has; ways take turns, so that what disturbs strikes all."""
    say(f"{case.name}: make the source")
    made = place.work("make", place.source, str(case.data_bytes), str(case.value_bytes))
    best: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for way in WAYS:
            disk.until_idle(cache.root() / "work")
            found = _one(place, way)
            if found is not None and (way not in best or found["seconds"] < best[way]["seconds"]):
                best[way] = found
    return rows_of(case, int(made["bytes"]), best)


def _one(place: Place, way: str) -> dict[str, Any] | None:
    """None: there is no such way here."""
    engine = way.split(",", maxsplit=1)[0]
    if way.startswith(("Direct", "Spark")) and engine not in place.jobs:
        return None
    say(f"  {way}")
    if way == "cp + sync":
        return place.work("cp", place.source, place.dest)
    if way.startswith("function"):
        return place.work("alone", place.source, place.dest, place.source_url, way.split()[1])
    if way == "Spark, cold":
        place.cool()
    return place.work(
        "job", place.source, place.dest, place.source_url, place.jobs[engine], place.destination
    )


def rows_of(case: Case, data_bytes: int, best: dict[str, dict[str, Any]]) -> list[Row]:
    """Seconds, speeds, and shares of `cp` and of the function in two processes."""
    cp, function = best["cp + sync"]["seconds"], best["function, 2 processes"]["seconds"]
    return [
        {
            "case": case.name,
            "way": way,
            "bytes": data_bytes,
            "seconds": found["seconds"],
            "bytes_per_second": data_bytes / found["seconds"],
            "of_cp": cp / found["seconds"],
            "of_function": function / found["seconds"],
            "first_seconds": found.get("first_seconds") if way.startswith("Spark") else None,
        }
        for way, found in best.items()
    ]


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Of the largest case; none for Spark where there was none."""
    first = [row for row in rows if row["case"] == rows[0]["case"]]
    found = {row["way"]: row for row in first}
    made = [_of_cp(found[way]) for way in ("Direct", "Spark, warm") if way in found]
    warm, cold = found.get("Spark, warm"), found.get("Spark, cold")
    if warm is not None:
        text = f"Spark, warm: within {WITHOUT_SPARK_MIN} of the same copy without Spark"
        made.append(Goal(text, factor(warm["of_function"]), warm["of_function"] >= WITHOUT_SPARK_MIN))
    if cold is not None:
        text = f"Spark, cold: copying begins within {COLD_SECONDS_MAX:g} s"
        seconds = cold["first_seconds"]
        made.append(Goal(text, f"{seconds:.1f} s", seconds <= COLD_SECONDS_MAX))
    return made


def _of_cp(row: Row) -> Goal:
    text = f"{row['way']}: within {CP_MIN} of cp + sync"
    return Goal(text, factor(row["of_cp"]), row["of_cp"] >= CP_MIN)


@contextmanager
def _place() -> Iterator[Place]:
    if kind.status().answers:
        with _pods() as pods:
            yield pods
    else:
        say("The kind cluster is not up (python -m e2e.cluster up): without Spark, on this machine.")
        with _processes() as processes:
            yield processes


def answer(command: Sequence[str | Path], **more: Any) -> dict[str, Any]:
    """The last line that a program prints, as JSON."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False, **more
    )
    if done.returncode:
        raise BenchError(f"{' '.join(map(str, command[-6:]))} failed: {(done.stderr or done.stdout)[-800:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


# -- on this machine


@dataclass
class _Processes:
    title = "processes on this machine"
    destination = "bench"
    source: str
    dest: str
    source_url: str
    jobs: dict[str, str]

    def work(self, *words: str) -> dict[str, Any]:
        return answer([sys.executable, WORK, *words])

    def cool(self) -> None:
        return


@contextmanager
def _processes() -> Iterator[_Processes]:
    work = cache.root() / "work"
    work.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-copy-", dir=work) as folder,
        contextlib.ExitStack() as stack,
    ):
        urls = {name: transfer(stack, make_volume(Path(folder) / name)) for name in VOLUMES}
        yield _Processes(
            f"{folder}/source", f"{folder}/dest", urls["source"], {"Direct": f"{urls['dest']}/v1/copies"}
        )


def make_volume(folder: Path) -> Path:
    """An empty volume, as far as a transfer process needs it."""
    for each in ("checkpoints", "staging"):
        (folder / each).mkdir(parents=True)
    return folder


def transfer(stack: contextlib.ExitStack, volume: Path, *more: str) -> str:
    """Start the transfer process of a volume, with `more` environment; its URL."""
    (port,) = free_ports(1)
    own = [f"STELE_DATA_DIR={volume}", "STELE_BIND=127.0.0.1", f"STELE_TRANSFER_PORT={port}", *more]
    command = ["env", *own, sys.executable, "-m", "stele.transfer.__main__"]
    stack.enter_context(Talker(volume.name, command, cache.root() / "logs" / f"bench-{volume.name}.log"))
    until(partial(answers, "127.0.0.1", port), f"the transfer process of {volume.name} listens")
    return f"http://127.0.0.1:{port}"


# -- on the kind cluster


class _Pods:
    """Two pods on one node: volumes with their transfer processes, and the copier."""

    title = "pods of one node of the kind cluster"
    source, dest, destination = "/source", "/dest", "dest"

    def __init__(self, spark: str) -> None:
        self._spark = spark
        self.source_url = "http://127.0.0.1:1"
        self.jobs = {"Direct": "http://127.0.0.1:7003/v1/copies"}

    def start(self) -> None:
        _apply(*_volumes_pod(images.build(["member"])["member"]))
        _wait("volumes")
        self.source_url = f"http://{_address('volumes')}:7002"
        self.cool()

    def cool(self) -> None:
        """A new copier pod has no driver."""
        _kubectl("delete", "pod", "copier", "--ignore-not-found", "--wait=true")
        _apply(_copier_pod(self._spark))
        _wait("copier")
        self.jobs["Spark"] = f"http://{_address('copier')}:7010/v1/jobs"

    def work(self, *words: str) -> dict[str, Any]:
        script = 'cat > /tmp/copy_work.py && exec python3 /tmp/copy_work.py "$@"'
        command = [*_words("exec", "-i", "volumes", "-c", "work", "--", "sh", "-c", script, "work"), *words]
        return answer(command, input=WORK.read_text(encoding="utf-8"), env=kind.env())


@contextmanager
def _pods() -> Iterator[_Pods]:
    names = images.build(["member", "spark"])
    for image in names.values():
        kind.load(image)
    _kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true")
    _kubectl("create", "namespace", NAMESPACE)
    try:
        _apply(*_spark_account())
        pods = _Pods(names["spark"])
        pods.start()
        yield pods
    finally:
        _kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")


def _words(*words: str) -> list[str]:
    return ["kubectl", "--namespace", NAMESPACE, *words]


def _kubectl(*words: str, text: str | None = None) -> str:
    done = subprocess.run(
        _words(*words),
        input=text,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
        env=kind.env(),
    )
    if done.returncode:
        raise BenchError(f"kubectl {' '.join(words)}: {done.stderr[-500:]}")
    return done.stdout


def _apply(*objects: dict[str, Any]) -> None:
    _kubectl("apply", "-f", "-", text=yaml.safe_dump_all(objects))


def _wait(pod: str) -> None:
    _kubectl("wait", "--for=condition=Ready", f"pod/{pod}", f"--timeout={READY_SECONDS_MAX:g}s")


def _address(pod: str) -> str:
    return _kubectl("get", "pod", pod, "-o", "jsonpath={.status.podIP}")


def _meta(name: str) -> dict[str, Any]:
    return {"name": name, "namespace": NAMESPACE}


def _volumes_pod(image: str) -> list[dict[str, Any]]:
    """Claims and the pod that has both volumes; it bears the label of the destination's member."""
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in (*VOLUMES, "tmp")]

    def container(name: str, command: list[str], **env: str) -> dict[str, Any]:
        return {
            "name": name,
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": command,
            "env": [{"name": key, "value": value} for key, value in env.items()],
            "securityContext": container_security(),
            "volumeMounts": mounts,
        }

    def transfer(name: str, port: str) -> dict[str, Any]:
        return container(name, ["stele-transfer"], STELE_DATA_DIR=f"/{name}", STELE_TRANSFER_PORT=port)

    folders = [f"/{name}/{each}" for name in VOLUMES for each in ("checkpoints", "staging")]
    claims = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": _meta(name),
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "8Gi"}}},
        }
        for name in VOLUMES
    ]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**_meta("volumes"), "labels": {"stele.dev/member": "dest"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "securityContext": pod_security(),
            "initContainers": [container("folders", ["mkdir", "-p", *folders])],
            "containers": [
                transfer("source", "7002"),
                transfer("dest", "7003"),
                container("work", ["sleep", "infinity"]),
            ],
            "volumes": [
                *({"name": name, "persistentVolumeClaim": {"claimName": name}} for name in VOLUMES),
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }
    return [*claims, pod]


def _copier_pod(image: str) -> dict[str, Any]:
    """As the operator makes it, without the cluster that would own it."""
    setup = CopierSetup(image, "IfNotPresent", "stele-spark", (), "stele-executor", "stele-spark-auth")
    cluster = {"metadata": {"name": "bench"}, "spec": {"members": 1, "storage": {"size": "1Gi"}}}
    spec = copier_pod(TabletCluster.model_validate(cluster), setup, with_tls=False)["spec"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _meta("copier"), "spec": spec}


def _spark_account() -> list[dict[str, Any]]:
    """What charts/stele gives Spark's drivers and executors."""
    group = "rbac.authorization.k8s.io"
    verbs = ["get", "list", "watch", "create", "delete", "deletecollection", "patch"]
    meta = _meta("stele-spark")
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]
    secret = {SPARK_SECRET_KEY: secrets.token_hex(32)}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _meta("stele-executor")},
        {"apiVersion": "v1", "kind": "Secret", "metadata": _meta("stele-spark-auth"), "stringData": secret},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "stele-spark"},
            "subjects": [{"kind": "ServiceAccount", "name": "stele-spark", "namespace": NAMESPACE}],
        },
    ]
