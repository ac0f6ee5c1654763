"""A promise is reported once no lease of the owner before can be valid, whichever of its processes has it."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stele.core.control import commands as m
from stele.core.control.commands import OpId
from stele.core.tablet.leases import LeaseGrantor
from stele.member.control.fencing import Fencing

STARTED, NOW, LEASE_SECONDS = 0.0, 100.0, 2.0
OWNER, PARTITION, TERM = 1, 3, 7


async def _nothing(*_: object, **__: object) -> None: ...


def _fencing(grantor: LeaseGrantor) -> Fencing:
    tablet = SimpleNamespace(promised=TERM, fence=lambda term: False, leader=OWNER)
    replica = SimpleNamespace(
        lock=asyncio.Lock(), tablet=tablet, meta=SimpleNamespace(promised=TERM), last=OpId(1, 1)
    )
    tablets = SimpleNamespace(
        table=SimpleNamespace(version_jump=lambda *_: ""), replica_of=lambda partition: replica
    )
    parts: list[Any] = [None, tablets, SimpleNamespace(save_meta=_nothing), grantor]
    return Fencing(*parts, cast(Any, SimpleNamespace(now=lambda: NOW)))


@pytest.mark.parametrize(
    ("owner_dead", "dead_incarnation", "waits"),
    [(False, 0, True), (True, 4, True), (True, 5, False), (True, 6, False), (True, 0, False)],
)
async def test_leases_of_processes_that_may_run_are_waited_for(
    owner_dead: bool, dead_incarnation: int, waits: bool
) -> None:
    """The process with incarnation 5 has the lease: that an earlier one ended proves nothing."""
    grantor = LeaseGrantor(STARTED, LEASE_SECONDS)
    grantor.renew(OWNER, NOW, 5)
    grantor.leave(PARTITION, OWNER, NOW)
    fence = m.Fence(PARTITION, TERM, owner_dead, "", dead_incarnation)
    result = await _fencing(grantor).fence(fence)
    assert (result.code == m.WAIT) is waits
    assert (result.wait_ms > 0) is waits
