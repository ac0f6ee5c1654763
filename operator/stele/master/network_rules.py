"""Pure builders of a cluster's NetworkPolicies: who reaches its pods, and what its pods reach.

They select pods of this cluster alone, in both directions. So two clusters of one namespace are apart, also
when only one of them has policies: a connection needs the consent of both sides.
"""

from collections.abc import Sequence
from typing import Any

from stele.adapters.kubernetes import bulk_job
from stele.master.manifests import (
    ADMIN_PORT,
    CLUSTER_PORT,
    COMPONENT_LABEL,
    COPIER_PORT,
    METRICS_PORT,
    PEER_PORT,
    READ_PORT,
    RESP_PORT,
    TRANSFER_PORT,
    copier_name,
    labels,
    owned_by_cluster,
    selector,
)
from stele.model import TabletCluster
from stele.model.network_policy import Peer
from stele.model.ownership import CLUSTER_LABEL
from stele.wire.pods import (
    COPIER_LABEL,
    DRIVER_BLOCK_PORT,
    DRIVER_PORT,
    DRIVER_PORTS_MAX,
    EXECUTOR_BLOCK_PORT,
)

DNS_PORTS = (53, 5353)
"""Of DNS servers; those of OpenShift listen on the second one."""

API_SERVER_PORTS = (443, 6443, 8443, 16443)
"""Of API servers: the usual ones, and those of Minikube and MicroK8s.

Network plugins compare the address behind the Service `kubernetes`, which is not known here.
"""

OPERATOR = {"app.kubernetes.io/name": "stele-operator"}
"""Label of the operator's pods, which the chart sets."""

Object = dict[str, Any]
Peers = Sequence[Object] | None
"""None: everyone."""


def names_of(cluster: str) -> tuple[str, ...]:
    """Return the names of a cluster's policies."""
    return tuple(f"{cluster}-{pods}" for pods in ("members", "copier", "executors", "bulk"))


def network_policies(cluster: TabletCluster, operator_namespace: str) -> tuple[Object, ...]:
    """Build the policies of a cluster; they open what `operator_namespace` has of the operator, too."""
    name, asked = cluster.metadata.name, cluster.security.network_policy
    clients, metrics, admins = _peers(asked.clients), _peers(asked.metrics), _peers(asked.admins) or ()
    operator = _pods(OPERATOR) | _namespaces({"kubernetes.io/metadata.name": operator_namespace})
    members = _pods(selector(name))
    copier = _pods({CLUSTER_LABEL: name, COMPONENT_LABEL: "copier"})
    executors = _pods({"spark-role": "executor", COPIER_LABEL: copier_name(name)})
    bulk = _pods(bulk_job.labels_of(name))
    drivers = (_ports_of_drivers(DRIVER_PORT), _ports_of_drivers(DRIVER_BLOCK_PORT))
    dns = _to(None, *(_port(port, protocol) for port in DNS_PORTS for protocol in ("UDP", "TCP")))
    api_server = _to(None, *map(_port, API_SERVER_PORTS))
    to_members = [
        _from(clients, _port(RESP_PORT), _port(CLUSTER_PORT), _port(READ_PORT)),
        _from([members], _port(PEER_PORT)),
        _from([operator, bulk, *admins], _port(ADMIN_PORT)),
        _from([members, executors, bulk, *admins], _port(TRANSFER_PORT)),
        _from(metrics, _port(METRICS_PORT)),
    ]
    from_members = [_to([members], _port(PEER_PORT), _port(TRANSFER_PORT)), dns]
    to_copier = [_from([operator, executors], _port(COPIER_PORT)), _from([executors], *drivers)]
    from_copier = [_to([executors], _port(EXECUTOR_BLOCK_PORT)), api_server, dns]
    to_executors = [_from([copier, executors], _port(EXECUTOR_BLOCK_PORT))]
    from_executors = [
        _to([members], _port(TRANSFER_PORT)),
        _to([copier], _port(COPIER_PORT), *drivers),
        _to([executors], _port(EXECUTOR_BLOCK_PORT)),
        dns,
    ]
    to_bulk = [_from(admins, _port(bulk_job.PORT))] if admins else []
    from_bulk = [_to([members], _port(ADMIN_PORT), _port(TRANSFER_PORT)), dns]
    rules = (
        (members, to_members, from_members),
        (copier, to_copier, from_copier),
        (executors, to_executors, from_executors),
        (bulk, to_bulk, from_bulk),
    )
    named = zip(names_of(name), rules, strict=True)
    return tuple(_policy(cluster, each, *of_pods) for each, of_pods in named)


def _policy(
    cluster: TabletCluster, name: str, pods: Object, ingress: Sequence[Object], egress: Sequence[Object]
) -> Object:
    """Build one policy, which also closes what no rule opens."""
    metadata = {
        "name": name,
        "labels": labels(cluster.metadata.name, "network-policy"),
        "ownerReferences": [owned_by_cluster(cluster)],
    }
    # Kubernetes keeps no empty list: writing one again would be a change, and writing null is none.
    rules = {"ingress": list(ingress) or None, "egress": list(egress) or None}
    spec = pods | {"policyTypes": ["Ingress", "Egress"]} | rules
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def _from(peers: Peers, *ports: Object) -> Object:
    return {"ports": list(ports)} | ({} if peers is None else {"from": list(peers)})


def _to(peers: Peers, *ports: Object) -> Object:
    return {"ports": list(ports)} | ({} if peers is None else {"to": list(peers)})


def _port(port: int, protocol: str = "TCP") -> Object:
    return {"protocol": protocol, "port": port}


def _ports_of_drivers(first: int) -> Object:
    return _port(first) | {"endPort": first + DRIVER_PORTS_MAX - 1}


def _pods(wanted: dict[str, str]) -> Object:
    """Select pods of the cluster's namespace; with `_namespaces` besides, of those."""
    return {"podSelector": {"matchLabels": wanted}}


def _namespaces(wanted: dict[str, str]) -> Object:
    return {"namespaceSelector": {"matchLabels": wanted}}


def _peers(asked: Sequence[Peer] | None) -> Peers:
    """Return peers as Kubernetes has them; empty selectors, which select all, stay."""
    if asked is None:
        return None
    return [each.model_dump(mode="json", by_alias=True, exclude_defaults=True) for each in asked]
