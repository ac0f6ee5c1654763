"""Clients that are users by their certificates, on the ports of a RESP server with TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.utils import str_if_bytes

from stele.adapters.tls.acceptor import TlsAcceptor
from stele.adapters.tls.identity import TlsIdentity
from stele.core.control.member_settings import ClientAuth, ClientTls
from stele.core.security.identity import Role
from stele.member.resp.access import Access, accounts_of
from stele.member.resp.limits import RespServerLimits
from stele.member.resp.server import RespServer
from stele.member.resp.users_file import UsersFile
from stele.wire.user_certificates import CERTIFICATES_KEY
from stele.wire.users import UserEntry, encode_files, generated_hash
from tests.fakes.client_certificates import URI as URI_OF_ORDERS
from tests.fakes.client_certificates import make_documented, make_own_ca
from tests.fakes.key_value_service import FakeKeyValueService
from tests.fakes.pki import FakeCa, Leaf, identity, shake_hands, shared_ca

Redis = redis.asyncio.Redis

URI = "spiffe://example.com/shop"
EVERYTHING = ("+@all", "~*", "&*")
SHOP = UserEntry("shop", (), ("+@all", "-flushall", "~*"), ("shop", "cart"), certificate=f"uri:{URI}")
TILL = UserEntry("till", (generated_hash(b"pw"),), EVERYTHING, certificate="cn:till")
OTHER = UserEntry("other", (generated_hash(b"pw"),), EVERYTHING)
GONE = UserEntry("gone", (), EVERYTHING, active=False, certificate="cn:gone")
USERS = (SHOP, TILL, OTHER, GONE)


@pytest.fixture
def access() -> Access:
    access = Access()
    use(access, *USERS)
    return access


@pytest.fixture
async def server(access: Access, tmp_path: Path) -> AsyncIterator[RespServer]:
    identity = TlsIdentity(shared_ca().leaf().write(tmp_path / "tls"))
    identity.look()
    acceptor = TlsAcceptor(identity, lambda address, why: None)
    acceptor.require(ClientTls.REQUIRED, ssl.CERT_OPTIONAL)
    limits = RespServerLimits(linger_seconds=0.1, linger_seconds_max=0.5, guest_seconds_max=60)
    server = RespServer(FakeKeyValueService(), limits, access=access, tls=acceptor)
    await server.listen("127.0.0.1", 0)
    await server.listen_cluster("127.0.0.1", 0)
    await server.listen_reads("127.0.0.1", 0)
    yield server
    await server.close()
    access.checker.close()


def use(access: Access, *users: UserEntry, level: ClientAuth | None = ClientAuth.REQUIRED) -> None:
    access.adopt(accounts_of(users, access.users), level, access.file)


class Show(Protocol):
    """Connects with a certificate; a connection is not made again."""

    def __call__(self, leaf: Leaf, port: int = 0, **login: str) -> Redis: ...


async def who(client: Redis) -> str:
    return str(str_if_bytes(await client.execute_command("ACL", "WHOAMI")))


async def facts_of(client: Redis) -> dict[str, str]:
    line = str_if_bytes(await client.execute_command("CLIENT", "INFO"))
    return dict(each.split("=", 1) for each in line.split())


async def until_cut(client: Redis) -> None:
    """Send until the connection ends, within the time in which a user that is changed is cut off."""
    connection = client.connection
    assert connection is not None
    async with asyncio.timeout(5):
        while True:
            await connection.send_command("PING")
            await connection.read_response()


@pytest.fixture
async def show(server: RespServer, tmp_path: Path) -> AsyncIterator[Show]:
    made: list[Redis] = []

    def client(leaf: Leaf, port: int = 0, **login: str) -> Redis:
        folder = leaf.write(tmp_path / f"client-{len(made)}")
        trusted = tmp_path / "tls" / "ca.crt"
        files = {"ssl_certfile": f"{folder}/tls.crt", "ssl_keyfile": f"{folder}/tls.key"}
        once = Retry(NoBackoff(), 0)
        found = Redis(
            port=port or server.port,
            ssl=True,
            ssl_ca_certs=str(trusted),
            **files,
            **login,
            retry=once,
            single_connection_client=True,
        )
        made.append(found)
        return found

    yield client
    for each in made:
        await each.aclose()


def named(*uris: str, cn: str = "nobody", ca: FakeCa | None = None, days: int = 30) -> Leaf:
    return (ca or shared_ca()).leaf(cn, uris=uris, days=days)


async def test_a_certificate_is_a_user_on_every_port(server: RespServer, show: Show) -> None:
    for port in (server.port, server.cluster_port, server.read_port):
        client = show(named("urn:first", URI, cn="no"), port)
        assert await who(client) == "shop"
        facts = await facts_of(client)
        assert (facts["user"], facts["db"], facts["tls"]) == ("shop", "shop", "TLSv1.3")
        with pytest.raises(NoPermissionError):
            await client.execute_command("FLUSHALL")
        with pytest.raises(NoPermissionError):
            await client.execute_command("SELECT", "other")
    assert (server.facts()["acl_access_denied_tls_cert"], server.facts()["unauthenticated_clients"]) == (0, 0)


async def test_a_common_name_is_a_user_and_auth_changes_that(show: Show) -> None:
    client = show(named(cn="till"))
    assert await who(client) == "till"
    assert await client.execute_command("AUTH", "other", "pw") in (True, b"OK")
    assert await who(client) == "other"
    assert str_if_bytes(await client.execute_command("RESET")) == "RESET"
    assert await who(client) == "till", "as on a new connection"


NOBODY: list[tuple[Leaf, str]] = [
    (named(cn="nobody"), "cn:nobody"),
    (named("spiffe://example.com/shop2"), "uri:spiffe://example.com/shop2"),
    (named("spiffe://EXAMPLE.com/shop"), "uri:spiffe://EXAMPLE.com/shop"),
    (named(cn="gone"), "cn:gone"),
    (named(URI, cn="till"), f"uri:{URI}"),
]


@pytest.mark.parametrize(("leaf", "shown"), NOBODY, ids=["nobody", "uri", "case", "locked", "two"])
async def test_others_must_authenticate_and_are_noted(
    server: RespServer, access: Access, show: Show, leaf: Leaf, shown: str
) -> None:
    with pytest.raises(AuthenticationError):
        await show(leaf).get("a")
    assert server.facts()["acl_access_denied_tls_cert"] == 1
    client = show(leaf, username="other", password="pw")
    (entry,) = await client.acl_log()
    entry = {str_if_bytes(key): str_if_bytes(value) for key, value in entry.items()}
    assert (entry["reason"], entry["context"], entry["object"]) == ("tls-cert", "toplevel", shown)
    assert (await client.info("stats"))["acl_access_denied_tls_cert"] == 2
    assert entry["username"] == ("gone" if shown == "cn:gone" else "default")


@pytest.mark.parametrize("role", Role)
async def test_parts_of_the_cluster_are_no_users(access: Access, show: Show, role: Role) -> None:
    use(access, UserEntry("demo-0", (), EVERYTHING, certificate="cn:demo-0"))
    with pytest.raises(AuthenticationError):
        await show(identity(role, "demo-0", "uid")).get("a")


async def test_a_certificate_with_very_many_names_is_nobodys(show: Show) -> None:
    many = [f"urn:{number}" for number in range(16)]
    with pytest.raises(AuthenticationError):
        await show(named(*many, URI)).get("a")


async def test_a_certificate_that_cannot_be_read_is_refused_and_ends_nothing(
    server: RespServer, show: Show
) -> None:
    """Who signs for clients can write anything into it; an error in a callback would end the member."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    strange = shared_ca().signed_again(named(URI), URI.encode(), b"\xff" * len(URI))
    with pytest.raises((RedisError, OSError)):
        await show(strange).get("a")
    assert server.facts()["tls_handshakes_failed"] == 1
    assert errors == []
    assert await show(named(URI)).ping()


@pytest.mark.parametrize(
    "leaf", [named(URI, ca=FakeCa()), named(URI, days=-1)], ids=["another CA", "expired"]
)
async def test_a_certificate_that_is_not_valid_connects_nowhere(
    server: RespServer, show: Show, leaf: Leaf
) -> None:
    with pytest.raises((RedisError, OSError)):
        await show(leaf).get("a")
    assert server.facts()["tls_handshakes_failed"] == 1


async def test_what_is_not_asked_for_logs_nobody_in(server: RespServer, show: Show) -> None:
    assert server.tls is not None
    server.tls.require(ClientTls.REQUIRED, ssl.CERT_NONE)
    with pytest.raises(AuthenticationError):
        await show(named(URI)).get("a")


@pytest.mark.parametrize(
    "after",
    [
        (TILL,),
        (TILL, UserEntry("shop", (), SHOP.rules, SHOP.keyspaces, certificate="cn:shop")),
        (TILL, UserEntry("shop", (), ("+@read", "~*"), SHOP.keyspaces, certificate=SHOP.certificate)),
        (TILL, UserEntry("shop", (generated_hash(b"pw"),), SHOP.rules, SHOP.keyspaces)),
    ],
    ids=["deleted", "another certificate", "other rights", "no certificate"],
)
async def test_a_changed_user_is_cut_and_the_others_stay(
    access: Access, show: Show, after: tuple[UserEntry, ...]
) -> None:
    cut, stays = show(named(URI)), show(named(cn="till"))
    assert (await who(cut), await stays.ping()) == ("shop", True)
    use(access, *after)
    with pytest.raises((RedisError, OSError)):
        await until_cut(cut)
    assert await who(stays) == "till"
    assert {name: each.connections for name, each in access.users.items()}[b"till"] == 1


async def test_a_password_that_is_changed_does_not_cut_a_certificate(access: Access, show: Show) -> None:
    client = show(named(cn="till"))
    identity = await client.client_id()
    use(access, UserEntry("till", (generated_hash(b"new"),), TILL.rules, certificate=TILL.certificate))
    assert await client.client_id() == identity


async def test_connections_of_a_user_are_counted_whatever_it_came_by(
    server: RespServer, access: Access, show: Show
) -> None:
    use(access, UserEntry("till", (generated_hash(b"pw"),), EVERYTHING, (), True, 1, 0, "cn:till"), OTHER)
    first = show(named(cn="till"))
    assert await first.ping()
    with pytest.raises(RedisError, match="user has 1 connections to this member"):
        await show(named(cn="till")).ping()
    await first.aclose()
    async with asyncio.timeout(5):
        while access.users[b"till"].connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await show(named(cn="till")).ping()


async def test_it_goes_on_as_its_user_when_users_become_required(access: Access, show: Show) -> None:
    """Without an error, as a client does that has sent AUTH; it stays in the keyspace that it is in."""
    use(access, level=ClientAuth.OFF)
    client, anybody = show(named(URI)), show(named(cn="nobody"))
    await client.execute_command("SELECT", "cart")
    assert await who(client) == await who(anybody)
    use(access, *USERS)
    facts = await facts_of(client)
    assert (facts["user"], facts["db"]) == ("shop", "cart")
    with pytest.raises(AuthenticationError):
        await anybody.ping()


async def test_what_it_hears_ends_with_the_rights_to_it(access: Access, show: Show) -> None:
    use(access, level=ClientAuth.OFF)
    client = show(named(URI))
    async with client.pubsub() as heard:
        await heard.subscribe("secret")
        assert (await heard.get_message(timeout=5) or {})["type"] == "subscribe"
        use(access, *USERS)
        connection = heard.connection
        assert connection is not None
        async with asyncio.timeout(5):
            with pytest.raises((RedisError, OSError)):
                await connection.read_response()


FOREIGN = ["URI:stele://uid/member/demo-0", "URI:spiffe://other.example.com/orders"]


@pytest.mark.parametrize("uri", [URI_OF_ORDERS, *FOREIGN])
async def test_the_documented_ca_of_clients_signs_users_and_no_members(
    server: RespServer, access: Access, show: Show, tmp_path: Path, uri: str
) -> None:
    """By its name constraint, which holds for what members show each other, too."""
    folder = tmp_path / "own"
    make_own_ca(folder)
    certificate, key = make_documented(folder, uri)
    served = tmp_path / "tls"
    trusted = (served / "ca.crt").read_bytes() + (folder / "own-ca.crt").read_bytes()
    Leaf((served / "tls.crt").read_bytes(), (served / "tls.key").read_bytes(), trusted).write(served)
    assert server.tls is not None
    server.tls._identity.look()
    use(access, UserEntry("orders", (), EVERYTHING, certificate="uri:spiffe://shop.example.com/orders"))
    client = show(Leaf(certificate.read_bytes(), key.read_bytes(), b""))
    contexts = server.tls.contexts
    assert contexts is not None
    as_member = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    as_member.load_verify_locations(served / "ca.crt")
    as_member.load_cert_chain(certificate, key)
    if uri == URI_OF_ORDERS:
        assert await who(client) == "orders"
        shake_hands(as_member, contexts.dialled, "localhost")
    else:
        with pytest.raises((RedisError, OSError)):
            await client.ping()
        with pytest.raises(ssl.SSLError, match="permitted subtree violation"):
            shake_hands(as_member, contexts.dialled, "localhost")


def test_the_documented_ca_of_clients_signs_no_servers(tmp_path: Path) -> None:
    """Clients that trust the root would take them for members."""
    make_own_ca(tmp_path)
    certificate, key = make_documented(tmp_path, usage="extendedKeyUsage = serverAuth")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(tmp_path / "own-ca.crt"))
    client.check_hostname = False
    with pytest.raises(ssl.SSLError, match="unsuitable certificate purpose"):
        shake_hands(client, served, "localhost")


async def test_acl_shows_the_certificate(show: Show) -> None:
    client = show(named(cn="till"))
    shown = await client.execute_command("ACL GETUSER", "shop")
    fields = dict(zip(shown[::2], shown[1::2], strict=True)) if isinstance(shown, list) else shown
    found = fields.get(b"certificate", fields.get("certificate"))
    assert found in (SHOP.certificate, SHOP.certificate.encode())


async def test_both_files_are_watched_and_taken_together(access: Access, show: Show, tmp_path: Path) -> None:
    def write(*users: UserEntry) -> None:
        files = encode_files(users)
        (tmp_path / "users").write_bytes(files.users)
        (tmp_path / CERTIFICATES_KEY).unlink(missing_ok=True)
        if files.certificates:
            (tmp_path / CERTIFICATES_KEY).write_bytes(files.certificates)

    file = UsersFile(access, str(tmp_path / "users"), lambda: ClientAuth.REQUIRED)
    write(OTHER)
    await file.look()
    with pytest.raises(AuthenticationError):
        await show(named(cn="till")).ping()
    write(OTHER, TILL)
    await file.look()
    assert access.file.digest == encode_files([OTHER, TILL]).digest
    client = show(named(cn="till"))
    assert await who(client) == "till"
    (tmp_path / CERTIFICATES_KEY).write_bytes(b"{")
    await file.look()
    assert "file of certificates" in access.file.problem
    assert await client.ping()
    write(OTHER)
    await file.look()
    assert (access.file.problem, access.file.digest) == ("", encode_files([OTHER]).digest)
    with pytest.raises(AuthenticationError):
        await show(named(cn="till")).ping()
