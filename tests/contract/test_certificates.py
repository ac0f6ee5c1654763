"""The CA and the certificates of a cluster in Secrets, on either API server, also when the operator ends."""

import base64
import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from stele.adapters.kubernetes.api import CLUSTERS, MEMBERS, PODS, SECRETS, NotFound
from stele.adapters.pki.certificates import canonical_host, is_signed_by, read_certificate
from stele.core.control.commands import ExchangeReply
from stele.core.control.failure_detector import MemberLiveness, MemberObject
from stele.core.control.member_tls import WantedTls
from stele.core.control.state import State
from stele.core.security.level import InternalTls
from stele.core.table.table import Member, Partition, PartitionTable
from stele.errors import Conflict, Refused, SteleError, Unavailable, Uncertain
from stele.master.cache import Cache
from stele.master.certificates import RENEW_CA
from stele.master.desired import LOWER_MEMBER_TLS
from stele.master.kept_secrets import REQUESTS_PER_ROUND_MAX
from stele.master.kubernetes import KubernetesClusterObjects
from stele.master.pod_refresh import CERTIFICATE_FILE
from stele.master.settings import Settings
from stele.model import TabletCluster
from stele.model.security import LOWER_CLIENTS
from stele.wire.identity import identity_digest
from stele.wire.users import UserFiles
from tests.fakes.fused_api import FusedApi, Killed
from tests.fakes.objects import body
from tests.fakes.pki import edited
from tests.fakes.spec import opened

NOON = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
SETTINGS = Settings("member:1", "spark:1", ("shop",), "stele", "test")
SPEC = {
    "members": 2,
    "replicas": 2,
    "partitions": 2,
    "storage": {"size": "1Gi"},
    "migration": {"engine": "Direct"},
}
TLS = {"security": {"clients": {"tls": "Required"}}}
NAMES = ("demo-ca", "demo-ca-cert", "demo-0-tls", "demo-1-tls")


class Fused(FusedApi):
    """Counts writes of Secrets, and refuses to show any where it `refuses`."""

    def __init__(self, api: Any) -> None:
        super().__init__(api, (SECRETS,))
        self.refuses = False

    async def find(self, kind: Any, *rest: Any) -> Any:
        if kind is SECRETS and self.refuses:
            raise Refused("GET secrets: 403 forbidden", "FORBIDDEN")
        return await self._api.find(kind, *rest)


class Scene:
    """A cluster of two members, which load what is in their Secrets when `load` says so."""

    def __init__(self, api: Any, namespace: str) -> None:
        self.api, self.namespace, self.now = Fused(api), namespace, NOON
        self.cache = Cache(lambda _kind, _stored: None)
        entries = {i: Member(i, f"demo-{i}", f"uuid-{i}", "10.0.0.1") for i in (0, 1)}
        table = PartitionTable((Partition(1, (0, 1)), Partition(1, (1, 0))), entries)
        self.state = State(1, table, 1, 2, 0.0, recovered=True)
        for index, entry in entries.items():
            liveness = self.state.membership.liveness[index] = MemberLiveness(
                index, 0.0, answered_seconds=1.0
            )
            liveness.member_object = MemberObject(index, entry.name)
        self.reads: dict[str, tuple[bytes, bytes]] = {}

    async def begin(self, **spec: Any) -> None:
        await self.create(opened(SPEC | spec))

    async def create(self, spec: dict[str, Any], status: dict[str, Any] | None = None) -> None:
        stored = await self.api.create(CLUSTERS, self.namespace, body(CLUSTERS, "demo", spec))
        if status is not None:
            await self.api.patch_status(CLUSTERS, self.namespace, "demo", status)
            stored = await self.api.get(CLUSTERS, self.namespace, "demo")
        self.cache.put(CLUSTERS, stored)
        self.restart()

    async def begin_open(self, **spec: Any) -> None:
        """A cluster that clients use already asks for more."""
        await self.begin()
        await self.round(2)
        await self.change(**spec)

    def restart(self) -> None:
        """Another process takes over, which remembers nothing."""
        stored = self.cache.get(CLUSTERS, self.namespace, "demo")
        found = TabletCluster.read(stored)
        assert isinstance(found, TabletCluster)
        self.world = KubernetesClusterObjects(
            self.api,  # type: ignore[arg-type]
            self.cache,
            SETTINGS,
            found,
            lambda _seconds: self.now,
        )

    async def round(self, times: int = 1) -> None:
        for _ in range(times):
            self.world.refresh()
            self.world.member_objects()
            await self.world.ensure_shared()
            for index in (0, 1):
                await self.world.ensure_member(index)
            self.world.member_objects()
            await self.world.write_status(self.state, 1.0)

    async def rounds_until_quiet(self) -> None:
        quiet = 0
        for _ in range(20):
            before = self.api.writes
            await self.round()
            await self.load()
            quiet = quiet + 1 if before == self.api.writes else 0
            if quiet == 2:
                return
        raise AssertionError("it never comes to rest")

    async def secret(self, name: str) -> dict[str, Any]:
        found = await self.api._api.find(SECRETS, self.namespace, name)
        assert found is not None, name
        return dict(found)

    async def data(self, name: str) -> dict[str, bytes]:
        found = (await self.secret(name)).get("data", {}).items()
        return {key: base64.b64decode(value) for key, value in found}

    async def edit(self, name: str, **data: bytes) -> None:
        """Somebody writes other values into a Secret; keys have "_" where the Secret has a dot."""
        stored = await self.secret(name)
        coded = {key.replace("_", "."): base64.b64encode(value).decode() for key, value in data.items()}
        changed = {**stored, "data": stored.get("data", {}) | coded}
        await self.api._api.replace(SECRETS, self.namespace, changed)

    async def exists(self, name: str) -> bool:
        return await self.api._api.find(SECRETS, self.namespace, name) is not None

    async def load(self, *indexes: int) -> None:
        """Members read what the kubelet has mounted, and report it."""
        for index in indexes or (0, 1):
            found = await self.data(f"demo-{index}-tls")
            pair = self.reads[f"demo-{index}"] = found["tls.crt"], found["ca.crt"]
            self.report(index, identity=identity_digest(*pair))
            if await self.exists("demo-users"):
                await self.load_users(index)

    async def load_users(self, *indexes: int, files: UserFiles | None = None) -> None:
        """The same of their users; these `files`, if a member reads others."""
        found = await self.data("demo-users")
        used = files or UserFiles(found["users"], found.get("certificates", b""))
        for index in indexes:
            self.report(index, users=used.digest, users_problem="")

    async def remove_pod(self, name: str) -> None:
        """What is to be deleted is gone."""
        stored = self.cache.get(PODS, self.namespace, name)
        assert stored is not None
        with contextlib.suppress(NotFound):
            await self.api._api.delete(PODS, self.namespace, name, None, grace_seconds=0)
        self.cache.remove(PODS, stored)

    def report(self, index: int, **facts: str) -> None:
        liveness = self.state.membership.liveness[index]
        before = liveness.report or ExchangeReply("OK", "", f"uuid-{index}", "c", 1, 1, 0, 1)
        liveness.report = msgspec.structs.replace(before, **facts)

    def reach(self, level: InternalTls) -> None:
        """The head has that level, which each member reports."""
        self.state.tls.restore([level])
        self.state.tls.stored()
        for index in (0, 1):
            self.report(index, member_tls=level)

    def check_trust(self) -> None:
        """Each member takes the certificate that every other shows, and master and members each other's."""
        for shown, _ in self.reads.values():
            for _, trusted in self.reads.values():
                assert any(is_signed_by(shown, each) for each in split(trusted))
        master = self.world.master_certificate
        if master.context is not None:
            for shown, trusted in self.reads.values():
                assert any(is_signed_by(shown, each) for each in split(master._made_of[1]))
                assert any(is_signed_by(master._leaf.certificate, each) for each in split(trusted))

    async def change(self, *, annotations: dict[str, str] | None = None, **spec: Any) -> None:
        stored = await self.api.get(CLUSTERS, self.namespace, "demo")
        meta = {**stored["metadata"], "annotations": annotations or {}}
        changed = {**stored, "metadata": meta, "spec": opened({**stored["spec"], **spec})}
        self.cache.put(CLUSTERS, await self.api.replace(CLUSTERS, self.namespace, changed))

    async def condition(self, type_: str) -> tuple[str, str, str]:
        status = (await self.api.get(CLUSTERS, self.namespace, "demo"))["status"]
        found = next(each for each in status["conditions"] if each["type"] == type_)
        return found["status"], found["reason"], found["message"]

    async def security(self) -> dict[str, Any]:
        status = (await self.api.get(CLUSTERS, self.namespace, "demo"))["status"]
        return dict(status.get("security") or {})

    @property
    def told(self) -> str | None:
        return self.world.desired().member_settings.client_tls


async def asked_for(scene: Scene, pod: str, annotation: str) -> str:
    """What the pod's kubelet was asked for."""
    stored = await scene.api.get(PODS, scene.namespace, pod)
    return str(stored["metadata"]["annotations"].get(annotation, ""))


def split(bundle: bytes) -> list[bytes]:
    end = b"-----END CERTIFICATE-----\n"
    return [each + end for each in bundle.split(end) if each]


@pytest.fixture
async def scene(place: tuple[Any, str]) -> Scene:
    return Scene(*place)


async def test_kubelets_are_asked_at_once_for_new_certificates(scene: Scene) -> None:
    await scene.begin(**TLS)
    await scene.rounds_until_quiet()
    before = [await asked_for(scene, f"demo-{each}", CERTIFICATE_FILE) for each in (0, 1)]
    scene.now += timedelta(days=21)
    await scene.round(2)
    for index in (0, 1):
        found = await scene.data(f"demo-{index}-tls")
        wanted = identity_digest(found["tls.crt"], found["ca.crt"])
        asked = await asked_for(scene, f"demo-{index}", CERTIFICATE_FILE)
        assert (asked, asked != before[index]) == (f"{wanted} 1", True)
    await scene.load(0)
    after = await asked_for(scene, "demo-0", CERTIFICATE_FILE)
    await scene.round(2)
    assert await asked_for(scene, "demo-0", CERTIFICATE_FILE) == after


async def test_a_cluster_that_asks_for_nothing_has_no_secrets(scene: Scene) -> None:
    await scene.begin()
    await scene.round(3)
    assert scene.api.writes == 0
    assert scene.told == "Off"
    assert (await scene.condition("Secured"))[:2] == ("False", "NotAsked")


async def test_a_cluster_that_says_nothing_is_closed_from_its_first_round_on(scene: Scene) -> None:
    await scene.create(SPEC)
    assert scene.told == "Required"
    desired = scene.world.desired()
    assert (desired.auth, desired.member_tls) == ("Required", WantedTls(InternalTls.REQUIRED))
    await scene.round(2)
    assert (await scene.security())["defaults"] == "Closed"
    await scene.load()
    scene.restart()
    await scene.round(2)
    assert scene.told == "Required"
    await scene.change(security={"clients": {}})
    assert scene.told == "Required", "what is left out opens nothing"


async def test_one_that_is_in_use_and_says_nothing_stays_as_it_was(scene: Scene) -> None:
    await scene.create(SPEC, {"versionSum": 7})
    await scene.round(2)
    assert scene.api.writes == 0
    for _ in range(2):
        scene.restart()
        assert (scene.told, scene.world.desired().auth) == ("Off", "Off")
        assert scene.world.desired().member_tls == WantedTls(InternalTls.OFF)
        await scene.round(2)
    assert (await scene.security())["defaults"] == "Open"
    assert (await scene.condition("Secured"))[:2] == ("False", "NotAsked")


async def test_the_level_rises_once_every_member_uses_its_certificate(scene: Scene) -> None:
    await scene.begin_open(**TLS)
    await scene.round(2)
    assert all([await scene.exists(name) for name in NAMES])
    assert scene.told is None
    status, reason, text = await scene.condition("Secured")
    assert (status, reason) == ("False", "WaitsForMembers")
    assert "demo-0, demo-1" in text
    await scene.load(0)
    await scene.round()
    assert scene.told is None
    await scene.load(1)
    await scene.round(2)
    assert scene.told == "Required"
    in_force = await scene.security()
    assert in_force.pop("daysLeft") in (29, 30)
    assert in_force == {
        "defaults": "Closed",
        "tls": "Required",
        "clientCertificates": "Ignore",
        "auth": "Off",
        "members": "Off",
    }
    assert (await scene.condition("CertificatesHealthy"))[0] == "True"
    status, reason, text = await scene.condition("Secured")
    assert (status, reason) == ("False", "NotAsked")
    assert "spec.security.clients.auth is Off" in text


AMONG = {"security": {"members": {"tls": "Required"}}}


async def test_tls_among_members_is_wanted_once_each_uses_its_certificate(scene: Scene) -> None:
    await scene.begin_open(**AMONG)
    await scene.round(2)
    assert scene.world.desired().member_tls == WantedTls(None)
    assert (await scene.condition("Secured"))[1] == "WaitsForMembers"
    await scene.load()
    await scene.round()
    assert scene.world.desired().member_tls == WantedTls(InternalTls.REQUIRED)
    scene.restart()
    assert scene.world.desired().member_tls == WantedTls(None), "a new process knows of no certificate"
    await scene.round(2)
    assert scene.world.desired().member_tls == WantedTls(InternalTls.REQUIRED)
    assert (await scene.condition("CertificatesHealthy"))[0] == "True"
    assert not await scene.exists("demo-admin-tls")
    scene.reach(InternalTls.DIAL)
    scene.report(1, member_tls=InternalTls.ACCEPT)
    await scene.round(2)
    admin = (await scene.data("demo-admin-tls"))["tls.crt"]
    uid = scene.world.cluster().volumes_uid
    assert read_certificate(admin).uris == (f"stele://{uid}/admin/admin",)
    assert (await scene.security())["members"] == "Dial"
    assert (await scene.condition("Secured"))[2].endswith(
        "TLS among members is Dial and waits: demo-1 have not reported it"
    )


async def copier(scene: Scene) -> tuple[bool, str]:
    """Whether the copier's pod has a certificate, and where it takes jobs, once it is ready."""
    ready = {"podIP": "10.0.0.9", "conditions": [{"type": "Ready", "status": "True"}]}
    await scene.api._api.patch_status(PODS, scene.namespace, "demo-copier", ready)
    stored = await scene.api.get(PODS, scene.namespace, "demo-copier")
    scene.cache.put(PODS, stored)
    mounted = [each.get("secret", {}).get("secretName") for each in stored["spec"]["volumes"]]
    return "demo-copier-tls" in mounted, scene.world.copier_url()


async def test_a_copier_takes_tls_alone_where_members_take_it(scene: Scene) -> None:
    await scene.begin(migration={"engine": "Spark"})
    await scene.round(2)
    assert await copier(scene) == (False, "http://10.0.0.9:7010")
    await scene.change(**AMONG)
    await scene.round(2)
    await scene.load()
    await scene.round()
    scene.reach(InternalTls.DIAL)
    assert await copier(scene) == (False, ""), "no job goes to one without TLS"
    await scene.round()
    uid = scene.world.cluster().volumes_uid
    made = read_certificate((await scene.data("demo-copier-tls"))["tls.crt"])
    assert made.uris == (f"stele://{uid}/copier/demo-copier",)
    await scene.remove_pod("demo-copier")
    await scene.round()
    assert await copier(scene) == (True, "https://10.0.0.9:7010")
    scene.now += timedelta(days=21)
    await scene.rounds_until_quiet()
    assert read_certificate((await scene.data("demo-copier-tls"))["tls.crt"]) != made, "it is renewed"


async def test_tls_among_members_falls_with_the_spec_and_the_annotation_together(scene: Scene) -> None:
    await scene.begin(security={"members": {"tls": "Required", "graceExpired": False}})
    await scene.rounds_until_quiet()
    scene.reach(InternalTls.REQUIRED)
    assert scene.world.desired().member_settings.grace_expired is False
    await scene.change(security={})
    await scene.round(2)
    assert scene.world.desired().member_tls == WantedTls(InternalTls.OFF)
    assert scene.world.desired().member_settings.grace_expired is True
    text = "; TLS among members stays Required until the annotation stele.dev/lower-member-tls is Off, too"
    assert (await scene.condition("Secured"))[2].endswith(text)
    assert (await scene.condition("CertificatesHealthy"))[0] == "True"
    before = (await scene.data("demo-0-tls"))["tls.crt"]
    scene.restart()
    scene.now += timedelta(days=21)
    admin = (await scene.data("demo-admin-tls"))["tls.crt"]
    await scene.rounds_until_quiet()
    assert (await scene.data("demo-0-tls"))["tls.crt"] != before, "certificates in use are renewed"
    assert (await scene.data("demo-admin-tls"))["tls.crt"] != admin
    await scene.change(annotations={LOWER_MEMBER_TLS: "Off"})
    await scene.round()
    assert scene.world.desired().member_tls == WantedTls(InternalTls.OFF, may_fall=True)
    assert "stays Required" not in (await scene.condition("Secured"))[2]


async def test_a_member_that_refuses_plain_requests_has_certificates_made(scene: Scene) -> None:
    """Its volume has a level that neither head nor spec knows of."""
    await scene.begin()
    await scene.round(2)
    assert scene.api.writes == 0
    scene.world.master_certificate.want(is_wanted=True)
    await scene.round(2)
    assert scene.world.master_certificate.context is not None
    assert all([await scene.exists(name) for name in NAMES])
    assert not await scene.exists("demo-admin-tls")
    await scene.load()
    scene.check_trust()


BOTH = {"security": {"clients": {"tls": "Required", "clientCertificates": "Require", "auth": "Required"}}}


LEVELS = [
    ("tls", "Off", "tls stays Required until the annotation stele.dev/lower-client-tls is Off, too"),
    (
        "tls",
        "Optional",
        "tls stays Required until the annotation stele.dev/lower-client-tls is Opt",
    ),
    ("clientCertificates", "Allow", "stele.dev/lower-client-certificates is Allow, too"),
    ("auth", "Off", "auth stays Required until the annotation stele.dev/lower-client-auth is Off, too"),
]


@pytest.mark.parametrize(("name", "level", "text"), LEVELS, ids=lambda each: each)
async def test_what_clients_must_bring_falls_with_the_spec_and_an_annotation_together(
    scene: Scene, name: str, level: str, text: str
) -> None:
    await scene.begin(**BOTH)
    await scene.rounds_until_quiet()
    await scene.round()

    def told() -> tuple[str | None, ...]:
        found = scene.world.desired().member_settings
        return found.client_tls, found.client_certificates, found.auth

    def fallen() -> tuple[str | None, ...]:
        changed = {"tls": "Required", "clientCertificates": "Require", "auth": "Required", name: level}
        if changed["tls"] == "Off":
            changed["clientCertificates"] = "Ignore"
        return tuple(changed.values())

    clients = dict(BOTH["security"]["clients"]) | {name: level}
    if clients["tls"] == "Off":
        del clients["clientCertificates"]
    wrong = {LOWER_CLIENTS["tls" if name == "auth" else "auth"]: level, "stele.dev/paused": "false"}
    await scene.change(security={"clients": clients}, annotations=wrong)
    await scene.round(2)
    assert told() == ("Required", "Require", "Required")
    assert text in (await scene.condition("Secured"))[2]
    scene.restart()
    await scene.round()
    assert told() == ("Required", "Require", "Required")
    field = {"clientCertificates": "client_certificates"}.get(name, name)
    await scene.change(annotations={LOWER_CLIENTS[field]: level})
    await scene.round(2)
    assert told() == fallen()
    assert text not in (await scene.condition("Secured"))[2]


@pytest.mark.parametrize("refuses", [False, True], ids=["with rights", "without rights"])
async def test_a_new_cluster_is_closed_from_its_first_message_on(scene: Scene, refuses: bool) -> None:
    scene.api.refuses = refuses
    await scene.begin(**BOTH)

    def check() -> None:
        told = scene.world.desired().member_settings
        assert (told.client_tls, told.client_certificates, told.auth) == ("Required", "Require", "Required")

    check()
    await scene.round(3)
    check()
    status, reason, _ = await scene.condition("Secured")
    assert (status, reason) == ("False", "NoSecretRights" if refuses else "WaitsForMembers")
    scene.restart()
    check()
    await scene.round()
    check()
    if not refuses:
        await scene.rounds_until_quiet()
        await scene.round()
        status, reason, text = await scene.condition("Secured")
        assert (status, reason) == ("False", "NotAsked")
        assert "TLS among members is Off: who reaches port 7000" in text
        scene.reach(InternalTls.REQUIRED)
        await scene.round()
        assert (await scene.condition("Secured"))[0] == "True"


async def test_a_level_that_was_reached_stays_for_a_new_master_and_a_renewed_certificate(
    scene: Scene,
) -> None:
    await scene.begin(**TLS)
    await scene.rounds_until_quiet()
    await scene.round()
    assert scene.told == "Required"
    scene.restart()
    assert scene.told == "Required"
    for liveness in scene.state.membership.liveness.values():
        liveness.report = None
    await scene.round()
    assert scene.told == "Required"
    await scene.change(security={"clients": {"tls": "Off"}}, annotations={LOWER_CLIENTS["tls"]: "Off"})
    await scene.round()
    assert scene.told == "Off"
    assert await scene.exists("demo-ca")


async def test_secrets_say_whose_they_are_and_only_the_ca_has_its_key(scene: Scene) -> None:
    await scene.begin(**TLS)
    await scene.rounds_until_quiet()
    uid = scene.world.cluster_uid
    for name in NAMES:
        found = await scene.secret(name)
        assert found["metadata"]["labels"]["stele.dev/cluster-uid"] == uid
        owner = found["metadata"]["ownerReferences"][0]
        kind = "TabletMember" if name.endswith("-tls") else "TabletCluster"
        assert owner["kind"] == kind
        if kind == "TabletMember":
            member = await scene.api.get(MEMBERS, scene.namespace, name.removesuffix("-tls"))
            assert owner["uid"] == member["metadata"]["uid"]
    assert set(await scene.data("demo-ca")) == {"tls.crt", "tls.key"}
    assert set(await scene.data("demo-ca-cert")) == {"ca.crt"}
    leaf = await scene.data("demo-0-tls")
    assert set(leaf) == {"tls.crt", "tls.key", "ca.crt"}
    facts = read_certificate(leaf["tls.crt"])
    assert facts.uris == (f"stele://{uid}/member/demo-0",)
    assert facts.hosts[:3] == ("demo", f"demo.{scene.namespace}", f"demo.{scene.namespace}.svc")
    assert f"demo-0.demo-members.{scene.namespace}.svc" in facts.hosts
    assert f"demo-0.member.{uid}.stele.invalid" in facts.hosts
    assert "localhost" in facts.hosts
    assert leaf["ca.crt"] == (await scene.data("demo-ca-cert"))["ca.crt"]


async def test_a_certificate_is_renewed_after_two_thirds_of_its_life_and_when_it_was_broken(
    scene: Scene,
) -> None:
    await scene.begin(**TLS)
    await scene.rounds_until_quiet()
    before = await scene.data("demo-0-tls")
    scene.now += timedelta(days=19)
    await scene.rounds_until_quiet()
    assert await scene.data("demo-0-tls") == before
    scene.now += timedelta(days=2)
    await scene.rounds_until_quiet()
    renewed = await scene.data("demo-0-tls")
    assert renewed["tls.crt"] != before["tls.crt"]
    assert renewed["ca.crt"] == before["ca.crt"]
    assert (await scene.condition("CertificatesHealthy"))[0] == "True"
    stored = await scene.secret("demo-1-tls")
    broken = {**stored, "data": stored["data"] | {"tls.crt": base64.b64encode(b"x").decode()}}
    await scene.api._api.replace(SECRETS, scene.namespace, broken)
    scene.now += timedelta(hours=1)
    await scene.rounds_until_quiet()
    assert read_certificate((await scene.data("demo-1-tls"))["tls.crt"]).uris


@pytest.mark.parametrize("before", [True, False], ids=["before the write", "after the write"])
async def test_the_operator_ends_at_any_write_and_the_next_one_goes_on(
    place: tuple[Any, str], before: bool
) -> None:
    """From nothing to certificates, then through a whole change of the CA: one kill at each write in turn."""
    scene = Scene(*place)
    await scene.begin(**TLS)
    scene.api.before = before
    kills = 0
    for asked in ("", "1"):
        if asked:
            await scene.change(annotations={RENEW_CA: asked})
        for _ in range(60):
            scene.api.kill_at = scene.api.writes + 1 + before
            try:
                await scene.round()
            except Killed:
                kills += 1
                scene.restart()
            scene.api.kill_at = -1
            for index in (0, 1):
                if await scene.exists(f"demo-{index}-tls") and kills % 2 == index:
                    await scene.load(index)
            scene.check_trust()
        await scene.rounds_until_quiet()
        scene.check_trust()
    ca = await scene.data("demo-ca")
    assert set(ca) == {"tls.crt", "tls.key"}
    for index in (0, 1):
        leaf = await scene.data(f"demo-{index}-tls")
        assert is_signed_by(leaf["tls.crt"], ca["tls.crt"])
        assert leaf["ca.crt"] == ca["tls.crt"]
    assert kills >= (5 if before else 8), kills


async def test_a_changed_ca_is_another_one_and_waits_for_each_member(scene: Scene) -> None:
    await scene.begin(**TLS)
    await scene.rounds_until_quiet()
    first = (await scene.data("demo-ca"))["tls.crt"]
    await scene.change(annotations={RENEW_CA: "today"})
    for _ in range(8):
        await scene.round()
        await scene.load(0)
        scene.check_trust()
    both = (await scene.data("demo-ca-cert"))["ca.crt"]
    assert len(split(both)) == 2
    assert is_signed_by((await scene.data("demo-0-tls"))["tls.crt"], first)
    assert "the CA changes" in (await scene.condition("CertificatesHealthy"))[2]
    await scene.rounds_until_quiet()
    await scene.rounds_until_quiet()
    last = (await scene.data("demo-ca"))["tls.crt"]
    assert last != first
    assert (await scene.data("demo-ca-cert"))["ca.crt"] == last
    assert not is_signed_by((await scene.data("demo-1-tls"))["tls.crt"], first)
    assert scene.told == "Required"


@pytest.mark.parametrize("taken", NAMES)
async def test_a_secret_of_others_is_left_alone_and_said(scene: Scene, taken: str) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": taken, "labels": {"app": "other"}},
        "type": "Opaque",
        "data": {"password": "aHVzaA=="},
    }
    stored = await scene.api._api.create(SECRETS, scene.namespace, theirs)
    await scene.begin_open(**TLS)
    await scene.round(3)
    assert await scene.secret(taken) == stored
    assert (await scene.condition("CertificatesHealthy"))[:2] == ("False", "NameTaken")
    status, reason, text = await scene.condition("Stalled")
    assert (status, reason) == ("True", "NameTaken")
    assert f"Secret {taken}" in text
    assert scene.told is None


async def test_a_ca_that_others_broke_is_not_replaced(scene: Scene) -> None:
    await scene.begin(**TLS)
    await scene.rounds_until_quiet()
    await scene.round()
    stored = await scene.secret("demo-ca")
    other = base64.b64encode((await scene.data("demo-0-tls"))["tls.key"]).decode()
    broken = await scene.api._api.replace(
        SECRETS, scene.namespace, {**stored, "data": stored["data"] | {"tls.key": other}}
    )
    scene.restart()
    await scene.round(2)
    assert (await scene.secret("demo-ca"))["data"] == broken["data"]
    status, reason, text = await scene.condition("CertificatesHealthy")
    assert (status, reason) == ("False", "CertificateUnusable")
    assert "restore it" in text
    assert scene.told == "Required"


async def test_a_deleted_ca_stays_trusted_until_members_use_the_new_one(scene: Scene) -> None:
    await scene.begin(**TLS)
    await scene.rounds_until_quiet()
    stored, before = await scene.secret("demo-ca"), await scene.data("demo-ca")
    await scene.api._api.delete(SECRETS, scene.namespace, "demo-ca", stored["metadata"]["uid"])
    scene.now += timedelta(seconds=301)
    await scene.round()
    new = (await scene.data("demo-ca"))["tls.crt"]
    scene.check_trust()
    assert new != before["tls.crt"]
    assert (await scene.data("demo-ca-cert"))["ca.crt"] == new + before["tls.crt"]
    assert (await scene.data("demo-0-tls"))["ca.crt"] == new + before["tls.crt"]
    await scene.rounds_until_quiet()
    assert (await scene.data("demo-ca-cert"))["ca.crt"] == new


@pytest.mark.parametrize("what", ["version", "curve", "extension"])
async def test_a_member_certificate_that_no_library_knows_is_made_again(scene: Scene, what: str) -> None:
    await scene.begin(**TLS)
    await scene.rounds_until_quiet()
    await scene.edit("demo-0-tls", tls_crt=edited((await scene.data("demo-0-tls"))["tls.crt"], what))
    scene.restart()
    await scene.rounds_until_quiet()
    assert read_certificate((await scene.data("demo-0-tls"))["tls.crt"]).uris


@pytest.mark.parametrize("what", ["version", "curve"])
async def test_a_ca_that_no_library_knows_ends_nothing(scene: Scene, what: str) -> None:
    await scene.begin(**TLS)
    await scene.rounds_until_quiet()
    await scene.edit("demo-ca", tls_crt=edited((await scene.data("demo-ca"))["tls.crt"], what))
    scene.restart()
    await scene.round(2)
    assert (await scene.condition("CertificatesHealthy"))[:2] == ("False", "CertificateUnusable")


async def test_a_ca_that_has_ended_ends_nothing_and_is_said(scene: Scene) -> None:
    await scene.begin(**TLS)
    await scene.rounds_until_quiet()
    scene.now += timedelta(days=5 * 365, hours=2)
    await scene.round(2)
    status, reason, text = await scene.condition("CertificatesHealthy")
    assert (status, reason) == ("False", "CertificateUnusable")
    assert "its certificate ended at 20" in text
    assert scene.told == "Required"


@pytest.mark.parametrize("host", ["2001:DB8:0:0::1", "::ffff:10.0.0.1", "10.0.0.1", "shop.example.com"])
async def test_a_certificate_is_made_once_whatever_form_the_announced_host_has(
    scene: Scene, host: str
) -> None:
    announce = {"host": host, "portStep": 10}
    await scene.begin(**TLS, resp={"cluster": {"announce": announce}})
    await scene.rounds_until_quiet()
    hosts = read_certificate((await scene.data("demo-0-tls"))["tls.crt"]).hosts
    assert canonical_host(host) == hosts[-1]


async def test_a_certificate_that_ends_with_its_ca_is_not_made_again_and_again(scene: Scene) -> None:
    await scene.begin(**TLS)
    await scene.rounds_until_quiet()
    ends = read_certificate((await scene.data("demo-ca"))["tls.crt"]).ends
    await scene.load(0)
    scene.state.membership.liveness[1].report = None
    scene.now = datetime.fromtimestamp(ends, UTC) - timedelta(minutes=20)
    await scene.round(3)
    before = scene.api.writes
    await scene.round(3)
    assert scene.api.writes == before


async def test_without_the_right_pods_start_and_the_command_is_said(scene: Scene) -> None:
    scene.api.refuses = True
    await scene.begin_open(**TLS)
    await scene.round(3)
    assert scene.told is None
    for type_ in ("Secured", "CertificatesHealthy"):
        status, reason, text = await scene.condition(type_)
        assert (status, reason) == ("False", "NoSecretRights")
        assert f"kubectl -n {scene.namespace} create rolebinding" in text
        assert "--serviceaccount=stele:stele-operator" in text


async def test_another_writer_wins_and_the_next_round_goes_on(scene: Scene) -> None:
    await scene.begin(**TLS)
    await scene.rounds_until_quiet()
    stored = await scene.secret("demo-0-tls")
    marked = {**stored, "metadata": {**stored["metadata"], "annotations": {"a": "b"}}}
    await scene.api._api.replace(SECRETS, scene.namespace, marked)
    scene.now += timedelta(days=21)
    kept = scene.world._security._certificates._secrets
    kept._known = {name: (secret, scene.now.timestamp()) for name, (secret, _) in kept._known.items()}
    await scene.round()
    await scene.rounds_until_quiet()
    found = await scene.secret("demo-0-tls")
    assert found["metadata"]["annotations"]["a"] == "b"
    assert found["data"]["tls.crt"] != stored["data"]["tls.crt"]


async def test_an_unknown_outcome_is_read_again(scene: Scene) -> None:
    await scene.begin(**TLS)
    real = scene.api._api.create

    async def uncertain(kind: Any, *rest: Any) -> Any:
        done = await real(kind, *rest)
        if kind is SECRETS:
            raise Uncertain("POST secrets: no answer")
        return done

    scene.api.create = uncertain  # type: ignore[method-assign]
    for _ in range(8):
        try:
            await scene.round()
        except (Uncertain, Conflict):
            continue
    await scene.load()
    await scene.round()
    assert is_signed_by((await scene.data("demo-1-tls"))["tls.crt"], (await scene.data("demo-ca"))["tls.crt"])


async def test_a_deleted_secret_is_made_again_where_it_was_to_be_replaced(scene: Scene) -> None:
    await scene.begin(**TLS)
    await scene.rounds_until_quiet()
    stored = await scene.secret("demo-0-tls")
    scene.now += timedelta(days=21)
    kept = scene.world._security._certificates._secrets
    kept._known = {name: (secret, scene.now.timestamp()) for name, (secret, _) in kept._known.items()}
    await scene.api._api.delete(SECRETS, scene.namespace, "demo-0-tls", stored["metadata"]["uid"])
    with contextlib.suppress(NotFound):
        await scene.round()
    await scene.round()
    assert (await scene.secret("demo-0-tls"))["metadata"]["uid"] != stored["metadata"]["uid"]


@pytest.mark.parametrize("kind", [Uncertain, Unavailable, NotFound])
async def test_nothing_waits_for_secrets_that_cannot_be_read(scene: Scene, kind: type[SteleError]) -> None:
    """Pods are made, and what else a round does is done."""

    async def fail(found: Any, *rest: Any) -> Any:
        if found is SECRETS:
            raise kind("GET secrets: no answer")
        return await scene.api._api.find(found, *rest)

    await scene.begin(**BOTH)
    scene.api.find = fail  # type: ignore[method-assign]
    done: list[str] = []
    for name in ("_ensure_keyspaces", "_revisions.note"):
        owner, _, method = name.rpartition(".")
        target: Any = getattr(scene.world, owner) if owner else scene.world

        async def noted(*_: Any, name: str = name) -> None:
            done.append(name)

        setattr(target, method, noted)
    with contextlib.suppress(kind):
        await scene.world.ensure_shared()
    assert done == ["_revisions.note", "_ensure_keyspaces"]
    for _ in range(2):
        await scene.world.ensure_member(0)
        for listed in (MEMBERS, PODS):
            stored = await scene.api.find(listed, scene.namespace, "demo-0")
            scene.cache.put(listed, stored)
    assert stored is not None


@pytest.mark.parametrize("reached", [None, *InternalTls])
async def test_a_pod_is_told_the_level_of_its_cluster_and_in_a_new_one_what_it_asks_for(
    scene: Scene, reached: InternalTls | None
) -> None:
    """A new member knows no epoch to compare with: it takes no plain exchange where others take none."""
    await scene.begin(security={"members": {"tls": "Required"}})
    scene.world.desired()
    index, expected = 0, InternalTls.REQUIRED
    if reached is not None:
        await scene.round()
        stored = await scene.api.get(CLUSTERS, scene.namespace, "demo")
        scene.cache.put(CLUSTERS, stored)
        scene.world.refresh()
        scene.world.desired()
        scene.state.tls.level = scene.state.tls.coming = expected = reached
        index = 3
    await scene.world.ensure_member(index)
    pod = await scene.api.get(PODS, scene.namespace, f"demo-{index}")
    for container in pod["spec"]["containers"]:
        named = {each["name"]: each.get("value") for each in container["env"]}
        assert named["STELE_FIRST_MEMBER_TLS"] == expected.value


def test_a_round_delays_no_heartbeat() -> None:
    assert REQUESTS_PER_ROUND_MAX * 2 <= 64
