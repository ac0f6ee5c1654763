"""Random deaths and faults of the wire while members come and go. No test: it ends with what it found.

python -m tests.operator.copyfaults.random_faults SECONDS SEED
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from e2e.cluster.control_plane import running
from tests.operator import test_operator
from tests.operator.copyfaults.stage import SMALL_DISK, FaultStage, small_disk, staged, verified
from tests.operator.copyfaults.wire import Block

NAMESPACE = "random-faults"
# Blows follow each other so fast that a busy machine has to catch up first.
test_operator.DEADLINE_SECONDS = 300.0
PAUSE_SECONDS_MAX = 1.5


class RandomFaults:
    """Strikes at random, one blow after the other."""

    def __init__(self, stage: FaultStage, seed: int) -> None:
        self._stage, self._random = stage, random.Random(seed)
        self.struck: dict[str, int] = {}
        self.stopping = False

    async def run(self) -> None:
        blows = [
            self._member,
            self._transfer,
            self._executor,
            self._driver,
            self._copier,
            self._operator,
            self._freeze,
            self._tamper,
        ]
        while not self.stopping:
            await asyncio.sleep(self._random.random() * PAUSE_SECONDS_MAX)
            blow = self._random.choice(blows)
            name = blow.__name__.strip("_")
            with contextlib.suppress(KeyError, ProcessLookupError, IndexError, FileNotFoundError):
                await blow()
                self.struck[name] = self.struck.get(name, 0) + 1

    def _some(self) -> str:
        return self._random.choice(list(self._stage.kubelet.running()))

    async def _member(self) -> None:
        """One at a time: with two copies, two deaths at once may lose what nobody else has."""
        if self._random.random() < 0.5 and await self._stage.safe():
            await self._stage.kubelet.kill(self._some(), self._random.random())
            await self._stage.until("safety", self._stage.safe)

    async def _transfer(self) -> None:
        await self._stage.kubelet.kill(self._some(), 0.1, container="transfer")

    async def _executor(self) -> None:
        self._kill("executor")

    async def _driver(self) -> None:
        self._kill("driver")

    def _kill(self, role: str) -> None:
        alive = [
            pid for name in self._stage.kubelet.running() for pid in self._stage.kubelet.alive(role, name)
        ]
        os.kill(self._random.choice(alive), signal.SIGKILL)

    async def _copier(self) -> None:
        await self._stage.kubelet.kill_copier()
        await self._stage.kubelet.start_copier()

    async def _operator(self) -> None:
        await self._stage.operator.end(signal.SIGKILL)
        await self._stage.start_operator()

    async def _freeze(self) -> None:
        """A container stands still for a while, the member's less long than a lease."""
        name, pid = self._random.choice(list(self._stage.kubelet.pids().items()))
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(self._random.random() * (1.0 if name.endswith("/member") else 12.0))
        os.kill(pid, signal.SIGCONT)

    async def _tamper(self) -> None:
        """A file in staging goes, is cut, or has one wrong bit; or there is one that nobody knows."""
        staging = self._stage.directory / self._some() / "staging"
        files = [path for path in staging.glob("*/*") if path.is_file()]
        if not files:
            (staging / "stray").write_bytes(b"")
            return
        victim, dice = self._random.choice(files), self._random.randrange(3)
        if dice == 0:
            victim.unlink()
            return
        content = bytearray(victim.read_bytes())
        if dice == 1:
            victim.write_bytes(content[: len(content) // 2])
        elif content:
            content[self._random.randrange(len(content))] ^= 1
            victim.write_bytes(content)

    async def touch(self, block: Block) -> bytes | None:
        """One block of a hundred is cut, corrupted, doubled or late."""
        dice = self._random.randrange(400)
        if dice == 0:
            return None
        if dice == 1:
            return block.data[:-1] + bytes([block.data[-1] ^ 1])
        if dice == 2:
            return block.data * 2
        if dice == 3:
            await asyncio.sleep(1.0)
        return block.data


def usage(stage: FaultStage) -> str:
    """Open files and threads of the processes that live longest, and bytes of each volume."""
    parts = []
    for name, pid in stage.kubelet.pids().items():
        with contextlib.suppress(FileNotFoundError):
            files, threads = len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))
            parts.append(f"{name} {files} files {threads} threads")
    for name in stage.kubelet.running():
        size = 0
        for path in (stage.directory / name).rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                size += path.lstat().st_size
        parts.append(f"{name} {size >> 20} MiB")
    return "; ".join(parts)


async def strike_at_random(stage: FaultStage, seconds: float, seed: int) -> None:
    made = RandomFaults(stage, seed)
    start, members = time.monotonic(), 3
    stage.wire.arm(made.touch, range(31))
    while time.monotonic() - start < seconds:
        members = 7 - members
        task = asyncio.create_task(made.run())
        await stage.scale(members)
        await asyncio.sleep(15)
        made.stopping = True
        await task
        made.stopping = False
        blown = time.monotonic()
        await stage.until_converged(members)
        took = time.monotonic() - blown
        print(f"{blown - start:6.1f} s: {members} members, converged after {took:.1f} s", flush=True)
        print(f"         {usage(stage)}", flush=True)
    stage.wire.arm(None)
    print("blows:", made.struck, "left right now:", stage.left_behind(), flush=True)
    await stage.nothing_left()
    await stage.until("tablets as the rows say", stage.nothing_doubled)
    clients, tally, violations = await verified(stage)
    print(f"acknowledged {clients['acknowledged']}, doubtful {clients['doubtful']}, {clients['total']}")
    print("violations:", clients["violations"], violations)
    print("replicas:", tally.replicas, "faults:", dict(tally.faults), tally.differences)
    print(usage(stage))


async def main(seconds: float, seed: int, directory: Path) -> None:
    with running(directory) as plane:
        plane.install_crds()
        plane.kubectl("create", "namespace", NAMESPACE)
        with small_disk(directory / SMALL_DISK):
            async with staged(plane, NAMESPACE, directory) as stage:
                await strike_at_random(stage, seconds, seed)


if __name__ == "__main__":
    asyncio.run(
        main(float(sys.argv[1]), int(sys.argv[2]), Path(tempfile.mkdtemp(prefix="stele-random-faults-")))
    )
