"""Speaks to the cluster's API: kubectl for what a user would do, and kubectl's own proxy for many small
reads.

The proxy listens on a Unix socket in a folder of its own, so no other user of this machine can use it; it
takes whatever login the kubeconfig has.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from e2e.demo.errors import DemoError

KUBECTL_SECONDS_MAX = 60.0
PROXY_START_SECONDS_MAX = 20.0
REQUEST_SECONDS_MAX = 60.0
READ_TRIES_MAX = 20
READ_RETRY_SECONDS = 0.5
ERROR_TEXT_MAX = 400
ENDLESS = aiohttp.ClientTimeout(total=None)
GROUP = "/apis/stele.dev/v1alpha1"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
"""Label and taint of nodes that are no workers."""


async def kubectl(env: Mapping[str, str], *words: str, seconds_max: float = KUBECTL_SECONDS_MAX) -> str:
    """What kubectl prints; raises DemoError with what it says when it fails."""
    return await command(env, "kubectl", *words, seconds_max=seconds_max)


async def command(env: Mapping[str, str], *words: str, seconds_max: float = KUBECTL_SECONDS_MAX) -> str:
    """What a program prints; raises DemoError when it fails or does not end in time."""
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(env),
    )
    try:
        out, said = await asyncio.wait_for(process.communicate(), seconds_max)
    except TimeoutError:
        raise DemoError(f"{' '.join(words[:6])} did not end within {seconds_max:.0f} s.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        text = said.decode(errors="replace").strip()[:ERROR_TEXT_MAX]
        raise DemoError(f"{' '.join(words[:6])} failed with exit code {process.returncode}: {text}")
    return out.decode()


class Api:
    """Reads of the API server through the proxy. A read is tried again while the API server does not
    answer.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`; raises DemoError when it cannot be read."""
        return dict(json.loads(await self.text(path)))

    async def text(self, path: str) -> str:
        """The whole text at `path`; raises DemoError when it cannot be read."""
        reason = ""
        for _ in range(READ_TRIES_MAX):
            try:
                async with self._session.get(f"http://localhost{path}") as answer:
                    if answer.status == 200:
                        return await answer.text()
                    reason = f"HTTP {answer.status}: {(await answer.text())[:ERROR_TEXT_MAX]}"
                    if answer.status in (400, 403, 404):
                        break
            except (aiohttp.ClientError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
            await asyncio.sleep(READ_RETRY_SECONDS)
        raise DemoError(f"The API server does not give {path}: {reason}")

    async def save(self, path: str, file: Path) -> None:
        """Append what comes from `path` to the file until it ends; raises DemoError when it cannot."""
        try:
            async with self._session.get(f"http://localhost{path}", timeout=ENDLESS) as answer:
                if answer.status != 200:
                    raise DemoError(f"The API server does not give {path}: HTTP {answer.status}")
                with file.open("ab") as out:
                    async for piece in answer.content.iter_any():
                        out.write(piece)
                        out.flush()
        except aiohttp.ClientError as error:
            raise DemoError(f"The API server does not give {path}: {error}") from error

    async def list(self, path: str) -> list[dict[str, Any]]:
        """The items of a list."""
        return list((await self.get(path)).get("items", []))


@asynccontextmanager
async def proxy(env: Mapping[str, str]) -> AsyncIterator[Api]:
    """Run `kubectl proxy` while the block runs."""
    with tempfile.TemporaryDirectory(prefix="stele-demo-") as folder:
        socket = Path(folder) / "api"
        process = await asyncio.create_subprocess_exec(
            "kubectl",
            "proxy",
            f"--unix-socket={socket}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(env),
            start_new_session=True,
        )
        try:
            await _wait_for(socket, process)
            timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX)
            connector = aiohttp.UnixConnector(path=str(socket))
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                yield Api(session)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _wait_for(socket: Path, process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(PROXY_START_SECONDS_MAX):
            while not socket.exists():
                if process.returncode is not None:
                    break
                await asyncio.sleep(0.05)
    except TimeoutError:
        pass
    if not socket.exists():
        raise DemoError("kubectl proxy does not start; try `kubectl proxy` by hand to see why.")


async def workers(api: Api) -> set[str]:
    """The names of nodes that are not of the control plane."""
    nodes = [each["metadata"] for each in await api.list("/api/v1/nodes")]
    return {each["name"] for each in nodes if CONTROL_PLANE not in each["labels"]}
