"""Bulk loads and exports while members change the level of TLS among them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stele.client import bulk as bulk_client
from stele.client.members import Members
from stele.core.security.identity import Holder, Role
from stele.core.security.level import STEPS, InternalTls
from stele.errors import BadInput, Unavailable
from tests.fakes.pki import FakeCa, identity, shared_ca
from tests.member.bulk.test_bulk_loads import dump, healthy, load, rows
from tests.member.harness.cluster import CLUSTER, Cluster, eventually
from tests.member.test_member_tls import secured, show, tell


@asynccontextmanager
async def loading(folder: Path) -> AsyncIterator[tuple[Cluster, list[tuple[str, int]]]]:
    """A cluster with certificates and transfer processes, and the address of a member. The certificate of an
    admin is in `admin`."""
    identity(Role.ADMIN, "admin", CLUSTER).write(folder / "admin")
    async with secured(folder) as made:
        for member in made.members.values():
            await member.start_transfer()
        for member in made.members.values():
            await eventually(lambda m=member: healthy(made, m), bool)
        first = made.members[0]
        yield made, [(first.host, first.ports[2])]


async def test_rows_are_loaded_and_read_at_each_level(tmp_path: Path) -> None:
    """A loader that began below Required goes on; one without a certificate is told which option it lacks."""
    wanted: dict[bytes, bytes] = {}
    async with loading(tmp_path) as (made, place):
        with_tls, without = Members(place, str(tmp_path / "admin")), Members(place)
        for number, level in enumerate(STEPS):
            if number:
                await tell(made, level)
            for name, members in (("with", with_tls), ("without", without)):
                more = rows(60, prefix=b"%s-%d" % (name.encode(), number))
                if members is without and level is InternalTls.REQUIRED:
                    # Also one that begins now.
                    for each in (members, Members(place)):
                        with pytest.raises(BadInput, match=r"option tlsFolder \(--tls-folder\) is not set"):
                            await asyncio.to_thread(dump, each)
                    continue
                await asyncio.to_thread(load, members, f"{name}-{number}", more)
                wanted |= more
                assert await asyncio.to_thread(dump, members) == wanted
        with_tls.close()
        without.close()


async def test_who_is_not_of_the_cluster_gets_no_rows(tmp_path: Path) -> None:
    other = FakeCa("other").leaf(uris=[Holder(CLUSTER, Role.ADMIN, "admin").uri]).write(tmp_path / "ca")
    elsewhere = identity(Role.ADMIN, "admin", "other").write(tmp_path / "cluster")
    async with loading(tmp_path) as (made, place):
        for level in STEPS[1:]:
            await tell(made, level)
        for folder, why in (
            (other, "CERTIFICATE_VERIFY_FAILED"),
            (elsewhere, f"it is of cluster {CLUSTER}, and this is other"),
        ):
            members = Members(place, str(folder))
            with pytest.raises(Unavailable, match=why):
                await asyncio.to_thread(dump, members)
            members.close()


@pytest.mark.parametrize(
    ("role", "days", "why"),
    [
        (Role.ADMIN, -1, "certificate has expired"),
        (Role.MEMBER, 30, "is not that of an admin"),
        (None, 30, "No such file"),
    ],
)
def test_a_folder_that_cannot_be_used_is_named(
    tmp_path: Path, role: Role | None, days: int, why: str
) -> None:
    if role is not None:
        identity(role, "one", CLUSTER, days=days).write(tmp_path)
    with pytest.raises(BadInput, match=f"tlsFolder is '{tmp_path}'.*{why}"):
        Members([("127.0.0.1", 1)], str(tmp_path))


async def test_a_certificate_that_is_renewed_ends_no_load(tmp_path: Path) -> None:
    """The token of the load is of the certificate of before: the loader asks for another one."""
    async with loading(tmp_path) as (made, place):
        for level in STEPS[1:]:
            await tell(made, level)
        members, wanted = Members(place, str(tmp_path / "admin")), sorted(rows(60).items())
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
