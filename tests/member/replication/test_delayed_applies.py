"""A backup applies what is committed a short time later, with what has come in the meantime."""

import asyncio

import pytest

from stele.member import limits
from stele.member.storage import failpoints
from stele.wire.storage.log_record import put_record
from tests.member.harness.single_member import ME, OTHER, SingleMember


def put(value: bytes) -> bytes:
    return put_record(2, b"default", b"k", value, 0)


async def backup(made: SingleMember) -> None:
    """It holds what a copy brought, up to (1, 5)."""
    await made.receive()
    await made.store((OTHER, ME))


async def test_what_is_committed_waits_for_more(made: SingleMember, monkeypatch: pytest.MonkeyPatch) -> None:
    await backup(made)
    monkeypatch.setattr(limits, "APPLY_DELAY_SECONDS", 0.01)
    steps: list[str] = []
    monkeypatch.setattr(failpoints, "hit", steps.append)
    for number in range(4):
        made.append((1 if number == 0 else 2, 5 + number), [put(b"%d" % number)], commit=6 + number)
        await asyncio.sleep(0)
    assert (made.replica.tablet.log.committed, made.replica.tablet.log.applied) == (9, (1, 5))
    for _ in range(1000):
        if made.replica.tablet.log.applied == (2, 9):
            break
        await asyncio.sleep(0.005)
    assert (steps.count("write.applied"), made.get(b"k")) == (1, b"3")


async def test_many_bytes_do_not_wait(made: SingleMember, monkeypatch: pytest.MonkeyPatch) -> None:
    await backup(made)
    monkeypatch.setattr(limits, "APPLY_DELAY_SECONDS", 3600.0)
    monkeypatch.setattr(limits, "APPLY_DELAY_BYTES_MAX", 100)
    for number, value in enumerate((b"short", bytes(100))):
        made.append((1 if number == 0 else 2, 5 + number), [put(value)], commit=6 + number)
        for _ in range(5):
            await asyncio.sleep(0)
        assert made.replica.tablet.log.applied == ((1, 5) if number == 0 else (2, 7))
