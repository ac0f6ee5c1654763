"""The demo's side of the clients' process: start it, tell it the phases, hear how it goes, stop it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from e2e.demo.errors import DemoError
from e2e.demo.history import Ledger, replay
from e2e.demo.resp import Endpoint
from e2e.demo.workload import STOP_SECONDS_MAX, Config

START_SECONDS_MAX = 30.0
LINE_BYTES_MAX = 4 * 1024**2
KILL_SECONDS_MAX = 5.0
LOG_TAIL_BYTES = 2000


def config_of(
    endpoint: Endpoint, folder: Path, run: str, hashes: Mapping[bytes, bytes] | None = None, **more: Any
) -> Config:
    """Clients of this endpoint that keep their history in the folder, and check records with these hashes."""
    records = folder / "records.msgpack"
    records.write_bytes(msgspec.msgpack.encode(hashes or {}))
    where = endpoint.host, endpoint.port
    return Config(*where, run, str(folder / "history"), str(records), endpoint.login, **more)


def ledger_of(folder: Path) -> Ledger:
    """What the clients wrote down, once they have ended."""
    with (folder / "history").open(encoding="utf-8") as lines:
        return replay(lines)


class Clients:
    """`tick` is the newest message of type tick; `phases` the summaries of the phases that ended."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._process: asyncio.subprocess.Process | None = None
        self._listener: asyncio.Task[None] | None = None
        self.tick: dict[str, Any] = {}
        self.phases: list[dict[str, Any]] = []
        self.result: dict[str, Any] | None = None
        self._first = asyncio.Event()

    async def start(self) -> None:
        """Start the process and wait for its first message; raises DemoError when it does not start."""
        try:
            await self._start()
        except BaseException:
            await self.kill()
            raise

    async def _start(self) -> None:
        path = self._folder / "clients.json"
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(self._config))
        with self._log().open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "e2e.demo.workload",
                str(path),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=Path(__file__).resolve().parents[2],
                limit=LINE_BYTES_MAX,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops the clients in order
            )
        self._listener = asyncio.create_task(self._listen())
        try:
            await asyncio.wait_for(self._first.wait(), START_SECONDS_MAX)
        except TimeoutError:
            raise self._complaint() from None
        self.check()

    async def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = json.loads(line)
            if message["type"] == "tick":
                self.tick = message
            elif message["type"] == "phase":
                self.phases.append(message)
            else:
                self.result = message
            self._first.set()
        self._first.set()

    def check(self) -> None:
        """Raise DemoError when the process ended without being told to."""
        if self._listener is not None and self._listener.done() and self.result is None:
            raise self._complaint()

    async def phase(self, name: str) -> None:
        """What is measured from now on belongs to this phase."""
        await self._order({"phase": name})

    async def stop(self) -> dict[str, Any]:
        """Let each client end its operation, and give the message of type end."""
        await self._order({"stop": True})
        assert self._listener is not None
        assert self._process is not None
        try:
            await asyncio.wait_for(self._listener, STOP_SECONDS_MAX + KILL_SECONDS_MAX)
        except TimeoutError:
            raise self._complaint() from None
        await self._process.wait()
        if self.result is None:
            raise self._complaint()
        return self.result

    async def kill(self) -> None:
        """End the process whatever it does; for the way out after an error."""
        if self._process is None:
            return
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        if self._listener is not None:
            await asyncio.wait([self._listener], timeout=KILL_SECONDS_MAX)

    async def _order(self, order: dict[str, Any]) -> None:
        self.check()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        await self._process.stdin.drain()

    def _log(self) -> Path:
        return self._folder / "clients.log"

    def _complaint(self) -> DemoError:
        said = self._log().read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return DemoError(f"The clients' process does not run as it should; {self._log()} ends with:\n{said}")
