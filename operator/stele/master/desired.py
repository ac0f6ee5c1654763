"""What one decision needs of a TabletCluster's spec and annotations."""

from stele.core.control.failure_detector import Timing
from stele.core.control.member_tls import WantedTls
from stele.core.control.state import DesiredSpec, UpdatePolicy
from stele.core.control.volumes import Recovery
from stele.core.copy.waves import LOG_SPACE_PERCENT, SNAPSHOT_SPACE_PERCENT
from stele.core.security.level import InternalTls
from stele.model import TabletCluster
from stele.model.cluster import ROLLBACK_COPIES, Storage
from stele.model.common import Quantity, quantity_bytes

PAUSE_ANNOTATION = "stele.dev/paused"
LOWER_MEMBER_TLS = "stele.dev/lower-member-tls"
"""Annotation: with the value Off, TLS among members falls when the spec asks for less."""


def desired_spec_of(cluster: TabletCluster) -> DesiredSpec:
    """Return what one decision needs of the cluster's spec and annotations."""
    spec = cluster.spec
    clients = cluster.clients
    detection = spec.failure_detection
    return DesiredSpec(
        members=spec.members,
        replicas=spec.replicas,
        timing=Timing(
            detection.heartbeat_seconds, detection.lease_seconds, detection.rejoin_grace_period_seconds
        ),
        state=spec.state.value,
        paused=cluster.metadata.annotations.get(PAUSE_ANNOTATION) == "true",
        migration_paused=spec.migration.paused,
        parallel_per_member=spec.migration.max_parallel_per_member,
        approval=spec.migration.approval.value,
        on_partition_loss=spec.on_partition_loss.value,
        engine=spec.migration.engine.value,
        spark_threshold_bytes=quantity_bytes(spec.spark.threshold_bytes),
        spark_idle_seconds=spec.spark.idle_seconds,
        fragments=spec.migration.fragments,
        bandwidth_per_member=quantity_bytes(spec.migration.bandwidth_per_member or 0),
        log_space=_space(spec.migration.log_space_per_member, spec.storage, LOG_SPACE_PERCENT),
        snapshot_space=_space(spec.migration.snapshot_space_per_member, spec.storage, SNAPSHOT_SPACE_PERCENT),
        quarantine_retention_seconds=spec.storage.quarantine_retention_seconds,
        log_level=spec.log_level,
        announce=spec.resp.cluster.announced,
        update=UpdatePolicy(
            spec.update_strategy.type, spec.update_strategy.paused, spec.update_strategy.partition
        ),
        replace_after_seconds=detection.replace_after_seconds,
        rollback_copies=cluster.metadata.annotations.get(ROLLBACK_COPIES) == spec.state.value,
        recovery=_recovery_of(cluster),
        client_tls=clients.asked_tls,
        client_certificates=clients.asked_certificates,
        auth=clients.asked_auth,
        member_tls=_member_tls_of(cluster),
        grace_expired=cluster.security.members.takes_expired,
    )


def _member_tls_of(cluster: TabletCluster) -> WantedTls:
    asks = cluster.security.members.asks_tls
    may_fall = cluster.metadata.annotations.get(LOWER_MEMBER_TLS) == InternalTls.OFF
    return WantedTls(InternalTls.REQUIRED if asks else InternalTls.OFF, may_fall)


def _space(given: Quantity | None, storage: Storage, percent: int) -> int:
    """Return the bytes given, or this share of a volume."""
    return quantity_bytes(storage.size) * percent // 100 if given is None else quantity_bytes(given)


def _recovery_of(cluster: TabletCluster) -> Recovery | None:
    if cluster.spec.bootstrap is None:
        return None
    volumes = cluster.spec.bootstrap.volumes
    return Recovery(
        cluster.metadata.name, volumes.cluster_uid, volumes.policy, frozenset(volumes.accept_loss)
    )
