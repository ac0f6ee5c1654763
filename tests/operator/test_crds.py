"""The custom resources against a real API server: defaults, every CEL rule, scale, printer columns."""

import copy
import json
from typing import Any

import pytest
import yaml

from e2e.cluster.control_plane import REPOSITORY, ControlPlane, documents
from stele.master.manifests import copier_pod, member_pod
from stele.master.revision import outdated_pod
from stele.master.settings import Settings
from stele.model import TabletCluster, TabletMember, TabletRebalance, Unreadable

pytestmark = pytest.mark.control_plane

LONG = "a" * 41
ABSENT = object()


def cluster(name: str = "demo", **spec: Any) -> dict[str, Any]:
    given = {"members": 3, "storage": {"size": "2Gi"}, **spec}
    return resource("TabletCluster", name, given)


def member(name: str = "demo-0", **spec: Any) -> dict[str, Any]:
    return resource("TabletMember", name, {"cluster": "demo", "index": 0, **spec})


def rebalance(name: str = "demo-1", **spec: Any) -> dict[str, Any]:
    return resource("TabletRebalance", name, {"cluster": "demo", **spec})


PLACED = {"partitions": 4, "replicas": 2}
CACHE: dict[str, Any] = {"mode": "Invalidation", "localCache": {"bytes": "1Mi"}}


def keyspace(name: str = "sessions", **spec: Any) -> dict[str, Any]:
    return resource("Keyspace", name, {"cluster": "demo", **spec})


MADE = {"generated": True}


def user(name: str = "shop", **spec: Any) -> dict[str, Any]:
    return resource("TabletUser", name, {"cluster": "demo", "password": MADE, **spec})


def resource(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in spec.items() if value is not ABSENT}
    return {"apiVersion": "stele.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": given}


def storage(**fields: Any) -> dict[str, Any]:
    return {"storage": {"size": "2Gi", **fields}}


def template(**fields: Any) -> dict[str, Any]:
    return cluster(podTemplate=fields)


def balanced(**resp: Any) -> dict[str, Any]:
    return cluster(resp={"serviceType": "LoadBalancer", **resp})


def hosted(*hosts: str) -> dict[str, Any]:
    return cluster(security={"clients": {"hosts": list(hosts)}})


BAD_HOSTS = ("", "a b", "a..b", "-a.example.com", "*", "a.*.example.com", "1.2.3", "1.2.3.256", "a_b", "ä.de")
NETWORK = "spec.security.networkPolicy"
BLOCK = {"cidr": "10.0.0.0/8"}
BAD_PEERS: list[tuple[list[Any], str]] = [
    ([], ": Invalid value"),
    ([{}], '[0]: Invalid value: "object": spec.security.networkPolicy: a peer needs ipBlock alone, or'),
    ([{"ipBlock": BLOCK}, {"podSelector": {}, "ipBlock": BLOCK}], "[1]: Invalid value"),
    ([{"ipBlock": {}}], "[0].ipBlock.cidr: Required value"),
    ([{"ipBlock": {"cidr": "10.0.0.1"}}], "[0].ipBlock.cidr: Invalid value"),
    ([{"ipBlock": {"cidr": "10.0.0.256/8"}}], "[0].ipBlock.cidr: Invalid value"),
    ([{"ipBlock": {"cidr": "fd00::/129"}}], "[0].ipBlock.cidr: Invalid value"),
    ([{"ipBlock": {**BLOCK, "except": ["all"]}}], "[0].ipBlock.except[0]: Invalid value"),
    ([{"podSelector": {"matchLabels": {"a b": "c"}}}], "[0].podSelector.matchLabels: Invalid value"),
    ([{"podSelector": {"matchLabels": {"a": "b c"}}}], "[0].podSelector.matchLabels.a"),
    (
        [{"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}],
        "[0].namespaceSelector.matchExpressions[0].operator: Unsupported value",
    ),
    (
        [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}],
        "[0].podSelector.matchExpressions[0]: Invalid value",
    ),
    (
        [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}}],
        "[0].podSelector.matchExpressions[0]: Invalid value",
    ),
]

CREATED_BADLY = [
    (cluster(replicas=9), "spec.replicas must be a whole number from 1 to 7"),
    (cluster(replicas=0), "spec.replicas must be a whole number from 1 to 7"),
    (cluster(partitions=0), "spec.partitions must be a whole number from 1 to 16384"),
    (cluster(partitions=16_385), "spec.partitions must be a whole number from 1 to 16384"),
    (cluster(partitions="many"), "spec.partitions"),
    (cluster(members=0), "delete the cluster instead"),
    (cluster(members=1_001), "spec.members must be a whole number from 1 to 1000"),
    (cluster(members=2.5), "spec.members"),
    (cluster(members=ABSENT), "spec.members: Required value"),
    (cluster(storage=ABSENT), "spec.storage: Required value"),
    (cluster(storage={}), "spec.storage.size: Required value"),
    (cluster(**storage(size="big")), "such as 512Mi or 2Gi; given: big"),
    (cluster(**storage(size="0")), "spec.storage.size must be a quantity of bytes above zero"),
    (cluster(**storage(size="-2Gi")), "spec.storage.size must be a quantity of bytes above zero"),
    (cluster(**storage(size="1" * 33)), "spec.storage.size: Too long"),
    (cluster(**storage(storageClassName="")), "spec.storage.storageClassName"),
    (cluster(**storage(keepVolumes="Maybe")), 'spec.storage.keepVolumes: Unsupported value: "Maybe"'),
    (cluster(**storage(fsync="Sometimes")), 'spec.storage.fsync: Unsupported value: "Sometimes"'),
    (cluster(onPartitionLoss="Forget"), 'spec.onPartitionLoss: Unsupported value: "Forget"'),
    (cluster(state="Off"), 'spec.state: Unsupported value: "Off"'),
    (cluster(member=3), 'unknown field "spec.member"'),
    (cluster(migration={"maxParallel": 3}), 'unknown field "spec.migration.maxParallel"'),
    (cluster(migration={"maxParallelPerMember": 0}), "spec.migration.maxParallelPerMember must be"),
    (cluster(migration={"maxParallelPerMember": 1_001}), "spec.migration.maxParallelPerMember must be"),
    (cluster(migration={"historyLimit": -1}), "spec.migration.historyLimit must be a whole number from 0"),
    (cluster(migration={"historyLimit": 101}), "spec.migration.historyLimit must be a whole number from 0"),
    (cluster(migration={"engine": "Flink"}), 'spec.migration.engine: Unsupported value: "Flink"'),
    (cluster(migration={"paused": "yes"}), "spec.migration.paused"),
    (cluster(migration={"logSpacePerMember": "512Ki"}), "spec.migration.logSpacePerMember must be at least"),
    (cluster(migration={"snapshotSpacePerMember": "x"}), "snapshotSpacePerMember must be a quantity"),
    (cluster(logLevel="TRACE"), 'spec.logLevel: Unsupported value: "TRACE"'),
    (cluster(security={"clients": {"tls": "On"}}), 'spec.security.clients.tls: Unsupported value: "On"'),
    (cluster(security={"clients": {"auth": "Optional"}}), "spec.security.clients.auth: Unsupported value"),
    (
        cluster(security={"clients": {"clientCertificates": "Allow"}}),
        "clientCertificates needs spec.security.clients.tls Optional or Required",
    ),
    (
        cluster(security={"clients": {"tls": "Off", "clientCertificates": "Require"}}),
        "clientCertificates needs spec.security.clients.tls Optional or Required",
    ),
    *(
        (cluster(security={"networkPolicy": {"enabled": True, "clients": peers}}), f"{NETWORK}.clients{text}")
        for peers, text in BAD_PEERS
    ),
    (cluster(security={"networkPolicy": {"admins": [{"ipBlock": BLOCK}] * 33}}), ".admins: Too many"),
    (cluster(security={"networkPolicy": {"enabled": "yes"}}), f"{NETWORK}.enabled: Invalid value"),
    (cluster(spark={"executors": 0}), "spec.spark.executors must be a whole number from 1 to 100"),
    (cluster(spark={"cores": 65}), "spec.spark.cores must be a whole number from 1 to 64"),
    (cluster(spark={"memory": "256Mi"}), "spec.spark.memory must be at least 512Mi"),
    (cluster(spark={"memory": "2Ti"}), "spec.spark.memory must be at most 1Ti"),
    (cluster(spark={"memory": "lots"}), "spec.spark.memory must be a quantity"),
    (cluster(spark={"thresholdBytes": "x"}), "spec.spark.thresholdBytes must be a quantity"),
    (cluster(spark={"idleSeconds": 0}), "spec.spark.idleSeconds must be a whole number from 1 to 86400"),
    (cluster(failureDetection={"heartbeatSeconds": 0}), "heartbeatSeconds must be from 0.1 to 60 seconds"),
    (cluster(failureDetection={"leaseSeconds": 301}), "leaseSeconds must be from 0.5 to 300 seconds"),
    (cluster(failureDetection={"heartbeatSeconds": 2}), "leaseSeconds must be at least twice"),
    (cluster(failureDetection={"rejoinGracePeriodSeconds": -1}), "rejoinGracePeriodSeconds must be"),
    (cluster(resp={"serviceType": "Ingress"}), 'spec.resp.serviceType: Unsupported value: "Ingress"'),
    (cluster(resp={"nodePort": 30_379}), "spec.resp.nodePort needs spec.resp.serviceType"),
    (cluster(resp={"cluster": {"announce": {"host": "redis"}}}), "gives all members one address"),
    (
        cluster(resp={"cluster": {"announce": {"host": "{pod}.redis"}}}),
        "spec.resp.cluster.announce.host must",
    ),
    (
        cluster(resp={"cluster": {"announce": {"host": "{member}.redis", "port": 0}}}),
        "spec.resp.cluster.announce.port must be",
    ),
    (cluster(resp={"serviceType": "NodePort", "nodePort": 70_000}), "spec.resp.nodePort must be"),
    (balanced(annotations={"a b": "c"}), "spec.resp.annotations: each key needs a name as Kubernetes has it"),
    (balanced(annotations={"a" * 318: "c"}), "spec.resp.annotations: each key needs a name"),
    (balanced(annotations={"stele.dev/applied": "{}"}), "spec.resp.annotations: stele.dev/* are set by the"),
    (balanced(annotations={f"a{n}": "" for n in range(33)}), "spec.resp.annotations: Too many"),
    (balanced(labels={"app.kubernetes.io/name": "x"}), "spec.resp.labels: stele.dev/* and app.kubernetes.io"),
    (balanced(labels={"stele.dev/cluster": "x"}), "are set by the operator; leave them out"),
    (balanced(labels={"team": "a b"}), "spec.resp.labels.team"),
    (balanced(loadBalancerClass="a b"), "spec.resp.loadBalancerClass must be a name as Kubernetes has it"),
    (balanced(loadBalancerClass=""), "spec.resp.loadBalancerClass must be a name as Kubernetes has it"),
    (balanced(loadBalancerSourceRanges=["10.0.0.1"]), "loadBalancerSourceRanges: a block of addresses is"),
    (balanced(loadBalancerSourceRanges=["10.0.0.0/33"]), "loadBalancerSourceRanges: a block of addresses is"),
    (balanced(loadBalancerSourceRanges=[BLOCK["cidr"]] * 65), "loadBalancerSourceRanges: Too many"),
    (balanced(externalTrafficPolicy="local"), "spec.resp.externalTrafficPolicy: Unsupported value"),
    (balanced(ipFamilyPolicy="DualStack"), "spec.resp.ipFamilyPolicy: Unsupported value"),
    (
        cluster(resp={"serviceType": "NodePort", "loadBalancerClass": "a/b"}),
        "spec.resp.loadBalancerClass needs spec.resp.serviceType LoadBalancer; set the type or leave",
    ),
    (
        cluster(resp={"loadBalancerSourceRanges": [BLOCK["cidr"]]}),
        "spec.resp.loadBalancerSourceRanges needs spec.resp.serviceType LoadBalancer; set the type or leave",
    ),
    (
        cluster(resp={"externalTrafficPolicy": "Local"}),
        "spec.resp.externalTrafficPolicy needs spec.resp.serviceType NodePort or LoadBalancer; set the type",
    ),
    *((hosted(host), "spec.security.clients.hosts: each must be a host name or") for host in BAD_HOSTS),
    (hosted("a.stele.INVALID"), "names that end with .invalid are those of members among themselves"),
    (hosted(*(f"a{n}.example.com" for n in range(33))), "spec.security.clients.hosts: Too many"),
    (cluster(resources={"limits": {"memory": "plenty"}}), "spec.resources.limits[memory]: Invalid value"),
    (cluster(resources={"requests": {"cpu": -1}}), "must be a quantity that is not negative"),
    (cluster(resources={"limits": {f"r{n}": 1 for n in range(17)}}), "spec.resources.limits: Too many"),
    (cluster(images={"member": "a b"}), "spec.images.member"),
    (cluster(images={"spark": ""}), "spec.images.spark"),
    (template(labels={"stele.dev/member": "x"}), "spec.podTemplate.labels: stele.dev/*"),
    (template(labels={"app.kubernetes.io/name": "x"}), "are set by the operator; leave them out"),
    (template(labels={"team": "a b"}), "spec.podTemplate.labels.team"),
    (template(annotations={"stele.dev/revision": "x"}), "spec.podTemplate.annotations: stele.dev/*"),
    (template(env=[{"name": "STELE_FSYNC", "value": "Never"}]), "variables that begin with STELE_ are set"),
    (template(env=[{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}]), "not both"),
    (template(env=[{"name": "A", "valueFrom": {}}]), "spec.podTemplate.env.valueFrom needs one of"),
    (template(env=[{"name": "A"}, {"name": "A"}]), "Duplicate value"),
    (template(volumes=[]), 'unknown field "spec.podTemplate.volumes"'),
    (template(tolerations=[{"operator": "exists"}]), "spec.podTemplate.tolerations[0].operator"),
    (template(topologySpreadConstraints=[{}]), "topologySpreadConstraints[0].maxSkew: Required value"),
    (template(securityContext={"runAsUser": -1}), "spec.podTemplate.securityContext.runAsUser"),
    (template(affinity={"nodeAffinty": {}}), 'unknown field "spec.podTemplate.affinity.nodeAffinty"'),
    (cluster(LONG), "metadata.name must have at most 40 letters"),
    (cluster("a.b"), "metadata.name must be a DNS label"),
    (cluster("1st"), "metadata.name must be a DNS label"),
    (member(cluster=ABSENT), "spec.cluster: Required value"),
    (member(cluster=""), "spec.cluster"),
    (member(cluster=LONG), "spec.cluster: Too long"),
    (member(index=ABSENT), "spec.index: Required value"),
    (member(index=-1), "spec.index must be a whole number from 0"),
    (member(drain="soon"), "spec.drain"),
    (member(weight=0), "spec.weight must be a whole number from 1 to 100"),
    (member(weight=101), "spec.weight must be a whole number from 1 to 100"),
    (cluster(placement={"topologyKeys": ["zone"] * 6}), "spec.placement.topologyKeys: Too many"),
    (cluster(placement={"topologyKeys": [""]}), "spec.placement.topologyKeys"),
    (rebalance(cluster=ABSENT), "spec.cluster: Required value"),
    (rebalance(mode="Guess"), 'spec.mode: Unsupported value: "Guess"'),
    (rebalance(moves=[]), "spec.moves"),
    (rebalance(moves=[{"partition": 1}]), "each of spec.moves needs from, to or both"),
    (rebalance(moves=[{"partition": 1, "from": "demo-0", "to": "demo-0"}]), "must be different members"),
    (rebalance(handover={}), "spec.handover.member"),
    (rebalance(handover={"member": "demo-0", "to": "demo-0"}), "member and to must be different members"),
    (rebalance(handover={"member": "demo-0"}, mode="DryRun"), "spec.handover stands alone"),
    (
        rebalance(handover={"member": "demo-0"}, moves=[{"partition": 1, "to": "demo-0"}]),
        "spec.handover stands alone",
    ),
    (rebalance(moves=[{"partition": -1, "to": "demo-0"}]), "spec.moves.partition must be a whole number"),
    (rebalance(moves=[{"partition": 1, "to": "demo-0"}] * 1_001), "spec.moves: Too many"),
    (rebalance(changes={"members": 4}), "spec.changes needs spec.mode DryRun"),
    (rebalance(mode="DryRun", changes={"replicas": 8}), "spec.changes.replicas must be"),
    (rebalance(rollBack=True), "spec.rollBack needs spec.cancel: set both"),
    (rebalance(cancelMigrations=[16_384]), "spec.cancelMigrations"),
    (cluster(migration={"approval": "Never"}), 'spec.migration.approval: Unsupported value: "Never"'),
    (cluster(keyspaces={"undeclared": "Never"}), 'spec.keyspaces.undeclared: Unsupported value: "Never"'),
    (keyspace("a.b"), "metadata.name, which names the keyspace without spec.name, must be 1 to 63 of a-z"),
    (keyspace("7"), "and not a number, which is named db<number>"),
    (keyspace(cluster=ABSENT), "spec.cluster: Required value"),
    (resource("Keyspace", "a", {"cluster": "demo", "name": "A"}), "spec.name must be 1 to 63 of a-z"),
    (resource("Keyspace", "a", {"cluster": "demo", "name": "12"}), "spec.name must be 1 to 63 of a-z"),
    (keyspace(ttll=5), 'unknown field "spec.ttll"'),
    (keyspace(ttl=-1), "spec.ttl must be a whole number from 0 to 315360000"),
    (keyspace(ttl="1h"), "spec.ttl"),
    (keyspace(notify="KQ"), "spec.notify must consist of flags of KEg$lshzxetdmnAM"),
    (keyspace(nearCache={"bytes": "1Mi"}), "spec.nearCache.seconds: Required value"),
    (keyspace(nearCache={"bytes": "0", "seconds": 5}), "spec.nearCache.bytes must be a quantity of bytes"),
    (keyspace(nearCache={"bytes": "2Ti", "seconds": 5}), "spec.nearCache.bytes must be at most 1Ti"),
    (keyspace(nearCache={"bytes": "1Mi", "seconds": 0}), "spec.nearCache.seconds must be a whole number"),
    (keyspace(mode="Cached"), 'spec.mode: Unsupported value: "Cached"'),
    (keyspace(mode="Invalidation"), "spec.localCache is needed with spec.mode Invalidation, and only then"),
    (keyspace(localCache={"bytes": "1Mi"}), "spec.localCache is needed with spec.mode Invalidation"),
    (keyspace(mode="Invalidation", localCache={}), "spec.localCache.bytes: Required value"),
    (keyspace(mode="Invalidation", localCache={"bytes": "2Ti"}), "spec.localCache.bytes must be at most 1Ti"),
    (keyspace(**CACHE, notify="KEA"), "spec.mode Invalidation excludes spec.notify, nearCache, quota, place"),
    (keyspace(**CACHE, reads="Available"), "spec.mode Invalidation excludes spec.notify"),
    (keyspace(**CACHE, replication="Async"), "spec.mode Invalidation excludes spec.notify"),
    (keyspace(**CACHE, quota={"entries": 5}), "spec.mode Invalidation excludes spec.notify"),
    (keyspace(**CACHE, nearCache={"bytes": "1Mi", "seconds": 5}), "spec.mode Invalidation excludes"),
    (
        keyspace(**CACHE, placement=PLACED),
        "spec.mode Invalidation excludes spec.notify, nearCache, quota, placement",
    ),
    (keyspace(placement={}), "spec.placement.partitions: Required value"),
    (keyspace(placement={"partitions": 4}), "spec.placement.replicas is needed with spec.mode Distributed"),
    (
        keyspace(placement={"partitions": 0, "replicas": 1}),
        "spec.placement.partitions must be a whole number",
    ),
    (keyspace(placement={"partitions": 16_385, "replicas": 1}), "a whole number from 1 to 16384"),
    (keyspace(placement={"partitions": 1, "replicas": 8}), "spec.placement.replicas must be a whole number"),
    (keyspace(mode="Replicated"), "spec.mode Replicated needs spec.reads Available"),
    (
        keyspace(mode="Replicated", reads="Available", placement=PLACED),
        "spec.placement.replicas is not possible with spec.mode Replicated",
    ),
    (keyspace(reads="Never"), 'spec.reads: Unsupported value: "Never"'),
    (keyspace(quota={}), "spec.quota must have entries or bytes; without a quota leave it out"),
    (keyspace(quota={"entries": 0}), "spec.quota.entries must be a whole number from 1 to"),
    (keyspace(quota={"bytes": "-1"}), "spec.quota.bytes must be a quantity of bytes above zero"),
    (keyspace(quota={"bytes": "2Pi"}), "spec.quota.bytes must be at most 1Pi"),
    (keyspace(replication="Never"), 'spec.replication: Unsupported value: "Never"'),
    (keyspace(onDelete="Maybe"), 'spec.onDelete: Unsupported value: "Maybe"'),
    (user(cluster=ABSENT), "spec.cluster: Required value"),
    (user(cluster=LONG), "spec.cluster: Too long"),
    (user("a" * 64), "metadata.name must have at most 63 characters: it names a Secret"),
    (
        resource("TabletUser", "a", {"cluster": "demo", "password": MADE, "name": "a b"}),
        "spec.name must be 1 to",
    ),
    (user(password=ABSENT), "spec needs password, certificate or both: what clients log in by"),
    (user(certificate={}), "spec.certificate needs either uri"),
    (user(certificate={"uri": "a:b", "commonName": "c"}), "or commonName, the CN of its subject; not both"),
    (user(certificate={"uri": "shop"}), "spec.certificate.uri must be a URI with its scheme"),
    (user(certificate={"uri": "spiffe://a b"}), "spec.certificate.uri must be a URI with its scheme"),
    (user(certificate={"uri": "Stele://u/member/m"}), "stele: is for parts of clusters"),
    (user(certificate={"uri": "a:" + "b" * 511}), "spec.certificate.uri: Too long"),
    (user(certificate={"commonName": ""}), "spec.certificate.commonName"),
    (user(certificate={"commonName": "a" * 65}), "spec.certificate.commonName: Too long"),
    (user(password={}), "spec.password needs either generated: true"),
    (user(password={"generated": False}), "or secretRef.name, the Secret that has one; not both"),
    (user(password={"generated": True, "secretRef": {"name": "a"}}), "spec.password needs either generated"),
    (user(password={"secretRef": {}}), "spec.password.secretRef.name: Required value"),
    (user(password={"value": "secret"}), 'unknown field "spec.password.value"'),
    (user(enabled="yes"), "spec.enabled"),
    (user(acl=["+get"] * 257), "spec.acl: Too many"),
    (user(acl=[""]), "spec.acl[0]"),
    (user(acl=["~" + "a" * 256]), "spec.acl[0]: Too long"),
    (user(keyspaces=["a"] * 65), "spec.keyspaces: Too many"),
    (user(keyspaces=[""]), "spec.keyspaces[0]"),
    (user(limits={"bytesPerSecond": "1"}), "spec.limits.bytesPerSecond must be from 1Ki to 1Ti"),
    (user(limits={"bytesPerSecond": "2Ti"}), "spec.limits.bytesPerSecond must be from 1Ki to 1Ti"),
    (user(limits={"bytesPerSecond": "fast"}), "spec.limits.bytesPerSecond must be a quantity of bytes"),
    (user(limits={"connections": 0}), "spec.limits.connections must be a whole number from 1 to 1000000"),
]

GOOD_STORAGE = {"size": "2Gi", "storageClassName": "fast"}

CHANGED_BADLY = [
    (cluster(), {"partitions": 272}, "create a new cluster and copy the data"),
    (cluster(partitions=300), {"partitions": None}, "spec.partitions cannot change"),
    (cluster(), {"members": 0}, "delete the cluster instead"),
    (cluster(), {"storage": {"size": "1Gi"}}, "spec.storage.size cannot shrink"),
    (cluster(), {"storage": {"storageClassName": "fast"}}, "spec.storage.storageClassName cannot change"),
    (
        cluster(storage=GOOD_STORAGE),
        {"storage": {"storageClassName": "slow"}},
        "storageClassName cannot change",
    ),
    (
        cluster(storage=GOOD_STORAGE),
        {"storage": {"storageClassName": None}},
        "storageClassName cannot change",
    ),
    (keyspace(), CACHE, "spec.mode cannot change: create another Keyspace"),
    (keyspace(), {"placement": PLACED}, "spec.placement cannot change: create another Keyspace"),
    (keyspace(placement=PLACED), {"placement": None}, "spec.placement cannot change"),
    (keyspace(placement=PLACED), {"placement": {"replicas": 3}}, "spec.placement cannot change"),
    (
        keyspace(mode="Replicated", reads="Available"),
        {"reads": "Linearizable"},
        "spec.mode Replicated needs spec.reads Available",
    ),
    (
        balanced(),
        {"resp": {"loadBalancerClass": "a/b"}},
        "spec.resp.loadBalancerClass cannot change while the Service has a load balancer",
    ),
    (
        balanced(loadBalancerClass="a/b"),
        {"resp": {"loadBalancerClass": None}},
        "set spec.resp.serviceType to ClusterIP and leave it out, then set both again",
    ),
    (
        balanced(loadBalancerClass="a/b"),
        {"resp": {"serviceType": "ClusterIP"}},
        "spec.resp.loadBalancerClass needs spec.resp.serviceType LoadBalancer",
    ),
    (member(), {"cluster": "other"}, "spec.cluster cannot change"),
    (member(), {"index": 1}, "spec.index cannot change"),
    (rebalance(), {"cluster": "other"}, "spec.cluster cannot change"),
    (rebalance(), {"mode": "DryRun"}, "spec.mode cannot change"),
    (rebalance(approved=True), {"approved": False}, "spec.approved cannot be reset"),
    (rebalance(), {"moves": [{"partition": 1, "to": "demo-0"}]}, "spec.moves cannot change"),
    (rebalance(), {"handover": {"member": "demo-0"}}, "spec.handover cannot change"),
    (
        rebalance(handover={"member": "demo-0"}),
        {"handover": {"member": "demo-1"}},
        "spec.handover cannot change",
    ),
    (rebalance(moves=[{"partition": 1, "to": "demo-0"}]), {"moves": None}, "spec.moves cannot change"),
    (rebalance(cancel=True), {"cancel": False}, "spec.cancel cannot be reset"),
    (keyspace(), {"cluster": "other"}, "spec.cluster cannot change"),
    (keyspace(), {"name": "other"}, "spec.name cannot change"),
    (user(), {"cluster": "other"}, "spec.cluster cannot change: create another TabletUser"),
    (user(), {"name": "other"}, "spec.name cannot change: create another TabletUser"),
]

EXPOSED = {
    "serviceType": "LoadBalancer",
    "annotations": {"service.beta.kubernetes.io/aws-load-balancer-scheme": "internal", "a": ""},
    "labels": {"team": "shop"},
    "loadBalancerClass": "service.k8s.aws/nlb",
    "loadBalancerSourceRanges": ["203.0.113.0/24", "2001:db8::/64", "0.0.0.0/0"],
    "externalTrafficPolicy": "Local",
    "ipFamilyPolicy": "PreferDualStack",
}
GOOD_HOSTS = ["redis.example.com", "*.redis.example.com", "Redis-1", "203.0.113.7", "2001:db8::7"]

CHANGED_WELL = [
    (cluster(), {"members": 5, "replicas": 7}),
    (cluster(), {"storage": {"size": "2049Mi"}}),
    (cluster(**storage(size="1Mi")), {"storage": {"size": "2Mi"}}),
    (cluster(**storage(size="1Mi")), {"members": 4}),
    (cluster(), {"state": "Passive", "migration": {"paused": True, "engine": "Direct"}}),
    (cluster(), {"failureDetection": {"heartbeatSeconds": 0.5, "leaseSeconds": 1}}),
    (cluster(), {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": 2, "memory": "2Gi"}}}),
    (cluster(), {"keyspaces": {"undeclared": "Refuse"}}),
    (cluster(), {"resp": EXPOSED}),
    (balanced(loadBalancerClass="a/b"), {"members": 5}),
    (balanced(loadBalancerClass="a/b"), {"resp": {"serviceType": "ClusterIP", "loadBalancerClass": None}}),
    (cluster(), {"security": {"clients": {"hosts": GOOD_HOSTS}}}),
    (member(), {"lite": True, "drain": True}),
    (rebalance(), {"cancel": True}),
    (keyspace(), {"ttl": 5, "notify": "KEg$xM", "reads": "Available", "onDelete": "Drop"}),
    (keyspace(), {"replication": "Async"}),
    (user(), {"enabled": False, "acl": ["+@read", "~a:*"], "keyspaces": ["a"], "limits": {"connections": 5}}),
    (user(), {"password": {"generated": False, "secretRef": {"name": "mine"}}}),
    (user(), {"certificate": {"uri": "spiffe://example.com/ns/shop?x=%20"}}),
    (
        user(password=ABSENT, certificate={"commonName": "a"}),
        {"certificate": {"commonName": "Shop of Ägypten"}},
    ),
    (keyspace(placement=PLACED), {"replication": "Async", "quota": {"entries": 5}}),
    (keyspace(mode="Replicated", reads="Available", placement={"partitions": 1}), {"ttl": 5}),
    (keyspace(), {"nearCache": {"bytes": "64Mi", "seconds": 30}}),
    (keyspace(quota={"entries": 5}), {"quota": {"entries": 6, "bytes": "1Gi"}}),
]


def shown(case: Any) -> str:
    return json.dumps(case) if isinstance(case, dict) else str(case)


@pytest.mark.parametrize(
    ("bad", "text"), CREATED_BADLY, ids=lambda case: case if isinstance(case, str) else None
)
def test_a_bad_object_is_refused_with_a_message_that_names_the_field(
    control_plane: ControlPlane, namespace: str, bad: dict[str, Any], text: str
) -> None:
    assert text in control_plane.refused("create", "-n", namespace, "-f", "-", stdin=documents(bad))


@pytest.mark.parametrize(
    ("good", "change", "text"), CHANGED_BADLY, ids=lambda case: case if isinstance(case, str) else None
)
def test_a_bad_change_is_refused_and_the_object_stays_as_it_was(
    control_plane: ControlPlane, namespace: str, good: dict[str, Any], change: dict[str, Any], text: str
) -> None:
    control_plane.apply(namespace, good)
    kind, name = good["kind"].lower(), good["metadata"]["name"]
    before = control_plane.get(namespace, kind, name)

    assert text in control_plane.refused(*patch(namespace, kind, name, change))
    assert control_plane.get(namespace, kind, name) == before


@pytest.mark.parametrize(("good", "change"), CHANGED_WELL, ids=shown)
def test_an_allowed_change_is_stored(
    control_plane: ControlPlane, namespace: str, good: dict[str, Any], change: dict[str, Any]
) -> None:
    control_plane.apply(namespace, good)
    kind, name = good["kind"].lower(), good["metadata"]["name"]

    control_plane.kubectl(*patch(namespace, kind, name, change))

    stored = control_plane.get(namespace, kind, name)["spec"]
    assert stored == without_nulls(merged(stored, change))


def patch(namespace: str, kind: str, name: str, change: dict[str, Any], *more: str) -> tuple[str, ...]:
    body = json.dumps({"spec": change})
    return ("patch", "-n", namespace, kind, name, "--type=merge", "-p", body, *more)


def merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(base)
    for key, value in change.items():
        result[key] = merged(result[key], value) if isinstance(value, dict) else value
    return result


def without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: without_nulls(each) for key, each in value.items() if each is not None}


WITHOUT_DEFAULTS = ("resources", "images", "podTemplate")


def test_the_api_server_fills_in_what_the_model_does(control_plane: ControlPlane, namespace: str) -> None:
    given = cluster()
    control_plane.apply(namespace, given)
    model = TabletCluster.read(given)
    assert isinstance(model, TabletCluster)

    stored = control_plane.get(namespace, "stc", "demo")["spec"]

    filled = {key: value for key, value in model.spec.to_dict().items() if key not in WITHOUT_DEFAULTS}
    # Nothing in it has a default.
    assert filled["resp"].pop("cluster") == {}
    empty = {"annotations": {}, "labels": {}, "loadBalancerSourceRanges": []}
    assert {name: filled["resp"].pop(name) for name in empty} == empty
    assert filled.pop("security") == {"clients": {"hosts": []}, "members": {}, "ca": {}, "networkPolicy": {}}
    assert stored == filled


REQUIREMENT = {"key": "disk", "operator": "In", "values": ["fast"]}
SELECTOR = {"matchLabels": {"app": "shop"}, "matchExpressions": [REQUIREMENT]}
POD_TERM = {
    "topologyKey": "zone",
    "labelSelector": SELECTOR,
    "namespaces": ["shop"],
    "namespaceSelector": SELECTOR,
}
PODS_BESIDE = {
    "requiredDuringSchedulingIgnoredDuringExecution": [POD_TERM],
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 3, "podAffinityTerm": POD_TERM}],
}
NODES = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [REQUIREMENT]}]
    },
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [REQUIREMENT]}}
    ],
}
POD_TEMPLATE: dict[str, Any] = {
    "labels": {"team": "shop"},
    "annotations": {"example.com/why": "a sentence"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [
        {
            "key": "stele",
            "operator": "Equal",
            "value": "yes",
            "effect": "NoExecute",
            "tolerationSeconds": 60,
        }
    ],
    "affinity": {"nodeAffinity": NODES, "podAffinity": PODS_BESIDE, "podAntiAffinity": PODS_BESIDE},
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": SELECTOR,
            "minDomains": 2,
            "nodeAffinityPolicy": "Honor",
            "nodeTaintsPolicy": "Honor",
            "matchLabelKeys": ["team"],
        }
    ],
    "priorityClassName": "system-node-critical",
    "imagePullSecrets": [{"name": "registry"}],
    "securityContext": {
        "runAsUser": 5,
        "runAsGroup": 6,
        "runAsNonRoot": True,
        "fsGroup": 7,
        "fsGroupChangePolicy": "Always",
        "supplementalGroups": [8],
        "seccompProfile": {"type": "Localhost", "localhostProfile": "a.json"},
        "appArmorProfile": {"type": "RuntimeDefault"},
        "seLinuxOptions": {"user": "u", "role": "r", "type": "t", "level": "s0"},
    },
    "env": [
        {"name": "TZ", "value": "UTC"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b", "optional": True}}},
        {"name": "CONFIG", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ],
}


def test_kubernetes_takes_every_field_of_a_pod_template_as_it_was_written(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.apply(namespace, template(**POD_TEMPLATE))
    stored = control_plane.get(namespace, "stc", "demo")
    assert stored["spec"]["podTemplate"] == POD_TEMPLATE
    model = TabletCluster.read(stored)
    owner = TabletMember.read(member())
    assert isinstance(model, TabletCluster)
    assert isinstance(owner, TabletMember)
    settings = Settings("member", "spark")
    for pod in (
        member_pod(model, owner, settings.members),
        copier_pod(model, settings.copier, with_tls=False),
    ):
        del pod["metadata"]["ownerReferences"]
        control_plane.apply(namespace, pod)
        made = control_plane.get(namespace, "pod", pod["metadata"]["name"])
        del made["metadata"]["annotations"]["stele.dev/revision"]
        wanted = {"annotations": {**pod["metadata"]["annotations"], "stele.dev/revision": "another"}}
        assert outdated_pod(made, {**pod, "metadata": {**pod["metadata"], **wanted}}) == ()


@pytest.mark.parametrize(
    ("model", "given"), [(TabletCluster, cluster()), (TabletMember, member()), (TabletRebalance, rebalance())]
)
def test_a_stored_object_is_read_and_a_written_status_is_kept_whole(
    control_plane: ControlPlane, namespace: str, model: Any, given: dict[str, Any]
) -> None:
    control_plane.apply(namespace, given)
    kind, name = given["kind"].lower(), given["metadata"]["name"]
    status = {**model.read(given).status.to_dict(), "conditions": [CONDITION]}
    body = json.dumps({"status": status})

    control_plane.kubectl(
        "patch", "-n", namespace, kind, name, "--subresource=status", "--type=merge", "-p", body
    )

    stored = control_plane.get(namespace, kind, name)
    assert stored["status"] == status
    read = model.read(stored)
    assert not isinstance(read, Unreadable)
    assert read.status.to_dict() == status
    assert read.metadata.generation == 1


CONDITION = {
    "type": "Ready",
    "status": "False",
    "reason": "Forming",
    "message": "1 of 3 members is ready",
    "lastTransitionTime": "2030-01-01T00:00:00Z",
    "observedGeneration": 1,
}


def test_scale_changes_members_and_shows_how_many_there_are(
    control_plane: ControlPlane, namespace: str
) -> None:
    """One that is away is no reason to scale."""
    control_plane.apply(namespace, cluster())
    members = {"current": 3, "ready": 2}
    status = json.dumps({"status": {"members": members, "selector": "stele.dev/cluster=demo"}})
    control_plane.kubectl(
        "patch", "-n", namespace, "stc", "demo", "--subresource=status", "--type=merge", "-p", status
    )

    control_plane.kubectl("scale", "-n", namespace, "tabletcluster/demo", "--replicas=4")

    path = f"/apis/stele.dev/v1alpha1/namespaces/{namespace}/tabletclusters/demo/scale"
    scale = json.loads(control_plane.kubectl("get", "--raw", path))
    assert scale["spec"] == {"replicas": 4}
    assert scale["status"] == {"replicas": 3, "selector": "stele.dev/cluster=demo"}
    assert control_plane.get(namespace, "stc", "demo")["spec"]["members"] == 4


@pytest.mark.parametrize(
    ("members", "text"),
    [(0, "delete the cluster instead"), (1_001, "from 1 to 1000")],
    ids=["none", "too many"],
)
def test_scale_refuses_what_spec_refuses(
    control_plane: ControlPlane, namespace: str, members: int, text: str
) -> None:
    control_plane.apply(namespace, cluster())

    refusal = control_plane.refused("scale", "-n", namespace, "tabletcluster/demo", f"--replicas={members}")

    assert "spec.members" in refusal
    assert text in refusal
    assert control_plane.get(namespace, "stc", "demo")["spec"]["members"] == 3


def test_without_strict_validation_unknown_fields_are_dropped(
    control_plane: ControlPlane, namespace: str
) -> None:
    given = documents(cluster(surprise=True))
    control_plane.kubectl("create", "--validate=ignore", "-n", namespace, "-f", "-", stdin=given)
    assert "surprise" not in control_plane.get(namespace, "stc", "demo")["spec"]


def test_more_replicas_than_members_is_stored(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.apply(namespace, cluster(members=1, replicas=3))
    assert control_plane.get(namespace, "stc", "demo")["spec"]["replicas"] == 3


def test_the_longest_name_is_allowed(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.apply(namespace, cluster("a" * 40))


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("stc", "NAME DESIRED READY UPDATED AVAILABLE PARTITIONS SAFE UNDER-REPLICATED MIGRATING PHASE AGE"),
        ("stm", "NAME CLUSTER STATE OWNED BACKUPS BYTES FREE DRAIN SAFE-TO-EVICT RESTARTS AGE"),
        ("str", "NAME CLUSTER PHASE DONE TOTAL BYTES MB/S ETA ENGINE AGE"),
        ("ks", "NAME CLUSTER KEYSPACE MODE REPLICATION ENTRIES BYTES READY AGE"),
    ],
)
def test_kubectl_get_shows_the_columns(
    control_plane: ControlPlane, namespace: str, kind: str, columns: str
) -> None:
    control_plane.apply(namespace, cluster(), member(), rebalance(), keyspace())
    table = control_plane.kubectl("get", "-n", namespace, kind)
    assert table.splitlines()[0].split() == columns.split()


def test_the_category_lists_all_kinds(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.apply(namespace, cluster(), member(), rebalance(), keyspace())
    names = control_plane.kubectl("get", "-n", namespace, "stele", "-o", "name").split()
    assert names == [
        "keyspace.stele.dev/sessions",
        "tabletcluster.stele.dev/demo",
        "tabletmember.stele.dev/demo-0",
        "tabletrebalance.stele.dev/demo-1",
    ]


def test_every_field_and_kind_is_explained(control_plane: ControlPlane) -> None:
    for kind in ("tabletcluster", "tabletmember", "tabletrebalance", "keyspace"):
        assert "DESCRIPTION" in control_plane.kubectl("explain", kind)
    explained = control_plane.kubectl("explain", "tabletcluster.spec.storage.keepVolumes")
    assert "drained" in explained


@pytest.mark.parametrize("path", sorted((REPOSITORY / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_accepted(control_plane: ControlPlane, namespace: str, path: Any) -> None:
    control_plane.apply(namespace, *yaml.safe_load_all(path.read_text()))
