"""Members' port 7001 as an administrator reaches it: a forwarded port and the certificate of role admin.

By the programs that anybody has (`kubectl port-forward`, and HTTPS with a client certificate), not by the
product's own way.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from e2e.demo.errors import DemoError
from e2e.demo.kube import ERROR_TEXT_MAX, READ_RETRY_SECONDS, READ_TRIES_MAX, REQUEST_SECONDS_MAX, kubectl

ADMIN_PORT = 7001
FORWARD_SECONDS_MAX = 20.0
FORWARDING = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+)")


@dataclass(frozen=True)
class Forward:
    """A port of this machine that `kubectl port-forward` leads to a member's."""

    process: asyncio.subprocess.Process
    port: int

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


class AdminPorts:
    """Asks the members of one namespace, by a forwarded port for each, which is made when it is needed."""

    def __init__(self, env: Mapping[str, str], namespace: str, http: aiohttp.ClientSession) -> None:
        self._env, self._namespace, self._http = env, namespace, http
        self._forwards: dict[str, Forward] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def text(self, member: str, path: str) -> str:
        """Return the answer to GET; raises DemoError when it does not come."""
        reason = ""
        for _ in range(READ_TRIES_MAX):
            try:
                forward = await self._forward(member)
                async with self._http.get(f"https://127.0.0.1:{forward.port}{path}") as answer:
                    if answer.status == 200:
                        return await answer.text()
                    reason = f"HTTP {answer.status}: {(await answer.text())[:ERROR_TEXT_MAX]}"
            except (aiohttp.ClientError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
                await self._drop(member)
            await asyncio.sleep(READ_RETRY_SECONDS)
        raise DemoError(f"{member} does not give {path}: {reason}")

    async def close(self) -> None:
        for member in list(self._forwards):
            await self._drop(member)

    async def _forward(self, member: str) -> Forward:
        async with self._locks.setdefault(member, asyncio.Lock()):
            if member not in self._forwards:
                self._forwards[member] = await self._begin(member)
            return self._forwards[member]

    async def _begin(self, member: str) -> Forward:
        words = ("--namespace", self._namespace, "port-forward", f"pod/{member}", f":{ADMIN_PORT}")
        process = await asyncio.create_subprocess_exec(
            "kubectl",
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(self._env),
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), FORWARD_SECONDS_MAX)
            if (found := FORWARDING.match(line)) is None:
                raise aiohttp.ClientConnectionError(f"kubectl {' '.join(words)} says {line!r}")
        except BaseException:
            await Forward(process, 0).end()
            raise
        return Forward(process, int(found[1]))

    async def _drop(self, member: str) -> None:
        if (forward := self._forwards.pop(member, None)) is not None:
            await forward.end()


@asynccontextmanager
async def admin_ports(env: Mapping[str, str], namespace: str, cluster: str) -> AsyncIterator[AdminPorts]:
    """Yield the members' ports, with the certificate of the cluster's administrators."""
    context = await _context(env, namespace, f"{cluster}-admin-tls")
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX)
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        ports = AdminPorts(env, namespace, http)
        try:
            yield ports
        finally:
            await ports.close()


async def _context(env: Mapping[str, str], namespace: str, secret: str) -> ssl.SSLContext:
    text = await kubectl(env, "--namespace", namespace, "get", "secret", secret, "--output=json")
    data = {name: base64.b64decode(value) for name, value in json.loads(text)["data"].items()}
    context = ssl.create_default_context(cadata=data["ca.crt"].decode())
    # A forwarded port has no name that a certificate could have; that the cluster's CA signed it is checked.
    context.check_hostname = False
    with tempfile.TemporaryDirectory(prefix="stele-admin-") as folder:
        for name in ("tls.crt", "tls.key"):
            (Path(folder) / name).write_bytes(data[name])
        context.load_cert_chain(Path(folder) / "tls.crt", Path(folder) / "tls.key")
    return context
