"""CLIENT TRACKING: replies and messages compared with redis-server's own, and bounds that Redis lacks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stele.member.resp import tracking
from stele.member.resp.server import RespServer, start_resp_server
from tests.fakes.key_value_service import FakeKeyValueService
from tests.fakes.resp_client import Error, Pushed
from tests.member.harness.caching import Connection, close_all

QUIET_SECONDS = 0.1

ON = "a HELLO 3 | a ON"
SCRIPTS = {
    "a read is told once": f"{ON} | a GET k1 | b SET k1 1 | b SET k1 2",
    "tracking twice": f"{ON} | a ON NOLOOP | a INFO",
    "off": f"{ON} | a GET k1 | a CLIENT TRACKING OFF | b SET k1 1 | a INFO",
    "never on": "a INFO | a CLIENT GETREDIR | a CLIENT TRACKING OFF",
    "its own writes": f"{ON} | a GET k1 | a SET k1 1 | a GET k1",
    "not its own writes": f"{ON} NOLOOP | a GET k1 | a SET k1 1 | a GET k1 | b SET k1 2",
    "own writes in a transaction": f"{ON} NOLOOP | a GET k1 | a MULTI | a SET k1 1"
    " | a EXEC | a GET k1 | b SET k1 2",
    "several keys": f"{ON} | a MGET k1 k2 | a EXISTS k3 | b SET k2 1 | b SET k3 1",
    "reads that are no GET": f"{ON} | b SET k1 1 | a TTL k1 | b DEL k1 | a STRLEN k1 | b SET k1 1",
    "writes are not tracked": f"{ON} | a SET k1 1 | a GETSET k1 2 | b SET k1 3",
    "optin without caching": f"{ON} OPTIN | a GET k1 | b SET k1 1",
    "optin": f"{ON} OPTIN | a CLIENT CACHING YES | a INFO | a GET k1"
    " | a GET k2 | a INFO | b SET k1 1 | b SET k2 1",
    "optin, another command between": f"{ON} OPTIN | a CLIENT CACHING YES | a PING | a GET k1 | b SET k1 1",
    "optin of a transaction": f"{ON} OPTIN | a CLIENT CACHING YES | a MULTI"
    " | a PTTL {t}a | a GET {t}a | a EXEC | a GET {t}b | b SET {t}b 1 | b SET {t}a 1",
    "optout": f"{ON} OPTOUT | a CLIENT CACHING NO | a INFO | a GET k1 | a GET k2 | b SET k1 1 | b SET k2 1",
    "optin with optout": "a ON OPTIN OPTOUT",
    "optin, then optout": "a ON OPTIN | a ON OPTOUT | a ON",
    "caching outside": "a CLIENT CACHING YES | a ON | a CLIENT CACHING YES | a CLIENT CACHING NO"
    " | a CLIENT CACHING MAYBE | a CLIENT CACHING | a CLIENT CACHING YES NO",
    "caching of the other mode": "a ON OPTIN | a CLIENT CACHING NO | a CLIENT TRACKING OFF"
    " | a ON OPTOUT | a CLIENT CACHING YES",
    "bcast": f"{ON} BCAST PREFIX user: PREFIX k | b SET user:1 1 | b SET other 1"
    " | b SET k1 1 | a INFO | a GET k1",
    "bcast of everything": f"{ON} BCAST | b SET k1 1 | a INFO",
    "bcast, not its own writes": f"{ON} BCAST NOLOOP | a SET k1 1 | b SET k2 1",
    "bcast with optin": "a ON BCAST OPTIN | a ON BCAST OPTOUT",
    "bcast, then not": "a ON BCAST | a ON",
    "not bcast, then so": "a ON | a ON BCAST",
    "more prefixes": "a ON BCAST PREFIX x | a ON BCAST PREFIX b | a INFO",
    "prefixes that overlap": "a ON BCAST PREFIX user: PREFIX us | a INFO",
    "prefixes that overlap before": "a ON BCAST PREFIX user: | a ON BCAST PREFIX us"
    " | a ON BCAST PREFIX user:1 | a ON BCAST PREFIX user:",
    "a prefix that overlaps several": "a ON BCAST PREFIX usx PREFIX usb PREFIX k | a ON BCAST PREFIX us"
    " | a ON BCAST PREFIX z PREFIX zb PREFIX za | a INFO",
    "the same prefix twice": "a ON BCAST PREFIX x PREFIX x | a INFO",
    "bcast twice": f"{ON} BCAST PREFIX k | a ON BCAST PREFIX k | a ON BCAST NOLOOP | a INFO",
    "bcast off and on": f"{ON} BCAST PREFIX k | a CLIENT TRACKING OFF | a ON BCAST PREFIX u"
    " | b SET k1 1 | b SET user:1 1",
    "bcast to another": "c HELLO 3 | a ON BCAST REDIRECT $c PREFIX k | b SET k1 1 | b SET other 1",
    "caching of broadcasts": "a ON BCAST | a CLIENT CACHING YES | a CLIENT CACHING NO",
    "optin again": "a ON OPTIN | a ON OPTIN NOLOOP | a INFO | a ON OPTIN | a INFO | a ON | a INFO",
    "caching, then off or on again": "a ON OPTIN | a CLIENT CACHING YES | a CLIENT TRACKING OFF | a ON OPTIN"
    " | a INFO | a CLIENT CACHING YES | a ON OPTIN | a INFO | a GET k1",
    "redirect, then none": "a ON REDIRECT $b | a ON | a CLIENT GETREDIR | a INFO",
    "redirect to numbers that are none": "a ON REDIRECT -1 | a ON REDIRECT 99999999999999999999"
    " | a ON REDIRECT 1.5",
    "off with options": "a CLIENT TRACKING OFF BCAST PREFIX x | a CLIENT TRACKING OFF OPTIN OPTOUT | a INFO"
    " | a CLIENT TRACKING OFF REDIRECT 99999 | a CLIENT TRACKING off REDIRECT",
    "the prefix of everything": "a ON BCAST | a ON BCAST | a ON BCAST PREFIX k | a INFO",
    "prefix without bcast": "a ON PREFIX a | a ON PREFIX",
    "wrong words": "a CLIENT TRACKING | a CLIENT TRACKING MAYBE | a ON FOO"
    " | a ON REDIRECT | a CLIENT TRACKING OFF FOO | a INFO x | a CLIENT GETREDIR x",
    "redirect to nobody": "a ON REDIRECT 987654 | a ON REDIRECT 0"
    " | a ON REDIRECT x | a ON REDIRECT $b REDIRECT $b | a INFO",
    "redirect to a subscriber": "c SUBSCRIBE __redis__:invalidate | a ON REDIRECT $c | a GET k1"
    " | b SET k1 1 | b SET k1 2",
    "redirect to one that is none": "a ON REDIRECT $c | a GET k1 | b SET k1 1 | c PING",
    "redirect to RESP3": "c HELLO 3 | a ON REDIRECT $c | a GET k1 | b SET k1 1",
    "RESP2 without redirect": "a ON | a GET k1 | b SET k1 1 | a PING",
    "reset": f"{ON} | a GET k1 | a RESET | a INFO | b SET k1 1",
    "another protocol": f"{ON} | a GET k1 | a HELLO 2 | b SET k1 1 | a GET k1 | a HELLO 3 | b SET k1 2",
    "another protocol and back": f"{ON} | a GET k1 | a HELLO 2 | a HELLO 3 | b SET k1 1",
    "bcast, another protocol": f"{ON} BCAST | b SET k1 1 | a HELLO 2 | b SET k1 2 | a INFO | a HELLO 3"
    " | b SET k1 3",
    "bcast, reset": f"{ON} BCAST | a RESET | b SET k1 1 | a INFO | a HELLO 3 | b SET k1 2",
    "the target of a redirection changes its protocol": "c HELLO 3 | a ON REDIRECT $c | a GET k1 | c HELLO 2"
    " | b SET k1 1 | a GET k1 | c SUBSCRIBE __redis__:invalidate | b SET k1 2 | a GET k1 | c RESET"
    " | b SET k1 3 | c PING",
    "expire and persist": "b SET k1 1 | a HELLO 3 | a ON | a GET k1 | b EXPIRE k1 100 | a GET k1"
    " | b PERSIST k1",
    "a write that changes nothing": f"{ON} | b SET k1 1 | a GET k1 | b SETNX k1 2 | b DEL k2",
}
"""Connections a, b and c; `$c` is the id of c, and the words of SHORT stand for several."""

SHORT = {"ON": ["CLIENT", "TRACKING", "ON"], "INFO": ["CLIENT", "TRACKINGINFO"]}


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    """Close the connections of a test."""
    yield
    await close_all()


async def story(port: int, script: str) -> dict[str, tuple[list[Any], list[Any]]]:
    """What each connection received: (replies, pushes)."""
    connections = {name: await Connection.open(port) for name in "abc"}
    ids = {f"${name}": str(await each.call("CLIENT", "ID")) for name, each in connections.items()}
    await connections["b"].call("DEL", "k1", "k2", "k3", "user:1", "other", "{t}a", "{t}b")
    for step in script.split(" | "):
        name, *words = step.split()
        words = [*SHORT.get(words[0], words[:1]), *words[1:]]
        await connections[name].call(*(ids.get(word, word) for word in words))
    for each in connections.values():
        while await each.read(QUIET_SECONDS):
            pass
    known = {int(id): name for name, id in ids.items()}
    return {
        name: (
            [_without_ids(reply, known) for reply in each.replies[1 + (name == "b") :] if not _hello(reply)],
            each.pushed,
        )
        for name, each in connections.items()
    }


def _hello(reply: Any) -> bool:
    return isinstance(reply, list) and ((b"proto", 3) in reply or b"proto" in reply)


def _without_ids(reply: Any, known: dict[int, str]) -> Any:
    if isinstance(reply, list | tuple):
        return [_without_ids(each, known) for each in reply]
    return known.get(reply, reply) if isinstance(reply, int) and reply > 3 else reply


@pytest.fixture
def store() -> FakeKeyValueService:
    return FakeKeyValueService()


@pytest.fixture
async def server(store: FakeKeyValueService) -> Any:
    server = await start_resp_server(store, "127.0.0.1", 0)
    yield server
    await server.close()


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
async def test_replies_and_messages_are_those_of_redis(
    server: RespServer, reference: int, script: str
) -> None:
    for _ in range(4):
        await (await Connection.open(reference)).call("PING")  # Ids above those of other numbers.
    ours, theirs = await asyncio.gather(story(server.port, script), story(reference, script))
    assert ours == theirs


@asynccontextmanager
async def answered_later(
    store: FakeKeyValueService, client: Connection, *request: str
) -> AsyncIterator[None]:
    """Send a request that is answered at the end; messages to its client wait for that, other requests do
    not."""
    store.gate = gate = asyncio.Event()
    client.send(*request)
    async with asyncio.timeout(20):
        while not store.running:  # noqa: ASYNC110  the fake tells nobody
            await asyncio.sleep(0.01)
    store.gate = None
    yield
    gate.set()


async def test_a_message_comes_after_the_reply_that_it_is_about(
    server: RespServer, store: FakeKeyValueService
) -> None:
    reader, writer = await Connection.open(server.port), await Connection.open(server.port)
    await reader.call("HELLO", "3")
    await reader.call("CLIENT", "TRACKING", "ON")
    async with answered_later(store, reader, "GET", "k1"):
        await writer.call("SET", "k1", "1")
    order: list[str] = []
    while len(order) < 2:
        await reader.read(5.0)
        order += ["reply"] * (len(reader.replies) - 2 - order.count("reply"))
        order += ["push"] * (len(reader.pushed) - order.count("push"))
    assert order == ["reply", "push"]
    assert reader.pushed == [Pushed((b"invalidate", [b"k1"]))]


async def test_a_client_that_does_not_read_gets_one_message_for_all(
    server: RespServer, store: FakeKeyValueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "INVALIDATIONS_BYTES_MAX", 2_000)
    reader, writer = await Connection.open(server.port), await Connection.open(server.port)
    await reader.call("HELLO", "3")
    await reader.call("CLIENT", "TRACKING", "ON")
    keys = [f"key-{n}" for n in range(500)]
    await reader.call("MGET", *keys)
    async with answered_later(store, reader, "GET", "other"):
        await writer.call("MSET", *(word for key in keys for word in (key, "1")))
        held = server.pushes.held
    await reader.read(5.0)
    await reader.read(0.2)
    assert 0 < held < 2_000 + 64 * 500
    assert Pushed((b"invalidate", None)) in reader.pushed
    assert len(reader.pushed) < 60


async def test_pipelines_keep_their_order_around_caching(server: RespServer) -> None:
    """What rueidis sends for each read: all at once."""
    client, writer = await Connection.open(server.port), await Connection.open(server.port)
    await client.call("HELLO", "3")
    await client.call("CLIENT", "TRACKING", "ON", "OPTIN")
    await writer.call("SET", "{t}a", "1")
    for request in ("GET k1", "CLIENT CACHING YES", "MULTI", "PTTL {t}a", "GET {t}a", "EXEC", "GET k2"):
        client.send(*request.split())
    while len(client.replies) < 9:
        await client.read(5.0)
    assert client.replies[2:] == [None, "OK", "OK", "QUEUED", "QUEUED", [-1, b"1"], None]
    await writer.call("MSET", "k1", "1", "k2", "1")
    await writer.call("SET", "{t}a", "2")
    await client.read(5.0)
    assert client.pushed == [Pushed((b"invalidate", [b"{t}a"]))]


async def test_a_client_that_ends_is_forgotten(server: RespServer, store: FakeKeyValueService) -> None:
    client = await Connection.open(server.port)
    await client.call("HELLO", "3")
    await client.call("CLIENT", "TRACKING", "ON", "BCAST")
    assert store.near_caches.clients == 1
    client.writer.close()
    async with asyncio.timeout(5):
        while store.near_caches.clients:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_redirection_whose_target_ends_is_broken(server: RespServer) -> None:
    client, target, writer = [await Connection.open(server.port) for _ in range(3)]
    await client.call("HELLO", "3")
    id = await target.call("CLIENT", "ID")
    await client.call("CLIENT", "TRACKING", "ON", "REDIRECT", str(id))
    assert await client.call("CLIENT", "GETREDIR") == id
    await client.call("GET", "k1")
    target.writer.close()
    await asyncio.sleep(0.1)
    await writer.call("SET", "k1", "1")
    await client.read(5.0)
    assert client.pushed == [Pushed((b"tracking-redir-broken", id))]
    assert (b"flags", [b"on", b"broken_redirect"]) in await client.call("CLIENT", "TRACKINGINFO")


async def test_prefixes_are_bounded(server: RespServer) -> None:
    client = await Connection.open(server.port)
    words = [word for n in range(257) for word in ("PREFIX", f"{n:04}")]
    reply = await client.call("CLIENT", "TRACKING", "ON", "BCAST", *words)
    assert reply == Error("ERR 257 prefixes of this client exceed the limit of 256; use shorter ones")


async def test_a_keyspace_that_is_selected_empties_a_cache_of_broadcasts(server: RespServer) -> None:
    client, writer = await Connection.open(server.port), await Connection.open(server.port)
    await client.call("HELLO", "3")
    await client.call("CLIENT", "TRACKING", "ON", "BCAST")
    await client.call("SELECT", "1")
    await client.read(1.0)
    assert client.pushed == [Pushed((b"invalidate", None))]
    await writer.call("SET", "k1", "1")
    await writer.call("SELECT", "1")
    await writer.call("SET", "k2", "1")
    await client.read(1.0)
    assert client.pushed[1:] == [Pushed((b"invalidate", [b"k2"]))]
