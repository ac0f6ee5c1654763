"""Faults of copying on the real cluster: pods that are killed, deleted, or cannot be placed."""

import pytest

from e2e.scenarios import copy_faults


@pytest.mark.cluster
def test_a_copy_outlives_what_strikes_its_pods() -> None:
    found = copy_faults.run()
    blows = {each.name: each for each in found.blows}
    for name in ("executor", "driver", "copier"):
        assert 0 < blows[name].copied_bytes < blows[name].planned_bytes, blows[name]
    assert blows["executor"].bytes_by_spark > 0
    assert "NO_EXECUTORS" in blows["no-room"].text
    assert blows["no-room"].bytes_by_spark == 0
    told = [text for reason, text in found.events if reason == "SparkFailed"]
    assert any("NO_EXECUTORS" in text for text in told), told
    assert found.clients["violations_total"] == 0, found.clients["violations"]
    assert found.violations == []
    assert not found.tally.faults, found.tally.differences
    assert found.tally.replicas == 2 * found.tally.partitions
    assert found.left == []
