"""Pure builders of the objects that belong to a cluster.

A TabletCluster owns its TabletMembers, Services, budget, copier and table; a TabletMember owns its Pod.
Volume claims have no owner, so that data outlives the objects that describe it (docs/internals/operator.md,
"Objects of a cluster").
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stele.adapters.logs import LogFormat, environment_of
from stele.core.security.level import InternalTls
from stele.master.applied import with_note
from stele.master.pod_template import executor_fields, fields_of, metadata_of, with_template
from stele.master.revision import REVISION, revision_of
from stele.master.secret_volumes import (
    TLS_FOLDER,
    TLS_MOUNT,
    USERS_FILE,
    USERS_MOUNT,
    secret_volumes,
    tls_volume,
)
from stele.model import API_VERSION, TabletCluster, TabletMember
from stele.model.cluster import EngineChoice, JoinAs
from stele.model.ownership import CLUSTER_LABEL, CLUSTER_UID_LABEL, SPEC_COPY, belongs_to
from stele.model.resp import ServiceType
from stele.model.rollout import FEATURES, RESTARTED_AT
from stele.wire.pods import SPARK_SECRET_MOUNT, container_security, pod_security, spark_secret_volume

Object = dict[str, Any]

RESP_PORT, CLUSTER_PORT, READ_PORT = 6379, 6380, 6381
PEER_PORT, ADMIN_PORT, TRANSFER_PORT = 7000, 7001, 7002
METRICS_PORT, COPIER_PORT = 7004, 7010

TLS_DIR = "STELE_TLS_DIR"
"""Variable with the folder of a process' certificate."""

MEMBER_LABEL = "stele.dev/member"
COMPONENT_LABEL = "stele.dev/component"
INSTANCE_LABEL = "app.kubernetes.io/instance"

KEPT_BY_ARGO_CD = {"argocd.argoproj.io/sync-options": "Prune=false,Delete=false"}
"""Of volume claims. Where Argo CD tracks objects by INSTANCE_LABEL, an application with a cluster's name
would delete claims that carry it, as objects that are not in git.
"""

SPEC_COPY_LENGTH = 65_536
"""Longest copy of a spec on a claim; Kubernetes limits the annotations of an object to 256 KiB."""

LAST_LOG = "FallbackToLogsOnError"
"""Has the kubelet keep the end of a failed container's log in the pod's status."""

LEAVE_SECONDS_LEAST = 60
LEFT_PER_SECOND = 40
"""How long a member's preStop hook waits to be emptied at least, and partitions of the cluster for each
second that it may wait: two cores that do all of the work hand over 46 of 16,384 a second."""

AFTER_LEAVE_SECONDS = 60
"""How long after its preStop hook a member may take to end."""


def name_of(cluster: str, index: int) -> str:
    """Return the name of a TabletMember, its Pod and its volume claim."""
    return f"{cluster}-{index}"


def index_of(cluster: str, name: str) -> int | None:
    """Return the index in a name that `name_of` made; None for other names."""
    digits = name.removeprefix(f"{cluster}-")
    index = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
    return index if name_of(cluster, index) == name else None


def headless_name(cluster: str) -> str:
    return f"{cluster}-members"


def copier_name(cluster: str) -> str:
    return f"{cluster}-copier"


def keyspaces_name(cluster: str) -> str:
    return f"{cluster}-keyspaces"


def labels(cluster: str, component: str, member: str | None = None) -> dict[str, str]:
    """Return the labels of a child; selectors use only those of stele.dev."""
    found = {
        "app.kubernetes.io/name": "stele",
        INSTANCE_LABEL: cluster,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "stele",
        "app.kubernetes.io/managed-by": "stele-operator",
        CLUSTER_LABEL: cluster,
        COMPONENT_LABEL: component,
    }
    return found if member is None else found | {MEMBER_LABEL: member}


def selector(cluster: str) -> dict[str, str]:
    """Select the pods of a cluster's members."""
    return {CLUSTER_LABEL: cluster, COMPONENT_LABEL: "member"}


def owner_reference(kind: str, name: str, uid: str) -> Object:
    return {"apiVersion": API_VERSION, "kind": kind, "name": name, "uid": uid, "controller": True}


def owned_by_cluster(cluster: TabletCluster) -> Object:
    return owner_reference("TabletCluster", cluster.metadata.name, cluster.metadata.uid)


def _object(
    api: str, kind: str, name: str, marks: Mapping[str, str], owner: Object | None, **rest: Any
) -> Object:
    metadata: Object = {"name": name, "labels": dict(marks)}
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}


def member_object(cluster: TabletCluster, index: int) -> Object:
    name = cluster.metadata.name
    member = name_of(name, index)
    return _object(
        API_VERSION,
        "TabletMember",
        member,
        labels(name, "member", member),
        owned_by_cluster(cluster),
        spec={"cluster": name, "index": index, "lite": _joins_lite(cluster)},
    )


def _joins_lite(cluster: TabletCluster) -> bool:
    """Return whether new members join as lite: until the table is assigned, members must hold data."""
    return cluster.spec.join_as is JoinAs.LITE and cluster.status.version_sum > 0


def claim(cluster: TabletCluster, index: int) -> Object:
    storage = cluster.spec.storage
    spec: Object = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": storage.size}},
    }
    if storage.storage_class_name is not None:
        spec["storageClassName"] = storage.storage_class_name
    name = cluster.metadata.name
    member = name_of(name, index)
    marks = labels(name, "member", member) | {CLUSTER_UID_LABEL: cluster.volumes_uid}
    del marks[INSTANCE_LABEL]
    body = _object("v1", "PersistentVolumeClaim", member, marks, None, spec=spec)
    return _annotated(body, {REVISION: revision_of(spec), **KEPT_BY_ARGO_CD})


def kept_claim(stored: Object, cluster: TabletCluster) -> Object:
    """Return a claim with a copy of the spec, and with metadata that earlier operators did not write."""
    meta = stored["metadata"]
    marks = {name: value for name, value in (meta.get("labels") or {}).items() if name != INSTANCE_LABEL}
    annotations = (meta.get("annotations") or {}) | KEPT_BY_ARGO_CD
    # Before its table exists, a recovered cluster keeps the copies of the deleted one: its spec may be wrong.
    if cluster.spec.bootstrap is None or cluster.status.version_sum:
        annotations |= _spec_copy(cluster, annotations.get(SPEC_COPY, ""))
    return {**stored, "metadata": {**meta, "labels": marks, "annotations": annotations}}


def _spec_copy(cluster: TabletCluster, before: str) -> dict[str, str]:
    """Return the annotation for a recovery; none for a spec that is too large or that `before` has."""
    begin = f'{{"generation":{cluster.metadata.generation},"uid":"{cluster.metadata.uid}",'
    if before.startswith(begin):
        return {}
    spec = {name: value for name, value in cluster.spec.to_dict().items() if name != "bootstrap"}
    text = begin + json.dumps({"spec": spec}, separators=(",", ":"), ensure_ascii=False)[1:]
    return {SPEC_COPY: text} if len(text) <= SPEC_COPY_LENGTH else {}


def _annotated(body: Object, annotations: Mapping[str, str]) -> Object:
    body["metadata"]["annotations"] = dict(annotations)
    return body


def is_foreign(claim: Object, cluster: TabletCluster) -> bool:
    """Whether a claim holds the data of another cluster, such as an earlier one of the same name."""
    marked = CLUSTER_UID_LABEL in (claim["metadata"].get("labels") or {})
    return marked and not belongs_to(claim, cluster.volumes_uid)


def controller_revision(cluster: TabletCluster, name: str, template: Object, number: int) -> Object:
    """Build the record of one spec of the members, under a number that grows."""
    own = cluster.metadata
    marks = labels(own.name, "revision") | {CLUSTER_UID_LABEL: own.uid}
    owner = owned_by_cluster(cluster)
    body = _object(
        "apps/v1", "ControllerRevision", name, marks, owner, data={"spec": template}, revision=number
    )
    return _annotated(body, {FEATURES: str(cluster.status.features)})


def headless_service(cluster: TabletCluster) -> Object:
    """Build the Service that gives members stable names, ready or not."""
    name = cluster.metadata.name
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(name),
        "ports": [_service_port(*each) for each in _PORTS],
    }
    marks = labels(name, "headless")
    return _object("v1", "Service", headless_name(name), marks, owned_by_cluster(cluster), spec=spec)


_MEMBER_PORTS = (
    ("resp", RESP_PORT),
    ("resp-cluster", CLUSTER_PORT),
    ("resp-read", READ_PORT),
    ("peer", PEER_PORT),
    ("admin", ADMIN_PORT),
    ("metrics", METRICS_PORT),
)
_PORTS = (*_MEMBER_PORTS, ("transfer", TRANSFER_PORT))


def _service_port(name: str, port: int) -> Object:
    return {"name": name, "port": port, "targetPort": name}


def client_service(cluster: TabletCluster) -> Object:
    """Build the Service for clients, of any ready member: each forwards requests to the owner.

    Whatever it is changed to, its address in the cluster stays, and so do connections to it.
    """
    name, resp = cluster.metadata.name, cluster.spec.resp
    port = _service_port("resp", RESP_PORT)
    if resp.node_port is not None and resp.service_type is not ServiceType.CLUSTER_IP:
        port["nodePort"] = resp.node_port
    ports = [port, _service_port("resp-cluster", CLUSTER_PORT), _service_port("resp-read", READ_PORT)]
    spec = {"type": resp.service_type.value, "selector": selector(name), "ports": ports}
    body = _object("v1", "Service", name, labels(name, "client"), owned_by_cluster(cluster), spec=spec)
    return with_note(body, annotations=resp.annotations, labels=resp.labels, spec=resp.service_spec)


def budget(cluster: TabletCluster, members: int, all_safe: bool) -> Object:
    """Build the disruption budget: one member may go, unless some partition lacks a copy.

    Of what has a single copy, a part does not answer while its member is away: no eviction could ever avoid
    that, so it is allowed.
    """
    name = cluster.metadata.name
    least = max(0, members - 1) if all_safe else members
    spec = {"minAvailable": least, "selector": {"matchLabels": selector(name)}}
    marks = labels(name, "budget")
    return _object("policy/v1", "PodDisruptionBudget", name, marks, owned_by_cluster(cluster), spec=spec)


def _probe(path: str, port: str, period: int, failures: int) -> Object:
    check = {"path": path, "port": port}
    return {"httpGet": check, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}


def _env(**values: str) -> list[Object]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _log_env(cluster: TabletCluster, setup: "Setup") -> list[Object]:
    own = cluster.metadata
    return _env(**environment_of(setup.log_format, own.namespace, own.name))


def _mounts() -> list[Object]:
    return [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}, TLS_MOUNT]


def _leave_seconds(cluster: TabletCluster) -> int:
    """Return how long a member's preStop hook waits to be emptied."""
    return max(LEAVE_SECONDS_LEAST, cluster.spec.partitions // LEFT_PER_SECOND)


def _member_container(cluster: TabletCluster, member: str, image: str, pull: str) -> Object:
    detection = cluster.spec.failure_detection
    return {
        "name": "member",
        "image": image,
        "imagePullPolicy": pull,
        "command": ["stele-member"],
        "env": [
            _field("STELE_POD_UID", "metadata.uid"),
            *_env(
                STELE_DATA_DIR="/data",
                STELE_CLUSTER_UID=cluster.volumes_uid,
                STELE_MEMBER_NAME=member,
                STELE_FSYNC=cluster.spec.storage.fsync.value,
                STELE_HEARTBEAT_MS=str(int(detection.heartbeat_seconds * 1000)),
                STELE_LEASE_MS=str(int(detection.lease_seconds * 1000)),
                **{TLS_DIR: TLS_FOLDER},
                STELE_USERS_FILE=USERS_FILE,
            ),
        ],
        "ports": [{"name": name, "containerPort": port} for name, port in _MEMBER_PORTS],
        "readinessProbe": _probe("/readyz", "metrics", 2, 2),
        "livenessProbe": _probe("/healthz", "metrics", 10, 12),
        "lifecycle": {
            "preStop": {
                "exec": {"command": ["stele-member", "leave", "--seconds", str(_leave_seconds(cluster))]}
            }
        },
        "resources": _resources(cluster),
        "terminationMessagePolicy": LAST_LOG,
        "securityContext": container_security(),
        "volumeMounts": [*_mounts(), USERS_MOUNT],
    }


def _resources(cluster: TabletCluster) -> Object:
    wanted = cluster.spec.resources
    if not wanted.requests and not wanted.limits:
        return {"requests": {"cpu": "100m", "memory": "192Mi"}}
    return {"requests": dict(wanted.requests), "limits": dict(wanted.limits)}


def _transfer_container(image: str, pull: str) -> Object:
    return {
        "name": "transfer",
        "image": image,
        "imagePullPolicy": pull,
        "command": ["stele-transfer"],
        "env": _env(STELE_DATA_DIR="/data", **{TLS_DIR: TLS_FOLDER}),
        "ports": [{"name": "transfer", "containerPort": TRANSFER_PORT}],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "terminationMessagePolicy": LAST_LOG,
        "securityContext": container_security(),
        "volumeMounts": _mounts(),
    }


def _apart(cluster: TabletCluster) -> Object:
    """Prefer different nodes, and different domains of each topology key."""
    labels_of_all = {"matchLabels": selector(cluster.metadata.name)}
    keys = dict.fromkeys([*cluster.spec.placement.topology_keys, "kubernetes.io/hostname"])
    terms = [{"topologyKey": key, "labelSelector": labels_of_all} for key in keys]
    preferred = [{"weight": 100, "podAffinityTerm": term} for term in terms]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


@dataclass(frozen=True)
class Setup:
    """The installation's settings for pods, unless a cluster sets its own image."""

    image: str
    pull_policy: str
    account: str
    pull_secrets: tuple[str, ...]
    log_format: LogFormat = field(default=LogFormat.TEXT, kw_only=True)

    def pull_secrets_of(self, cluster: TabletCluster) -> tuple[str, ...]:
        """Return the names of the installation's Secrets and the cluster's own."""
        own = (secret.name for secret in cluster.spec.pod_template.image_pull_secrets)
        return tuple(dict.fromkeys([*self.pull_secrets, *own]))


def _pulled(spec: Object, secrets: tuple[str, ...]) -> Object:
    return {**spec, "imagePullSecrets": [{"name": name} for name in secrets]} if secrets else spec


@dataclass(frozen=True)
class CopierSetup(Setup):
    """Those of the copier's pod and its executors."""

    executor_account: str
    secret: str


def member_pod(
    cluster: TabletCluster, member: TabletMember, setup: Setup, level: InternalTls = InternalTls.OFF
) -> Object:
    """Build the pod; `level` of TLS among members is what it starts with on an empty volume."""
    name, own = cluster.metadata.name, member.metadata.name
    owner = owner_reference("TabletMember", own, member.metadata.uid)
    spec = _member_spec(cluster, own, setup, level)
    template = cluster.spec.pod_template
    marks = template.labels | labels(name, "member", own)
    body = _object("v1", "Pod", own, marks, owner, spec=spec)
    marked = _restarted_at(cluster) | {REVISION: member_revision(cluster, setup)}
    return _annotated(body, template.annotations | marked)


def member_revision(cluster: TabletCluster, setup: Setup) -> str:
    """Return the revision of the member's pod, which is the same for all members: names are left out."""
    spec, template = _member_spec(cluster, "", setup), cluster.spec.pod_template
    return revision_of(spec | metadata_of(template) | _restarted_at(cluster))


def member_image(cluster: TabletCluster, setup: Setup) -> str:
    """Return the image of members: the cluster's own, or else the installation's."""
    return cluster.spec.images.member or setup.image


def _restarted_at(cluster: TabletCluster) -> dict[str, str]:
    """Return the annotation by which a user has all members restarted, if it is set."""
    at = cluster.metadata.annotations.get(RESTARTED_AT)
    return {} if at is None else {RESTARTED_AT: at}


def _member_spec(
    cluster: TabletCluster, own: str, setup: Setup, level: InternalTls = InternalTls.OFF
) -> Object:
    image, pull = member_image(cluster, setup), setup.pull_policy
    containers = [_member_container(cluster, own, image, pull), _transfer_container(image, pull)]
    for container in containers:
        container["env"] += _env(STELE_FIRST_MEMBER_TLS=level.value)
        container["env"] += _log_env(cluster, setup) + _env(STELE_LOG_MEMBER=own)
        container["env"] += fields_of(cluster.spec.pod_template).get("env", [])
    spec = {
        "hostname": own,
        "subdomain": headless_name(cluster.metadata.name),
        "serviceAccountName": setup.account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _leave_seconds(cluster) + AFTER_LEAVE_SECONDS,
        "securityContext": pod_security(),
        "affinity": _apart(cluster),
        "containers": containers,
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": own}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
            *secret_volumes(cluster.metadata.name, own),
        ],
    }
    members = selector(cluster.metadata.name)
    spec = with_template(spec, cluster.spec.pod_template, members)
    return _pulled(spec, setup.pull_secrets_of(cluster))


def wants_copier(cluster: TabletCluster) -> bool:
    return cluster.spec.migration.engine is not EngineChoice.DIRECT


def _field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def takes_tls(copier: Object) -> bool:
    """Return whether this pod of a copier was made to take TLS, and nothing else."""
    return any(each["name"] == TLS_DIR for each in copier["spec"]["containers"][0].get("env", []))


def copier_pod(cluster: TabletCluster, setup: CopierSetup, *, with_tls: bool) -> Object:
    """Build the pod that runs a cluster's Spark drivers."""
    name, secrets = cluster.metadata.name, setup.pull_secrets_of(cluster)
    placement = executor_fields(cluster.spec.pod_template)
    image, pull, account = cluster.spec.images.spark or setup.image, setup.pull_policy, setup.account
    env = [
        _field("POD_IP", "status.podIP"),
        _field("POD_NAME", "metadata.name"),
        _field("POD_NAMESPACE", "metadata.namespace"),
        *_env(
            STELE_SPARK_IMAGE=image,
            STELE_IMAGE_PULL_POLICY=pull,
            STELE_IMAGE_PULL_SECRETS=",".join(secrets),
            STELE_EXECUTOR_SERVICE_ACCOUNT=setup.executor_account,
            STELE_SPARK_SECRET=setup.secret,
            STELE_EXECUTOR_POD=json.dumps(placement, sort_keys=True),
        ),
        *_log_env(cluster, setup),
    ]
    container: Object = {
        "name": "copier",
        "image": image,
        "imagePullPolicy": pull,
        "command": ["stele-copier"],
        "env": env,
        "ports": [{"name": "http", "containerPort": COPIER_PORT}],
        "readinessProbe": _probe("/healthz", "http", 2, 3),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
        "terminationMessagePolicy": LAST_LOG,
        "securityContext": container_security(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, SPARK_SECRET_MOUNT],
    }
    spec: Object = {
        "serviceAccountName": account,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}, spark_secret_volume(setup.secret)],
    }
    if with_tls:
        container["env"] += _env(**{TLS_DIR: TLS_FOLDER})
        container["volumeMounts"] += [TLS_MOUNT]
        container["readinessProbe"]["httpGet"]["scheme"] = "HTTPS"
        spec["volumes"] += [tls_volume(copier_name(name))]
    spec = _pulled(spec | placement, secrets)
    marks = labels(name, "copier")
    body = _object("v1", "Pod", copier_name(name), marks, owned_by_cluster(cluster), spec=spec)
    return _annotated(body, {REVISION: revision_of(spec)})
