"""Programs of the machine that tests use: installed where that can be done; else the tests are skipped."""

import shutil

import pytest

from e2e.cluster import debian


def ensure(*packages: str) -> None:
    """Install those of `debian.TEST_PACKAGES` that are missing; skip the test where that cannot be done."""
    wanted = {name: debian.TEST_PACKAGES[name] for name in packages}
    if debian.can_install():
        debian.ensure_packages(wanted)
    elif missing := debian.missing_packages(wanted):
        pytest.skip(f"{' '.join(missing)} cannot be installed here: apt-get install takes root")


def ensure_go() -> None:
    """Skip the test without Go, and fail where packages are installed: there, all tests are meant to run."""
    if shutil.which("go") is None:
        (pytest.fail if debian.can_install() else pytest.skip)(
            "Go is missing: python -m e2e.cluster doctor says which one to install"
        )
