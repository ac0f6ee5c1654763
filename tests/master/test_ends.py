"""A master that is asked to end, at each round of what it does, leaves no clients waiting for an owner."""

import asyncio
from collections.abc import Callable

import pytest

from stele.core.control.commands import ExchangeReply, ExchangeRequest
from stele.core.control.publication import hands_over
from stele.core.control.rebalance.handover import demote
from tests.master.harness import Harness, formed

PARTITIONS = 24
ROUNDS_MAX = 40


def waiting(harness: Harness) -> set[int]:
    """The partitions whose clients wait at some member."""
    return {number for each in harness.world.volumes.values() for number in each.frozen}


def slow_down(harness: Harness, index: int) -> None:
    """Have answers of a member take three rounds: it is sent nothing else meanwhile."""
    exchange, slow = harness.net.exchange, harness.world.pods[index].address

    async def exchanged(address: str, request: ExchangeRequest, deadline_seconds: float) -> ExchangeReply:
        reply = await exchange(address, request, deadline_seconds)
        for _ in range(10 if address == slow else 0):
            await asyncio.sleep(0)
        return reply

    harness.net.exchange = exchanged  # type: ignore[method-assign]


async def end_after(rounds: int, begin: Callable[[Harness], None]) -> tuple[bool, int]:
    """Return whether it was handing over when it was asked to end, and how many rounds it went on."""
    harness = await formed(partitions=PARTITIONS, parallel_per_member=2)
    slow_down(harness, 0)
    begin(harness)
    await harness.ticks(rounds, 0.01)
    harness.loop.end()
    handing, begun = hands_over(harness.state), harness.clock
    await harness.until(lambda: harness.loop.may_end)
    assert waiting(harness) == set()
    went_on = round((harness.clock - begun) / 0.05)
    await harness.restart()
    await harness.until_quiet(2_000)
    return handing, went_on


def hand_over(harness: Harness) -> None:
    demote(harness.state, "a test", 0)


def scale_up(harness: Harness) -> None:
    harness.change_spec(members=4)


@pytest.mark.parametrize("begin", [hand_over, scale_up])
async def test_no_partition_is_left_without_an_owner(begin: Callable[[Harness], None]) -> None:
    found = [await end_after(rounds, begin) for rounds in range(ROUNDS_MAX)]
    assert any(handing for handing, _ in found)
    assert not all(handing for handing, _ in found)
    assert max(went_on for _, went_on in found) <= 12


async def test_what_it_has_not_begun_is_left_to_the_next_master() -> None:
    harness = await formed(partitions=PARTITIONS, parallel_per_member=2)
    owned = harness.counts()[0][0]
    scale_up(harness)
    hand_over(harness)
    harness.loop.end()
    await harness.ticks(ROUNDS_MAX)
    assert harness.counts()[0][0] == owned
    assert harness.loop.may_end
