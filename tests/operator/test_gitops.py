"""What examples/gitops says to Argo CD, run by a real Lua, and that its objects are valid."""

import itertools
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from stele.model import Keyspace, TabletCluster, TabletUser
from tests import packages
from tests.fakes.kstatus import kstatus

FOLDER = Path(__file__).parents[2] / "examples" / "gitops"
HEALTH = {
    "Current": "Healthy",
    "InProgress": "Progressing",
    "Failed": "Degraded",
    "Terminating": "Progressing",
}
VALUES = ("True", "False", None)


def script() -> str:
    (text,) = yaml.safe_load((FOLDER / "argocd-cm.yaml").read_text())["data"].values()
    (check,) = yaml.safe_load(text).values()
    return str(check["health.lua"])


def literal(value: object) -> str:
    """A value as Lua writes it."""
    match value:
        case Mapping():
            return "{" + ", ".join(f"[{literal(key)}] = {literal(each)}" for key, each in value.items()) + "}"
        case list():
            return "{" + ", ".join(map(literal, value)) + "}"
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case _:
            return str(value).lower()


def health(objects: list[dict[str, Any]]) -> list[list[str]]:
    """Status and message of each, in one process of Lua."""
    packages.ensure("lua5.1")
    code = f"local function check(obj)\n{script()}\nend\n"
    for each in objects:
        code += f"local found = check({literal(each)}); print(found.status .. '|' .. found.message)\n"
    words = [shutil.which("lua5.1") or "lua5.1", "-"]
    done = subprocess.run(words, input=code, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [line.split("|") for line in done.stdout.splitlines()]


def shown(conditions: Mapping[str, str | None], *, observed: int = 2, **metadata: str) -> dict[str, Any]:
    listed = [
        {"type": name, "status": value, "message": f"{name} says why"}
        for name, value in conditions.items()
        if value is not None
    ]
    status = {"observedGeneration": observed, "conditions": listed}
    return {"metadata": {"generation": 2, **metadata}, "status": status}


def test_argo_cd_and_kstatus_judge_alike() -> None:
    """All values of the conditions, in each order; an object that has Ready, as all of Stele's have."""
    objects = []
    for ready, reconciling, stalled in itertools.product(("True", "False", "Unknown"), VALUES, VALUES):
        values = {"Ready": ready, "Reconciling": reconciling, "Stalled": stalled}
        for order in itertools.permutations(values):
            objects.append(shown({name: values[name] for name in order}))
    objects += [shown({"Ready": "True"}, observed=1), shown({"Ready": "True"}, deletionTimestamp="now")]
    assert [status for status, _ in health(objects)] == [
        HEALTH.get(kstatus(each), "Progressing") for each in objects
    ]


def test_the_message_says_what_to_do() -> None:
    stalled = shown({"Ready": "False", "Stalled": "True"})
    waiting = shown({"Ready": "False", "Stalled": "False"})
    assert health([stalled, waiting]) == [["Degraded", "Stalled says why"], ["Progressing", "Ready says why"]]


@pytest.mark.parametrize("status", [None, {}, {"observedGeneration": -1}])
def test_what_no_operator_has_seen_is_waited_for(status: dict[str, Any] | None) -> None:
    new: dict[str, Any] = {"metadata": {"generation": 1}}
    if status is not None:
        new["status"] = status
    assert health([new]) == [["Progressing", "waiting for the operator"]]


def test_the_objects_are_valid_and_come_after_their_cluster() -> None:
    kinds = {"TabletCluster": TabletCluster, "Keyspace": Keyspace, "TabletUser": TabletUser}
    objects = list(yaml.safe_load_all((FOLDER / "cluster.yaml").read_text()))
    waves = {}
    for each in objects:
        made = kinds[each["kind"]].model_validate(each)
        assert made.metadata.name
        waves[each["kind"]] = int(each["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"])
    assert waves["TabletCluster"] < waves["Keyspace"] <= waves["TabletUser"]
