"""A join under writes ends where waves decide whether it does, and clients write as fast as they are to."""

import asyncio
from collections import Counter

import pytest

from e2e.bench import copy_rig
from e2e.bench.paced import FULL, QUICK, RATE_GOAL, VALUE_BYTES, Case, Writer, _keys, measured, rate_goal
from stele.core.copy.waves import TABLET_SHARE, Flow, Waves, needed_log_bytes
from stele.core.kv.keyslot import partition_of
from stele.model.common import quantity_bytes
from tests.worker import networks

SMALL = Case(6, 4_000_000, 1_000_000, 2 << 20, 3_000_000)


@pytest.mark.parametrize("case", [SMALL, QUICK, FULL])
def test_all_at_once_do_not_fit_and_one_does(case: Case) -> None:
    written = case.written_per_second // case.tablets
    waves = Waves(case.bandwidth, case.log_space)
    at_once = sum(waves.admit(Flow(0, 1, case.tablet_bytes, written)) for _ in range(case.tablets))
    assert 1 <= at_once < case.tablets / 2
    assert case.written_per_second * case.least_seconds > case.log_space
    alone = needed_log_bytes(case.tablet_bytes, written, case.bandwidth)
    assert alone <= case.log_space * TABLET_SHARE


def test_the_writes_go_to_all_tablets_in_turn() -> None:
    case = Case(4, 10 * VALUE_BYTES, 1, 1 << 20, 1 << 20)
    numbers = [partition_of(key, 4) for key in _keys(case)]
    assert Counter(numbers) == dict.fromkeys(range(4), 10)
    assert numbers[:8] == [0, 1, 2, 3] * 2
    assert quantity_bytes(case.spec(1)["migration"]["logSpacePerMember"]) == 1 << 20


@pytest.mark.control_plane
@pytest.mark.long
async def test_a_join_under_writes_ends_and_copies_each_tablet_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast it is does not count: the machine may be busy."""
    monkeypatch.setattr(copy_rig, "NETWORK", next(networks(75)))
    row = await measured(SMALL)
    assert (row["errors"], row["failed"]) == (0, 0)
    once = SMALL.tablets * SMALL.tablet_bytes
    # A tablet that was sent while little of it was written comes from the log in part.
    assert once * 0.5 <= row["copied_bytes"] <= once * 1.1
    assert row["safe_seconds"] >= row["least_seconds"] * 0.9, "the limit holds"
    assert row["written_per_second"] > 0


async def test_clients_write_at_their_rate_although_each_answer_takes_long() -> None:
    """Each answer takes half a second: a client that waited for it would write twice a second."""
    written = Counter[str]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await reader.readuntil(b"SET\r\n")
            await reader.readline()
            await reader.readline()
            await reader.readexactly(len(b"$65536\r\n") + VALUE_BYTES + 2)
            written["SET"] += 1
            loop.call_later(0.5, writer.write, b"+OK\r\n")

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        clients = Writer(host, port, [b"key-%d" % number for number in range(40)])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(clients.write(40 * VALUE_BYTES), 2.5)
    assert clients.errors == 0
    assert 50 <= clients.written_bytes / VALUE_BYTES <= written["SET"] <= 110


@pytest.mark.parametrize(("share", "met"), [(1.0, True), (RATE_GOAL, True), (0.83, False)])
def test_a_rate_that_is_not_reached_is_a_goal_that_is_missed(share: float, met: bool) -> None:
    goal = rate_goal(FULL, FULL.written_per_second * share)
    assert (goal.met, goal.found) == (met, f"{share:.0%}")
    assert "10 MB/s" in goal.text
