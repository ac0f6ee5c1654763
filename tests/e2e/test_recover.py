"""A cluster is deleted and recovered on the real Kubernetes, whose garbage collector takes what it owned."""

from pathlib import Path

import pytest

from e2e.scenarios import recover


def test_the_cluster_is_one_of_its_own() -> None:
    wanted = recover.settings()
    assert (wanted.cluster, wanted.members, wanted.resource) == ("recover", 3, "tabletcluster/recover")


@pytest.mark.cluster
def test_every_acknowledged_write_is_there_after_a_recovery(tmp_path: Path) -> None:
    outcome = recover.run(tmp_path, recover.FEW)
    assert (outcome.wrong, outcome.wrong_without_a_volume) == (0, 0)
    assert "recover-1 (no claim)" in outcome.refusal
