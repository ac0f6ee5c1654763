"""`up --engine Spark`: the copier as a process of this machine, and Spark in local mode."""

import json
import random
import signal
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests import packages
from tests.playground.harness import Ground, until
from tests.playground.test_playground import check, client

VALUES, VALUE_BYTES = 160, 100_000
"""About a megabyte for each of 16 partitions: more than owners keep of their logs."""

SPARK_SECONDS_MAX = 600.0
"""On a busy machine a JVM starts slowly, and there are several, two at once."""


@pytest.fixture(autouse=True)
def java() -> None:
    packages.ensure("default-jdk-headless")


def fill(ground: Ground, members: int) -> dict[bytes, bytes]:
    """Write what cannot follow from logs, and return it."""
    entries = {b"key-%d" % each: random.randbytes(VALUE_BYTES) for each in range(VALUES)}
    with client(ground) as connection:
        for key, value in entries.items():
            assert connection.set(key, value)
    until(lambda: all(are_trimmed(ground, each) for each in range(members)), "logs are trimmed")
    return entries


def are_trimmed(ground: Ground, member: int) -> bool:
    """Whether no log of a member begins with its first operation."""
    with urllib.request.urlopen(
        f"http://127.0.0.{member + 1}:{ground.ports()['admin']}/v1/tablets", timeout=10
    ) as answer:
        return all(each["log"]["first"] > 1 for each in json.load(answer)["tablets"])


def engines(ground: Ground) -> set[str]:
    """What copied, by the plans that copied something."""
    plans = (ground.folder / "objects" / "tabletrebalances").glob("*.yaml")
    found = [yaml.safe_load(each.read_text()).get("status") or {} for each in plans]
    return {each["engine"] for each in found if each.get("engine")}


def programs(ground: Ground) -> set[str]:
    """Names of the copier's processes."""
    found = set()
    for each in ground.copiers():
        with suppress(OSError):
            found.add(Path(f"/proc/{each}/comm").read_text().strip())
    return found


def is_healthy(ground: Ground) -> bool:
    address = f"http://127.0.0.1:{ground.ports()['copier']}/healthz"
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_copier_runs_while_spark_is_wanted(ground: Ground) -> None:
    ground.up("--members", "1", "--replicas", "1", "--partitions", "4", "--engine", "Spark")
    assert "Data is copied by Spark" in ground.said()
    until(lambda: is_healthy(ground), "the copier runs")
    assert "Spark" in ground.run("status").stdout

    assert ground.run("kill", "demo-copier").returncode == 0
    until(lambda: "demo-copier: the copier process was killed by signal 9" in ground.said(), "it is said")
    until(lambda: is_healthy(ground), "the copier is started again")
    assert ground.signal(signal.SIGINT) == 0
    assert ground.copiers() == []

    ground.up()
    until(lambda: is_healthy(ground), "the copier runs, as before")
    assert ground.signal(signal.SIGINT) == 0
    ground.up("--engine", "Direct")
    until(lambda: ground.copiers() == [], "the copier's pod is deleted")
    assert ground.signal(signal.SIGINT) == 0


@pytest.mark.long
def test_spark_copies_what_moves_and_ends_with_the_playground(ground: Ground) -> None:
    ground.up("--members", "3", "--partitions", "16", "--engine", "Spark")
    entries = fill(ground, 3)

    assert ground.run("scale", "4").returncode == 0
    ground.until_running(SPARK_SECONDS_MAX)
    assert engines(ground) == {"Spark"}
    assert "by Spark [" in ground.said()
    assert "java" in programs(ground)
    check(ground, entries)

    # To several members: a staging folder is that of its claim.
    assert ground.run("scale", "3").returncode == 0
    ground.until_running(SPARK_SECONDS_MAX)
    assert engines(ground) == {"Spark"}
    check(ground, entries)
    assert ground.signal(signal.SIGINT) == 0
    assert ground.copiers() == []
    assert ground.members() == []


@pytest.mark.long
def test_spark_ends_with_a_playground_that_is_killed(ground: Ground) -> None:
    ground.up("--members", "2", "--replicas", "1", "--partitions", "4", "--engine", "Spark")
    fill(ground, 2)
    assert ground.run("scale", "3").returncode == 0
    until(lambda: "java" in programs(ground), "a driver runs")
    ground.signal(signal.SIGKILL)
    until(lambda: ground.copiers() == [], "copier and JVM end")
