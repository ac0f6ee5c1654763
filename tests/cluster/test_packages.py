"""Tests that need programs of the machine are skipped only where these cannot be installed."""

from collections.abc import Callable

import pytest
from _pytest.outcomes import Failed, Skipped

from e2e.cluster import debian, doctor
from tests import packages


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """A machine without any program; returns the list of the packages that it was asked to install."""

    def made(*, can_install: bool) -> list[str]:
        installed: list[str] = []
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setattr(debian, "_search_path", lambda: "/nowhere")
        monkeypatch.setattr(debian, "can_install", lambda: can_install)
        monkeypatch.setattr(debian, "ensure_packages", installed.extend)
        return installed

    return made


def test_packages_are_installed_where_they_can_be(machine: Callable[..., list[str]]) -> None:
    installed = machine(can_install=True)
    packages.ensure("maven")
    assert installed == ["maven"]


def test_go_is_no_package_so_tests_fail_without_it(machine: Callable[..., list[str]]) -> None:
    machine(can_install=True)
    with pytest.raises(Failed, match="Go is missing"):
        packages.ensure_go()


@pytest.mark.parametrize("ensure", [packages.ensure_go, lambda: packages.ensure("maven")])
def test_they_are_skipped_where_nothing_can_be_installed(
    machine: Callable[..., list[str]], ensure: Callable[[], None]
) -> None:
    machine(can_install=False)
    with pytest.raises(Skipped):
        ensure()


def test_the_doctor_names_what_the_tests_lack(machine: Callable[..., list[str]]) -> None:
    machine(can_install=False)
    everything = {**debian.PACKAGES, **debian.TEST_PACKAGES}
    assert {"maven", "default-jdk-headless"} <= set(doctor.probe((), everything).missing_packages)
