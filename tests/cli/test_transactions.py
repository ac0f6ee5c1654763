"""`tx list` and `tx resolve`, with members that are played."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stele.adapters.kubernetes.console import Console
from stele.errors import Unavailable
from stele.wire.admin import Resolved, TransactionFacts, TransactionList
from tests.cli.conftest import Run
from tests.cli.test_tablets import Shell, fake_api

NAME = "uuid.3.42"


def facts(partition: int, *, in_doubt: bool) -> TransactionFacts:
    name = NAME if in_doubt else "uuid.3.43"
    return TransactionFacts(name, partition, 9, (1, 2, 9), 2, "m0", 34.0, True, in_doubt)


LISTED = {
    "m0": (facts(5, in_doubt=False), facts(1, in_doubt=True)),
    "m1": (facts(2, in_doubt=True),),
    "m2": (),
}
SILENT, FAILING = {"m2"}, set[str]()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What members are asked to change; those in SILENT do not answer, as those in FAILING to a change."""
    asked: list[tuple[Any, ...]] = []

    async def members(self: Console, name: str | None = None) -> list[object]:
        return [SimpleNamespace(metadata=SimpleNamespace(name=each)) for each in ("m0", "m1", "m2")]

    async def ask(self: Console, method: str, member: str, path: str, form: Any, **query: str) -> Any:
        if member in SILENT:
            raise Unavailable(f"{member} is silent")
        if method == "GET":
            return TransactionList(LISTED[member])
        if member in FAILING:
            raise Unavailable(f"{member} fails")
        asked.append((method, member, path, query))
        return Resolved((1 if member == "m0" else 2,))

    monkeypatch.setattr(Console, "members", members)
    monkeypatch.setattr(Console, "ask_member", ask)
    return asked


@pytest.fixture
async def ask(run: Run, tmp_path: Path) -> AsyncIterator[Shell]:
    async with fake_api(tmp_path, {}) as path:
        yield Shell(run, path)


async def test_those_in_doubt_are_listed_first(ask: Shell, asked: list[Any]) -> None:
    ran = await ask("tx", "list")
    assert [line.split()[:2] for line in ran.out.splitlines()] == [
        ["TRANSACTION", "PARTITION"],
        [NAME, "1"],
        [NAME, "2"],
        ["uuid.3.43", "5"],
    ]
    assert "m2 is silent" in ran.err
    listed = (await ask("tx", "list", "-o", "json")).json
    assert [each["owner"] for each in listed["transactions"]] == ["m0", "m1", "m0"]


async def test_all_owners_are_told_and_silent_members_are_named(ask: Shell, asked: list[Any]) -> None:
    ran = await ask("tx", "resolve", NAME, "abort")
    path = f"/v1/transactions/{NAME}/resolve"
    assert asked == [("POST", member, path, {"verdict": "abort"}) for member in ("m0", "m1")]
    assert ran.code == 3
    assert "run it again with the same verdict" in ran.err
    assert "m2 is silent" in ran.err


async def test_the_others_are_told_when_one_fails(
    ask: Shell, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SILENT", set())
    monkeypatch.setitem(globals(), "FAILING", {"m0"})
    ran = await ask("tx", "resolve", NAME, "commit")
    assert [member for _, member, *_ in asked] == ["m1"]
    assert ran.code == 3
    assert "ended in partitions [2], left in [1]; run it again with the same verdict: " in ran.err
    assert "m0 fails" in ran.err
    monkeypatch.setitem(globals(), "FAILING", set())
    monkeypatch.setitem(LISTED, "m1", ())
    assert (await ask("tx", "resolve", NAME, "commit")).out == f"{NAME} is ended by commit in partitions 1\n"


async def test_nothing_is_done_while_one_partition_can_end_it_by_itself(
    ask: Shell, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LISTED, "m2", (msgspec.structs.replace(facts(7, in_doubt=True), in_doubt=False),))
    monkeypatch.setitem(globals(), "SILENT", set())
    ran = await ask("tx", "resolve", NAME, "abort")
    assert ran.code == 2
    assert "it can end by itself in partitions [7], so nothing is done" in ran.err
    assert asked == []


async def test_one_without_locks_is_named(
    ask: Shell, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SILENT", set())
    ran = await ask("tx", "resolve", "uuid.1.1", "abort")
    assert (ran.code, asked) == (2, [])
    assert 'TRANSACTION is "uuid.1.1"; it has no locks' in ran.err


async def test_other_verdicts_are_refused(ask: Shell, asked: list[Any]) -> None:
    assert (await ask("tx", "resolve", NAME, "guess")).code == 2
    assert asked == []
