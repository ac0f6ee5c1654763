"""Ports 7000, 7001 and 7002 of a real pod at Required, by who comes: of each row, the last one alone gets in.

What each refusal says, and the levels below, are looked at by the tests of each port.
"""

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

from stele.adapters import pod_token
from stele.adapters.tls.identity import read_dialling, trusting
from stele.core.security.identity import Role
from stele.core.security.level import STEPS
from stele.wire import peer
from tests.fakes.pki import FakeCa, identity, shared_ca
from tests.member.harness.callers import is_answered, is_let_in, is_welcome
from tests.member.harness.cluster import CLUSTER, Cluster, eventually
from tests.member.test_member_tls import secured, tell

Come = Callable[[Cluster, ssl.SSLContext | None, str], Awaitable[bool]]
"""Come to member 0 with this context, None for plain, and this token; whether one is let in."""


def shown(
    role: Role, name: str, *, ca: FakeCa | None = None, cluster: str = CLUSTER, days: int = 30
) -> ssl.SSLContext:
    leaf = identity(role, name, cluster, ca=ca, days=days)
    return read_dialling(leaf.certificate, leaf.key, leaf.trusted)


def who(right: Role, wrong: Role, name: str) -> dict[str, ssl.SSLContext | None]:
    """Whom a port is asked by; the last one is right."""
    return {
        "plain": None,
        "no certificate": trusting(shared_ca().certificate),
        "another CA": shown(right, name, ca=FakeCa("other")),
        "another cluster": shown(right, name, cluster="99999999-8888"),
        "another role": shown(wrong, name),
        # Members take each other's for 7 days more.
        "ended": shown(right, name, days=-8),
        "right": shown(right, name),
    }


async def greet(members: Cluster, context: ssl.SSLContext | None, token: str) -> bool:
    """As member 1."""
    member, uuids = members.members[0], {index: each.uuid for index, each in members.members.items()}
    hello = peer.Hello(peer.GREETING_FORMAT, CLUSTER, 1, uuids[1], uuids[0])
    return await is_welcome(member.host, member.ports[1], hello, context)


def asks(place: int, method: str, path: str, let_in: int) -> Come:
    """Ask for a path; `let_in` is the status of what it is answered then."""

    async def come(members: Cluster, context: ssl.SSLContext | None, token: str) -> bool:
        member = members.members[0]
        url = f"{member.host}:{member.ports[place]}{path}"
        return await is_answered(let_in, (method, url), context, token)

    return come


MEMBER, MASTER, ADMIN = Role.MEMBER, Role.MASTER, Role.ADMIN
PORTS: dict[str, tuple[Come, Role, Role]] = {
    "7000": (greet, MEMBER, MASTER),
    "7001, exchanges": (asks(2, "POST", "/v1/exchange", 400), MASTER, ADMIN),
    "7001, data": (asks(2, "GET", "/v1/digest?partition=0", 200), ADMIN, MASTER),
    "7001, tools": (asks(2, "GET", "/v1/status", 200), ADMIN, MEMBER),
    "7002": (asks(3, "GET", "/v1/bulk/loads/l-1/partitions/3?crc32c=5", 404), MEMBER, ADMIN),
}
OF_THE_POD: dict[str, Come] = {
    "7001": asks(2, "POST", "/v1/stopping", 400),
    "7002, sessions": asks(3, "GET", "/v1/sessions", 200),
    "7002, copies": asks(3, "DELETE", "/v1/copies/s-1", 404),
}


async def tried(come: Come, members: Cluster, context: ssl.SSLContext | None, token: str = "") -> bool:
    return await is_let_in(come(members, context, token))


async def test_of_all_who_come_the_right_ones_alone_are_taken(tmp_path: Path) -> None:
    async with secured(tmp_path, 2) as members:
        for level in STEPS[1:]:
            await tell(members, level)
        await members.members[0].start_transfer()
        health = asks(3, "GET", "/healthz", 200)
        await eventually(lambda: health(members, trusting(shared_ca().certificate), ""), bool)

        found: dict[str, dict[str, bool]] = {}
        for port, (come, right, wrong) in PORTS.items():
            callers = who(right, wrong, "m1" if right is MEMBER else "one")
            found[port] = {name: await tried(come, members, each) for name, each in callers.items()}
        assert found == {port: {name: name == "right" for name in taken} for port, taken in found.items()}
        assert all(len(taken) == 7 for taken in found.values())

        own = pod_token.read(members.members[0].folder)
        for port, come in OF_THE_POD.items():
            for token in ("", "wrong"):
                assert not await tried(come, members, None, token), port
            for name, context in who(ADMIN, MASTER, "one").items():
                assert name == "plain" or not await tried(come, members, context), (port, name)
            assert await tried(come, members, None, own), port
