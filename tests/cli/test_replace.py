"""`kubectl stele replace`: what it writes, and what it refuses or asks first."""

import asyncio
from typing import Any

import pytest

from stele.cli import replace
from stele.core.table.table import Partition
from stele.model import TabletMember
from tests.cli.conftest import Run
from tests.cli.test_handover import Desk as HandoverDesk


class Desk(HandoverDesk):
    """A console for a cluster whose members have these states and rows."""

    def __init__(self) -> None:
        super().__init__()
        self.states = ["Active"] * 3
        self.replacement: str | None = None
        self.rows: tuple[tuple[int, ...], ...] = ((0, 1), (0, 2), (1, 0))

    async def members(self, cluster: str = "demo") -> list[TabletMember]:
        return [
            TabletMember.model_validate(
                {
                    "metadata": {"name": f"demo-{n}"},
                    "spec": {
                        "cluster": "demo",
                        "index": n,
                        "replacement": self.replacement if n == 2 else None,
                    },
                    "status": {"state": state},
                }
            )
            for n, state in enumerate(self.states)
        ]

    async def table(self, cluster: str) -> Any:
        table = await super().table(cluster)
        table.rows = tuple(Partition(1, row) for row in self.rows)
        return table

    async def change_member(self, name: str, spec: dict[str, Any]) -> None:
        self.written.append((name, spec))


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk()
    monkeypatch.setattr(replace.Where, "ask", lambda _self, question: asyncio.run(question(made)))
    return made


@pytest.mark.parametrize(
    ("options", "written"),
    [((), "NewVolume"), (("--keep-volume",), "KeepVolume")],
)
def test_it_is_written_into_the_member(run: Run, desk: Desk, options: tuple[str, ...], written: str) -> None:
    assert run("replace", "demo-2", *options).code == 0
    assert desk.written == [("demo-2", {"replacement": written})]
    desk.replacement = written
    assert "asked for already" in run("replace", "demo-2", *options).out
    assert len(desk.written) == 1
    assert "is not replaced" in run("replace", "demo-2", "--undo").out
    assert desk.written[1:] == [("demo-2", {"replacement": None})]


def test_nothing_to_undo(run: Run, desk: Desk) -> None:
    assert "nothing to undo" in run("replace", "demo-2", "--undo").out
    assert not desk.written


def test_a_volume_with_the_only_copy_is_not_given_up(run: Run, desk: Desk) -> None:
    desk.rows = ((0, 1), (2,), (1, 2))
    assert run("replace", "demo-2").code == 0, "it answers: its copy is moved first"
    desk.states = ["Active", "Unreachable", "Unreachable"]
    refused = run("replace", "demo-2", "--yes")
    assert refused.code == 1
    assert "the volume of demo-2 may have the only copy of partitions 1, 2: bring its node" in refused.err
    assert len(desk.written) == 1
    assert run("replace", "demo-2", "--keep-volume").code == 0


def test_it_asks_before_a_second_copy_is_given_up(run: Run, desk: Desk) -> None:
    desk.states[2], desk.rows = "Unreachable", ((0, 1), (0,), (1,))
    refused = run("replace", "demo-2", stdin=b"n\n")
    assert refused.code == 1
    assert "Partitions 1, 2 have one copy left or none; demo-2 may have another" in refused.out
    assert not desk.written
    assert run("replace", "demo-2", stdin=b"y\n").code == 0
    assert run("replace", "demo-2", "--yes").code == 0
    assert len(desk.written) == 2


def test_a_wrong_name_and_options_that_contradict(run: Run, desk: Desk) -> None:
    assert "there is no TabletMember demo-9; there are: demo-0" in run("replace", "demo-9").err
    assert "leave out --keep-volume" in run("replace", "demo-2", "--undo", "--keep-volume").err
