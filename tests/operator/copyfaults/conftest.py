"""One cluster for all tests of the folder: each uses partitions that no other moved."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from e2e.cluster.control_plane import ControlPlane
from tests.operator.copyfaults.stage import SMALL_DISK, FaultStage, small_disk, staged

_numbers = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[FaultStage]:
    directory: Path = tmp_path_factory.mktemp("copyfaults")
    namespace = f"copyfaults-{next(_numbers)}"
    control_plane.kubectl("create", "namespace", namespace)
    with small_disk(directory / SMALL_DISK) as mounted:
        async with staged(control_plane, namespace, directory) as made:
            made.disk_is_small = mounted
            yield made
