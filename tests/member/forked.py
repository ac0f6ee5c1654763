"""Members of the harness whose processes are forked by a zygote; `zygote.py` says why."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness import Cluster, MemberProcess

ZYGOTE = Path(__file__).with_name("zygote.py")


class Forked:
    """As much of asyncio's Process as the harness uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.ended = asyncio.Event()

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    async def wait(self) -> int:
        await self.ended.wait()
        assert self.returncode is not None
        return self.returncode


class Zygote:
    """Forks one process at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._children: dict[int, Forked] = {}
        self._born: asyncio.Queue[Forked] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())
        self._lock = asyncio.Lock()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            told = json.loads(line)
            child = self._children.setdefault(told["pid"], Forked(told["pid"]))
            if "code" in told:
                child.returncode = told["code"]
                child.ended.set()
                del self._children[told["pid"]]
            else:
                self._born.put_nowait(child)

    async def fork(self, what: str, env: dict[str, str], log: Path) -> Forked:
        async with self._lock:
            assert self._process.stdin is not None
            order = json.dumps({"what": what, "env": env, "log": str(log)})
            self._process.stdin.write(order.encode() + b"\n")
            return await self._born.get()

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reader


class ForkedMember(MemberProcess):
    """`extra` is added to the environment of the next start only."""

    zygote: Zygote
    extra: dict[str, str]

    async def start(self, **extra: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        env = {**self.environment(), **extra}
        log = self.folder.parent / f"m{self.index}.log"
        self.process = await self.zygote.fork("member", env, log)  # type: ignore[assignment]

    async def start_transfer(self) -> None:
        log = self.folder.parent / f"t{self.index}.log"
        self.transfer = await self.zygote.fork("transfer", self.environment(), log)  # type: ignore[assignment]


@asynccontextmanager
async def forked_cluster(folder: Path, partitions: int, **env: str) -> AsyncIterator[Cluster]:
    """A cluster without members yet."""
    path = [str(ZYGOTE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ZYGOTE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
    )
    zygote = Zygote(process)

    def make(*args: Any) -> MemberProcess:
        made = ForkedMember(*args)
        made.zygote = zygote
        return made

    cluster = Cluster(folder, partitions, 2, env)
    cluster.make_member = make  # type: ignore[assignment]
    try:
        yield cluster
    finally:
        await cluster.close()
        await zygote.close()
