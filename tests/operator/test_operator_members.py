"""Operator, members and API server as real processes, while clients write: nothing acknowledged is lost."""

import asyncio
import itertools
import signal

import pytest
import redis.asyncio as redis

from stele.adapters.kubernetes.api import Api
from tests.operator.real_kubelet import RealKubelet
from tests.operator.test_operator import Operator, with_processes

pytestmark = pytest.mark.control_plane

RESP_PORT = 6379
VALUE_BYTES = 2_000


class Writers:
    """Clients that write through whichever member answers, and remember what was acknowledged."""

    def __init__(self, kubelet: RealKubelet, number: int) -> None:
        self._kubelet, self._number = kubelet, number
        self.acknowledged: dict[str, bytes] = {}
        self.refused: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._values = itertools.count(1)
        self._ending = False

    def start(self) -> None:
        for number in range(self._number):
            self._tasks.append(asyncio.get_running_loop().create_task(self._write(number)))

    async def stop(self) -> None:
        """Let each end its present write."""
        self._ending = True
        _, late = await asyncio.wait(self._tasks, timeout=40) if self._tasks else ((), ())
        assert not late, f"{len(late)} writers still wait for an answer"

    def _client(self, turn: int) -> "redis.Redis[bytes]":
        hosts = [address for _, address in sorted(self._kubelet.addresses.items())]
        return redis.Redis(
            host=hosts[turn % len(hosts)], port=RESP_PORT, socket_timeout=30, socket_connect_timeout=2
        )

    async def _write(self, turn: int) -> None:
        """Another member after a broken connection; a key is written anew until it is acknowledged."""
        while not self._ending:
            client = self._client(turn)
            try:
                await self._through(client)
            except (redis.ConnectionError, redis.TimeoutError, OSError):
                turn += 1
            except redis.ResponseError as error:
                self.refused.append(str(error))
            finally:
                await client.aclose()
            await asyncio.sleep(0.01)

    async def _through(self, client: "redis.Redis[bytes]") -> None:
        while not self._ending:
            number = next(self._values)
            key = f"key-{number % 3000}"
            value = f"{number}-".encode().ljust(VALUE_BYTES, b"x")
            if self.acknowledged.get(key, b"0-") == b"busy":
                continue
            before = self.acknowledged.get(key)
            self.acknowledged[key] = b"busy"
            try:
                await client.set(key, value)
                self.acknowledged[key] = value
            except BaseException:
                # It may have been done or not: the key is not judged any more.
                del self.acknowledged[key]
                raise
            assert before is None or before != value

    async def lost(self) -> list[str]:
        """Keys whose acknowledged value is not read, through every member in turn."""
        found: list[str] = []
        for turn in range(len(self._kubelet.addresses)):
            client = self._client(turn)
            try:
                for key, value in self.acknowledged.items():
                    if value != b"busy" and await client.get(key) != value:
                        found.append(key)
            except (redis.ConnectionError, OSError):
                continue
            finally:
                await client.aclose()
        return found


async def test_acknowledged_writes_survive_scaling_and_deaths(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    async with with_processes(api, namespace, operator, real_kubelet) as stage:
        writers = Writers(real_kubelet, 4)
        writers.start()
        try:
            await asyncio.sleep(2)
            await stage.scale(4)
            await asyncio.sleep(3)
            await operator.end(signal.SIGKILL)
            await operator.start()
            await stage.until_converged(4)
            await real_kubelet.kill("demo-1", 1.5)
            await stage.until_converged(4)
            await stage.scale(3)
            await stage.until_converged(3)
        finally:
            await writers.stop()
        assert len(writers.acknowledged) > 100
        assert await writers.lost() == []
        # A write that was under way when its owner was killed may or may not have been done.
        assert all(each.startswith("UNCERTAIN") for each in writers.refused), writers.refused
        assert len(writers.refused) <= 8
