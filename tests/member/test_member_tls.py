"""TLS between real members: switched on under load, kept across restarts, with certificates that change."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from stele.core.control.member_settings import MemberSettings
from stele.core.security.identity import Holder, Role
from stele.core.security.level import STEPS, InternalTls
from stele.wire import peer
from stele.wire.frames import FrameDecoder, encode_frame
from tests.fakes.pki import FakeCa, Leaf, shared_ca
from tests.member.harness.clients import Client
from tests.member.harness.cluster import CLUSTER, Cluster, MemberProcess, eventually
from tests.member.harness.load import Load, Service
from tests.member.test_client_tls import metric

LIMITS = {"CERTIFICATE_LOOK_SECONDS": 0.2, "RENEW_PAUSE_SECONDS": 0.1, "RECONNECT_SECONDS_MAX": 0.2}
MASTER = "master"
KEYS = [b"count-%d" % n for n in range(40)]


def show(folder: Path, name: str, ca: FakeCa, trusted: Iterable[FakeCa]) -> None:
    """Give a member, or the master, a certificate of this CA, and let it trust those."""
    role = Role.MASTER if name == MASTER else Role.MEMBER
    made = ca.leaf(name, uris=[Holder(CLUSTER, role, name).uri])
    bundle = b"".join(each.certificate for each in trusted)
    Leaf(made.certificate, made.key, bundle).write(folder / name)


@asynccontextmanager
async def secured(folder: Path, members: int = 3, **limits: float) -> AsyncIterator[Cluster]:
    """A cluster whose members have certificates and do not use them yet."""
    made = Cluster(folder, 12, 2, {"LIMITS": json.dumps(LIMITS | limits)})
    made.tls = folder / "tls"
    for name in (MASTER, *(f"m{member}" for member in range(members))):
        show(made.tls, name, shared_ca(), [shared_ca()])
    try:
        await made.form(members)
        yield made
    finally:
        await made.close()


async def tell(members: Cluster, level: InternalTls, pause_seconds: float = 0.0) -> None:
    """Tell one after the other, and wait until each says that it has come so far."""
    members.settings = MemberSettings(member_tls=level)
    for index in members.members:
        await members.publish([index])
        await asyncio.sleep(pause_seconds)
    for index in members.members:
        await eventually(
            lambda i=index: members.exchange(i, rows=()),
            lambda reply: reply.member_tls is level and not reply.plain_links,
        )


def service_of(members: Cluster) -> Service:
    return Service([member.host for member in members.members.values()], members.ports[0])


@asynccontextmanager
async def load(members: Cluster) -> AsyncIterator[Load]:
    """Clients that count through all members; none of them sees an error."""
    running = Load(service_of(members), KEYS)
    try:
        yield running
    finally:
        await running.end()
    assert running.failures == []
    assert min(running.counts.values()) > 0
    assert await running.lost() == {}
    for member in members.members.values():
        for operation, result in (("read", "unavailable"), ("write", "unavailable"), ("write", "uncertain")):
            name = f'stele_requests_total{{operation="{operation}",result="{result}"}}'
            assert await metric(member, name) == 0
        assert "Traceback" not in member.log()


async def welcomes_plain(members: Cluster, index: int, sender: int) -> bool:
    """Whether it takes a greeting without TLS."""
    member, uuids = members.members[index], {i: each.uuid for i, each in members.members.items()}
    hello = peer.Hello(peer.GREETING_FORMAT, CLUSTER, sender, uuids[sender], uuids[index])
    reader, writer = await asyncio.open_connection(member.host, member.ports[1])
    try:
        writer.write(encode_frame(peer.encode_message(hello)))
        (answer,) = FrameDecoder(4096).feed(await asyncio.wait_for(reader.read(4096), 10))
        return isinstance(peer.decode_greeting(answer), peer.Welcome)
    finally:
        writer.close()


async def connections(member: MemberProcess) -> int:
    """How often it has connected with another one."""
    return member.log().count(": connected, format")


async def encrypted(member: MemberProcess) -> float:
    return await metric(member, "stele_members_encrypted")


async def test_from_off_to_required_and_back_under_load_without_an_error(tmp_path: Path) -> None:
    async with secured(tmp_path) as members:
        async with load(members):
            for level in STEPS[1:]:
                await tell(members, level, 0.3)
            for member in members.members.values():
                await eventually(lambda one=member: encrypted(one), lambda found: found == 2)
            for level in reversed(STEPS[:-1]):
                await tell(members, level, 0.3)
            await asyncio.sleep(1.0)
        await members.same_everywhere()


async def test_clients_notice_a_member_that_takes_all_steps_at_once(tmp_path: Path) -> None:
    """That nothing fails in the other tests is not for want of something that could."""
    async with secured(tmp_path, WAIT_SECONDS_MAX=1.0) as members:
        running = Load(service_of(members), KEYS)

        async def failures() -> list[str]:
            return running.failures

        try:
            members.settings = MemberSettings(member_tls=InternalTls.REQUIRED)
            await members.publish([0])
            first = (await eventually(failures, bool))[0]
            assert "UNCERTAIN" in first or "TRYAGAIN" in first
        finally:
            await running.end()


async def test_a_member_that_starts_before_it_hears_of_a_master_has_its_level(tmp_path: Path) -> None:
    async with secured(tmp_path, 2) as members:
        for level in STEPS[1:]:
            await tell(members, level)
        first, client = members.members[1], Client(members)
        await first.kill()
        await first.start()

        async def written() -> bool:
            return all([await client.set(index, b"key-%d" % n, b"v") for index in (0, 1) for n in range(12)])

        await eventually(written, bool)
        assert await encrypted(first) == 1
        assert not await welcomes_plain(members, 0, 1)
        assert not await welcomes_plain(members, 1, 0)


async def test_a_member_that_joins_is_at_once_where_the_others_are(tmp_path: Path) -> None:
    async with secured(tmp_path, 3) as members:
        for level in STEPS[1:]:
            await tell(members, level)
        assert members.tls is not None
        show(members.tls, "m3", shared_ca(), [shared_ca()])
        await members.add()
        await members.publish()
        await members.move_owner(0, 3) if members.owner(0) != 3 else None
        client = Client(members)
        for index in members.members:
            await eventually(lambda i=index: client.set(i, b"key", b"v"), bool)
        assert await eventually(lambda: encrypted(members.members[3]), lambda found: found == 3)


async def test_certificates_and_the_ca_change_under_load_without_an_error(tmp_path: Path) -> None:
    old, new = FakeCa("old"), FakeCa("new")
    async with secured(tmp_path) as members:
        folder = members.tls
        assert folder is not None

        async def change(ca: FakeCa, *trusted: FakeCa) -> None:
            for name in (MASTER, *(f"m{member}" for member in members.members)):
                show(folder, name, ca, trusted)
            await asyncio.sleep(1.0)

        await change(shared_ca(), shared_ca(), old)
        await change(old, old)
        for level in STEPS[1:]:
            await tell(members, level)
        before = {index: await connections(member) for index, member in members.members.items()}
        async with load(members):
            for _ in range(3):
                await change(old, old)
            await change(old, old, new)
            await change(new, old, new)
            await change(new, new)
            for member in members.members.values():
                # Two links, of which the CA was withdrawn once. That another one is trusted renews none.
                least = before[member.index] + 2
                await eventually(lambda one=member: connections(one), lambda found, n=least: found >= n)
                await eventually(lambda one=member: encrypted(one), lambda found: found == 2)
        # The old CA is refused: one that still shows it is alone, with what it can have by itself.
        show(folder, "m2", old, [old, new])
        await members.members[2].kill()
        await members.members[2].start()
        failed = 'stele_member_tls_handshakes_total{result="failed"}'
        await eventually(lambda: metric(members.members[0], failed), lambda found: found > 0)
        assert await encrypted(members.members[2]) == 0
