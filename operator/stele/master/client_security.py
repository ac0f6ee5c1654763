"""The conditions that say what a cluster asks of its clients. Pure."""

from stele.core.control.member_settings import ClientAuth, ClientTls
from stele.master.kstatus import Observed
from stele.master.view import SecurityFacts
from stele.model import TabletCluster
from stele.model.conditions import ConditionType, Reason


def client_security(cluster: TabletCluster, facts: SecurityFacts) -> list[Observed]:
    """Return `Secured`, and `CertificatesHealthy` where certificates are made."""
    if cluster.spec.security.clients.asked_tls is ClientTls.OFF:
        return [_secured(cluster, facts)]
    return [_secured(cluster, facts), _healthy(facts)]


def _secured(cluster: TabletCluster, facts: SecurityFacts) -> Observed:
    type_, asked = ConditionType.SECURED, cluster.spec.security.clients
    lacking = [
        f"spec.security.clients.{name} is {value.value}"
        for name, value, most in (
            ("tls", asked.asked_tls, ClientTls.REQUIRED),
            ("auth", asked.asked_auth, ClientAuth.REQUIRED),
        )
        if value is not most
    ]
    if facts.problem:
        return type_, False, facts.reason, facts.problem
    if facts.users[1]:
        return type_, False, *facts.users
    if facts.waits:
        return type_, False, Reason.WAITS_FOR_MEMBERS, facts.waits
    if lacking:
        text = f"{' and '.join(lacking)}: who reaches the ports of clients can read or write"
        return type_, False, Reason.NOT_ASKED, text
    return type_, True, Reason.AS_DESIRED, "clients need TLS and have to authenticate"


def _healthy(facts: SecurityFacts) -> Observed:
    type_ = ConditionType.CERTIFICATES_HEALTHY
    if facts.problem:
        return type_, False, facts.reason, facts.problem
    if facts.status.days_left is None:
        return type_, False, Reason.WAITS_FOR_MEMBERS, "certificates are made"
    changes = "; the CA changes: members trust two meanwhile" if facts.changes_ca else ""
    text = f"the first certificate ends in {facts.status.days_left} days and is renewed before{changes}"
    return type_, True, Reason.AS_DESIRED, text
