"""Each thing that a machine may lack gives one sentence that says what to do."""

import dataclasses
import socket
import sys

import pytest

from e2e.cluster import doctor, rootfs
from e2e.cluster.doctor import GIBIBYTE, Facts, problems

WELL = Facts(
    system="Linux",
    root=True,
    missing_packages=(),
    can_install=True,
    go_version=(1, 26),
    go_toolchain="local",
    python_version=(3, 11),
    ports_in_use=(),
    disk_free_bytes=100 * GIBIBYTE,
    memory_free_bytes=16 * GIBIBYTE,
    cache="/cache",
)


def test_a_machine_that_has_all_gives_no_complaint() -> None:
    assert problems(WELL) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"system": "Darwin"}, ["Linux only", "Darwin", "--kubeconfig"]),
        ({"root": False}, ["needs root", "as root"]),
        (
            {"missing_packages": ("podman", "debootstrap"), "can_install": False},
            ["podman debootstrap", "apt-get install"],
        ),
        ({"go_version": (), "go_toolchain": ""}, ["Go is missing", "1.26", "https://go.dev/dl"]),
        ({"go_version": (1, 19), "go_toolchain": ""}, ["Go 1.19 is too old", "1.26"]),
        ({"go_version": (1, 25)}, ["Go 1.25 is too old"]),
        ({"python_version": (3, 13)}, ["Python 3.13", "made by Python 3.11", "python3.11 -m venv .venv"]),
        (
            {"ports_in_use": ((30379, "redis-server (process 7)"),)},
            ["30379", "redis-server (process 7)", "end"],
        ),
        ({"disk_free_bytes": 3 * GIBIBYTE}, ["3.0 GiB free", "15.0 GiB", "/cache", "STELE_CACHE"]),
        ({"memory_free_bytes": GIBIBYTE}, ["1.0 GiB available", "4.0 GiB"]),
    ],
)
def test_what_is_lacking_is_named_with_what_to_do(change: dict[str, object], words: list[str]) -> None:
    found = problems(dataclasses.replace(WELL, **change))  # type: ignore[arg-type]
    assert len(found) == 1
    assert "\n" not in found[0]
    assert [word for word in words if word not in found[0]] == []


def test_every_problem_is_told_at_once() -> None:
    found = problems(dataclasses.replace(WELL, root=False, disk_free_bytes=0, memory_free_bytes=0))
    assert len(found) == 3


def test_missing_packages_are_no_problem_where_they_can_be_installed() -> None:
    assert problems(dataclasses.replace(WELL, missing_packages=("podman",))) == []


def test_an_older_go_that_fetches_its_successor_is_good_enough() -> None:
    assert problems(dataclasses.replace(WELL, go_version=(1, 22), go_toolchain="auto")) == []


def test_go_is_not_needed_where_kubernetes_is_not_built() -> None:
    assert problems(dataclasses.replace(WELL, go_version=()), builds=False) == []


def test_less_disk_is_needed_when_all_is_built() -> None:
    little = dataclasses.replace(WELL, disk_free_bytes=5 * GIBIBYTE)
    assert problems(little, doctor.DISK_FREE_WHEN_UP_BYTES_MIN) == []


def test_the_probe_names_who_holds_a_port() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        seen = doctor.probe([port]).ports_in_use
    assert [number for number, _ in seen] == [port]
    assert "process" in seen[0][1]


def test_the_probe_sees_the_python_that_would_make_the_wheels() -> None:
    assert doctor.probe(()).python_version == sys.version_info[:2]


def test_the_images_are_of_the_python_that_their_debian_has() -> None:
    assert (rootfs.DEBIAN_SUITE, doctor.IMAGE_PYTHON) == ("bookworm", (3, 11))


def test_the_probe_sees_that_a_port_is_free() -> None:
    with socket.socket() as once:
        once.bind(("127.0.0.1", 0))
        port = once.getsockname()[1]
    assert doctor.probe([port]).ports_in_use == []
