"""Settings are read before any login, and a wrong one is named with what is expected."""

import os
import subprocess
import sys

import pytest

from stele.errors import BadInput
from stele.master.settings import read

IMAGES = {"STELE_MEMBER_IMAGE": "member:1", "STELE_SPARK_IMAGE": "spark:1"}


def test_what_the_environment_leaves_open_comes_from_the_login() -> None:
    given = read(IMAGES, "host-1").in_namespace("shop")
    assert (given.own_namespace, given.namespaces, given.identity) == ("shop", ("shop",), "host-1")


def test_what_the_environment_says_holds() -> None:
    env = IMAGES | {"POD_NAMESPACE": "own", "POD_UID": "uid", "STELE_WATCH_NAMESPACES": "a, b,a"}
    given = read(env, "host-1").in_namespace("shop")
    assert (given.own_namespace, given.namespaces, given.identity) == ("own", ("a", "b"), "uid")
    alone = read(IMAGES | {"POD_NAMESPACE": "own"}, "host-1").in_namespace("shop")
    assert alone.namespaces == ("own",)
    listed = read(IMAGES | {"STELE_WATCH_NAMESPACES": "a"}, "host-1").in_namespace("shop")
    assert (listed.own_namespace, listed.namespaces) == ("shop", ("a",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STELE_MEMBER_IMAGE", ""),
        ("STELE_SPARK_IMAGE", "two words"),
        ("STELE_IMAGE_PULL_POLICY", "Sometimes"),
        ("STELE_LOG_LEVEL", "LOUD"),
        ("STELE_HTTP_PORT", "0"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(BadInput, match=f"{name} is '{value}'; it must be"):
        read(IMAGES | {name: value}, "host-1")


def test_a_missing_image_is_told_before_a_login_that_cannot_work() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("STELE_")}
    command = [sys.executable, "-m", "stele.master", "--kubeconfig", "/nowhere/kubeconfig"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("stele-operator: BAD_INPUT: STELE_MEMBER_IMAGE is ''; it must be")
    assert "Traceback" not in done.stderr
