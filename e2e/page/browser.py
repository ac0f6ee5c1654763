"""Headless Chromium, driven by its DevTools protocol: one tab, with what it asked for and what it logged."""

import asyncio
import base64
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)
SECONDS_MAX = 60.0
LOOK_SECONDS = 0.05
MESSAGE_BYTES_MAX = 64 << 20

KEYS = {
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Enter": 13,
    "Escape": 27,
    "Home": 36,
    "End": 35,
    "Tab": 9,
}


class Tab:
    """One page. `requests` are the addresses that it asked for, `problems` what it logged as an error."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.requests: list[str] = []
        self.problems: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            found = message.json()
            if (waiting := self._waiting.pop(found.get("id", 0), None)) is not None:
                waiting.set_result(found)
            elif found.get("method") == "Network.requestWillBeSent":
                self.requests.append(found["params"]["request"]["url"])
            elif found.get("method") == "Runtime.exceptionThrown":
                self.problems.append(str(found["params"]["exceptionDetails"]))
            elif found.get("method") == "Log.entryAdded" and found["params"]["entry"]["level"] == "error":
                self.problems.append(found["params"]["entry"]["text"])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a command of the protocol."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(SECONDS_MAX):
            found = await answer
        assert "error" not in found, f"{method}: {found['error']}"
        return dict(found["result"])

    async def begin(self) -> None:
        """Listen to what happens."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable")

    async def run(self, script: str) -> Any:
        """Return the value of an expression, or of its promise."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait for an expression to be true; a page that is being loaded has none."""
        deadline = asyncio.get_running_loop().time() + SECONDS_MAX
        while not (found := await self.run(script)):
            late = asyncio.get_running_loop().time() > deadline
            assert not late, f"not within {SECONDS_MAX:g} s: {script}; {self.problems}"
            await asyncio.sleep(LOOK_SECONDS)
        return found

    async def open(self, url: str, ready: str) -> None:
        """Open a page, and wait."""
        await self.call("Page.navigate", url=url)
        await self.until(ready)

    async def press(self, key: str) -> None:
        """Press and release a key."""
        text = key if len(key) == 1 else {"Enter": "\r"}.get(key, "")
        code = KEYS.get(key, ord(key[0].upper()))
        named = {"key": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **named, **({"text": text} if text else {}))
        await self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    async def window(self, width: int, height: int, scheme: str = "light", scale: float = 1) -> None:
        """Set the size of the window, and what the system prefers."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )
        await self.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    async def picture(self, path: Path) -> None:
        """Write what is visible as PNG."""
        found = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    async def close(self) -> None:
        """End listening."""
        await self._socket.close()
        await asyncio.gather(self._reader, return_exceptions=True)


@asynccontextmanager
async def chromium() -> AsyncIterator[Tab]:
    """Yield a tab of a browser of its own, with an empty profile."""
    folder = Path(tempfile.mkdtemp(prefix="stele-browser-"))
    process = await asyncio.create_subprocess_exec(
        "chromium",
        *FLAGS,
        f"--user-data-dir={folder}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await _port(folder / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [each for each in await answer.json() if each["type"] == "page"]
            socket = await session.ws_connect(
                pages[0]["webSocketDebuggerUrl"], max_msg_size=MESSAGE_BYTES_MAX
            )
            tab = Tab(socket)
            try:
                await tab.begin()
                yield tab
            finally:
                await tab.close()
    finally:
        process.terminate()
        await process.wait()
        shutil.rmtree(folder, ignore_errors=True)


async def _port(file: Path) -> int:
    async with asyncio.timeout(SECONDS_MAX):
        while not file.exists() or "\n" not in file.read_text():  # noqa: ASYNC110  a file has no event
            await asyncio.sleep(LOOK_SECONDS)
    return int(file.read_text().split("\n")[0])
