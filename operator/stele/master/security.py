"""What one cluster asks of its clients: the Secrets for it, the level in force, and what the status says.

A level rises only once every member uses its certificate, and from then on stays while it is asked for: a
member that joins, or a certificate that is renewed, does not lower it. A new cluster, which nobody uses yet,
has its level from the beginning, whether or not its members can let anybody in.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from stele.adapters.kubernetes.api import Api
from stele.adapters.kubernetes.secret_store import SecretStore
from stele.core.control.member_settings import ClientAuth, ClientTls
from stele.core.control.state import DesiredSpec, State
from stele.errors import BadInput, Conflict, Corrupt, Refused, SteleError
from stele.master.certificates import Certificates
from stele.master.kept_secrets import KeptSecrets
from stele.master.settings import Settings
from stele.master.users import Users
from stele.master.view import SecurityFacts
from stele.model import TabletCluster, TabletMember
from stele.model.cluster_status import SecurityStatus
from stele.model.conditions import Reason
from stele.model.ownership import NameLeaves, NameTaken

RETRY_SECONDS = 10.0
"""Seconds until rights that were missing are tried again."""

DAYS_WARNED = 7
"""Days before the end of a certificate from which on it counts as not renewed."""

LEVELS = tuple(ClientTls)
"""From the weakest to the strongest."""


class ClusterSecurity:
    """One cluster's. `facts` are those of the last round."""

    def __init__(self, api: Api, settings: Settings, namespace: str) -> None:
        self._settings, self._namespace = settings, namespace
        self._secrets = KeptSecrets(SecretStore(api, namespace))
        self._certificates, self._users = Certificates(self._secrets), Users(self._secrets)
        self._tried_seconds = float("-inf")
        self._problem: SteleError | None = None
        self._uses_tls = self._begun_closed = False

    def told(self, desired: DesiredSpec, cluster: TabletCluster) -> DesiredSpec:
        """Return what members are told: they keep what they have of a level that is not ready."""
        clients, before = cluster.spec.security.clients, cluster.status.security
        if _is_new(cluster):
            self._begun_closed = _asks(cluster)
            return desired
        reached = before.tls is not None and LEVELS.index(clients.asked_tls) <= LEVELS.index(before.tls)
        if not (clients.asked_tls is ClientTls.OFF or reached or self._uses_tls):
            desired = replace(desired, client_tls=None, client_certificates=None)
        if not (clients.asked_auth in (ClientAuth.OFF, before.auth) or self._users.ready):
            desired = replace(desired, auth=None)
        return desired

    async def ensure(
        self, cluster: TabletCluster, members: Sequence[TabletMember], state: State | None, now: datetime
    ) -> None:
        """Take one round. Raises what the API server raises, except for what `facts` report."""
        if not _asks(cluster):
            self._problem, self._uses_tls = None, False
            return
        if isinstance(self._problem, Refused) and time.monotonic() - self._tried_seconds < RETRY_SECONDS:
            return
        self._tried_seconds = time.monotonic()
        self._secrets.begin_round()
        try:
            await self._ensure(cluster, members, state, now.timestamp())
            self._problem = None
        except (Refused, NameLeaves, Corrupt, BadInput) as error:
            self._problem = error
        except Conflict:
            return
        self._uses_tls = self._problem is None and not self._certificates.waits
        if (self._uses_tls or not _asks_tls(cluster)) and (self._users.ready or not _asks_auth(cluster)):
            self._begun_closed = False

    async def _ensure(
        self, cluster: TabletCluster, members: Sequence[TabletMember], state: State | None, now: float
    ) -> None:
        if _asks_auth(cluster):
            await self._users.ensure(cluster, now)
        if _asks_tls(cluster):
            await self._certificates.ensure(cluster, members, _reported(state), now)

    async def ensure_member(self, cluster: TabletCluster, member: TabletMember, now: datetime) -> None:
        """Make what a member's pod mounts before the pod, which starts without when that is not possible."""
        if isinstance(self._problem, Refused):
            return
        self._secrets.begin_round()
        try:
            if _asks_auth(cluster):
                await self._users.ensure(cluster, now.timestamp())
            if _asks_tls(cluster):
                await self._certificates.ensure_member(cluster, member, now.timestamp())
        except (Refused, NameLeaves, Corrupt, BadInput, Conflict):
            return

    def facts(self, cluster: TabletCluster, desired: DesiredSpec) -> SecurityFacts:
        """Return what the status shows; `desired` is what members were told."""
        before, asks_tls = cluster.status.security, _asks_tls(cluster)
        status = SecurityStatus(
            tls=desired.client_tls or before.tls,
            client_certificates=desired.client_certificates or before.client_certificates,
            auth=desired.auth or before.auth,
            days_left=self._certificates.days_left if asks_tls else None,
        )
        reason, problem = self._why() if _asks(cluster) else (Reason.AS_DESIRED, "")
        waits = []
        if desired.client_tls is None or (self._begun_closed and asks_tls and self._certificates.waits):
            waits.append(f"TLS for clients waits: {self._certificates.waits}")
        if desired.auth is None or (self._begun_closed and _asks_auth(cluster) and not self._users.ready):
            waits.append("authentication waits until members have the file of users")
        changes = self._certificates.changes_ca
        return SecurityFacts(status, reason, problem, "; ".join(waits), changes_ca=changes)

    @property
    def taken(self) -> tuple[str, ...]:
        """Return the kind and name of Secrets that have another owner."""
        return self._problem.names if isinstance(self._problem, NameTaken) else ()

    def _why(self) -> tuple[Reason, str]:
        error, days = self._problem, self._certificates.days_left
        if isinstance(error, NameTaken):
            return Reason.NAME_TAKEN, str(error.args[0])
        if isinstance(error, NameLeaves):
            return Reason.WAITS_FOR_REMOVAL, str(error.args[0])
        if isinstance(error, Refused):
            return Reason.NO_SECRET_RIGHTS, self._missing_rights(str(error.args[0]))
        if error is not None:
            return Reason.CERTIFICATE_UNUSABLE, str(error.args[0])
        if days is not None and days < DAYS_WARNED:
            return Reason.CERTIFICATE_ENDS, f"a certificate ends in {days} days and was not renewed"
        return Reason.AS_DESIRED, ""

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


def _asks(cluster: TabletCluster) -> bool:
    return _asks_tls(cluster) or _asks_auth(cluster)


def _is_new(cluster: TabletCluster) -> bool:
    """Return whether nobody can have used it: nothing is stored, and members have been told nothing."""
    before = cluster.status.security
    return cluster.status.version_sum == 0 and before.tls is None and before.auth is None


def _asks_auth(cluster: TabletCluster) -> bool:
    return cluster.spec.security.clients.asked_auth is ClientAuth.REQUIRED


def _asks_tls(cluster: TabletCluster) -> bool:
    return cluster.spec.security.clients.asked_tls is not ClientTls.OFF


def _reported(state: State | None) -> Mapping[str, str]:
    """Return the digest of the certificate that each member said it uses, by the member's name."""
    known = {} if state is None else state.membership.liveness
    return {
        liveness.member_object.name: liveness.report.identity
        for liveness in known.values()
        if liveness.member_object is not None and liveness.report is not None
    }
