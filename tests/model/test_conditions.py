"""Setting conditions: the transition time moves with the status only."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from stele.model.conditions import (
    MESSAGE_LENGTH,
    ConditionStatus,
    ConditionType,
    find_condition,
    set_condition,
    timestamp,
)

EARLY = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
LATE = EARLY + timedelta(seconds=30)
READY = ConditionType.READY


def test_the_transition_time_is_kept_while_the_status_stays() -> None:
    before = set_condition((), READY, False, "Forming", "1 of 3", generation=1, now=EARLY)
    after = set_condition(before, READY, False, "MembersStarting", "2 of 3", generation=2, now=LATE)

    assert [each.to_dict() for each in after] == [
        {
            "type": "Ready",
            "status": "False",
            "reason": "MembersStarting",
            "message": "2 of 3",
            "lastTransitionTime": "2030-01-01T12:00:00Z",
            "observedGeneration": 2,
        }
    ]


def test_the_transition_time_moves_with_the_status_and_others_stay() -> None:
    before = set_condition((), READY, False, "Forming", "", generation=1, now=EARLY)
    before = set_condition(before, ConditionType.BALANCED, None, "Unknown", "", generation=1, now=EARLY)
    after = set_condition(before, READY, True, "AsDesired", "", generation=1, now=LATE)

    assert [each.type for each in after] == ["Balanced", "Ready"]
    assert [each.last_transition_time for each in after] == [timestamp(EARLY), timestamp(LATE)]
    balanced = find_condition(after, "Balanced")
    assert balanced is not None
    assert balanced.status is ConditionStatus.UNKNOWN
    assert find_condition(after, "Stalled") is None


def test_a_message_that_is_too_long_is_cut_and_times_are_utc() -> None:
    there = EARLY.astimezone(timezone(timedelta(hours=5)))
    (found,) = set_condition(
        (), READY, ConditionStatus.TRUE, "X", "y" * (MESSAGE_LENGTH + 1), generation=1, now=there
    )
    assert len(found.message) == MESSAGE_LENGTH
    assert found.last_transition_time == "2030-01-01T12:00:00Z"


@pytest.mark.parametrize("status", [True, False, None])
def test_setting_twice_changes_nothing(status: bool | None) -> None:
    once = set_condition((), READY, status, "X", "y", generation=1, now=EARLY)
    assert set_condition(once, READY, status, "X", "y", generation=1, now=LATE) == once
