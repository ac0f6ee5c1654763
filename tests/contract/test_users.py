"""Users of a cluster: TabletUsers, their passwords and the file of them, on either API server."""

import asyncio
import base64
from datetime import timedelta
from typing import Any

import pytest

from stele.adapters.kubernetes.api import EVENTS, PODS, SECRETS, USERS
from stele.core.kv.acl import PATTERNS_MAX
from stele.master import pod_refresh
from stele.master.pod_refresh import TIMES_MAX, USERS_FILE
from stele.master.tablet_users import report_without_cluster
from stele.master.user_passwords import LOOK_SECONDS, LOOKS_PER_ROUND_MAX, RENEW
from stele.model.security import LOWER_CLIENTS
from stele.wire.users import (
    Scrypt,
    UserEntry,
    UserFiles,
    decode_users,
    encode_users,
    generated_hash,
    read_hash,
)
from tests.contract.test_certificates import BOTH, Killed, Scene, asked_for
from tests.fakes.objects import body

RULES = ["+@read", "~orders:*"]
GENERATED = {"generated": True}


@pytest.fixture
async def scene(place: tuple[Any, str]) -> Scene:
    return Scene(*place)


PASSWORDS = {"security": {"clients": {"auth": "Required"}}}


def hash_in(file: bytes) -> str:
    (user,) = decode_users(file)
    assert (user.name, user.rules) == ("default", ("~*", "&*", "+@all"))
    return user.passwords[0]


async def test_a_password_is_generated_and_members_know_its_hash_only(scene: Scene) -> None:
    await scene.begin(**PASSWORDS)
    await scene.round(2)
    found = await scene.data("demo-default-user")
    assert (found["username"], len(found["password"])) == (b"default", 43)
    file = (await scene.data("demo-users"))["users"]
    assert hash_in(file) == generated_hash(found["password"])
    assert found["password"] not in file
    assert not await scene.exists("demo-ca")
    before = scene.api.writes
    scene.restart()
    await scene.round(3)
    assert scene.api.writes == before


async def test_passwords_are_asked_for_once_running_members_use_the_file(scene: Scene) -> None:
    await scene.begin()
    await scene.round(2)
    await scene.change(**PASSWORDS)
    await scene.round()
    assert scene.world.desired().auth is None
    status, reason, text = await scene.condition("Secured")
    assert (status, reason) == ("False", "WaitsForMembers")
    assert "these members have the file of users: demo-0, demo-1" in text
    await scene.load_users(1)
    await scene.round()
    assert scene.world.desired().auth is None
    assert (await scene.condition("Secured"))[2].endswith("these members have the file of users: demo-0")
    await scene.load_users(0)
    await scene.round(2)
    assert scene.world.desired().auth == "Required"
    assert (await scene.security())["auth"] == "Required"
    scene.restart()
    assert scene.world.desired().auth == "Required"


async def test_a_password_that_a_person_chose_is_hashed_slowly_and_always_the_same(scene: Scene) -> None:
    await scene.begin(**PASSWORDS)
    await scene.round()
    stored = await scene.secret("demo-default-user")
    chosen = {**stored, "data": stored["data"] | {"password": base64.b64encode(b"simple").decode()}}
    await scene.api._api.replace(SECRETS, scene.namespace, chosen)
    scene.now += timedelta(seconds=LOOK_SECONDS + 1)
    await scene.round()
    first = hash_in((await scene.data("demo-users"))["users"])
    checked = read_hash(first)
    assert isinstance(checked, Scrypt)
    assert checked.compute(b"simple") == checked.digest
    scene.restart()
    await scene.round()
    assert hash_in((await scene.data("demo-users"))["users"]) == first


@pytest.mark.parametrize("taken", ["demo-default-user", "demo-users"])
async def test_users_of_others_are_left_alone(scene: Scene, taken: str) -> None:
    theirs = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": taken}, "type": "Opaque"}
    stored = await scene.api._api.create(SECRETS, scene.namespace, theirs)
    await scene.begin_open(**PASSWORDS)
    await scene.round(3)
    assert await scene.secret(taken) == stored
    assert scene.world.desired().auth is None
    assert (await scene.condition("Stalled"))[:2] == ("True", "NameTaken")


@pytest.mark.parametrize("how", ["corrupt", "taken"])
async def test_unusable_users_do_not_keep_certificates_from_being_renewed(scene: Scene, how: str) -> None:
    await scene.begin(**BOTH)
    await scene.rounds_until_quiet()
    before = (await scene.data("demo-0-tls"))["tls.crt"]
    stored = await scene.secret("demo-default-user")
    if how == "corrupt":
        await scene.edit("demo-default-user", password=b"")
    else:
        gone = {**stored["metadata"], "ownerReferences": [], "labels": {}}
        await scene.api._api.replace(SECRETS, scene.namespace, {**stored, "metadata": gone})
    scene.now += timedelta(days=21)
    await scene.rounds_until_quiet()
    assert (await scene.data("demo-0-tls"))["tls.crt"] != before
    assert (await scene.condition("CertificatesHealthy"))[0] == "True"
    reason = "UsersUnusable" if how == "corrupt" else "NameTaken"
    assert (await scene.condition("Secured"))[:2] == ("False", reason)


async def test_a_file_of_users_that_people_wrote_is_used_as_it_is(scene: Scene) -> None:
    file = base64.b64encode(encode_users([])).decode()
    meta = {"name": "demo-users"}
    theirs = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": meta,
        "type": "Opaque",
        "data": {"users": file},
    }
    stored = await scene.api._api.create(SECRETS, scene.namespace, theirs)
    await scene.begin(**PASSWORDS)
    await scene.round(3)
    assert await scene.secret("demo-users") == stored
    assert not await scene.exists("demo-default-user")
    assert scene.world.desired().auth == "Required"
    assert (await scene.condition("Stalled"))[0] == "False"


SHOP = UserEntry("shop", (generated_hash(b"x" * 43),), ("+@read", "~shop:*"))


@pytest.mark.parametrize("edited", [encode_users([SHOP]), b'{"format": 1'], ids=["users", "damage"])
async def test_what_people_write_into_the_operators_file_is_taken_out(scene: Scene, edited: bytes) -> None:
    await scene.begin(**PASSWORDS)
    await scene.round(2)
    before = await scene.data("demo-users")
    await scene.edit("demo-users", users=edited)
    scene.now += timedelta(seconds=LOOK_SECONDS + 1)
    await scene.round(2)
    assert await scene.data("demo-users") == before
    assert (await scene.condition("Secured"))[1] != "UsersUnusable"


async def test_the_level_waits_for_a_file_of_people_that_members_can_read(scene: Scene) -> None:
    meta = {"name": "demo-users"}
    data = {"users": base64.b64encode(b"{").decode()}
    theirs = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "data": data}
    await scene.api._api.create(SECRETS, scene.namespace, theirs)
    await scene.begin_open(**PASSWORDS)
    await scene.round(2)
    assert scene.world.desired().auth is None
    status, reason, text = await scene.condition("Secured")
    assert (status, reason) == ("False", "UsersUnusable")
    assert "Secret demo-users: file of users" in text
    await scene.edit("demo-users", users=encode_users([SHOP]))
    scene.now += timedelta(seconds=LOOK_SECONDS + 1)
    await scene.round(2)
    assert scene.world.desired().auth is None
    assert (await scene.condition("Secured"))[:2] == ("False", "WaitsForMembers")
    await scene.load_users(0, 1)
    await scene.round(2)
    assert scene.world.desired().auth == "Required"


async def test_a_member_that_cannot_read_its_users_is_said(scene: Scene) -> None:
    await scene.begin(**BOTH)
    await scene.rounds_until_quiet()
    await scene.round()
    assert (await scene.condition("Secured"))[1] == "NotAsked", "TLS among members is not asked for"
    scene.report(1, users_problem="file of users: not JSON")
    await scene.round()
    status, reason, text = await scene.condition("Secured")
    assert (status, reason) == ("False", "UsersUnusable")
    assert text == "demo-1 cannot read its file of users, and keeps those of before: file of users: not JSON"
    assert scene.world.desired().auth == "Required"


# -- TabletUsers


async def declare(scene: Scene, name: str, /, **spec: Any) -> None:
    given = {"cluster": "demo", "enabled": True, "password": GENERATED, "acl": RULES} | spec
    made = body(USERS, name, {key: value for key, value in given.items() if value is not None})
    scene.cache.put(USERS, await scene.api.create(USERS, scene.namespace, made))


async def change(scene: Scene, name: str, annotations: dict[str, str] | None = None, /, **spec: Any) -> None:
    stored = await scene.api.get(USERS, scene.namespace, name)
    meta = stored["metadata"] | ({} if annotations is None else {"annotations": annotations})
    given = {key: value for key, value in (stored["spec"] | spec).items() if value is not None}
    changed = {**stored, "metadata": meta, "spec": given}
    scene.cache.put(USERS, await scene.api.replace(USERS, scene.namespace, changed))


async def delete(scene: Scene, name: str) -> None:
    stored = await scene.api.get(USERS, scene.namespace, name)
    await scene.api.delete(USERS, scene.namespace, name, None)
    scene.cache.remove(USERS, stored)


async def keep_secret(scene: Scene, name: str, **data: bytes) -> None:
    coded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "Opaque", "data": coded}
    await scene.api._api.create(SECRETS, scene.namespace, made)


async def users_of(scene: Scene) -> dict[str, UserEntry]:
    found = await scene.data("demo-users")
    return {each.name: each for each in decode_users(found["users"], found.get("certificates", b""))}


async def judged(scene: Scene, name: str) -> tuple[str, str, str]:
    """The condition that is True, its reason and its text."""
    status = (await scene.api.get(USERS, scene.namespace, name))["status"]
    (found,) = (each for each in status["conditions"] if each["status"] == "True")
    return found["type"], found["reason"], found["message"]


async def later(scene: Scene, rounds: int = 2) -> None:
    """Passwords are looked at again."""
    for _ in range(rounds):
        scene.now += timedelta(seconds=LOOK_SECONDS + 1)
        await scene.round()


async def test_a_user_is_declared_known_to_members_and_deleted(scene: Scene) -> None:
    await scene.begin(**PASSWORDS)
    await declare(scene, "shop", keyspaces=["shop"], limits={"connections": 7, "bytesPerSecond": "2Mi"})
    await scene.round(2)
    found = await scene.data("shop-password")
    assert (found["username"], len(found["password"])) == (b"shop", 43)
    file = (await scene.data("demo-users"))["users"]
    assert found["password"] not in file
    users = await users_of(scene)
    hashes = (generated_hash(found["password"]),)
    assert users["shop"] == UserEntry("shop", hashes, tuple(RULES), ("shop",), True, 7, 2 * 1024 * 1024)
    assert set(users) == {"default", "shop"}
    stored = await scene.api.get(USERS, scene.namespace, "shop")
    (owner,) = (await scene.secret("shop-password"))["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("TabletUser", stored["metadata"]["uid"])
    assert (await judged(scene, "shop"))[:2] == ("Reconciling", "WaitsForMembers")
    await scene.load_users(0, 1)
    await scene.round()
    assert (await judged(scene, "shop"))[:2] == ("Ready", "AsDesired")
    status = (await scene.api.get(USERS, scene.namespace, "shop"))["status"]
    assert (status["user"], status["secret"]) == ("shop", "shop-password")
    assert status["members"] == {"total": 2, "current": 2}
    await declare(scene, "other")
    await scene.round(2)
    assert (await judged(scene, "shop"))[:2] == ("Ready", "AsDesired"), "nothing of it has changed"
    assert "demo-0, demo-1" in (await judged(scene, "other"))[2]
    await delete(scene, "shop")
    await scene.round()
    assert set(await users_of(scene)) == {"default", "other"}


async def with_pods(scene: Scene) -> None:
    """Two members run, with the file of users that there is."""
    await scene.begin(**PASSWORDS)
    await scene.round(2)
    await scene.load_users(0, 1)
    await scene.round()


async def asked(scene: Scene, index: int) -> str:
    """What the kubelet of a member's pod was asked for."""
    return await asked_for(scene, f"demo-{index}", USERS_FILE)


async def digest(scene: Scene) -> str:
    found = await scene.data("demo-users")
    return UserFiles(found["users"], found.get("certificates", b"")).digest


async def test_kubelets_are_asked_at_once_for_a_new_file_and_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_refresh, "REPEAT_SECONDS", 0.5)
    await with_pods(scene)
    assert [await asked(scene, each) for each in (0, 1)] == ["", ""]
    await declare(scene, "shop")
    await scene.round()
    wanted = await digest(scene)
    assert [await asked(scene, each) for each in (0, 1)] == [f"{wanted} 1"] * 2
    before = await scene.api.get(PODS, scene.namespace, "demo-0")
    await scene.round(2)
    assert await scene.api.get(PODS, scene.namespace, "demo-0") == before, "it had no time yet"
    await scene.load_users(0)
    for _ in range(TIMES_MAX + 2):
        await asyncio.sleep(0.5)
        await scene.round()
    assert [await asked(scene, each) for each in (0, 1)] == [f"{wanted} 1", f"{wanted} {TIMES_MAX}"]
    await scene.load_users(1)
    await delete(scene, "shop")
    await scene.round()
    assert [await asked(scene, each) for each in (0, 1)] == [f"{await digest(scene)} 1"] * 2


async def test_another_operator_goes_on_asking_kubelets(scene: Scene) -> None:
    await with_pods(scene)
    await declare(scene, "shop")
    for times in range(1, TIMES_MAX + 2):
        await scene.round(2)
        assert await asked(scene, 0) == f"{await digest(scene)} {min(times, TIMES_MAX)}"
        scene.restart()


@pytest.mark.parametrize("written", ["nonsense", "{} ", "{} -1", "{} 99", "{} ٣"])
async def test_what_people_write_at_a_pod_keeps_no_user(scene: Scene, written: str) -> None:
    await with_pods(scene)
    await declare(scene, "shop")
    await scene.round()
    pod = await scene.api.get(PODS, scene.namespace, "demo-0")
    meta = pod["metadata"]
    annotations = meta["annotations"] | {USERS_FILE: written.format(await digest(scene))}
    changed = {**pod, "metadata": meta | {"annotations": annotations}}
    scene.cache.put(PODS, await scene.api.replace(PODS, scene.namespace, changed))
    scene.restart()
    await scene.round(2)
    assert await asked(scene, 0) == f"{await digest(scene)} 1"


async def test_a_pod_that_changed_meanwhile_is_asked_in_the_next_round(scene: Scene) -> None:
    await with_pods(scene)
    pod = await scene.api.get(PODS, scene.namespace, "demo-0")
    changed = {**pod, "metadata": pod["metadata"] | {"labels": pod["metadata"]["labels"] | {"team": "x"}}}
    stored = await scene.api.replace(PODS, scene.namespace, changed)
    await declare(scene, "shop")
    await scene.round()
    assert await asked(scene, 0) == ""
    assert await asked(scene, 1) != ""
    scene.cache.put(PODS, stored)
    await scene.round()
    assert await asked(scene, 0) == f"{await digest(scene)} 1"
    found = await scene.api.get(PODS, scene.namespace, "demo-0")
    assert found["metadata"]["labels"]["team"] == "x"


async def test_two_passwords_are_valid_while_one_is_changed(scene: Scene) -> None:
    await scene.begin(**PASSWORDS)
    await declare(scene, "shop")
    await scene.round(2)
    old = (await scene.data("shop-password"))["password"]
    await change(scene, "shop", {RENEW: "today"})
    await scene.round()
    found = await scene.data("shop-password")
    assert (found["previousPassword"], found["username"]) == (old, b"shop")
    assert found["password"] != old
    both = (generated_hash(found["password"]), generated_hash(old))
    assert (await users_of(scene))["shop"].passwords == both
    scene.restart()
    await later(scene)
    assert await scene.data("shop-password") == found, "asked for once"
    stored = await scene.secret("shop-password")
    del stored["data"]["previousPassword"]
    await scene.api._api.replace(SECRETS, scene.namespace, stored)
    await later(scene)
    assert (await users_of(scene))["shop"].passwords == both[:1]


async def test_a_password_of_a_person_is_hashed_slowly_and_stays_while_its_secret_is_gone(
    scene: Scene,
) -> None:
    """Whatever its length: nobody knows whether it is random."""
    await scene.begin(**PASSWORDS)
    await declare(scene, "shop", password={"secretRef": {"name": "mine"}})
    await scene.round(2)
    kind, reason, text = await judged(scene, "shop")
    assert (kind, reason) == ("Stalled", "PasswordUnusable")
    assert "spec.password.secretRef.name is mine" in text
    assert (await users_of(scene))["shop"].passwords == ()
    await keep_secret(scene, "mine", password=b"x" * 50, previousPassword=b"simple")
    await later(scene)
    checked = [read_hash(each) for each in (await users_of(scene))["shop"].passwords]
    for password, each in zip((b"x" * 50, b"simple"), checked, strict=True):
        assert isinstance(each, Scrypt)
        assert each.compute(password) == each.digest
    before = await users_of(scene)
    await scene.api._api.delete(SECRETS, scene.namespace, "mine", None)
    scene.restart()
    await change(scene, "shop", acl=["+get", "~orders:*"])
    await later(scene)
    after = await users_of(scene)
    assert (after["shop"].passwords, after["shop"].rules) == (before["shop"].passwords, ("+get", "~orders:*"))
    assert (await judged(scene, "shop"))[:2] == ("Stalled", "PasswordUnusable")
    await keep_secret(scene, "mine", password=b"")
    await later(scene)
    assert "mine: password has 0 bytes; expected 1 to 1024" in (await judged(scene, "shop"))[2]


WRONG = [
    (
        {"certificate": {"commonName": "a\u0007"}},
        "spec.certificate: 'cn:a\\x07'; expected uri: and a URI of at most 512",
    ),
    ({"acl": ["+@read", "+nothing"]}, "spec.acl: Error in ACL rule '+nothing': Unknown command or category"),
    ({"acl": [">hunter22pw"]}, "spec.acl: Error in ACL rule '>...': passwords are no rules"),
    ({"keyspaces": ["Shop"]}, "spec.keyspaces: keyspace is 'Shop'; expected 1 to 63 of a-z"),
]


@pytest.mark.parametrize(("spec", "expected"), WRONG)
async def test_wrong_rights_are_said_and_those_of_before_stay(
    scene: Scene, caplog: pytest.LogCaptureFixture, spec: dict[str, Any], expected: str
) -> None:
    caplog.set_level("DEBUG", "stele")
    await scene.begin(**PASSWORDS)
    await declare(scene, "shop")
    await scene.round(2)
    before = (await users_of(scene))["shop"]
    await change(scene, "shop", **spec)
    await scene.round()
    kind, reason, text = await judged(scene, "shop")
    assert (kind, reason) == ("Stalled", "InvalidResource")
    assert text.startswith(expected)
    status = (await scene.api.get(USERS, scene.namespace, "shop"))["status"]
    events = await scene.api._api.list(EVENTS, scene.namespace)
    assert "hunter22pw" not in f"{status} {events} {caplog.text}"
    assert "correct it with kubectl edit" in text
    assert (await users_of(scene))["shop"] == before
    await change(scene, "shop", enabled=False)
    await scene.round()
    assert not (await users_of(scene))["shop"].active


async def test_an_object_of_a_later_version_keeps_its_user(scene: Scene) -> None:
    await scene.begin(**PASSWORDS)
    await declare(scene, "shop")
    await scene.round(2)
    before = await users_of(scene)
    stored = scene.cache.get(USERS, scene.namespace, "shop")
    assert stored is not None
    version = {"resourceVersion": str(int(stored["metadata"]["resourceVersion"]) + 1)}
    spec = stored["spec"] | {"password": {"vault": "x"}, "acl": {"roles": ["reader"]}}
    scene.cache.put(USERS, {**stored, "metadata": stored["metadata"] | version, "spec": spec})
    scene.restart()
    await scene.round()
    assert await users_of(scene) == before


async def test_of_two_that_declare_one_user_the_older_one_counts(scene: Scene) -> None:
    await scene.begin(**PASSWORDS)
    await declare(scene, "a", name="shop")
    await declare(scene, "b", name="shop", acl=["+@all"])
    await scene.round(2)
    assert (await users_of(scene))["shop"].rules == tuple(RULES)
    kind, reason, text = await judged(scene, "b")
    assert (kind, reason) == ("Stalled", "AlreadyDeclared")
    assert text == "TabletUser a, which is older, declares shop already: delete one of the two"


URI, OTHER_URI = "spiffe://example.com/shop", "spiffe://example.com/other"


async def test_a_user_has_a_certificate_and_perhaps_a_password(scene: Scene) -> None:
    """Members that do not know certificates read the file of users, and let nobody in by one."""
    await scene.begin(**PASSWORDS)
    await declare(scene, "shop", password=None, certificate={"uri": URI})
    await declare(scene, "till", certificate={"commonName": "Till 7"})
    await scene.round(2)
    users = await users_of(scene)
    assert (users["shop"].passwords, users["shop"].certificate) == ((), f"uri:{URI}")
    assert (len(users["till"].passwords), users["till"].certificate) == (1, "cn:Till 7")
    assert users["shop"].active
    assert not await scene.exists("shop-password")
    found = await scene.data("demo-users")
    assert (set(found), b"certificate" in found["users"]) == ({"users", "certificates"}, False)
    waits = (await judged(scene, "shop"))[2]
    await scene.load_users(0, files=UserFiles(found["users"]))
    await scene.load_users(1)
    await scene.round()
    assert (await judged(scene, "shop"))[2] == waits.replace("demo-0, demo-1", "demo-0")
    await scene.load_users(0)
    await scene.round()
    kind, reason, text = await judged(scene, "shop")
    assert (kind, reason) == ("Ready", "AsDesired")
    assert text.endswith("clientCertificates is Ignore, so nobody logs in by its certificate")
    status = (await scene.api.get(USERS, scene.namespace, "shop"))["status"]
    assert (status["user"], status["secret"]) == ("shop", "")
    clients = {"tls": "Required", "clientCertificates": "Allow", "auth": "Required"}
    await scene.change(security={"clients": clients})
    await scene.rounds_until_quiet()
    await scene.load_users(0, 1)
    await scene.round()
    assert (await judged(scene, "shop"))[2] == "all members know the user"
    before = scene.api.writes
    scene.restart()
    await scene.round(3)
    assert scene.api.writes == before
    await delete(scene, "till")
    await change(scene, "shop", password=GENERATED, certificate=None)
    await scene.round(2)
    assert set(await scene.data("demo-users")) == {"users"}
    assert len((await users_of(scene))["shop"].passwords) == 1


async def test_of_two_with_one_certificate_the_older_one_has_it(scene: Scene) -> None:
    """The other one keeps its password and rights: only the certificate is not its own."""
    await scene.begin(**PASSWORDS)
    await declare(scene, "a", certificate={"uri": URI})
    await declare(scene, "b", certificate={"uri": OTHER_URI})
    await scene.round(2)
    await change(scene, "b", certificate={"uri": URI}, acl=["+get"])
    await scene.round(2)
    users = await users_of(scene)
    assert [users[name].certificate for name in ("a", "b")] == [f"uri:{URI}", ""]
    assert (users["b"].rules, len(users["b"].passwords)) == (("+get",), 1)
    kind, reason, text = await judged(scene, "b")
    assert (kind, reason) == ("Stalled", "AlreadyDeclared")
    assert text == (
        f"TabletUser a, which is older, has the certificate with URI {URI!r} already: change spec.certificate"
        " of one of the two; until then this user has none"
    )
    await change(scene, "a", certificate={"commonName": "a"})
    await scene.round(2)
    users = await users_of(scene)
    assert [users[name].certificate for name in ("a", "b")] == ["cn:a", f"uri:{URI}"]
    assert (await judged(scene, "b"))[0] == "Reconciling"


async def test_a_declared_default_replaces_the_generated_one(scene: Scene) -> None:
    await scene.begin(**PASSWORDS)
    await declare(scene, "default", enabled=False)
    await scene.round(2)
    (only,) = (await users_of(scene)).values()
    assert (only.name, only.active, only.rules) == ("default", False, tuple(RULES))
    assert not await scene.exists("demo-default-user")
    await delete(scene, "default")
    await scene.round()
    assert (await users_of(scene))["default"].rules == ("~*", "&*", "+@all")


async def test_users_are_there_before_passwords_are_asked_for(scene: Scene) -> None:
    """Then `default` is not: a client that sends any password as that one is let in, as before."""
    await scene.begin()
    await scene.round(2)
    assert scene.api.writes == 0
    await declare(scene, "shop")
    await scene.round(2)
    assert set(await users_of(scene)) == {"shop"}
    assert scene.world.desired().auth == "Off"
    await scene.change(**PASSWORDS)
    await scene.round(2)
    assert set(await users_of(scene)) == {"default", "shop"}
    assert scene.world.desired().auth is None
    await scene.change(security={}, annotations={LOWER_CLIENTS["auth"]: "Off"})
    await delete(scene, "shop")
    await scene.round(2)
    assert set(await users_of(scene)) == {"default"}


async def test_the_operator_ends_at_any_write_and_no_user_loses_its_password(place: tuple[Any, str]) -> None:
    scene = Scene(*place)
    await scene.begin(**PASSWORDS)
    number = LOOKS_PER_ROUND_MAX + 3
    for each in range(number):
        await declare(scene, f"user-{each}")
    passwords = dict[str, bytes]()
    for before in (True, False):
        for _ in range(number + 6):
            scene.api.kill_at, scene.api.before = scene.api.writes + 2, before
            try:
                await scene.round()
            except Killed:
                scene.restart()
            scene.api.kill_at = -1
            for name in [f"user-{each}" for each in range(number)]:
                if await scene.exists(f"{name}-password"):
                    found = (await scene.data(f"{name}-password"))["password"]
                    assert passwords.setdefault(name, found) == found
            if await scene.exists("demo-users"):
                for name, user in (await users_of(scene)).items():
                    assert name == "default" or user.passwords == (generated_hash(passwords[name]),)
    assert len(await users_of(scene)) == number + 1
    writes = scene.api.writes
    scene.restart()
    await scene.round(3)
    assert scene.api.writes == writes


async def test_secrets_of_others_are_left_alone_by_users_too(scene: Scene) -> None:
    await scene.begin(**PASSWORDS)
    await keep_secret(scene, "shop-password", password=b"theirs")
    before = await scene.secret("shop-password")
    await declare(scene, "shop")
    await scene.round(2)
    assert (await judged(scene, "shop"))[:2] == ("Stalled", "NameTaken")
    assert await scene.secret("shop-password") == before
    assert (await users_of(scene))["shop"].passwords == ()


async def test_a_file_of_people_is_not_mixed_with_declared_users(scene: Scene) -> None:
    await keep_secret(scene, "demo-users", users=encode_users([SHOP]))
    await scene.begin(**PASSWORDS)
    await declare(scene, "other")
    await scene.round(2)
    kind, reason, text = await judged(scene, "other")
    assert (kind, reason) == ("Stalled", "NameTaken")
    assert "Secret demo-users was not made by the operator" in text
    assert await users_of(scene) == {"shop": SHOP}


async def test_users_without_the_right_to_secrets_or_a_cluster_are_said(scene: Scene) -> None:
    scene.api.refuses = True
    await scene.begin()
    await declare(scene, "shop")
    await declare(scene, "astray", cluster="other")
    await scene.round(2)
    kind, reason, text = await judged(scene, "shop")
    assert (kind, reason) == ("Stalled", "NoSecretRights")
    assert f"kubectl -n {scene.namespace} create rolebinding" in text
    await report_without_cluster(scene.api, scene.cache, scene.now)  # type: ignore[arg-type]
    assert (await judged(scene, "astray"))[:2] == ("Stalled", "ClusterNotFound")


async def test_more_users_than_fit_are_refused_and_the_older_ones_stay(scene: Scene) -> None:
    await scene.begin(**PASSWORDS)
    rules = [f"~{number:03}{'x' * 250}" for number in range(PATTERNS_MAX)]
    for number in range(60):
        await declare(scene, f"user-{number:02}", acl=rules)
    for _ in range(60 // LOOKS_PER_ROUND_MAX + 2):
        await scene.round()
    users = await users_of(scene)
    assert 30 < len(users) < 60
    assert "user-00" in users
    assert "default" in users
    kind, reason, text = await judged(scene, "user-59")
    assert (kind, reason) == ("Stalled", "TooManyUsers")
    assert "use fewer rules" in text
