"""Against a real API server: a copy that no row names becomes the owner of a lost partition."""

import asyncio

import aiohttp
import pytest

from stele.adapters.kubernetes.api import MEMBERS, Api
from stele.core.kv.keyslot import partition_of
from stele.model.member import ACCEPTED_COPY
from tests.operator.real_kubelet import RealKubelet
from tests.operator.test_operator import Operator, Stage, with_processes
from tests.operator.test_operator_loss import (
    KEYS,
    PARTITIONS,
    client_of,
    quarantined,
    reasons,
    until_condition,
)

pytestmark = pytest.mark.control_plane


async def moved_away(stage: Stage, kubelet: RealKubelet) -> tuple[int, frozenset[int]]:
    """A partition of which demo-0 has a quarantined copy, and the members that have it now.

    It sets a copy aside once it has heard of the row without it, which may be after the table is as desired.
    """
    rows, aside = (await stage.rows()).rows, list[int]()

    async def set_aside() -> bool:
        aside[:] = [n for n in await quarantined(kubelet, "demo-0") if 0 not in rows[n].members]
        return bool(aside)

    await stage.until("a copy in quarantine", set_aside)
    return aside[0], rows[aside[0]].members


async def restore(kubelet: RealKubelet, number: int) -> None:
    url = f"http://{kubelet.addresses['demo-0']}:7001/v1/quarantine"
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as answer:
            tablets = (await answer.json())["tablets"]
        generation = next(each["generation"] for each in tablets if each["partition"] == number)
        async with session.delete(f"{url}/tablets/{number}/{generation}") as answer:
            assert (answer.status, (await answer.json())["code"]) == (409, "NO_LIVE_COPY")
        async with session.post(f"{url}/tablets/{number}/{generation}/restore") as answer:
            assert answer.status == 200, await answer.text()


async def test_an_old_copy_owns_a_lost_partition_once_a_user_accepts_it(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    kubelet = real_kubelet
    async with with_processes(api, namespace, operator, kubelet) as stage:
        async with client_of(kubelet, "demo-0") as client:
            for key in KEYS:
                await client.set(key, b"old")
        await stage.scale(4)
        await stage.until_converged(4)
        number, holders = await moved_away(stage, kubelet)
        mine = [key for key in KEYS if partition_of(key.encode(), PARTITIONS) == number]
        async with client_of(kubelet, "demo-0") as client:
            for key in mine:
                await client.set(key, b"new")
        await asyncio.gather(*(kubelet.crash(f"demo-{each}") for each in holders))
        await until_condition(stage, "DataLoss", "True", "AllReplicasLost")
        await restore(kubelet, number)
        version = (await stage.rows()).rows[number].version

        async def owned() -> bool:
            return (await stage.rows()).rows[number].owner == 0

        await asyncio.sleep(6)
        assert not await owned(), "nobody accepted it, though the grace period is over"
        await api.annotate(MEMBERS, namespace, "demo-0", {f"{ACCEPTED_COPY}{number}": str(version)})
        await stage.until("the copy is the owner", owned)
        async with client_of(kubelet, "demo-0") as client:
            assert {await client.get(key) for key in mine} == {b"old"}
        await asyncio.gather(*(kubelet.revive(f"demo-{each}") for each in holders))
        await stage.until_converged(4)
        assert "CopyAccepted" in await reasons(stage)
        for each in holders:
            assert number in await quarantined(kubelet, f"demo-{each}")
        async with client_of(kubelet, "demo-1") as client:
            assert {await client.get(key) for key in mine} == {b"old"}
