"""Requests at port 7001 that are nearly valid: each is answered, and none is a defect of the member."""

from collections import Counter
from random import Random

import pytest

from stele.core.control import commands as m
from stele.wire import control as wire
from tests.fuzz.mutate import JSON, Mutator
from tests.fuzz.samples import trees
from tests.member.harness.cluster import Client, Cluster

INPUTS = 2_500
PATHS = (
    *("/v1/tablets?after=3&limit=5", "/v1/tablets/0", "/v1/digest?partition=0&keyspace=default"),
    "/v1/checksum?partition=0&after=AA==&until=B2RlZmF1bHQ=&now_ms=1&entries=1",
    *("/v1/quarantine/tablets/0/1/entries", "/v1/bulk/loads/load-1", "/v1/bulk/loads/load-1/partitions/0"),
)


def exchanges(made: Cluster) -> list[bytes]:
    """What the master sends to the first member, with each kind of command, and every field."""
    tree = JSON.decode(wire.encode(made.plain_request(0)))
    full = {name: value for name, value in trees(m.ExchangeRequest)[0].items() if name not in tree}
    commands = [
        command | {"partition": 0} if "partition" in command else command for command in trees(m.Command)
    ]
    return [JSON.encode({**full, **tree, "commands": [command]}) for command in commands]


async def test_exchanges(two: Cluster) -> None:
    client, member = Client(two), two.members[0]
    assert await client.set(0, b"k", b"v")
    mutator, codes = Mutator(exchanges(two), JSON), Counter[str]()
    for seed in range(INPUTS):
        made = mutator.make(Random(seed))
        body = made.replace(b'"epoch":%d' % two.epoch, b'"epoch":%d' % (two.epoch + seed))
        async with two.http.post(f"http://{member.host}:{member.ports[2]}/v1/exchange", data=body) as answer:
            assert answer.status in (200, 400), (seed, body[:2_000])
            if answer.status == 200:
                codes[JSON.decode(await answer.read())["code"]] += 1
    assert codes["OK"] > INPUTS // 50, codes
    assert "Traceback" not in member.log()


@pytest.mark.parametrize("path", PATHS)
async def test_paths_and_queries(two: Cluster, path: str) -> None:
    member, mutator = two.members[0], Mutator([path.encode()])
    for seed in range(INPUTS // 10):
        text = mutator.make(Random(seed))[:4_000].decode("latin-1")
        url = f"http://{member.host}:{member.ports[2]}/{text.lstrip('/')}"
        async with two.http.get(url) as answer:
            assert answer.status != 500, (seed, text)
    assert "Traceback" not in member.log()
