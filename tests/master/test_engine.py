"""Who copies is chosen by what the snapshots hold, once their sources have told."""

import pytest

from tests.fakes.copier import Copier
from tests.master.harness import Harness


@pytest.mark.parametrize(("threshold", "by_spark"), [(1, True), (1 << 40, False)])
async def test_spark_copies_when_enough_is_to_be_copied_at_once(threshold: int, by_spark: bool) -> None:
    harness = Harness(members=3, partitions=12, spark_threshold_bytes=threshold, parallel_per_member=4)
    copier = Copier(harness)
    await harness.loop.close()
    harness.start_master(copier=copier)
    await harness.until_quiet()
    await harness.apply(members=4)
    harness.check_balanced(4, 2)
    (record,) = harness.state.rebalance.finished
    assert bool(copier.waves) == by_spark
    assert record.engine is not None
    assert record.engine.value == ("Spark" if by_spark else "Direct")
    assert "bytes are to be copied at once" in record.engine_reason
    assert record.bytes_by_spark == (record.bytes_copied if by_spark else 0)
    assert record.bytes_copied > 0


async def test_what_catches_up_from_the_log_is_not_counted_as_something_to_copy() -> None:
    harness = Harness(members=3, partitions=12, spark_threshold_bytes=1)
    copier = Copier(harness)
    await harness.loop.close()
    harness.start_master(copier=copier)
    await harness.until_quiet()
    harness.kill(1)
    await harness.ticks(10)
    harness.revive(1)
    await harness.until_quiet()
    assert copier.waves == {}
