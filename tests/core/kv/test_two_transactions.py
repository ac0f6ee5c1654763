"""Two transactions that name the same two keys in opposite orders: they never wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from stele.core.kv import two_phase
from stele.core.kv.two_phase import Answered, Intent, Originator, Part, Ran, Send, Step, TxId, Verb
from tests.core.kv.two_phase_world import KEY, Partition

ORDERS = {TxId("one", 1, 1): (0, 1), TxId("other", 1, 1): (1, 0)}
"""The partitions in which each transaction has its commands, in their order. Both add 1 to both counters."""


@dataclass
class Run:
    """One interleaving, as far as it got. Each step is a message of one of the two that can run."""

    partitions: list[Partition] = field(default_factory=lambda: [Partition(0), Partition(1)])
    drivers: dict[TxId, Originator] = field(
        default_factory=lambda: {id: Originator(order) for id, order in ORDERS.items()}
    )

    def steps(self) -> Iterator[tuple[TxId, Send]]:
        for id, driver in self.drivers.items():
            for send in driver.next():
                part = self.partitions[send.partition]
                if send.verb is Verb.END or part.locks().are_free([KEY], but=id):
                    yield id, send

    def take(self, id: TxId, send: Send) -> None:
        part, driver = self.partitions[send.partition], self.drivers[id]
        step = self._step(part, id, driver, send)
        part.log(step)
        driver.answered(send, step.status)

    def _step(self, part: Partition, id: TxId, driver: Originator, send: Send) -> Step:
        if send.verb is Verb.END:
            assert driver.verdict is not None
            return two_phase.end(part, id, driver.verdict)
        asked = Part(id, driver.coordinator, b"first", (0, 1), (KEY,))
        step = two_phase.prepare if send.verb is Verb.PREPARE else two_phase.decide

        def evaluate(intent: Intent | None) -> Ran:
            part.base = part.value
            return Ran(part.value + 1, ((*KEY, b"%d" % (part.value + 1), 0),))

        return step(part, asked, evaluate)


def interleavings(taken: Sequence[tuple[TxId, Send]] = ()) -> Iterator[Run]:
    """Every order of the messages, each up to where nothing can run any more."""
    run = Run()
    for each in taken:
        run.take(*each)
    steps = list(run.steps())
    if not steps:
        yield run
    for each in steps:
        yield from interleavings([*taken, each])


def test_opposite_orders_of_keys_cannot_deadlock() -> None:
    runs = list(interleavings())
    assert len(runs) == len(ORDERS), "one after the other, whoever is first"
    for run in runs:
        assert [each.outcome for each in run.drivers.values()] == [Answered.COMMITTED] * 2
        assert all(each.over for each in run.drivers.values())
        assert [each.value for each in run.partitions] == [2, 2]
        assert not any(each.intents or each.locked for each in run.partitions)


def test_locks_in_the_order_of_the_commands_would_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_phase, "sorted", list, raising=False)
    stuck = [run for run in interleavings() if not any(each.over for each in run.drivers.values())]
    assert stuck
    assert all(each.locked for run in stuck for each in run.partitions)
