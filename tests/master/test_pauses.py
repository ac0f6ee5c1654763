"""How long a partition has no owner that serves while its owner hands over: in messages, not in seconds."""

import pytest

from stele.core.control.commands import Accept, ExchangeReply, ExchangeRequest, HandOver
from stele.core.control.rebalance.handover import demote
from tests.fakes.table_store import MemoryTableStore
from tests.master.harness import Harness, formed


class Pause:
    """What the master sends and stores from the first freeze on, until another member owns the partition.

    Each message is a round: it begins when the one before is answered. What the owner does before it answers
    the freeze, at most one round of acknowledgements, is in tests/golden/tablet: hand-over.txt and swap.txt.
    """

    def __init__(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds: list[str] = []
        self.partition: int | None = None
        self.over = False
        self._net, self._exchange = harness.net, harness.net.exchange
        self._put = MemoryTableStore.put
        self._before = [row.owner for row in harness.table().partitions]
        monkeypatch.setattr(harness.net, "exchange", self.exchange)
        monkeypatch.setattr(MemoryTableStore, "put", lambda *words: self.put(*words))  # noqa: PLW0108  binds the store

    async def exchange(self, address: str, request: ExchangeRequest, deadline: float) -> ExchangeReply:
        for command in request.commands:
            if isinstance(command, HandOver):
                self.partition = command.partition
                self._note("HandOver")
            elif isinstance(command, Accept) and command.row.partition == self.partition:
                self._note("Accept")
        reply = await self._exchange(address, request, deadline)
        member, partition = self._net.members[address], self.partition
        if partition is not None and member.owns(partition) and member.index != self._before[partition]:
            self._note("publish")
            self.over = True
        return reply

    def put(self, store: MemoryTableStore, name: str, data: dict[str, str], expected: int | None) -> int:
        if self.partition is not None:
            self._note(f"store {name}")
        return self._put(store, name, data, expected)

    def _note(self, what: str) -> None:
        if not self.over:
            self.rounds.append(what)


@pytest.mark.parametrize("kind", ["SWAP", "MOVE"])
async def test_a_hand_over_pauses_a_partition_for_four_rounds(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await formed(
        members=2 if kind == "SWAP" else 1, partitions=2, replicas=2 if kind == "SWAP" else 1
    )
    pause = Pause(harness, monkeypatch)
    if kind == "SWAP":
        demote(harness.state, "a test", 0)
    else:
        harness.change_spec(members=2)
    began = None
    for ticks in range(200):
        await harness.tick()
        began = ticks if began is None and pause.rounds else began
        if pause.over:
            break
    assert pause.rounds == ["HandOver", "Accept", "store shard-0", "publish"]
    assert began is not None
    assert ticks - began <= 2, "each decision sends all that the replies before it allow"
