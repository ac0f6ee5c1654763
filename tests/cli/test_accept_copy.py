"""`kubectl stele quarantine restore --as-owner`: what it says and asks, and what it writes in which order."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stele.cli import accept_copy
from stele.core.table.groups import NO_GROUPS
from stele.core.table.table import Member, Partition
from stele.model import TabletCluster, TabletMember
from tests.cli.conftest import Run

COPY = {"partition": 3, "generation": 1, "until_s": 0.0, "last": [5, 120], "applied": [5, 120]}
COPY |= {"entries": 33, "bytes": 4000}
TABLET = {
    "partition": 3, "role": "NONE", "state": "DELETED", "generation": 1, "version": 17, "replicas": [1, 2],
    "term": 0, "promised": 0, "last": [5, 120], "applied": [5, 120], "committed": 120, "flushed": 120,
    "log": {"first": 1, "last": 120, "bytes": 1}, "lag": None, "behind": {}, "serving": False, "entries": 33,
    "bytes": 4000, "offline": "", "copy": "", "quarantined": [COPY],
}  # fmt: skip


class Desk:
    """A console for a cluster in which members 1 and 2 are lost; `rows` are of partition 3, in turn."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.rows = [Partition(17, (1, 2)), Partition(17, (1, 2)), Partition(19, (0,))]
        self.lost = 1
        self.tablet: dict[str, Any] = TABLET
        self.namespace = "stele"

    async def cluster(self, name: str) -> TabletCluster:
        spec = {"members": 3, "partitions": 4, "storage": {"size": "1Gi"}}
        status = {"partitions": {"lost": self.lost}}
        return TabletCluster.model_validate({"metadata": {"name": name}, "spec": spec, "status": status})

    async def members(self, cluster: str = "demo") -> list[TabletMember]:
        return [
            TabletMember.model_validate(
                {
                    "metadata": {"name": f"demo-{n}"},
                    "spec": {"cluster": "demo", "index": n},
                    "status": {"state": "Lost" if n else "Active"},
                }
            )
            for n in range(3)
        ]

    async def rebalances(self, cluster: str) -> list[Any]:
        return []

    async def table(self, cluster: str) -> Any:
        row = self.rows.pop(0) if len(self.rows) > 1 else self.rows[0]
        members = [Member(n, f"demo-{n}", f"uuid-{n}", "") for n in range(3)]
        rows = (*(Partition(1, (0, 1)) for _ in range(3)), row)
        return SimpleNamespace(head=SimpleNamespace(members=members, groups=NO_GROUPS), rows=rows)

    async def ask_member(self, method: str, member: str, path: str, form: Any) -> Any:
        self.done.append((method, path))
        return msgspec.convert(self.tablet if method == "GET" else {}, form)

    async def annotate_member(self, name: str, annotations: dict[str, str | None]) -> None:
        self.done.append((name, annotations))


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk()
    monkeypatch.setattr(accept_copy.Where, "ask", lambda _self, question: asyncio.run(question(made)))
    monkeypatch.setattr(accept_copy, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(accept_copy, "WAIT_SECONDS", 0.2)
    return made


LOOKED = ("GET", "/v1/tablets/3")
RESTORED = ("POST", "/v1/quarantine/tablets/3/1/restore")
ACCEPTED = ("demo-0", {"accept.stele.dev/3": "17"})
CLEARED = ("demo-0", {"accept.stele.dev/3": None})


def test_it_says_what_is_lost_and_does_nothing_without_a_yes(desk: Desk, run: Run) -> None:
    ran = run("quarantine", "restore", "demo-0", "3/1", "--as-owner", stdin=b"n\n")
    assert ran.code == 1
    assert "version 17 of its row names demo-1 (Lost), demo-2 (Lost)" in ran.out
    assert "ends with operation 5.120: 33 entries, 4.0 kB" in ran.out
    assert "Everything that was written to the partition after that is LOST" in ran.out
    assert desk.done == [LOOKED]


def test_it_restores_first_and_accepts_for_the_version_that_was_shown(desk: Desk, run: Run) -> None:
    ran = run("quarantine", "restore", "demo-0", "3/1", "--as-owner", stdin=b"y\n")
    assert (ran.code, ran.out.splitlines()[-1].endswith("demo-0 owns partition 3")) == (0, True)
    assert desk.done == [LOOKED, RESTORED, ACCEPTED, CLEARED]


def test_a_second_call_goes_on_where_the_first_ended(desk: Desk, run: Run) -> None:
    desk.tablet = TABLET | {"state": "READY", "quarantined": []}
    assert run("quarantine", "restore", "demo-0", "3/1", "--as-owner", "--yes").code == 0
    assert desk.done == [LOOKED, RESTORED, ACCEPTED, CLEARED]


def test_an_operator_that_takes_long_is_not_waited_for(desk: Desk, run: Run) -> None:
    desk.rows = desk.rows[:1]
    ran = run("quarantine", "restore", "demo-0", "3/1", "--as-owner", "--yes")
    assert (ran.code, desk.done[-1]) == (0, ACCEPTED)
    assert "as soon as the operator counts it as lost: kubectl stele why demo/3" in ran.out


def test_what_is_not_lost_or_not_there_is_refused(desk: Desk, run: Run) -> None:
    refused = run("quarantine", "restore", "demo-0", "3/2", "--as-owner", "--yes")
    assert "3/2 is not in the quarantine of demo-0" in refused.err
    named = run("quarantine", "restore", "demo-1", "3/1", "--as-owner", "--yes")
    assert "version 17 of partition 3 names this member" in named.err
    desk.lost = 0
    alive = run("quarantine", "restore", "demo-0", "3/1", "--as-owner", "--yes")
    assert "no partition of demo is lost" in alive.err
    assert (refused.code, named.code, alive.code) == (2, 2, 2)
    assert {method for method, _ in desk.done} == {"GET"}
