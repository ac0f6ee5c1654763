"""Settings are read before any login, and a wrong one is named with what is expected."""

import os
import subprocess
import sys

import pytest

from stele.adapters.environment import read
from stele.errors import BadInput
from stele.master.settings import Settings

IMAGES = {"STELE_MEMBER_IMAGE": "member:1", "STELE_SPARK_IMAGE": "spark:1"}


def test_what_the_environment_leaves_open_comes_from_the_login() -> None:
    given = read(Settings, IMAGES).completed("shop", "host-1")
    assert (given.own_namespace, given.namespaces, given.identity) == ("shop", ("shop",), "host-1")


def test_what_the_environment_says_holds() -> None:
    env = IMAGES | {"POD_NAMESPACE": "own", "POD_UID": "uid", "STELE_WATCH_NAMESPACES": "a, b,a"}
    given = read(Settings, env).completed("shop", "host-1")
    assert (given.own_namespace, given.namespaces, given.identity) == ("own", ("a", "b"), "uid")
    alone = read(Settings, IMAGES | {"POD_NAMESPACE": "own"}).completed("shop", "host-1")
    assert alone.namespaces == ("own",)
    listed = read(Settings, IMAGES | {"STELE_WATCH_NAMESPACES": "a"}).completed("shop", "host-1")
    assert (listed.own_namespace, listed.namespaces) == ("shop", ("a",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STELE_SPARK_IMAGE", "two words"),
        ("STELE_IMAGE_PULL_POLICY", "Sometimes"),
        ("STELE_HTTP_PORT", "0"),
        ("STELE_PAGE_PORT", "-1"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(BadInput, match=f"{name} is '{value}'; it must be"):
        read(Settings, IMAGES | {name: value})


def test_a_missing_image_is_told_before_a_login_that_cannot_work() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("STELE_")}
    command = [sys.executable, "-m", "stele.master", "--kubeconfig", "/nowhere/kubeconfig"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("stele-operator: BAD_INPUT: STELE_MEMBER_IMAGE is not set; it must be")
    assert "Traceback" not in done.stderr
