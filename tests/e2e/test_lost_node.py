"""A worker is lost for good on the real cluster: its member is replaced, and nothing acknowledged is lost."""

from pathlib import Path

import pytest

from e2e.scenarios import lost_node


def test_the_member_is_replaced_after_it_was_shown_as_waiting_for_its_volume() -> None:
    detection = lost_node.settings().spec["failureDetection"]
    assert 0 < detection["rejoinGracePeriodSeconds"] < detection["replaceAfterSeconds"]
    assert detection["replaceAfterSeconds"] < lost_node.WAIT_SECONDS_MAX


@pytest.mark.cluster
def test_the_member_of_a_lost_worker_is_replaced_and_no_acknowledged_write_is_lost(tmp_path: Path) -> None:
    outcome = lost_node.run(tmp_path)
    assert (outcome.violations, outcome.differences) == ([], {})
    assert outcome.acknowledged > 1_000
    assert f"the volume of {outcome.lost} is bound to node" in outcome.unavailable
    assert outcome.members == tuple(sorted({"lost-0", "lost-1", "lost-2", "lost-3"} - {outcome.lost}))
    assert {outcome.lost, "lost-3"} <= set(outcome.claims), "the new member has a claim, the old one is kept"
    reached = list(outcome.seconds)
    assert reached.index("the volume is unavailable") < reached.index("another member has taken the place")
    assert outcome.seconds["another member has taken the place"] > lost_node.REPLACE_AFTER_SECONDS
