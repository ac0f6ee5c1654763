"""What is answered without a request is what a request would answer now; else there is no answer."""

import asyncio
from pathlib import Path

import pytest

from e2e.bench.member_budget import serving_node
from stele.core.kv.keyslot import partition_of
from stele.member.serving import executor
from stele.member.settings import Fsync
from stele.native import compiled

P = 7
KEY = b"key"
HOME = partition_of(KEY, P)


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of reading."""
    if request.param == "plain":
        monkeypatch.setattr(executor, "compiled", None)
    else:
        assert compiled is not None, "the compiled module is not installed: python -m e2e.supply native"


async def test_only_what_is_committed_here_and_leased_is_read_at_once(tmp_path: Path) -> None:
    node = await serving_node(tmp_path, Fsync.NEVER, P)
    router, owner = node.router, node.replicas[HOME].owner
    assert owner is not None

    def read() -> object:
        return router.read_now(b"default", [HOME], [KEY])

    assert read() == [None]
    outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    router.start(HOME, b"default", [[b"SET", KEY, b"1"]], outcome)
    assert read() is None, "logged, not committed"
    await outcome
    assert read() == [b"1"]
    assert router.read_now(b"default", [HOME, HOME], [KEY, b"x" * 70_000]) is None
    await router.execute(HOME, b"default", [[b"PEXPIRE", KEY, b"100000"]])
    assert read() == [b"1"]
    node.command_executor._wall = lambda: 2.0**33
    assert read() == [None], "expired"
    await _refused(node, owner, read)
    await node.stop()


async def _refused(node, owner, read) -> None:  # type: ignore[no-untyped-def]
    owner.members = owner.waited_for = (5,)
    assert read() is None, "no lease of member 5"
    owner.members = owner.waited_for = ()
    assert read() is not None
    owner.frozen = "migration"
    assert read() is None, "frozen for a hand-over"
    owner.frozen = ""
    node.router._waiting.queues[HOME] = None
    assert read() is None, "others wait for an owner"
    node.router._waiting.queues.clear()
    node.replicas[HOME].owner = None
    assert read() is None, "not the owner"
    node.replicas[HOME].owner = owner


async def test_reads_are_counted_each(tmp_path: Path) -> None:
    node = await serving_node(tmp_path, Fsync.NEVER, P)
    assert node.router.read_now(b"default", [HOME] * 3, [KEY] * 3) == [None] * 3
    assert node.delayed_replies.counters.reads == 3
    assert node.delayed_replies.latencies["read"].buckets()[-1] == ("+Inf", 3.0)
    await node.stop()
