"""What clients publish reaches the subscribers of every member."""

from pathlib import Path

import redis.asyncio

from tests.member.events.test_notifications import CLUSTER, PLAIN
from tests.member.harness.cluster import cluster


async def test_a_message_reaches_the_subscribers_of_all_members(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as made:
        places = [(member, port) for member in made.members.values() for port in (PLAIN, CLUSTER)]
        clients = [redis.asyncio.Redis(host=member.host, port=made.ports[port]) for member, port in places]
        listeners = [client.pubsub() for client in clients]
        for listener in listeners:
            await listener.subscribe("news")
            assert await listener.get_message(timeout=10)
        for number in range(100):
            assert await clients[number % 6].publish("news", number) == 2
        for listener in listeners:
            found = {int((await listener.get_message(timeout=10))["data"]) for _ in range(100)}
            assert found == set(range(100))
        for each in (*listeners, *clients):
            await each.aclose()
