"""Bulk loads and exports while members change the level of TLS among them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stele.client import bulk as bulk_client
from stele.client.members import Members
from stele.core.security.level import STEPS, InternalTls
from stele.errors import BadInput, Unavailable
from tests.fakes.pki import FakeCa, shared_ca
from tests.member.bulk.test_bulk_loads import dump, healthy, load, rows
from tests.member.harness.cluster import Cluster, eventually
from tests.member.test_member_tls import secured, show, tell

CA = shared_ca().certificate.decode()


@asynccontextmanager
async def loading(folder: Path) -> AsyncIterator[tuple[Cluster, list[tuple[str, int]]]]:
    """A cluster with certificates and transfer processes, and the address of a member."""
    async with secured(folder) as made:
        for member in made.members.values():
            await member.start_transfer()
        for member in made.members.values():
            await eventually(lambda m=member: healthy(made, m), bool)
        first = made.members[0]
        yield made, [(first.host, first.ports[2])]


async def test_rows_are_loaded_and_read_at_each_level(tmp_path: Path) -> None:
    """A loader that began below Required goes on; one without the CA is told which option it lacks."""
    wanted: dict[bytes, bytes] = {}
    async with loading(tmp_path) as (made, place):
        with_ca, without = Members(place, CA), Members(place)
        for number, level in enumerate(STEPS):
            if number:
                await tell(made, level)
            for name, members in (("with", with_ca), ("without", without)):
                more = rows(60, prefix=b"%s-%d" % (name.encode(), number))
                if members is without and level is InternalTls.REQUIRED:
                    with pytest.raises(BadInput, match=r"option caFile \(--ca-file\) is not set"):
                        await asyncio.to_thread(load, members, f"{name}-{number}", more)
                    with pytest.raises(BadInput, match="option caFile"):
                        await asyncio.to_thread(dump, members)
                    continue
                await asyncio.to_thread(load, members, f"{name}-{number}", more)
                wanted |= more
                assert await asyncio.to_thread(dump, members) == wanted
        with_ca.close()
        without.close()


async def test_who_is_not_of_the_ca_gets_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_client, "PATIENCE_SECONDS", 0.1)
    async with loading(tmp_path) as (made, place):
        for level in STEPS[1:]:
            await tell(made, level)
        members = Members(place, FakeCa("other").certificate.decode())
        with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.to_thread(load, members, "wrong", rows(60))
        members.close()


async def test_a_certificate_that_is_renewed_ends_no_load(tmp_path: Path) -> None:
    """The token of the load is of the certificate of before: the loader asks for another one."""
    async with loading(tmp_path) as (made, place):
        for level in STEPS[1:]:
            await tell(made, level)
        members, wanted = Members(place, CA), sorted(rows(60).items())
        loader = bulk_client.Loader(members, "load-1")
        pieces = await asyncio.to_thread(loader.send, "task-0", [(key, value, 0) for key, value in wanted])
        before = dict(loader._tokens)
        assert made.tls is not None
        for member in made.members:
            show(made.tls, f"m{member}", shared_ca(), [shared_ca()])
        await asyncio.sleep(1.0)
        result = await asyncio.to_thread(loader.finish, pieces)
        assert result.entries == 60
        assert before
        assert all(loader._tokens[member] != token for member, token in before.items())
        members.close()
