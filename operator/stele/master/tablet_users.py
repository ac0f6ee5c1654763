"""TabletUser objects: what they declare, the users that are made of them, and their statuses."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from stele.adapters.kubernetes.api import CLUSTERS, USERS, Api
from stele.adapters.kubernetes.secret_store import Mark
from stele.core.kv.acl import RuleError, compile_user
from stele.core.kv.keyspaces import name_fault
from stele.core.security.user_certificates import certificate_fault
from stele.master.cache import Cache
from stele.master.certificates import listed
from stele.master.kstatus import Progress, Verdict, progress_conditions, with_conditions
from stele.master.status_writer import show
from stele.master.user_passwords import UserPasswords
from stele.model import TabletUser, Unreadable
from stele.model.conditions import Reason
from stele.model.user import TabletUserStatus, UserMembers
from stele.wire.users import FILE_BYTES_MAX, USERS_MAX, UserEntry, entry_bytes

Object = dict[str, Any]

ROOM_BYTES = 1024
"""What the file has besides users that are declared: its frame, and the user `default`."""


@dataclass(frozen=True)
class Declared:
    """One stored object with its model, and what is wrong with its rules."""

    stored: Object
    model: TabletUser | Unreadable
    fault: str = ""

    @property
    def user(self) -> str:
        if isinstance(self.model, TabletUser):
            return self.model.user
        return str(self.stored["spec"].get("name") or self.stored["metadata"]["name"])


class UserObjects:
    """The TabletUsers of one cluster. `entries` are the users that they declare, as of the last round."""

    def __init__(self, cache: Cache, namespace: str, cluster: str, passwords: UserPasswords) -> None:
        self._cache, self._namespace, self._cluster = cache, namespace, cluster
        self._passwords = passwords
        self._read: dict[str, Declared] = {}
        self._refused: dict[str, tuple[Reason, str]] = {}
        self.entries: dict[str, UserEntry] = {}
        self._asks_certificates = False

    def declared(self) -> list[Declared]:
        """Return those that are not being deleted, oldest first; each stored version is parsed once."""
        before, self._read = self._read, {}
        for stored in sorted(self._stored(), key=_age):
            known = before.get(stored["metadata"]["uid"])
            same = known is not None and known.stored is stored
            self._read[stored["metadata"]["uid"]] = known if known is not None and same else _parsed(stored)
        return list(self._read.values())

    def _stored(self) -> list[Object]:
        return [
            each
            for each in self._cache.all(USERS)
            if each["metadata"]["namespace"] == self._namespace
            and each["spec"].get("cluster") == self._cluster
            and not each["metadata"].get("deletionTimestamp")
        ]

    async def look(
        self, before: Mapping[str, UserEntry], mark: Mark, now: float, *, asks_certificates: bool
    ) -> None:
        """Compute `entries`. What cannot be read of a user is as in the file `before`.

        `asks_certificates` says whether clients may show any.

        Of two that declare one user the older one counts, and of two with one certificate the older one has
        it. Raises as `UserPasswords.look`.
        """
        self._asks_certificates = asks_certificates
        declared = self.declared()
        models = [each.model for each in declared if isinstance(each.model, TabletUser)]
        await self._passwords.look(models, mark, now)
        self.entries, self._refused = {}, {}
        by, left = dict[str, str](), FILE_BYTES_MAX - ROOM_BYTES
        holders = dict[str, str]()
        for each in declared:
            entry = self._with_certificate(each, self._entry(each, before.get(each.user)), holders, by)
            size = 0 if entry is None else entry_bytes(entry)
            if (refused := self._refusal(each.user, by, left - size)) is not None:
                self._refused[each.stored["metadata"]["uid"]] = refused
                continue
            by[each.user] = each.stored["metadata"]["name"]
            if entry is not None:
                holders.setdefault(entry.certificate, each.stored["metadata"]["name"])
                self.entries[each.user], left = entry, left - size

    def _with_certificate(
        self, declared: Declared, entry: UserEntry | None, holders: Mapping[str, str], by: Mapping[str, str]
    ) -> UserEntry | None:
        """Return the user without its certificate, and report that, when an older one has the same."""
        if entry is None or not entry.certificate or entry.certificate not in holders or entry.name in by:
            return entry
        kind, _, value = entry.certificate.partition(":")
        text = (
            f"TabletUser {holders[entry.certificate]}, which is older, has the certificate with"
            f" {kind.upper()} {value!r} already: change spec.certificate of one of the two; until then this"
            " user has none"
        )
        self._refused[declared.stored["metadata"]["uid"]] = Reason.ALREADY_DECLARED, text
        return msgspec.structs.replace(entry, certificate="")

    @property
    def pending(self) -> bool:
        """Whether passwords were not read yet: a file without them would shut users out."""
        models = (each.model for each in self.declared())
        return any(isinstance(each, TabletUser) and self._passwords.of(each) is None for each in models)

    @staticmethod
    def _refusal(user: str, by: Mapping[str, str], left: int) -> tuple[Reason, str] | None:
        if user in by:
            text = f"TabletUser {by[user]}, which is older, declares {user} already: delete one of the two"
            return Reason.ALREADY_DECLARED, text
        if len(by) >= USERS_MAX - 1:
            text = f"{USERS_MAX - 1} older TabletUsers of this cluster are the most that are possible"
            return Reason.TOO_MANY_USERS, f"{text}: delete some of them"
        if left < 0:
            text = f"the cluster's users take more than the {FILE_BYTES_MAX} bytes that fit into a Secret"
            return Reason.TOO_MANY_USERS, f"{text}: delete some, or use fewer rules"
        return None

    def _entry(self, declared: Declared, before: UserEntry | None) -> UserEntry | None:
        """Return the user as it is to be; as it is, as far as that is not known."""
        model = declared.model
        if isinstance(model, Unreadable):
            return before
        spec = model.spec
        if declared.fault:
            locked = before is not None and not spec.enabled
            return msgspec.structs.replace(before, active=False) if before is not None and locked else before
        known = self._passwords.of(model)
        hashes = () if before is None else before.passwords
        if known is not None and known.problem is None:
            hashes = known.hashes
        connections = spec.limits.connections or 0
        return UserEntry(
            model.user,
            hashes,
            spec.acl,
            spec.keyspaces,
            spec.enabled,
            connections,
            model.bytes_per_second,
            "" if spec.certificate is None else spec.certificate.text,
        )

    # -- statuses

    def statuses(
        self,
        used: Mapping[str, Mapping[str, UserEntry] | None],
        problem: tuple[Reason, str] | None,
        clock: datetime,
    ) -> list[tuple[Object, TabletUserStatus]]:
        """Return the status of each object. `used` are the users that each member knows, None when that is
        not known; `problem` is why they have no new ones."""
        found = []
        for each in self.declared():
            model = each.model
            if isinstance(model, Unreadable):
                found.append((each.stored, _invalid(each.stored, model, clock)))
                continue
            entry = self.entries.get(model.user)
            behind = [name for name, users in used.items() if not _knows(users, model.user, entry)]
            members = UserMembers(total=len(used), current=len(used) - len(behind))
            verdict = self._verdict(each, model, problem, behind)
            found.append((each.stored, _status(model, verdict, clock, members)))
        return found

    def _verdict(
        self, declared: Declared, model: TabletUser, problem: tuple[Reason, str] | None, behind: list[str]
    ) -> Verdict:
        known = self._passwords.of(model)
        if (refused := self._refused.get(model.metadata.uid)) is not None:
            return Progress.STALLED, *refused
        if problem is not None:
            return Progress.STALLED, *problem
        if declared.fault:
            text = f"{declared.fault}; correct it with kubectl edit. Until then members keep what they know"
            return Progress.STALLED, Reason.INVALID_RESOURCE, text
        if known is None:
            return Progress.UNDER_WAY, Reason.WAITING, "its password is read"
        if known.problem is not None:
            reason, text = known.problem
            waits = reason is Reason.WAITS_FOR_REMOVAL
            return Progress.UNDER_WAY if waits else Progress.STALLED, reason, f"{text}{_KEPT}"
        if behind:
            text = f"members that do not know the user as it is now: {listed(behind)}"
            return Progress.UNDER_WAY, Reason.WAITS_FOR_MEMBERS, text
        if not model.spec.enabled:
            return Progress.DONE, Reason.AS_DESIRED, "spec.enabled is false: nobody can log in"
        if model.spec.certificate is not None and not self._asks_certificates:
            return Progress.DONE, Reason.AS_DESIRED, f"all members know the user{_IGNORED}"
        return Progress.DONE, Reason.AS_DESIRED, "all members know the user"


_IGNORED = "; spec.security.clients.clientCertificates is Ignore, so nobody logs in by its certificate"
_KEPT = ". Until then members keep the password that they know, if any"


def _knows(users: Mapping[str, UserEntry] | None, name: str, entry: UserEntry | None) -> bool:
    return users is not None and entry is not None and users.get(name) == entry


def _age(stored: Object) -> tuple[str, str]:
    meta = stored["metadata"]
    return str(meta.get("creationTimestamp", "")), meta["name"]


def _parsed(stored: Object) -> Declared:
    model = TabletUser.read(stored)
    return Declared(stored, model, "" if isinstance(model, Unreadable) else _fault(model))


def _fault(model: TabletUser) -> str:
    """Return what is wrong with its rights, which the API server cannot check; empty when nothing is."""
    spec = model.spec
    if (fault := next(filter(None, map(name_fault, spec.keyspaces)), None)) is not None:
        return f"spec.keyspaces: {fault}"
    try:
        compile_user(model.user, spec.acl, spec.keyspaces)
    except RuleError as error:
        return f"spec.acl: {error}"
    fault = "" if spec.certificate is None else certificate_fault(spec.certificate.text)
    return f"spec.certificate: {fault}" if fault else ""


def _status(
    model: TabletUser, verdict: Verdict, clock: datetime, members: UserMembers | None = None
) -> TabletUserStatus:
    generation = model.metadata.generation
    conditions = with_conditions(model.status.conditions, progress_conditions(verdict), generation, clock)
    return TabletUserStatus(
        observed_generation=generation,
        user=model.user,
        secret=model.secret,
        members=members or UserMembers(),
        conditions=conditions,
    )


def _invalid(stored: Object, why: Unreadable, clock: datetime) -> TabletUserStatus:
    before = TabletUserStatus.model_validate(stored.get("status") or {})
    verdict = Progress.STALLED, Reason.INVALID_RESOURCE, str(why)
    conditions = with_conditions(before.conditions, progress_conditions(verdict), why.generation, clock)
    return before.model_copy(update={"observed_generation": why.generation, "conditions": conditions})


async def report_without_cluster(api: Api, cache: Cache, clock: datetime) -> None:
    """Report TabletUsers of a cluster that does not exist."""
    clusters = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in cache.all(CLUSTERS)}
    for stored in cache.all(USERS):
        model = TabletUser.read(stored)
        if isinstance(model, Unreadable) or (model.metadata.namespace, model.spec.cluster) in clusters:
            continue
        text = f"no TabletCluster here is named {model.spec.cluster}; create it, or delete this TabletUser"
        verdict: Verdict = Progress.STALLED, Reason.CLUSTER_NOT_FOUND, text
        await show(api, cache, USERS, stored, _status(model, verdict, clock))
