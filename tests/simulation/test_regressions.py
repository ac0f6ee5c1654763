"""What the simulation found, each as small as it gets."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from stele.core.log import Log
from stele.core.table import Partition
from stele.core.tablet import Tablet
from stele.core.tablet_owner import Owner, Phase
from stele.member.settings import Settings
from stele.wire import messages as m
from tests.simulation.disk import Disk
from tests.simulation.loop import Clock, ProcessLoop
from tests.simulation.member import MemberProcess
from tests.simulation.network import Network

T = TypeVar("T")
CLUSTER_UID = "cluster"


class NoTransfer:
    async def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        raise AssertionError("no copies here")

    async def close(self) -> None:
        return


class OneMember:
    """A member's process and the master's exchanges with it."""

    def __init__(self, root: Path) -> None:
        self.clock = Clock(1)
        self.network = Network(self.clock)
        self.disk = Disk(root, self.clock.random)
        self.start()

    def start(self) -> None:
        loop = ProcessLoop(self.clock, "demo-0", self.network)
        settings = Settings(Path("demo-0"), CLUSTER_UID, "demo-0")
        self.process = MemberProcess(settings, self.disk, loop, lambda _: NoTransfer(), lambda *_: None)
        self.clock.run(self.clock.now + 1.0)

    def do(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run it in the member's process, for as long as it takes."""

        async def run() -> T:
            return await work()

        task: asyncio.Task[T] = self.process.loop.create_task(run())
        self.clock.run(self.clock.now + 1.0)
        return task.result()

    def exchange(self, **fields: object) -> m.ExchangeReply:
        assert self.process.node is not None
        request = m.ExchangeRequest(  # type: ignore[arg-type]
            **{"format": 1, "cluster": CLUSTER_UID, "epoch": 1, "recipient": self.process.node.uuid}
            | {"self_index": 0, "partitions": 2, "replicas": 1}
            | fields
        )
        return self.do(lambda: self.process.answer(request))

    def info(self) -> m.MemberInfo:
        assert self.process.node is not None
        return m.MemberInfo(0, "demo-0", self.process.node.uuid, "10.0.0.1")


@pytest.fixture
def member(tmp_path: Path) -> Iterator[OneMember]:
    made = OneMember(tmp_path / "volume")
    yield made
    made.process.loop.kill()


def test_a_list_of_members_that_was_left_out_empties_no_dictionary(member: OneMember) -> None:
    """Before a reign is settled the master sends versions and no members: a member took that for an empty
    list of that version, which nobody sent it anew.
    """
    assert member.process.node is not None
    member.exchange(member_list_version=1, members=(member.info(),))
    reply = member.exchange(member_list_version=2, members=())
    assert reply.member_list_version == 1
    assert list(member.process.node.table.members) == [0]
    assert member.exchange(member_list_version=2, members=(member.info(),)).member_list_version == 2


def test_an_owner_that_is_deposed_by_a_wider_row_survives_the_end_of_a_sync() -> None:
    """The row named a member that the owner never asked; counting what it holds ended the process."""
    tablet = Tablet(0, 0, Log(), 1)
    tablet.adopt(Partition(1, (0, 1)))
    owner = Owner(tablet, None, None)
    tablet.fence(9)
    tablet.adopt(Partition(3, (0, 1, 2)))
    owner.row_changed(tablet.row)
    assert owner.phase is Phase.DEPOSED
    assert not owner.advance()
