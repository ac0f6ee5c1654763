"""The conditions that say what a cluster asks of its clients and members. Pure."""

from collections.abc import Iterator

from stele.core.control.member_settings import ClientAuth, ClientTls
from stele.core.security.level import InternalTls
from stele.master.desired import LOWER_MEMBER_TLS
from stele.master.kstatus import Observed
from stele.master.view import SecurityFacts
from stele.model import TabletCluster
from stele.model.conditions import ConditionType, Reason
from stele.model.security import clients_of


def client_security(cluster: TabletCluster, facts: SecurityFacts) -> list[Observed]:
    """Return `Secured`, and `CertificatesHealthy` where certificates are made."""
    if not facts.asks_tls:
        return [_secured(cluster, facts)]
    return [_secured(cluster, facts), _healthy(facts)]


def _secured(cluster: TabletCluster, facts: SecurityFacts) -> Observed:
    type_, asked = ConditionType.SECURED, cluster.clients
    lacking = [
        f"spec.security.clients.{name} is {value.value}"
        for name, value, most in (
            ("tls", asked.asked_tls, ClientTls.REQUIRED),
            ("auth", asked.asked_auth, ClientAuth.REQUIRED),
        )
        if value is not most
    ]
    level = facts.status.members or InternalTls.OFF
    kept = _kept(cluster, level)
    if cluster.is_open_to_everyone:
        return type_, False, Reason.OPEN_LOAD_BALANCER, f"{_unguarded(cluster)}{kept}"
    if facts.problem:
        return type_, False, facts.reason, facts.problem
    if facts.users[1]:
        return type_, False, *facts.users
    if facts.waits:
        return type_, False, Reason.WAITS_FOR_MEMBERS, facts.waits
    if lacking or level is not InternalTls.REQUIRED:
        return type_, False, Reason.NOT_ASKED, f"{'; '.join(_open(lacking, level))}{kept}"
    text = f"clients need TLS and have to authenticate, and members use TLS{kept}"
    return type_, True, Reason.AS_DESIRED, text


def _unguarded(cluster: TabletCluster) -> str:
    """Return why everyone can use the cluster through its load balancer, and how to end it."""
    clients = cluster.clients
    lacks = ["tls"] if clients.asked_tls is ClientTls.OFF else []
    lacks += [] if clients.proves_who_asks else ["auth"]
    fields = " and ".join(f"spec.security.clients.{each}" for each in lacks)
    return (
        "spec.resp.serviceType is LoadBalancer, spec.resp.loadBalancerSourceRanges lets in every address, "
        f"and {fields} {'is' if len(lacks) == 1 else 'are'} Off: list the blocks of your clients' addresses, "
        f"or set {' and '.join(lacks)} to Required"
    )


def _kept(cluster: TabletCluster, level: InternalTls) -> str:
    """Return what has to be done so that levels fall as the spec says, or nothing."""
    falls = cluster.metadata.annotations.get(LOWER_MEMBER_TLS) == InternalTls.OFF
    kept = [
        f"; spec.security.clients.{each.field} stays {each.level} until the annotation {each.annotation} is"
        f" {each.asked}, too"
        for each in clients_of(
            cluster.security.clients, cluster.status.security, cluster.metadata.annotations
        )[1]
    ]
    if not (cluster.security.members.asks_tls or level is InternalTls.OFF or falls):
        kept.append(f"; TLS among members stays {level} until the annotation {LOWER_MEMBER_TLS} is Off, too")
    return "".join(kept)


def _open(lacking: list[str], level: InternalTls) -> Iterator[str]:
    if lacking:
        yield f"{' and '.join(lacking)}: who reaches the ports of clients can read or write"
    if level is not InternalTls.REQUIRED:
        yield f"TLS among members is {level}: who reaches port 7000 can pretend to be a member"


def _healthy(facts: SecurityFacts) -> Observed:
    type_ = ConditionType.CERTIFICATES_HEALTHY
    if facts.problem:
        return type_, False, facts.reason, facts.problem
    if facts.status.days_left is None:
        return type_, False, Reason.WAITS_FOR_MEMBERS, "certificates are made"
    changes = "; the CA changes: members trust two meanwhile" if facts.changes_ca else ""
    text = f"the first certificate ends in {facts.status.days_left} days and is renewed before{changes}"
    return type_, True, Reason.AS_DESIRED, text
