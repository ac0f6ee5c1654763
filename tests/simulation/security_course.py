"""TLS among members while levels rise and fall, leaves are renewed and the CA changes: who could dial whom.

The master's and the members' code decides: `master.certificates`, `master.master_certificate`, the step of
`core.control.decide`, `member.replication.member_tls`. Secrets, files and connections are simulated: an
identity is a leaf, who signed it, and the CAs that its holder trusts, and a connection is refused as TLS
would. A seed chooses what happens next: a round of the master, which may end before or after any write, a
look of the kubelet or of a member at its files, an exchange, a crash, a member that nobody reaches or that
joins, time that passes, a user who asks for another level or a new CA.

After each of these, every two members that reach each other could connect, and so could the master. A member
at Required takes nothing plain.
"""

import asyncio
import base64
import copy
from dataclasses import dataclass
from email.utils import formatdate
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any

from stele.adapters.kubernetes.api import AlreadyExists
from stele.adapters.kubernetes.secret_store import SecretStore
from stele.adapters.pki.certificates import is_signed_by, read_certificate
from stele.core.control import decide
from stele.core.control.member_settings import MemberSettings
from stele.core.control.member_tls import MemberTls as Levels
from stele.core.control.member_tls import WantedTls
from stele.core.formats import MEMBER_TLS
from stele.core.security.identity import Role
from stele.core.security.level import InternalTls
from stele.core.security.rotation import DAY
from stele.errors import Conflict
from stele.master.authority import NEXT_CERTIFICATE, OLD_CERTIFICATE, ca_name
from stele.master.certificates import RENEW_CA, Certificates
from stele.master.kept_secrets import KeptSecrets
from stele.master.master_certificate import MasterCertificate
from stele.master.secret_volumes import tls_name
from stele.member.replication.member_tls import MemberTls, Start
from stele.model import TabletCluster, TabletMember
from stele.wire.identity import identity_digest
from stele.wire.storage.volume import MemberSecurity

UID, NAME, NAMESPACE = "11111111-2222-3333-4444-555555555555", "demo", "default"
BEGAN = 1_800_000_000.0
MEMBERS, MEMBERS_MAX = 3, 5
PASSING_DAYS_MAX = 2.0
"""How long passes between two events at most: a certificate has ten days left when it is renewed."""

CA_STEPS = {
    (False, False): "one CA",
    (True, False): "a next CA",
    (False, True): "a new CA beside the old one",
}

Object = dict[str, Any]


class Killed(BaseException):
    """The master's process ends here: nothing of it catches this."""


class CutOffError(AssertionError):
    """Somebody who should be able to connect is not, or somebody who should not be is."""


class Secrets:
    """An API server that has Secrets alone. The master's process ends at a write while `kill` is not None:
    before it, or after it was done."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.version = 0
        self.writes_left: int | None = None
        self.kill_after = False

    async def find(self, kind: Any, namespace: str, name: str) -> Object | None:
        return copy.deepcopy(self.objects.get(name))

    async def create(self, kind: Any, namespace: str, body: Object) -> Object:
        name = body["metadata"]["name"]
        if name in self.objects:
            raise AlreadyExists(name)
        return self._write(name, body | {"metadata": body["metadata"] | {"uid": f"u-{name}"}})

    async def replace(self, kind: Any, namespace: str, body: Object) -> Object:
        meta = body["metadata"]
        if self.objects[meta["name"]]["metadata"]["resourceVersion"] != meta["resourceVersion"]:
            raise Conflict(f"{meta['name']} has changed")
        return self._write(meta["name"], body)

    def _write(self, name: str, body: Object) -> Object:
        dies = self.writes_left == 0
        if self.writes_left is not None:
            self.writes_left -= 1
        if dies and not self.kill_after:
            raise Killed
        self.version += 1
        self.objects[name] = copy.deepcopy(body)
        self.objects[name]["metadata"]["resourceVersion"] = str(self.version)
        if dies:
            raise Killed
        return copy.deepcopy(self.objects[name])


@dataclass(frozen=True)
class Files:
    """What a folder has, and what is known of it: a leaf, PEM, and the CAs that are trusted beside it."""

    leaf: bytes
    trusted: bytes

    @property
    def digest(self) -> str:
        return identity_digest(self.leaf, self.trusted)


def split(bundle: bytes) -> frozenset[bytes]:
    end = b"-----END CERTIFICATE-----\n"
    return frozenset(part + end for part in bundle.split(end) if part.strip())


@cache
def signers(leaf: bytes, trusted: bytes) -> frozenset[bytes]:
    """The CAs among those that are trusted by which a leaf is verified."""
    return frozenset(ca for ca in split(trusted) if is_signed_by(leaf, ca))


@cache
def shown(leaf: bytes) -> Object:
    """A leaf as `ssl.SSLObject.getpeercert` has it, as far as it is looked at."""
    facts = read_certificate(leaf)
    names = tuple(("URI", uri) for uri in facts.uris)
    return {"subjectAltName": names, "notBefore": _text(facts.begins), "notAfter": _text(facts.ends)}


def _text(seconds: float) -> str:
    day, month, year, clock, _ = formatdate(seconds, usegmt=True).split()[1:]
    return f"{month} {int(day):2d} {clock} {year} GMT"


class Identity:
    """Of a member's process: the files that it has read; it implements what `MemberTls` needs of one."""

    def __init__(self) -> None:
        self.files: Files | None = None
        self.problem = "not read yet"

    @property
    def contexts(self) -> Any:
        found = self.files
        return None if found is None else SimpleNamespace(trusted=split(found.trusted))


class Member:
    """A member's volume, mounted files and process. `reached`: by the master and by other members."""

    def __init__(self, course: "Course", name: str, first: InternalTls) -> None:
        self.course, self.name, self.first = course, name, first
        self.volume: MemberSecurity | None = None
        self.mounted: Files | None = None
        self.reached = True
        self.begin()

    def begin(self) -> None:
        """Start the process anew."""
        security = self.volume or MemberSecurity(self.first)
        known = self.volume is not None or self.first is InternalTls.OFF
        start = Start(security, known=known, takes_plain=not self.first.dials_tls)
        self.identity = Identity()
        self.look()
        identity: Any = self.identity
        self.tls = MemberTls(identity, UID, start, self._save, lambda: self.course.now)
        self.reported: tuple[InternalTls | None, str] | None = None

    async def _save(self, security: MemberSecurity) -> None:
        self.volume = security

    def refresh(self) -> None:
        """The kubelet writes what the Secret has."""
        stored = self.course.secrets.objects.get(tls_name(self.name))
        if stored is not None:
            data = {key: base64.b64decode(value) for key, value in stored["data"].items()}
            self.mounted = Files(data["tls.crt"], data["ca.crt"])

    def look(self) -> None:
        before, self.identity.files = self.identity.files, self.mounted
        if before and self.mounted and before.leaf != self.mounted.leaf:
            self.course.count("leaves are renewed")

    @property
    def digest(self) -> str:
        return "" if self.identity.files is None else self.identity.files.digest


class Course:
    """One run. `done` counts what happened, by its name."""

    def __init__(self, seed: int) -> None:
        self.random, self.now = Random(seed), BEGAN
        self.secrets = Secrets()
        self.head = InternalTls.OFF
        self.wanted = WantedTls(InternalTls.REQUIRED)
        self.annotations: dict[str, str] = {}
        self.members = [Member(self, f"{NAME}-{number}", InternalTls.OFF) for number in range(MEMBERS)]
        self.done: dict[str, int] = {}
        self.start_master()

    # -- the master

    def start_master(self) -> None:
        api: Any = self.secrets
        self.certificate = MasterCertificate()
        self.certificates = Certificates(KeptSecrets(SecretStore(api, NAMESPACE)), self.certificate)
        self.levels = Levels(self.head, self.head)
        self.uses_tls = False
        self.reports: dict[str, tuple[InternalTls | None, str, bool]] = {}

    def cluster(self) -> TabletCluster:
        meta = {"name": NAME, "namespace": NAMESPACE, "uid": UID, "annotations": self.annotations}
        spec = {"members": len(self.members), "storage": {"size": "1Gi"}}
        return TabletCluster.model_validate({"metadata": meta, "spec": spec})

    def objects(self) -> list[TabletMember]:
        return [
            TabletMember.model_validate(
                {
                    "metadata": {"name": each.name, "namespace": NAMESPACE, "uid": f"uid-{each.name}"},
                    "spec": {"cluster": NAME, "index": number},
                }
            )
            for number, each in enumerate(self.members)
        ]

    async def round(self) -> None:
        """One round: Secrets, then at most one step of the level, which is stored before it is told."""
        if self.random.random() < 0.1:
            self.secrets.writes_left = self.random.randrange(6)
            self.secrets.kill_after = self.random.random() < 0.5
        try:
            await self._round()
        except Killed:
            self.count("the master is killed at a write")
            self.start_master()
        except Conflict:
            pass
        finally:
            self.secrets.writes_left = None

    async def _round(self) -> None:
        self.certificates_begin()
        reported = {name: digest for name, (_, digest, _) in self.reports.items()}
        self.uses_tls = False
        before = self._cas()
        await self.certificates.ensure(self.cluster(), self.objects(), reported, self.now, others={})
        if before != (after := self._cas()):
            self.count(f"{CA_STEPS[after]} is stored")
        self.uses_tls = not self.certificates.waits
        self._step()

    def _cas(self) -> tuple[bool, bool]:
        data = self.secrets.objects.get(ca_name(NAME), {}).get("data", {})
        return NEXT_CERTIFICATE in data, OLD_CERTIFICATE in data

    def certificates_begin(self) -> None:
        self.certificates._secrets.begin_round()

    def _step(self) -> None:
        """What `ClusterSecurity.told` and `decide` do with it."""
        wanted = self.wanted if self.uses_tls or self.wanted.may_fall else WantedTls(None)
        state: Any = SimpleNamespace(
            tls=self.levels,
            operations=SimpleNamespace(change=SimpleNamespace(features=MEMBER_TLS)),
            table=SimpleNamespace(members=[each.name for each in self.members], formed=True),
            membership=SimpleNamespace(
                liveness={each.name: SimpleNamespace(report=self._report(each)) for each in self.members}
            ),
            emit=lambda reason, text: self.count(text),
        )
        observation: Any = SimpleNamespace(desired=SimpleNamespace(paused=False, member_tls=wanted))
        decide._change_tls(state, observation)
        self.head = self.levels.coming
        if self.random.random() < 0.02:
            self.count("the master is killed between head and members")
            self.start_master()
        else:
            self.levels.stored()

    def _report(self, member: Member) -> Any:
        found = self.reports.get(member.name)
        return None if found is None else SimpleNamespace(member_tls=found[0], plain_links=found[2])

    async def exchange(self, member: Member) -> None:
        """Tell a member the level, and hear what it uses."""
        if not member.reached or not self._is_led:
            return
        self._check_master(member)
        await member.tls.adopt(MemberSettings(member_tls=self.levels.level))
        plain = any(self._dials_plain(member, other) for other in self.members if other is not member)
        self.reports[member.name] = member.tls.reported, member.digest, plain

    @property
    def _is_led(self) -> bool:
        """Whether the master has what it needs to dial: one that has just begun has no certificate yet."""
        return not self.levels.level.dials_tls or self.certificate.context is not None

    # -- connections

    def _dials_plain(self, member: Member, other: Member) -> bool:
        """Whether it has a session without TLS that its level would have with TLS."""
        return member.tls.level.dials_tls and not (member.identity.files and other.identity.files)

    def _check_master(self, member: Member) -> None:
        """The master could connect to this member, by the level that it dials with."""
        if not self.levels.level.dials_tls:
            self._require(member.tls.takes_plain_exchanges, f"{member.name} takes no plain exchange")
            return
        leaf, trusted = self.certificate._leaf.certificate, self.certificate._made_of[1]
        files = member.identity.files
        self._require(files is not None, f"{member.name} is dialled with TLS and has no certificate")
        assert files is not None
        chain = signers(leaf, files.trusted)
        self._require(bool(chain), f"{member.name} does not trust the master's CA")
        why = member.tls.caller_refusal(shown(leaf), chain, Role.MASTER)
        self._require(not why, f"{member.name} refuses the master: {why}")
        self._require(bool(signers(files.leaf, trusted)), f"the master does not trust {member.name}")

    def check(self) -> None:
        """Raise CutOffError unless all that reach each other could connect now."""
        for member in self.members:
            refused = member.tls.refusal(None, frozenset(), "")
            required = member.tls.level is InternalTls.REQUIRED
            self._require(bool(refused) == required, f"{member.name} at {member.tls.level} takes plain")
            if member.reached and self._is_led:
                self._check_master(member)
            for other in self.members:
                if other is not member and other.reached and member.reached:
                    self._check_dial(member, other)

    def _check_dial(self, dialler: Member, listener: Member) -> None:
        pair = f"{dialler.name} at {dialler.tls.level} dials {listener.name} at {listener.tls.level}"
        if not dialler.tls.level.dials_tls:
            self._require(not listener.tls.refusal(None, frozenset(), dialler.name), f"{pair} without TLS")
            return
        ours, theirs = dialler.identity.files, listener.identity.files
        self._require(ours is not None and theirs is not None, f"{pair}: there is no certificate")
        assert ours is not None
        assert theirs is not None
        self._require(listener.tls.level.listens_tls, f"{pair}: it does not listen to TLS")
        for one, other, end in ((dialler, theirs, listener), (listener, ours, dialler)):
            files = one.identity.files
            assert files is not None
            why = one.tls.refusal(shown(other.leaf), signers(other.leaf, files.trusted), end.name)
            self._require(not why, f"{pair}: {one.name} refuses {end.name}: {why}")

    def _require(self, holds: bool, text: str) -> None:
        if not holds:
            raise CutOffError(f"day {(self.now - BEGAN) / DAY:.1f}: {text}; head {self.head}")

    def count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    # -- what a seed chooses

    async def run(self, events: int) -> None:
        """Let so many things happen, and look after each."""
        for _ in range(events):
            await self._one()
            self.check()

    async def _one(self) -> None:
        member = self.random.choice(self.members)
        match self.random.choices(range(8), (10, 14, 14, 24, 1, 2, 0.3, 2))[0]:
            case 0:
                await self.round()
            case 1:
                member.refresh()
            case 2:
                member.look()
            case 3:
                await self.exchange(member)
            case 4:
                self.count("a member starts anew")
                member.begin()
            case 5:
                away = [each for each in self.members if not each.reached]
                self.random.choice(away or [member]).reached ^= True
            case 6:
                await self._user()
            case 7:
                self._pass_time()

    def _pass_time(self) -> None:
        """Not for longer than certificates last that nobody could renew meanwhile."""
        held = [each.identity.files for each in self.members]
        ends = [read_certificate(files.leaf).ends for files in held if files]
        if self.certificate.context is not None:
            ends.append(self.certificate._validity.ends)
        days = self.random.uniform(0.0, PASSING_DAYS_MAX)
        if min(ends, default=float("inf")) > self.now + (days + PASSING_DAYS_MAX) * DAY:
            self.now += days * DAY

    async def _user(self) -> None:
        match self.random.randrange(4):
            case 0:
                self.count("a user asks for a new CA")
                self.annotations = {RENEW_CA: f"{self.now:.0f}"}
            case 1:
                self.wanted = WantedTls(InternalTls.REQUIRED)
            case 2 if self.random.random() < 0.5:
                self.count("a user lowers the level")
                self.wanted = WantedTls(InternalTls.OFF, may_fall=True)
            case 3 if len(self.members) < MEMBERS_MAX:
                await self._join()

    async def _join(self) -> None:
        """A pod is made once its certificate is, and has the level of the moment."""
        made = Member(self, f"{NAME}-{len(self.members)}", self.head)
        self.members.append(made)
        if self.head is not InternalTls.OFF:
            self.certificates_begin()
            await self.certificates.ensure_member(self.cluster(), self.objects()[-1], self.now)
            made.refresh()
            made.begin()
        self.count("a member joins")


def run(seed: int, events: int = 2000) -> Course:
    """Run a seed. Raises CutOffError."""
    course = Course(seed)
    asyncio.run(course.run(events))
    return course
