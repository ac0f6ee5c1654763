"""Members that run the example service under the operator: its counts go on while partitions move."""

import asyncio
import itertools
import json
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.bench.member_stage import free_ports
from stele.adapters.kubernetes.api import Api
from stele.core.kv.keyslot import partition_of
from tests.member.harness.cluster import eventually, key_in
from tests.member.services import quota, recording
from tests.operator.real_kubelet import RealKubelet
from tests.operator.test_operator import Operator, Stage, with_processes

pytestmark = pytest.mark.control_plane

PARTITIONS, TAKERS = 31, 4
NAMES = 4
"""In each partition."""
LIMIT = 1_000_000
WINDOW_SECONDS = 3600
ANSWER_SECONDS_MAX = 30.0
STEPS = {"before": 1, "commit": -1, "rollback": -1}

Owners = list[str]
"""Of each partition, as its stored row says."""

Heard = tuple[str, int, str]
"""Member, partition and id of a migration."""


class ServiceKubelet(RealKubelet):
    """Its members find what is installed there."""

    def __init__(self, api: Api, namespace: str, directory: Path, more: dict[str, str]) -> None:
        super().__init__(api, namespace, directory)
        self._more = more

    def _environment(self, name: str, container: dict[str, Any]) -> dict[str, str]:
        return super()._environment(name, container) | self._more

    def running(self) -> list[str]:
        return sorted(self._pods)


class Counting:
    """Takes uses of names at whichever member counts them, and knows how many were taken of each."""

    def __init__(self, kubelet: ServiceKubelet, port: int) -> None:
        self._kubelet, self._port = kubelet, port
        self.taken = Counter[bytes]()

    async def take(self, name: bytes, member: str) -> str:
        """One use, asking this member first; who counted it. It must be the one after the last."""
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            while not (answer := await self._ask(name, member)).startswith("OK"):
                word, _, told = answer.partition(" ")
                assert word in ("ASK", ""), answer
                if told == member or not told:
                    await asyncio.sleep(0.01)
                member = told or random.choice(self._kubelet.running())
        self.taken[name] += 1
        assert answer == f"OK {LIMIT - self.taken[name]}", f"{name!r} at {member}: {self.taken[name]} taken"
        return member

    async def _ask(self, name: bytes, member: str) -> str:
        """Empty where nobody listens: a member that left, or that does not run yet."""
        try:
            line = b"TAKE %s %d %d" % (name, LIMIT, WINDOW_SECONDS)
            return await quota.ask(self._kubelet.addresses[member], self._port, line)
        except OSError:
            return ""

    async def through_all(self, names: Iterable[bytes], owners: Owners) -> None:
        """Take each name once by way of every member: always its owner counts it."""
        for name, member in itertools.product(names, self._kubelet.running()):
            assert await self.take(name, member) == owners[partition_of(name, PARTITIONS)]

    @asynccontextmanager
    async def going_on(self, names: list[bytes]) -> AsyncIterator[None]:
        """Take one name after the other beside the block, a few at a time."""
        ended = asyncio.Event()

        async def run(some: list[bytes]) -> None:
            for name in itertools.cycle(some):
                if ended.is_set():
                    return
                await self.take(name, self._kubelet.running()[0])

        async with asyncio.TaskGroup() as group:
            for first in range(TAKERS):
                group.create_task(run(names[first::TAKERS]))
            yield
            ended.set()


async def owners_of(stage: Stage) -> Owners:
    return [f"demo-{row.owner}" for row in (await stage.rows()).rows]


async def scaled(stage: Stage, counting: Counting, names: list[bytes], members: int) -> set[tuple[int, str]]:
    """Every count goes on while the cluster gets so many members, and after it; the owners that are new.

    The master is killed when the first owner has changed; the next one ends what it began.
    """
    before, taken = await owners_of(stage), counting.taken.total()
    epoch = (await stage.cluster())["status"]["epoch"]

    async def changed() -> bool:
        return await owners_of(stage) != before

    async with counting.going_on(names):
        await stage.scale(members)
        await stage.until("an owner that is new", changed)
        await stage.operator.end(signal.SIGKILL)
        await stage.operator.start()
        await stage.table_snapshot(epoch + 1)
        await stage.until_converged(members)
    after = await owners_of(stage)
    assert counting.taken.total() > taken + len(names), "too slow to see anything"
    await counting.through_all(names, after)
    return {(p, after[p]) for p in range(PARTITIONS) if before[p] != after[p]}


async def heard(told: Path) -> tuple[dict[Heard, int], set[tuple[int, str]]]:
    """How many more begins than ends a migration had, where not as many; who was told to own a partition."""
    begun, owners = Counter[Heard](), set()
    for path in told.glob("*.jsonl"):
        for event in map(json.loads, path.read_text().split("\n")[:-1]):
            if event["what"] in STEPS:
                begun[path.stem, event["partition"], event["id"]] += STEPS[event["what"]]
            if event["what"] == "commit" and event["indexes"][1] == 0:
                owners.add((event["partition"], path.stem))
    return {each: more for each, more in begun.items() if more}, owners


async def test_counts_go_on_while_partitions_move(
    api: Api, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    installed = quota.install(tmp_path, port) | recording.install(tmp_path)
    names = [key_in(p, PARTITIONS, seed) for seed in range(NAMES) for p in range(PARTITIONS)]
    # A busy machine is no fault: an owner that is lost takes counts along.
    patient = {"heartbeatSeconds": 0.5, "leaseSeconds": 15, "rejoinGracePeriodSeconds": 120}
    kubelet = ServiceKubelet(api, namespace, tmp_path, installed)
    counting = Counting(kubelet, port)
    async with with_processes(api, namespace, operator, kubelet, failureDetection=patient) as stage:
        await counting.through_all(names, await owners_of(stage))
        for members in (4, 3):
            moved = await scaled(stage, counting, names, members)
            assert len(moved) >= PARTITIONS // 4
            await eventually(
                lambda: heard(tmp_path / "told"),
                lambda told, moved=moved: told[0] == {} and told[1] >= moved,
            )
