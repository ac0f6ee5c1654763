"""Hand-overs that no master ends: the owner resumes when the destination can never accept, and only then."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from stele.core.control import commands as m
from stele.member import limits
from stele.wire import peer
from stele.wire.storage.volume import Frozen, Waited
from tests.member.harness.cluster import Client, cluster, eventually, key_in
from tests.member.harness.single_member import COPIED, ME, OTHER, P, SingleMember, key_here

ASK = peer.CancelHandover(P, "move", 1)


async def refusal(made: SingleMember, ask: peer.CancelHandover = ASK) -> bool:
    asker = made.tell(ask)
    await made.until_quiet()
    (answer,) = asker.answers
    assert isinstance(answer, peer.CancelHandoverResult)
    assert (answer.partition, answer.id) == (ask.partition, ask.id)
    return answer.cancelled


async def arrive(made: SingleMember) -> m.Accept:
    """Everything of a move to this member but the last word."""
    await made.receive("move")
    return m.Accept("move", m.Row(P, 2, (ME, 2)), COPIED)


async def test_what_was_refused_is_not_accepted_any_more(made: SingleMember) -> None:
    accept = await arrive(made)
    assert await refusal(made)
    await made.restart(power_lost=True)
    assert await refusal(made)
    assert await made.code(accept) == "ILLEGAL_STATE"
    await made.store((OTHER, 2), by=2)
    assert made.replica.meta.refused is None
    assert await made.code(accept) == "STALE_VERSION"


async def test_what_was_accepted_is_not_refused_any_more(made: SingleMember) -> None:
    accept = await arrive(made)
    assert await made.code(accept) == "OK"
    assert not await refusal(made)
    await made.restart(power_lost=True)
    assert not await refusal(made)
    assert await made.code(accept) == "OK"
    await made.store((ME, 2))
    assert not await refusal(made)


async def test_the_refusal_is_on_the_disk_before_it_is_told(made: SingleMember) -> None:
    accept = await arrive(made)
    may_write, save = asyncio.Event(), made.node.meta.save

    async def slow(name: str, value: Any) -> None:
        await may_write.wait()
        await save(name, value)

    made.node.meta.save = slow  # type: ignore[method-assign]
    asker = made.tell(ASK)
    accepting = asyncio.create_task(made.code(accept))
    await made.until_quiet()
    assert (asker.answers, accepting.done()) == ([], False)
    may_write.set()
    assert await accepting == "ILLEGAL_STATE"
    assert asker.answers == [peer.CancelHandoverResult(P, "move", True)]


class Destination:
    """The link to the destination of a hand-over."""

    member, ready, has_room = OTHER, True, True
    uuid, host, heard_at = "uuid-1", "", 0.0

    def __init__(self) -> None:
        self.sent: list[peer.Message] = []
        self.behind: dict[int, None] = {}
        self.requests: dict[int, Any] = {}

    def send(self, message: peer.Message) -> None:
        self.sent.append(message)

    async def stop(self) -> None:
        pass


@pytest.mark.parametrize("refused", [True, False])
async def test_a_frozen_owner_asks_when_no_master_speaks_and_resumes_by_a_refusal(
    made: SingleMember, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MASTER_SILENT_SECONDS", 3600.0)
    await arrive(made)
    await made.store((ME,))
    await made.node.metadata.save_meta(made.replica, waited=Waited("on", OTHER, 2), frozen=Frozen("on", 2))
    await made.restart()
    link: Any = Destination()
    made.node.links[OTHER] = link
    write = asyncio.ensure_future(made.node.router.execute(P, b"default", [[b"SET", key_here(), b"v"]]))
    made.node.handovers.cancel_abandoned()
    assert not [sent for sent in link.sent if isinstance(sent, peer.CancelHandover)]
    monkeypatch.setattr(limits, "MASTER_SILENT_SECONDS", 0.0)
    made.node.handovers.cancel_abandoned()
    assert [sent for sent in link.sent if isinstance(sent, peer.CancelHandover)] == [
        peer.CancelHandover(P, "on", 2)
    ]
    for answer in (peer.CancelHandoverResult(P, "before", True), peer.CancelHandoverResult(P, "on", refused)):
        made.node.peers.link_message(link, answer)
        await made.until_quiet()
    made.node.router.drain(P)
    await made.until_quiet()
    assert write.done() == refused
    assert (made.replica.meta.frozen is None) == refused
    write.cancel()


async def test_without_a_master_a_hand_over_that_was_not_accepted_ends_by_itself(tmp_path: Path) -> None:
    silent_seconds = 1.0
    known = json.dumps({"MASTER_SILENT_SECONDS": silent_seconds})
    async with cluster(tmp_path, 3, partitions=4, LIMITS=known) as made:
        client, key = Client(made), key_in(0, 4)
        assert await client.set(0, key, b"before")
        id = await made.learn(0, 2)
        handed = await made.command(0, m.HandOver(id, 0))
        made.members[2].signal(signal.SIGSTOP)
        write = asyncio.create_task(client.set(0, key, b"after"))
        await asyncio.sleep(silent_seconds + 1.5)
        assert not write.done()
        made.members[2].signal(signal.SIGCONT)
        assert await write
        accept = m.Accept(id, m.Row(0, 2, (2, 1)), handed.last)
        assert (await made.command(2, accept)).code == "ILLEGAL_STATE"
        for index in (0, 2):
            await made.order(index, m.Abort(id, 0))
        await made.move_owner(0, 2)
        assert await eventually(lambda: client.call(1, b"GET", key), lambda found: found == b"after")
