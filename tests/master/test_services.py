"""A service that cannot hand its state over holds up changes of owner: that is seen, and ends by itself."""

import pytest

from stele.core.control.commands import Result
from stele.core.control.rebalance.scheduler import SERVICE_SECONDS
from stele.core.control.retries import RETRY_SECONDS_MAX
from tests.fakes.members import FakeMember
from tests.master.harness import Harness, formed
from tests.master.test_copies import events, shown, stalled

FAILED = Result(
    "SERVICE_FAILED", "quota: prepare_replication failed with KeyError: 7; its state would be lost"
)


async def held_up(monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A fourth member is to own something, and services at all owners fail."""
    harness = await formed()
    monkeypatch.setattr(FakeMember, "_HandOver", lambda self, c: FAILED)
    harness.change_spec(members=4)
    await harness.ticks(60)
    return harness


async def test_a_service_that_fails_is_told_until_owners_change_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = FakeMember._HandOver
    harness = await held_up(monkeypatch)
    owners = {row.owner for row in harness.table().partitions}
    assert owners == {0, 1, 2}
    condition = stalled(harness)
    assert (condition.status.value, condition.reason) == ("True", "ServiceFailed")
    assert FAILED.detail in condition.message
    (told,) = events(harness, "ServiceFailed")
    assert FAILED.detail in told
    failed = next(each for each in harness.state.rebalance.finished if each.failed)
    assert "SERVICE_FAILED" in {each.reason for each in shown(harness, failed).refusals}
    monkeypatch.setattr(FakeMember, "_HandOver", plain)
    await harness.tick(RETRY_SECONDS_MAX)
    await harness.until_quiet()
    harness.check_balanced(4, 2)
    assert stalled(harness).status.value == "False"
    assert harness.state.rebalance.service_failures == {}


async def test_a_service_that_is_asked_for_nothing_any_more_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await held_up(monkeypatch)
    await harness.apply(members=3)
    assert stalled(harness).reason == "ServiceFailed"
    await harness.ticks(3, SERVICE_SECONDS)
    assert stalled(harness).status.value == "False"
