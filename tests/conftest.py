"""A bare control plane for the tests that need one: one per session, a fresh namespace per test."""

import gc
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from e2e.cluster.control_plane import ControlPlane, running

NAMESPACES = itertools.count(1)

# No example has a time of its own: it would fail on a busy machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """Leave what thousands of tests and their modules are made of to no later collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def bare_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real etcd and kube-apiserver without Stele's resources; the kubeconfig's user may do everything."""
    with running(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture(scope="session")
def control_plane(bare_control_plane: ControlPlane) -> ControlPlane:
    """The same with Stele's resources installed from `crds/`."""
    bare_control_plane.install_crds()
    return bare_control_plane


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A fresh namespace; it stays until the control plane ends, for nobody there empties it."""
    name = f"test-{next(NAMESPACES)}"
    control_plane.kubectl("create", "namespace", name)
    return name
