"""What one cluster asks of clients and members: the Secrets for it, levels in force, what the status says.

A level rises only once every member uses its certificate, and from then on stays while it is asked for: a
member that joins, or a certificate that is renewed, does not lower it. A new cluster, which nobody uses yet,
has its level from the beginning, whether or not its members can let anybody in.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from stele.adapters.kubernetes.api import Api
from stele.adapters.kubernetes.secret_store import SecretStore
from stele.adapters.pki.certificates import Names
from stele.core.control.commands import ExchangeReply
from stele.core.control.member_settings import ClientAuth, ClientTls
from stele.core.control.member_tls import WantedTls
from stele.core.control.state import DesiredSpec, State
from stele.core.security.level import InternalTls, strongest
from stele.errors import BadInput, Conflict, Corrupt, Refused, SteleError
from stele.master.attempts import error_of
from stele.master.authority import admin_names, copier_names
from stele.master.cache import Cache
from stele.master.certificates import Certificates, listed
from stele.master.kept_secrets import KeptSecrets
from stele.master.manifests import copier_name, wants_copier
from stele.master.master_certificate import MasterCertificate
from stele.master.once_per_version import OncePerVersion
from stele.master.pod_refresh import Lacking
from stele.master.secret_volumes import tls_name
from stele.master.settings import Settings
from stele.master.users import Users
from stele.master.view import SecurityFacts
from stele.model import TabletCluster, TabletMember
from stele.model.cluster_status import SecurityStatus
from stele.model.conditions import Reason
from stele.model.ownership import NameLeaves, NameTaken
from stele.model.security import ClientSecurity
from stele.model.user import TabletUserStatus
from stele.wire.pods import admin_secret_name

log = logging.getLogger(__name__)

REPORTED = (Refused, NameLeaves, Corrupt, BadInput)
"""Errors that conditions show, rather than the log alone."""

RETRY_SECONDS = 10.0
"""Seconds until rights that were missing are tried again."""

DAYS_WARNED = 7
"""Days before the end of a certificate from which on it counts as not renewed."""

LEVELS = tuple(ClientTls)
"""From the weakest to the strongest."""


class ClusterSecurity:
    """One cluster's. `facts` are those of the last round."""

    def __init__(self, api: Api, cache: Cache, settings: Settings, place: tuple[str, str]) -> None:
        """`place` is the cluster's namespace and name."""
        self._settings, self._namespace = settings, place[0]
        store = SecretStore(api, place[0])
        self._secrets = KeptSecrets(store)
        self.master = MasterCertificate()
        self._certificates = Certificates(self._secrets, self.master)
        self._users = Users(self._secrets, store, cache, place)
        self._asked = OncePerVersion(_asked_of)
        self._tried_seconds = float("-inf")
        self._problem: SteleError | None = None
        self._users_problem: SteleError | None = None
        self._blind: dict[str, str] = {}
        self._uses_tls = self._begun_closed = False
        self._level = self._begun_at = InternalTls.OFF

    def told(self, desired: DesiredSpec, cluster: TabletCluster) -> DesiredSpec:
        """Return what members are told: they keep what they have of a level that is not ready."""
        (clients, asks_member_tls), before = self._asked(cluster), cluster.status.security
        self._begun_at = InternalTls.OFF
        if cluster.is_new:
            self._begun_closed = self._asks_tls(cluster) or _asks_auth(cluster)
            self._begun_at = desired.member_tls.level or InternalTls.OFF
            return desired
        reached = before.tls is not None and LEVELS.index(clients.asked_tls) <= LEVELS.index(before.tls)
        if not (clients.asked_tls is ClientTls.OFF or reached or self._uses_tls):
            desired = replace(desired, client_tls=None, client_certificates=None)
        if asks_member_tls and not self._uses_tls:
            desired = replace(desired, member_tls=WantedTls(None))
        if not (clients.asked_auth in (ClientAuth.OFF, before.auth) or not self._users.waits):
            desired = replace(desired, auth=None)
        return desired

    async def ensure(
        self, cluster: TabletCluster, members: Sequence[TabletMember], state: State | None, now: datetime
    ) -> None:
        """Take one round. Raises what the API server raises, except for what `facts` report."""
        self._level = cluster.status.security.members or InternalTls.OFF if state is None else state.tls.level
        wants_users = self._users.wanted(cluster)
        if not (wants_users or self._asks_tls(cluster)):
            self._problem = self._users_problem = None
            self._blind = {}
            self._uses_tls = False
            return
        lacks_rights = isinstance(self._problem, Refused) or isinstance(self._users_problem, Refused)
        if lacks_rights and time.monotonic() - self._tried_seconds < RETRY_SECONDS:
            return
        self._tried_seconds, stamp = time.monotonic(), now.timestamp()
        self._secrets.begin_round()
        users = certificates = None
        if wants_users:
            users = await error_of(self._users.ensure(cluster, stamp))
            reported = _reported(state, lambda report: report.users)
            self._users.note([member.metadata.name for member in members], reported)
            problems = _reported(state, lambda report: report.users_problem)
            self._blind = {name: problem for name, problem in problems.items() if problem}
        if self._asks_tls(cluster):
            reported = _reported(state, lambda report: report.identity)
            made = self._certificates.ensure(cluster, members, reported, stamp, others=self._others(cluster))
            certificates = await error_of(made)
        self._users_problem = users if isinstance(users, REPORTED) else None
        if not isinstance(certificates, Conflict):
            self._problem = certificates if isinstance(certificates, REPORTED) else None
            self._uses_tls = certificates is None and not self._certificates.waits
        if (self._uses_tls or not self._asks_tls(cluster)) and not (
            _asks_auth(cluster) and self._users.waits
        ):
            self._begun_closed = False
        for error in (users, certificates):
            if error is not None and not isinstance(error, (*REPORTED, Conflict)):
                raise error

    def _others(self, cluster: TabletCluster) -> dict[str, Names]:
        """Return the names of Secrets for others than members, and what their certificates say."""
        if self._level is InternalTls.OFF:
            return {}
        name = cluster.metadata.name
        others = {admin_secret_name(name): admin_names(cluster)}
        if wants_copier(cluster):
            others[tls_name(copier_name(name))] = copier_names(cluster)
        return others

    async def ensure_member(self, cluster: TabletCluster, member: TabletMember, now: datetime) -> None:
        """Make what a member's pod mounts before the pod, which starts without when that is not possible."""
        self._secrets.begin_round()
        errors = []
        if self._users.wanted(cluster) and not isinstance(self._users_problem, Refused):
            errors.append(await error_of(self._users.ensure(cluster, now.timestamp())))
        if self._asks_tls(cluster) and not isinstance(self._problem, Refused):
            made = self._certificates.ensure_member(cluster, member, now.timestamp())
            errors.append(await error_of(made))
        for error in filter(None, errors):
            log.warning("member %s starts without what it mounts: %s", member.metadata.name, error)

    def first_level(self, cluster: TabletCluster, state: State | None) -> InternalTls:
        """Return the level of TLS among members for one whose volume has none.

        One step too high costs a request: the master asks with TLS whoever refuses a plain one. In a new
        cluster it is what the spec asks for, which the head of its table has before anybody is told it.
        """
        shown = cluster.status.security.members or InternalTls.OFF
        stored = [shown] if state is None else [state.tls.level, state.tls.coming]
        return strongest([self._begun_at, *stored])

    def _asks_tls(self, cluster: TabletCluster) -> bool:
        """Return whether members need certificates: for what is asked, or what is in force still."""
        in_force = self._level is not InternalTls.OFF or self.master.is_wanted
        return cluster.security.asks_tls or in_force

    def facts(self, cluster: TabletCluster, desired: DesiredSpec, state: State) -> SecurityFacts:
        """Return what the status shows; `desired` is what members were told."""
        before, asks_tls = cluster.status.security, self._asks_tls(cluster)
        status = SecurityStatus(
            defaults=cluster.security_defaults,
            tls=desired.client_tls or before.tls,
            client_certificates=desired.client_certificates or before.client_certificates,
            auth=desired.auth or before.auth,
            members=state.tls.level,
            days_left=self._certificates.days_left if asks_tls else None,
        )
        reason, problem = self._why() if asks_tls else (Reason.AS_DESIRED, "")
        users = self._why_users() if _asks_auth(cluster) else (Reason.AS_DESIRED, "")
        waits = []
        if desired.client_tls is None or (self._begun_closed and asks_tls and self._certificates.waits):
            waits.append(f"TLS for clients waits: {self._certificates.waits}")
        if desired.auth is None or (self._begun_closed and _asks_auth(cluster) and self._users.waits):
            waits.append(f"authentication waits until {self._users.waits}")
        if cluster.security.members.asks_tls and state.tls.level is not InternalTls.REQUIRED:
            held = self._certificates.waits if desired.member_tls.level is None else _behind(state)
            waits.append(f"TLS among members is {state.tls.level} and waits: {held}")
        changes = self._certificates.changes_ca
        text = "; ".join(waits)
        return SecurityFacts(
            status, reason, problem, text, changes_ca=changes, users=users, asks_tls=asks_tls
        )

    def user_statuses(self, clock: datetime) -> list[tuple[dict[str, Any], TabletUserStatus]]:
        """Return the statuses of the cluster's TabletUsers."""
        error = self._users_problem
        problem = None if error is None else self._reason_of(error, Reason.USERS_UNUSABLE)
        return self._users.statuses(problem, clock)

    @property
    def lacking_users(self) -> Lacking:
        """The members that run without the newest file of users."""
        return self._users.lacking

    @property
    def lacking_certificates(self) -> Lacking:
        """The members that run without the newest certificate, or without CAs that are trusted now."""
        return self._certificates.lacking

    @property
    def trusted(self) -> str:
        """The CAs of the cluster, PEM; empty while they are not known."""
        return self._certificates.trusted.decode()

    @property
    def taken(self) -> tuple[str, ...]:
        """Return the kind and name of Secrets that have another owner."""
        problems = (self._users_problem, self._problem)
        return tuple(name for each in problems if isinstance(each, NameTaken) for name in each.names)

    def _why_users(self) -> tuple[Reason, str]:
        if self._users_problem is not None:
            return self._reason_of(self._users_problem, Reason.USERS_UNUSABLE)
        if self._blind:
            name, problem = min(self._blind.items())
            more = f", and {len(self._blind) - 1} more members cannot" if len(self._blind) > 1 else ""
            text = f"{name} cannot read its file of users, and keeps those of before{more}: {problem}"
            return Reason.USERS_UNUSABLE, text
        return Reason.AS_DESIRED, ""

    def _why(self) -> tuple[Reason, str]:
        days = self._certificates.days_left
        if self._problem is not None:
            return self._reason_of(self._problem, Reason.CERTIFICATE_UNUSABLE)
        if days is not None and days < DAYS_WARNED:
            return Reason.CERTIFICATE_ENDS, f"a certificate ends in {days} days and was not renewed"
        return Reason.AS_DESIRED, ""

    def _reason_of(self, error: SteleError, otherwise: Reason) -> tuple[Reason, str]:
        if isinstance(error, NameTaken):
            return Reason.NAME_TAKEN, str(error.args[0])
        if isinstance(error, NameLeaves):
            return Reason.WAITS_FOR_REMOVAL, str(error.args[0])
        if isinstance(error, Refused):
            return Reason.NO_SECRET_RIGHTS, self._missing_rights(str(error.args[0]))
        return otherwise, error.text

    def _missing_rights(self, refusal: str) -> str:
        settings, place = self._settings, self._namespace
        account = f"{settings.own_namespace}:{settings.own_account}"
        role = f"clusterrole={settings.secrets_role}"
        make = ""
        if not settings.all_namespaces:
            role = "role=stele-secrets"
            verbs = "get,create,update,delete"
            make = f"kubectl -n {place} create role stele-secrets --verb={verbs} --resource=secrets; "
        return (
            f"the operator may not make Secrets with certificates and users in namespace {place}; "
            f"an admin of the namespace gives the right by: {make}kubectl -n {place} create rolebinding "
            f"stele-secrets --{role} --serviceaccount={account} ({refusal})"
        )


def _behind(state: State) -> str:
    """Return which members hold the next level of TLS up."""
    level, known = state.tls.level, state.membership.liveness
    behind = [
        member.name
        for index, member in sorted(state.table.members.items())
        if (report := known[index].report) is None or report.member_tls is not level or report.plain_links
    ]
    return f"{listed(behind)} have not reported it" if behind else "members are told the next level"


def _asked_of(cluster: TabletCluster) -> tuple[ClientSecurity, bool]:
    """Return what clients must bring, and whether members ask each other for TLS."""
    return cluster.clients, cluster.security.members.asks_tls


def _asks_auth(cluster: TabletCluster) -> bool:
    return cluster.clients.asked_auth is ClientAuth.REQUIRED


def _reported(state: State | None, what: Callable[[ExchangeReply], str]) -> dict[str, str]:
    """Return what members have reported, such as which certificate they use, by their names.

    It is empty for those that have nothing to say of it; those that have not reported are left out.
    """
    known = {} if state is None else state.membership.liveness
    return {
        liveness.member_object.name: what(liveness.report)
        for liveness in known.values()
        if liveness.member_object is not None and liveness.report is not None
    }
