"""A cluster that is closed from its beginning: real members, whose Secrets a kubelet mounts and replaces."""

import asyncio
import base64
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis.asyncio
from aiohttp import web
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from e2e.bench import secured_rig
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.mounting import decoded, mount
from stele.adapters.kubernetes.api import (
    CLUSTERS,
    MEMBERS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SECRETS,
    USERS,
    Api,
)
from stele.adapters.pki.certificates import Names, Pair, sign_leaf
from stele.adapters.tls.identity import read_dialling
from stele.core.control.commands import OpId, SessionTablet
from stele.core.formats import SPOKEN
from stele.core.security.identity import Holder, Role
from stele.master.certificates import RENEW_CA
from stele.master.network_rules import names_of
from stele.model.security import LOWER_CLIENTS
from stele.wire import peer
from stele.wire.copy.jobs import SessionFile
from tests.cli.conftest import Ran, Run, run  # noqa: F401  (a fixture)
from tests.fakes.client_certificates import make_documented, make_own_ca
from tests.fakes.objects import body
from tests.fakes.pki import shared_ca
from tests.fakes.pod_proxy import forward_port
from tests.fakes.spec import OPEN
from tests.member.harness.callers import is_answered, is_let_in, is_welcome
from tests.operator.real_kubelet import NODE, RealKubelet
from tests.operator.test_operator import Operator, Stage, cluster, with_processes

pytestmark = pytest.mark.control_plane

MOUNT_SECONDS = 0.5
LOOK_SECONDS = 60.0
"""A kubelet looks at the Secrets of a pod so often, and when the pod changes."""


class MountingKubelet(RealKubelet):
    """Mounts the Secrets of pods, which may come and change later."""

    def __init__(self, *where: Any) -> None:
        super().__init__(*where)
        self._looked: dict[str, tuple[dict[str, str], float]] = {}

    async def __aenter__(self) -> "MountingKubelet":
        await super().__aenter__()
        self._mounting = asyncio.create_task(self._mount())
        return self

    async def __aexit__(self, *what: object) -> None:
        self._mounting.cancel()
        await super().__aexit__(*what)

    async def _start_pod(self, name: str, pod: dict[str, Any]) -> None:
        # The API server asks the kubelet of a pod's node for its ports.
        await self._bind(name)
        await super()._start_pod(name, pod)

    @contextlib.asynccontextmanager
    async def forwarding(self) -> AsyncIterator[None]:
        """Serve `portForward`, as a kubelet does."""

        async def forward(request: web.Request) -> web.WebSocketResponse:
            assert request.query["port"] == "7001"
            host = self.addresses[request.match_info["pod"]]
            return await forward_port(request, 7001, host, 7001)

        app = web.Application()
        app.router.add_get("/portForward/{namespace}/{pod}", forward)
        runner = web.AppRunner(app)
        await runner.setup()
        folder = shared_ca().leaf().write(self._directory / "kubelet")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        endpoint = {"kubeletEndpoint": {"Port": runner.addresses[0][1]}}
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
        status = {"addresses": addresses, "daemonEndpoints": endpoint}
        await self._api.patch_status(NODES, "", NODE, status)
        try:
            yield
        finally:
            await runner.cleanup()

    def secret_folder(self, name: str) -> Path:
        return self._directory / "secrets" / name

    def users_folder(self, pod: str) -> Path:
        return self.secret_folder(f"{pod}-users")

    def _environment(self, name: str, container: dict[str, Any]) -> dict[str, str]:
        return super()._environment(name, container) | {
            "STELE_TLS_DIR": str(self.secret_folder(f"{name}-tls")),
            "STELE_USERS_FILE": str(self.users_folder(name) / "users"),
        }

    async def _mount(self) -> None:
        while True:
            for pod in list(self._processes):
                if await self._looks(pod):
                    await self._mount_secret(f"{pod}-tls", self.secret_folder(f"{pod}-tls"))
                    await self._mount_secret("demo-users", self.users_folder(pod))
            await asyncio.sleep(MOUNT_SECONDS)

    async def _looks(self, pod: str) -> bool:
        """Return whether the pod's annotations have changed, or it is time."""
        stored = await self._api.find(PODS, self._namespace, pod)
        annotations = {} if stored is None else stored["metadata"].get("annotations", {})
        known, until = self._looked.get(pod, (None, 0.0))
        if annotations == known and time.monotonic() < until:
            return False
        self._looked[pod] = annotations, time.monotonic() + LOOK_SECONDS
        return True

    async def _mount_secret(self, name: str, folder: Path) -> None:
        stored = await self._api.find(SECRETS, self._namespace, name)
        if stored is not None:
            mount(folder, stored)


async def secret(stage: Stage, name: str) -> dict[str, bytes]:
    return decoded(await stage.api.get(SECRETS, stage.namespace, name))


async def is_closed(stage: Stage) -> bool:
    return secured_rig.is_closed((await stage.cluster()).get("status") or {})


async def is_ready(stage: Stage, user: str) -> bool:
    status = (await stage.api.get(USERS, stage.namespace, user)).get("status") or {}
    found = {each["type"]: each["status"] for each in status.get("conditions", [])}
    return found.get("Ready") == "True"


def client_of(host: str, ca: Path | None, password: str | None, **more: Any) -> redis.asyncio.Redis:
    if ca is not None:
        more |= {"ssl": True, "ssl_ca_certs": str(ca), "ssl_check_hostname": False}
    return redis.asyncio.Redis(host=host, port=6379, password=password, **more)


async def ping(host: str, ca: Path | None, password: str | None) -> bool:
    async with client_of(host, ca, password) as client:
        return bool(await client.ping())


async def count(client: redis.asyncio.Redis, over: asyncio.Event, key: str = "counted") -> int:
    number = 0
    while not over.is_set():
        number += 1
        assert await client.incr(key) == number
        await asyncio.sleep(0.02)
    return number


async def create_own_ca(api: Api, namespace: str, own: Path) -> None:
    """Create the Secret that a spec names as a CA of one's own, whose files are in `own`."""
    make_own_ca(own)
    data = {"tls.crt": "own-ca.crt", "tls.key": "own-ca.key"}
    coded = {key: base64.b64encode((own / name).read_bytes()).decode() for key, name in data.items()}
    meta = {"name": "demo-own-ca"}
    made = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": meta}
    await api.create(SECRETS, namespace, made | {"data": coded})


@pytest.fixture
def purge(control_plane: ControlPlane, namespace: str, run: Run) -> Callable[[], Ran]:  # noqa: F811
    """A command that changes something at a member."""
    where = ("--kubeconfig", str(control_plane.kubeconfig), "-n", namespace)
    return lambda: run("quarantine", "purge", "demo-0", "0/7", "--yes", *where)


async def test_a_cluster_is_closed_by_itself_and_its_ca_changes_under_load(
    api: Api, namespace: str, operator: Operator, tmp_path: Path, purge: Callable[[], Ran]
) -> None:
    kubelet = MountingKubelet(api, namespace, tmp_path)
    async with with_processes(api, namespace, operator, kubelet, 2, security={}) as stage:
        await stage.until("a closed cluster", lambda: is_closed(stage))
        ca, host = tmp_path / "ca.pem", next(iter(kubelet.addresses.values()))
        ca.write_bytes(before := (await secret(stage, "demo-ca-cert"))["ca.crt"])
        password = (await secret(stage, "demo-default-user"))["password"].decode()

        async def refuses_plain() -> bool:
            try:
                return not await ping(host, None, password)
            except RedisError:
                return True

        # Members hear of it with their next heartbeat.
        await stage.until("no connection without TLS", refuses_plain)
        for wrong in (None, "guess"):
            with pytest.raises(AuthenticationError):
                await ping(host, ca, wrong)

        async with client_of(host, ca, password) as client:
            over = asyncio.Event()
            counting = asyncio.create_task(count(client, over))
            await api.annotate(CLUSTERS, namespace, "demo", {RENEW_CA: "now"})

            async def changed() -> bool:
                shown = (await secret(stage, "demo-ca-cert"))["ca.crt"]
                return before not in shown and shown.count(b"BEGIN") == 1

            await stage.until("a new CA alone", changed)
            over.set()
            assert await counting > 50
        ca.write_bytes((await secret(stage, "demo-ca-cert"))["ca.crt"])
        for each in kubelet.addresses.values():
            async with client_of(each, ca, password) as client:
                assert int(await client.get("counted")) > 50
        assert await is_closed(stage)
        security = (await stage.cluster())["status"]["security"]
        assert (security["defaults"], security["members"]) == ("Closed", "Required")
        listed = await api.list(NETWORK_POLICIES, namespace)
        assert {each["metadata"]["name"] for each in listed} == set(names_of("demo"))
        async with kubelet.forwarding():
            ran = await asyncio.to_thread(purge)
            assert (ran.code, "already gone" in ran.out) == (0, True), ran.err
        uid = (await stage.cluster())["metadata"]["uid"]
        text = f'"who": "stele://{uid}/admin/admin", "method": "DELETE"'
        assert text in (tmp_path / "demo-0-member.log").read_text()
    assert "PRIVATE KEY" not in operator.log.read_text()
    assert password not in operator.log.read_text()


CUT_SECONDS_MAX = 5.0
SHOP = {"cluster": "demo", "password": {"generated": True}, "acl": ["+@all", "~orders:*"]}


async def test_a_declared_user_is_let_in_and_cut_off_when_it_is_deleted(
    api: Api, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    kubelet = MountingKubelet(api, namespace, tmp_path)
    needs_passwords = OPEN | {"clients": {"tls": "Off", "auth": "Required"}}
    async with with_processes(api, namespace, operator, kubelet, 2, security=needs_passwords) as stage:
        await api.create(USERS, namespace, body(USERS, "shop", SHOP))
        await stage.until("a user that all members know", lambda: is_ready(stage, "shop"))
        password = (await secret(stage, "shop-password"))["password"].decode()
        for host in kubelet.addresses.values():
            with pytest.raises(AuthenticationError):
                await redis.asyncio.Redis(host=host, username="shop", password="guess").ping()
            async with redis.asyncio.Redis(host=host, username="shop", password=password) as client:
                assert await client.set("orders:1", "x")
                with pytest.raises(NoPermissionError):
                    await client.get("secrets")

        host = next(iter(kubelet.addresses.values()))
        once = redis.asyncio.Connection(
            host=host, username="shop", password=password, retry=Retry(NoBackoff(), 0)
        )
        await once.connect()
        try:
            await once.send_command("GET", "orders:1")
            assert await once.read_response() == b"x"
            begun = time.monotonic()
            await api.delete(USERS, namespace, "shop", None)
            with pytest.raises(RedisError):
                await once.read_response(timeout=30)
            assert time.monotonic() - begun < CUT_SECONDS_MAX
        finally:
            await once.disconnect()
        with pytest.raises(AuthenticationError):
            await redis.asyncio.Redis(host=host, username="shop", password=password).ping()
    assert password not in operator.log.read_text()


ORDERS = {
    "cluster": "demo",
    "certificate": {"uri": "spiffe://shop.example.com/orders"},
    "acl": ["+@all", "~orders:*"],
}


@pytest.mark.long
async def test_a_client_is_a_user_by_the_certificate_that_the_page_shows_how_to_make(
    api: Api, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    await create_own_ca(api, namespace, own)
    certificate, key = make_documented(own)
    clients = {"tls": "Required", "clientCertificates": "Allow", "auth": "Required"}
    security = {"clients": clients, "members": {"tls": "Required"}, "ca": {"secretName": "demo-own-ca"}}
    kubelet = MountingKubelet(api, namespace, tmp_path)
    async with with_processes(api, namespace, operator, kubelet, 2, security=security) as stage:
        await api.create(USERS, namespace, body(USERS, "orders", ORDERS))

        async def is_known() -> bool:
            status = (await api.get(USERS, namespace, "orders")).get("status") or {}
            found = {each["type"]: each["message"] for each in status.get("conditions", [])}
            return found.get("Ready") == "all members know the user"

        await stage.until("a user that all members know", is_known)
        files = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
        for host in kubelet.addresses.values():
            async with client_of(host, own / "own-ca.crt", None, **files) as client:
                assert await client.set("orders:1", "x")
                assert await client.execute_command("ACL", "WHOAMI") == b"orders"
                with pytest.raises(NoPermissionError):
                    await client.get("secrets")
            with pytest.raises(AuthenticationError):
                await ping(host, own / "own-ca.crt", None)
        for pod in kubelet.addresses:
            assert b"orders" in (kubelet.users_folder(pod) / "certificates").read_bytes()
        host = next(iter(kubelet.addresses.values()))
        async with client_of(host, own / "own-ca.crt", None, **files).client() as client:
            assert await client.ping()
            assert client.connection is not None
            begun = time.monotonic()
            await api.delete(USERS, namespace, "orders", None)
            with pytest.raises(RedisError):
                await client.connection.read_response(timeout=30)
            assert time.monotonic() - begun < CUT_SECONDS_MAX


SESSION = SessionFile("abc", "secret", (SessionTablet(3, 1, OpId(1, 1), 10),))
OTHERS = ("other", "sibling")
"""A cluster with a CA of its own, and one whose certificates are signed by the same CA."""


async def shown(stage: Stage, name: str, role: Role, holder: str) -> ssl.SSLContext:
    """Show what the CA of a cluster signs for one of its parts, and trust that of the cluster `demo`."""
    found = await stage.api.get(CLUSTERS, stage.namespace, name)
    uri = Holder(found["metadata"]["uid"], role, holder).uri
    kept = await secret(stage, f"{name}-ca")
    pair = Pair(kept["tls.crt"], kept["tls.key"])
    leaf = sign_leaf(pair, Names(holder, (uri,), ("a.invalid",)), time.time(), 1)
    trusted = (await secret(stage, "demo-ca-cert"))["ca.crt"]
    return read_dialling(leaf.certificate, leaf.key, trusted)


async def mounted(stage: Stage, name: str) -> ssl.SSLContext:
    """Show the certificate of a Secret, and trust the CA of the cluster `demo`."""
    found, trusted = await secret(stage, name), (await secret(stage, "demo-ca-cert"))["ca.crt"]
    return read_dialling(found["tls.crt"], found["tls.key"], trusted)


async def taken(stage: Stage, host: str, hello: peer.Hello, name: str) -> dict[str, bool]:
    """Return what a member of the cluster `demo` takes from the cluster `name`."""
    own = await mounted(stage, "demo-1-tls" if name == "demo" else f"{name}-0-tls")
    same_name = await shown(stage, name, Role.MEMBER, "demo-1")
    master, admin = (
        await shown(stage, name, Role.MASTER, "operator"),
        await mounted(stage, f"{name}-admin-tls"),
    )
    password = (await secret(stage, f"{name}-default-user"))["password"].decode()
    ca = stage.operator.log.parent / "ca.pem"
    ca.write_bytes((await secret(stage, "demo-ca-cert"))["ca.crt"])
    stream = f"{host}:7002/v1/sessions/{SESSION.session}/partitions/9?generation=1"
    coming = {
        "hello": is_welcome(host, 7000, hello, own),
        "hello of the same name": is_welcome(host, 7000, hello, same_name),
        "exchange": is_answered(400, ("POST", f"{host}:7001/v1/exchange"), master),
        "data": is_answered(200, ("GET", f"{host}:7001/v1/digest?partition=0"), admin),
        # The session has no such partition, which takes the session's token to learn.
        "stream": is_answered(404, ("GET", stream), own, SESSION.token),
        "password": logs_in(host, ca, password),
    }
    return {what: await is_let_in(each) for what, each in coming.items()}


async def logs_in(host: str, ca: Path, password: str) -> bool:
    try:
        return await ping(host, ca, password)
    except AuthenticationError:
        return False


async def test_two_clusters_of_one_namespace_refuse_each_other(
    api: Api, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    await create_own_ca(api, namespace, tmp_path / "own")
    kubelet = MountingKubelet(api, namespace, tmp_path)
    kubelet.cannot_start = lambda pod: (
        None if pod["metadata"]["name"].startswith("demo-") else {"phase": "Pending"}
    )
    same_ca = {"ca": {"secretName": "demo-own-ca"}}
    async with with_processes(api, namespace, operator, kubelet, 2, security=same_ca) as stage:
        for name, security in zip(OTHERS, ({}, same_ca), strict=True):
            await api.create(CLUSTERS, namespace, cluster(name, 1, replicas=1, security=security))

        async def have_secrets() -> bool:
            made = [f"{name}-{what}" for name in OTHERS for what in ("0-tls", "admin-tls", "default-user")]
            return all([await api.find(SECRETS, namespace, each) for each in made])

        await stage.until("a closed cluster", lambda: is_closed(stage))
        await stage.until("Secrets of the other clusters", have_secrets)
        folder = kubelet.folder("demo-0") / "checkpoints" / SESSION.session
        folder.mkdir(parents=True)
        (folder / "session.json").write_bytes(msgspec.json.encode(SESSION))
        uids = [(await api.get(MEMBERS, namespace, f"demo-{n}"))["status"]["uuid"] for n in (1, 0)]
        uid = (await stage.cluster())["metadata"]["uid"]
        hello = peer.Hello(peer.GREETING_FORMAT, uid, 1, *uids, SPOKEN)
        found = {
            name: await taken(stage, kubelet.addresses["demo-0"], hello, name) for name in ("demo", *OTHERS)
        }
        assert found == {name: dict.fromkeys(each, name == "demo") for name, each in found.items()}


class Counting:
    """Clients that count, one at each member. They send nothing again: a connection that ends is an error."""

    def __init__(self, hosts: list[str], name: str, ca: Path | None = None, **login: str) -> None:
        once: dict[str, Any] = {"password": None, "retry": Retry(NoBackoff(), 0), **login}
        self._over, self._clients = asyncio.Event(), [client_of(host, ca, **once) for host in hosts]
        pairs = zip(self._clients, hosts, strict=True)
        counting = [count(client, self._over, f"orders:{name}-{host}") for client, host in pairs]
        self._tasks = [asyncio.create_task(each) for each in counting]

    async def end(self) -> None:
        """Raise an error that one of them saw."""
        self._over.set()
        try:
            assert min(await asyncio.gather(*self._tasks)) > 20
        finally:
            for client in self._clients:
                await client.aclose()


def asks_clients(**clients: str) -> dict[str, Any]:
    return {"clients": clients, "members": {"tls": "Required"}}


async def as_an_older_release_left_it(stage: Stage) -> None:
    """Have a cluster that is in use, without a word in its spec or status about what is closed."""
    assert await stage.operator.end() == 0
    await stage.api.patch_spec(CLUSTERS, stage.namespace, "demo", {"security": None})
    await stage.api.patch_status(CLUSTERS, stage.namespace, "demo", {"security": None})
    await stage.operator.start()


async def in_force(stage: Stage) -> dict[str, Any]:
    security = (await stage.cluster())["status"]["security"]
    return {name: security.get(name) for name in ("defaults", "members", "tls", "auth")}


async def secured(stage: Stage, status: str, message: str) -> None:
    """Wait until the condition says just this."""

    async def says() -> bool:
        found = await stage.cluster()
        conditions = {each["type"]: each for each in (found.get("status") or {}).get("conditions", [])}
        told = conditions.get("Secured", {})
        said.append(told.get("message", ""))
        seen = told.get("observedGeneration") == found["metadata"]["generation"]
        return seen and (told["status"], told["message"]) == (status, message)

    said: list[str] = []
    await stage.until(f"Secured {status}, {message!r}", says)


WITHOUT_TLS = "TLS among members is Off: who reaches port 7000 can pretend to be a member"
READABLE = "who reaches the ports of clients can read or write"
CLOSED = "clients need TLS and have to authenticate, and members use TLS"
KEPT = CLOSED + "".join(
    f"; {what} stays Required until the annotation stele.dev/lower-{name} is Off, too"
    for what, name in (
        ("spec.security.clients.tls", "client-tls"),
        ("spec.security.clients.auth", "client-auth"),
        ("TLS among members", "member-tls"),
    )
)


@pytest.mark.long
async def test_a_cluster_that_is_in_use_is_closed_step_by_step_without_an_error(
    api: Api, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    """The steps of docs/operating/security.md, "A cluster that is in use"."""
    kubelet = MountingKubelet(api, namespace, tmp_path)
    async with with_processes(api, namespace, operator, kubelet, 2, security=OPEN) as stage:
        await as_an_older_release_left_it(stage)
        pods = {each["metadata"]["name"]: each["metadata"]["uid"] for each in await api.list(PODS, namespace)}
        hosts, ca = list(kubelet.addresses.values()), tmp_path / "ca.pem"
        both = "spec.security.clients.tls is {} and spec.security.clients.auth is Off: " + READABLE
        await secured(stage, "False", f"{both.format('Off')}; {WITHOUT_TLS}")
        assert (await in_force(stage))["defaults"] == "Open"

        plain, late = Counting(hosts, "plain"), Counting(hosts, "late")
        await stage.change_spec(security={"members": {"tls": "Required"}})
        await secured(stage, "False", both.format("Off"))
        await stage.change_spec(security=asks_clients(tls="Optional"))
        await secured(stage, "False", both.format("Optional"))
        ca.write_bytes((await secret(stage, "demo-ca-cert"))["ca.crt"])
        nameless = Counting(hosts, "nameless", ca)
        await plain.end()
        await stage.change_spec(security=asks_clients(tls="Required"))
        await secured(stage, "False", f"spec.security.clients.auth is Off: {READABLE}")
        with pytest.raises(RedisError):  # That the others see no error is not for want of one.
            await late.end()

        await api.create(USERS, namespace, body(USERS, "shop", SHOP))
        await stage.until("a user that all members know", lambda: is_ready(stage, "shop"))
        password = (await secret(stage, "shop-password"))["password"].decode()
        named = Counting(hosts, "named", ca, username="shop", password=password)
        await nameless.end()
        closed = asks_clients(tls="Required", auth="Required")
        await stage.change_spec(security=closed)
        await secured(stage, "True", CLOSED)
        await stage.change_spec(security=closed | {"networkPolicy": {"enabled": True}})

        async def has_policies() -> bool:
            listed = await api.list(NETWORK_POLICIES, namespace)
            return {each["metadata"]["name"] for each in listed} == set(names_of("demo"))

        await stage.until("NetworkPolicies", has_policies)
        levels = await in_force(stage)
        assert list(levels.values()) == ["Open", "Required", "Required", "Required"]

        await api.patch_spec(CLUSTERS, namespace, "demo", {"security": None})
        await secured(stage, "True", KEPT)
        assert await in_force(stage) == levels
        for host in hosts:
            with pytest.raises(RedisError, match="this port takes only TLS connections"):
                await ping(host, None, password)
            with pytest.raises(AuthenticationError):
                await ping(host, ca, None)
        await named.end()
        listed = {
            each["metadata"]["name"]: each["metadata"]["uid"] for each in await api.list(PODS, namespace)
        }
        assert listed == pods

        await api.annotate(CLUSTERS, namespace, "demo", {LOWER_CLIENTS["auth"]: "Off"})

        async def is_lower() -> bool:
            return await in_force(stage) == levels | {"auth": "Off"}

        await stage.until("the level that the annotation is about falls", is_lower)
