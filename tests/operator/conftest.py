"""A client of the API server; a cluster of three members with its operator, in a namespace of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import Api
from stele.adapters.kubernetes.login import log_in
from tests.operator.real_kubelet import RealKubelet
from tests.operator.test_operator import Operator, Stage, staged


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[Api]:
    async with Api(await log_in(str(control_plane.kubeconfig))) as made:
        yield made


@pytest.fixture
def operator(control_plane: ControlPlane, namespace: str, tmp_path: Path, unused_tcp_port: int) -> Operator:
    """The process; it is not started."""
    return Operator(control_plane, namespace, tmp_path, unused_tcp_port)


@pytest.fixture
async def stage(api: Api, namespace: str, operator: Operator) -> AsyncIterator[Stage]:
    async with staged(api, namespace, operator) as made:
        yield made


@pytest.fixture
def real_kubelet(api: Api, namespace: str, tmp_path: Path) -> RealKubelet:
    """One that runs members as processes, once it is entered."""
    return RealKubelet(api, namespace, tmp_path)
