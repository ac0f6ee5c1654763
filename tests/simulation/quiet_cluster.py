"""A few members of the product in virtual time, without faults; the test plays the master."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import stele.core.tablet.log
import stele.core.tablet.owner
import stele.member.limits
from stele.core.control import commands as m
from stele.core.tablet.log import Log
from stele.core.tablet.owner import Learner, Owner
from stele.errors import SteleError
from stele.member.node import Node
from stele.member.replication.replica import Replica
from stele.member.settings import Settings
from stele.wire.storage.keys import split_user, tablet_range
from tests.fakes.bridge import finish
from tests.fakes.disk import Disk
from tests.fakes.loop import Clock, ProcessLoop
from tests.fakes.network import Network
from tests.fakes.transfer import TransferContainer
from tests.simulation.member import MemberProcess

T = TypeVar("T")
CLUSTER_UID = "cluster"
KEYSPACE = b"default"
P = 0
"""The only partition."""


class QuietMember:
    """One machine; its volume and its time of day outlive its processes."""

    def __init__(self, cluster: "QuietCluster", index: int) -> None:
        self.cluster, self.index = cluster, index
        self.place, self.address = f"demo-{index}", f"10.0.0.{index + 1}"
        cluster.network.addresses[self.address] = self.place
        self.disk = Disk(cluster.folder / self.place, cluster.clock)
        self.transfer = TransferContainer(self.disk, cluster, self.place)  # type: ignore[arg-type]
        self.wall_seconds = 0.0

    def start(self) -> None:
        loop = ProcessLoop(self.cluster.clock, self.place, self.cluster.network)
        loop.wall_seconds = self.wall_seconds
        settings = Settings(Path(self.place), CLUSTER_UID, self.place, heartbeat_ms=200, lease_ms=3000)
        self.process = MemberProcess(settings, self.disk, loop, self.transfer.client, lambda *_: None)
        self.cluster.run(1.0)

    def crash(self, *, power_lost: bool = False) -> None:
        self.process.end("killed", power_lost=power_lost)

    def pass_days(self, seconds: float) -> None:
        """Its time of day jumps."""
        self.wall_seconds += seconds
        self.process.loop.wall_seconds = self.wall_seconds

    def isolate(self) -> None:
        self.cluster.network.alone.add(self.place)

    def rejoin(self) -> None:
        self.cluster.network.rejoin(self.place)

    # -- what it has

    @property
    def node(self) -> Node:
        assert self.process.node is not None
        return self.process.node

    @property
    def replica(self) -> Replica:
        return self.node.replicas[P]

    @property
    def log(self) -> Log:
        return self.replica.tablet.log

    @property
    def owner(self) -> Owner:
        assert self.replica.owner is not None
        return self.replica.owner

    @property
    def learner(self) -> Learner:
        assert self.owner.learner is not None
        return self.owner.learner

    @property
    def info(self) -> m.MemberInfo:
        return m.MemberInfo(self.index, self.place, self.node.uuid, self.address)

    def keys(self) -> set[bytes]:
        """What users, and sequences that ran once, have stored here."""
        entries = self.node.engine.scan(*tablet_range(P, self.replica.generation), 10**6)
        return {split[1] for key, _ in entries if (split := split_user(key)) is not None}

    # -- the master, and clients

    def do(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` returns or raises in the member's process, for as long as it takes."""
        return finish(self.process.loop, work)

    def flush(self) -> None:
        self.do(self.node.flusher.flush)

    def exchange(self, **fields: object) -> m.ExchangeReply:
        request = m.ExchangeRequest(  # type: ignore[arg-type]
            **{"format": 1, "cluster": CLUSTER_UID, "epoch": 1, "recipient": self.node.uuid}
            | {"self_index": self.index, "partitions": 1, "replicas": 3}
            | fields
        )
        return self.do(lambda: self.process.answer(request))

    def command(self, command: m.Command) -> m.Result:
        """The result of one command, asked again while it is WAIT."""
        while (result := self.exchange(commands=(command,)).results[0]).code == "WAIT":
            self.cluster.run(result.wait_ms / 1000)
        return result

    def order(self, command: m.Command) -> m.Result:
        """A command that is obeyed."""
        result = self.command(command)
        assert result.code == "OK", result
        return result

    def send(self, *args: bytes) -> "asyncio.Future[Any]":
        """Begin one command; the future of its replies."""
        outcome = self.process.loop.create_future()
        self.node.router.start(P, KEYSPACE, [list(args)], outcome)
        return outcome

    def ask(self, *args: bytes, seconds: float = 5.0) -> Any:
        """The reply, or the SteleError; AssertionError when none comes in that time."""
        outcome, end = self.send(*args), self.cluster.clock.now + seconds
        while not outcome.done():
            assert self.cluster.clock.now < end, "no reply"
            self.cluster.run(0.01)
        error = outcome.exception()
        assert error is None or isinstance(error, SteleError)
        return outcome.result()[0] if error is None else error

    def write(self, number: int) -> None:
        """So many acknowledged writes of one key."""
        for n in range(number):
            assert not isinstance(self.ask(b"SET", b"k", b"%d" % n), Exception)


class QuietCluster:
    """Members with one partition, whose row is `row`. Nothing happens but in `run`."""

    def __init__(self, folder: Path, members: int) -> None:
        self.folder = folder
        self.clock = Clock(1)
        self.network = Network(self.clock)
        self.copy_late_part = 0.0
        self.members = [QuietMember(self, index) for index in range(members)]
        self.row = m.Row(P, 0, ())
        for member in self.members:
            member.start()

    def run(self, seconds: float) -> None:
        self.clock.run(self.clock.now + seconds)

    def close(self) -> None:
        for member in self.members:
            member.process.loop.kill()

    def at_address(self, address: str) -> QuietMember | None:
        """As a kubelet knows it."""
        return next((member for member in self.members if member.address == address), None)

    def publish(self, **fields: object) -> None:
        """The table, to all; with other fields of the request."""
        infos = tuple(member.info for member in self.members)
        for member in self.members:
            member.exchange(**{"member_list_version": 1, "members": infos, "rows": (self.row,)} | fields)

    def store(self, *replicas: int) -> None:
        self.row = m.Row(P, self.row.version + 1, replicas)
        self.publish()

    def begin_migration(self, id: str, destination: int) -> None:
        """Both sides of the start, as a copy of the partition comes to `destination`."""
        owner, base = self.row.replicas[0], self.row.version
        assert owner is not None
        self.members[destination].order(m.StartTabletCopy(id, P, base, owner))
        self.members[owner].order(m.AddLearner(id, P, base, destination))

    def open_session(self, session: str, destination: int) -> m.FetchDirect:
        """A checkpoint at the owner; what the destination is to fetch of it."""
        owner = self.row.replicas[0]
        assert owner is not None
        opened = self.members[owner].order(m.OpenSession(session, (P,))).session
        copy = self.members[destination].replica.meta.copy
        assert opened is not None
        assert copy is not None
        item = m.CopyItem(P, opened.tablets[0].generation, copy.generation, opened.tablets[0].bytes)
        return m.FetchDirect(session, owner, opened.token, (item,))

    def copy(self, fetch: m.FetchDirect, destination: int) -> None:
        """Fetch and take in a whole copy."""
        member = self.members[destination]
        member.order(fetch)
        self.run(3.0)
        member.order(m.Ingest(fetch.session, (P,)))


def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are trimmed early, so that learners need copies."""
    monkeypatch.setattr(stele.core.tablet.log, "SEGMENT_BYTES", 200)
    monkeypatch.setattr(stele.core.tablet.owner, "FILL_BYTES_MAX", 300)
    monkeypatch.setattr(stele.member.limits, "LOG_RETAINED_BYTES", 500)
