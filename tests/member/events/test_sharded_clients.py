"""Sharded channels on the cluster port of three real members, while partitions move."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster

from tests.member.events.test_notifications import CLUSTER
from tests.member.harness.cluster import Cluster, cluster, eventually, key_in
from tests.member.resp.test_cluster_clients import change_owners, keys_of


class ChannelClient:
    """Subscribes to one channel at its owner, and again wherever it is sent to when it is unsubscribed.

    `sessions` has the numbers heard in each subscription.
    """

    def __init__(self, made: Cluster, channel: bytes) -> None:
        self._host, self._port = made.members[0].host, made.ports[CLUSTER]
        self._channel = channel
        self.sessions: list[list[int]] = []
        self.subscribed = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            async with redis.asyncio.Redis(host=self._host, port=self._port) as client:
                try:
                    async with client.pubsub() as pubsub:
                        await self._hear(pubsub)
                except redis.exceptions.MovedError as error:
                    self._host = error.host

    async def _hear(self, pubsub: redis.asyncio.client.PubSub) -> None:
        await pubsub.ssubscribe(self._channel)
        async for message in pubsub.listen():
            if message["type"] == "ssubscribe":
                self.sessions.append([])
                self.subscribed.set()
            elif message["type"] == "smessage":
                self.sessions[-1].append(int(message["data"]))
            elif message["type"] == "sunsubscribe":
                self.subscribed.clear()
                return

    def check(self) -> None:
        """Every message came, or the subscriber was informed that it was unsubscribed."""
        for heard in filter(None, self.sessions):
            assert sorted(heard) == list(range(min(heard), max(heard) + 1))

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_each_message_arrives_or_the_subscriber_is_informed(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        for member in made.members.values():
            await member.start_transfer()
        channels = [key_in(p, made.partitions, 0) for p in range(made.partitions)]
        clients = {channel: ChannelClient(made, channel) for channel in channels}
        for each in clients.values():
            await asyncio.wait_for(each.subscribed.wait(), 20)
        published, over = Counter[bytes](), asyncio.Event()

        async def publish() -> None:
            async with AsyncRedisCluster(host=made.members[0].host, port=made.ports[CLUSTER]) as client:
                while not over.is_set():
                    for channel in channels:
                        published[channel] += 1
                        await client.spublish(channel, published[channel])

        publishing = asyncio.create_task(publish())
        await asyncio.sleep(0.5)
        await change_owners(made)
        await asyncio.sleep(1.0)
        for each in clients.values():
            await asyncio.wait_for(each.subscribed.wait(), 20)
        before = dict(published)
        await asyncio.sleep(0.5)
        over.set()
        await publishing
        for channel, each in clients.items():

            async def heard(each: ChannelClient = each) -> list[int]:
                return each.sessions[-1]

            await eventually(heard, lambda numbers, channel=channel: published[channel] in numbers)
            each.check()
            assert len(each.sessions) > 1
            assert min(each.sessions[-1]) <= before[channel] + 1
            await each.close()


class Library:
    """A cluster client of redis-py and its pubsub, sync or asyncio."""

    def __init__(self, client: Any, channels: list[bytes]) -> None:
        self.client, self.pubsub = client, client.pubsub()
        self.channels = channels
        self.types = Counter[str]()

    async def do(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a method, in a thread if it blocks."""
        if asyncio.iscoroutinefunction(method):
            return await method(*args, **options)
        found = await asyncio.to_thread(method, *args, **options)
        return await found if asyncio.iscoroutine(found) else found

    async def until_all_hear(self) -> None:
        """Publish to all channels, again and again, until each of one round arrives."""
        async with asyncio.timeout(30):
            number, heard = 0, set[bytes]()
            while len(heard) < len(self.channels):
                number, heard = number + 1, set()
                for channel in self.channels:
                    await self.do(self.client.spublish, channel, number)
                while (message := await self._read()) is not None:
                    if message["type"] == "smessage" and int(message["data"]) == number:
                        heard.add(message["channel"])

    async def _read(self) -> Any:
        try:
            for _ in range(3):  # It looks at one connection after the other.
                if (message := await self.do(self.pubsub.get_sharded_message, timeout=0.1)) is not None:
                    self.types[message["type"]] += 1
                    return message
        except redis.exceptions.MovedError:
            # When it connects again it subscribes to channels that have moved too, and passes the error on.
            return {"type": "moved"}
        return None


@pytest.mark.parametrize("kind", [RedisCluster, AsyncRedisCluster])
async def test_redis_py_follows(tmp_path: Path, kind: Callable[..., Any]) -> None:
    """It subscribes again once a command of its own is redirected."""
    async with cluster(tmp_path, 3) as made:
        for member in made.members.values():
            await member.start_transfer()
        options = {"host": made.members[0].host, "port": made.ports[CLUSTER]}
        library = Library(await asyncio.to_thread(lambda: kind(**options)), keys_of(made))
        await library.do(library.client.ping)  # The asyncio client reads the map with its first command.
        await library.do(library.pubsub.ssubscribe, *library.channels)
        await library.until_all_hear()
        await change_owners(made)
        await library.until_all_hear()
        assert library.types["ssubscribe"] >= 2 * len(library.channels)
        for each in (library.pubsub, library.client):
            await library.do(getattr(each, "aclose", None) or each.close)
