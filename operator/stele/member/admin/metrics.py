"""Prometheus metrics of a member, read from its state on demand.

No label names a partition or a client: the number of series is bounded by those of the members and of the
declared keyspaces (KEYSPACES_MAX).
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from stele import REVISION, __version__
from stele.core.control.member_settings import ClientTls
from stele.core.security.level import InternalTls
from stele.member.admin.tablet_info import quarantined_tablets
from stele.member.control.keyspace_sizes import owned_sizes
from stele.member.node import Node
from stele.member.replication.latency import Histogram
from stele.member.replication.replica import Replica

BROKEN = "broken"
"""The state of a tablet that is offline because of damage."""
TABLET_STATES = ("copying", "ready", "deleted", BROKEN)


class Metrics(Collector):
    """Counters, gauges and histograms, with units in their names."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, node: Node) -> None:
        self._node = node
        self._volumes_bytes = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self, quarantined_volumes_bytes: int) -> bytes:
        """Return all metrics; the size of quarantined volumes takes too long to be measured here."""
        self._volumes_bytes = quarantined_volumes_bytes
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._access()
        yield from self._asynchronous()
        yield from self._transactions()
        yield from self._durations()
        yield self._lag()
        yield self._tablets()
        yield from self._volume()
        yield from self._sizes()
        yield from self._tls()
        yield from self._member_tls()
        yield self._admin_tls()
        yield _gauge("stele_build_info", "Version and commit.", 1, version=__version__, revision=REVISION)

    def _tls(self) -> Iterator[Metric]:
        node, tls = self._node, self._node.client_tls
        text = "Connections of clients that began with TLS, and plain ones where it is required."
        handshakes = CounterMetricFamily("stele_tls_handshakes", text, labels=["result"])
        for result, number in (("ok", tls.done), ("failed", tls.failed), ("plain", tls.refused)):
            handshakes.add_metric([result], number)
        yield handshakes
        if (left := node.tls.days_left(node.background.wall())) is not None:
            yield _gauge("stele_tls_certificate_left_days", "Until the certificate in use ends.", left)
        text = "1 while the certificate that is there cannot be used, and TLS is not off."
        # While it is off, the folder may have a Secret of others.
        off = node.client_demands.tls is ClientTls.OFF and node.member_tls.level is InternalTls.OFF
        asked = node.settings.tls_dir and not off
        yield _gauge("stele_tls_certificate_unusable", text, int(bool(asked and node.tls.problem)))

    def _member_tls(self) -> Iterator[Metric]:
        node, tls = self._node, self._node.member_tls
        text = "Connections of members that began with TLS, and plain ones where it is required."
        handshakes = CounterMetricFamily("stele_member_tls_handshakes", text, labels=["result"])
        acceptor = tls.acceptor
        for result, number in (
            ("ok", acceptor.done),
            ("failed", acceptor.failed),
            ("plain", acceptor.refused),
        ):
            handshakes.add_metric([result], number)
        yield handshakes
        encrypted = sum(link.encrypted for link in node.links.values())
        yield _gauge("stele_members_encrypted", "Connected links to other members, with TLS.", encrypted)
        text = "Certificates of other members that were taken although they had ended."
        yield CounterMetricFamily("stele_member_certificates_ended", text, value=tls.ended)

    def _admin_tls(self) -> Metric:
        tls = self._node.admin_tls
        text = "Connections to the admin port that began with TLS; failed: also those that sent nothing."
        handshakes = CounterMetricFamily("stele_admin_tls_handshakes", text, labels=["result"])
        for result, number in (("ok", tls.done), ("failed", tls.failed)):
            handshakes.add_metric([result], number)
        return handshakes

    def _requests(self) -> Iterator[Metric]:
        counters = self._node.delayed_replies.counters
        text = "Commands that this member answered as the owner, or failed to."
        requests = CounterMetricFamily("stele_requests", text, labels=["operation", "result"])
        requests.add_metric(["read", "ok"], counters.reads)
        requests.add_metric(["write", "ok"], counters.writes)
        requests.add_metric(["read", "unavailable"], counters.unavailable_reads)
        requests.add_metric(["write", "unavailable"], counters.unavailable_writes)
        requests.add_metric(["write", "uncertain"], counters.uncertain)
        yield requests
        text = "Requests that were sent on to the owner."
        yield CounterMetricFamily("stele_requests_forwarded", text, value=counters.forwarded)

    def _access(self) -> Iterator[Metric]:
        access = self._node.access
        text = "Requests that clients had no right to, by what they lacked; auth: wrong passwords."
        denied = CounterMetricFamily("stele_access_denied", text, labels=["reason"])
        for reason, count in access.log.counts.items():
            denied.add_metric([reason], count)
        yield denied
        yield _gauge("stele_connected_clients", "Connections of clients.", access.connected())
        text = "Connections that have to authenticate and have not yet."
        yield _gauge("stele_unauthenticated_clients", text, len(access.guests))
        text = "Connections of clients that got no place, or made room before they had authenticated."
        refused = CounterMetricFamily("stele_client_connections_refused", text, labels=["reason"])
        for reason in ("full", "evicted"):
            refused.add_metric([reason], access.refused[reason])
        yield refused
        text = (
            "Whether the file of users cannot be read, so that changes have no effect, and AUTH is not off."
        )
        yield _gauge("stele_users_unreadable", text, bool(access.users_problem))

    def _asynchronous(self) -> Iterator[Metric]:
        node = self._node
        waiting = sum(replica.acknowledged.operations for replica in node.replicas.values())
        text = "Operations of Async keyspaces that were acknowledged here and are not committed."
        yield _gauge("stele_async_waiting_operations", text, waiting)
        text = "Such operations that were gone from the log before they were committed."
        lost = node.delayed_replies.counters.async_lost
        yield CounterMetricFamily("stele_async_lost_operations", text, value=lost)

    def _transactions(self) -> Iterator[Metric]:
        recovery = self._node.transaction_recovery
        text = "Transactions across partitions that have locks in partitions owned here."
        yield _gauge("stele_transactions_locking", text, len(recovery.held()))
        text = "Those of them whose coordinator has lost its data: a user has to end them."
        yield _gauge("stele_transactions_in_doubt", text, len(recovery.in_doubt))
        text = "Parts of committed transactions that were lost, with data of their partition."
        lost = self._node.delayed_replies.counters.lost_parts
        yield CounterMetricFamily("stele_transactions_lost_parts", text, value=lost)

    def _durations(self) -> Iterator[Metric]:
        node = self._node
        text = "From a request's arrival at the owner to its answer."
        requests = HistogramMetricFamily("stele_request_duration_seconds", text, labels=["operation"])
        for operation, histogram in node.delayed_replies.latencies.items():
            requests.add_metric([operation], histogram.buckets(), histogram.sum_seconds)
        yield requests
        yield _histogram("stele_log_sync_duration_seconds", "Syncs of the log.", node.group_commit.seconds)
        text = "How long partitions were frozen while their owner changed."
        yield _histogram("stele_handover_duration_seconds", text, node.hand_over_times.seconds)

    def _lag(self) -> Metric:
        """Sum the operations that a member of a row, or a learner, has not acknowledged."""
        lags: Counter[int] = Counter()
        for replica in self._node.replicas.values():
            if replica.owner is not None:
                last = replica.tablet.log.last[1]
                for member, progress in replica.owner.progress.items():
                    lags[member] += max(0, last - progress.match)
        text = "Operations of partitions owned here that the other member has not acknowledged."
        family = GaugeMetricFamily("stele_replication_lag_operations", text, labels=["peer"])
        known = self._node.table.members
        for member, operations in lags.items():
            family.add_metric([known[member].name if member in known else str(member)], operations)
        return family

    def _tablets(self) -> Metric:
        replicas = self._node.replicas.values()
        states = Counter(_state(each) for each in replicas if each.broken or each.state is not None)
        family = GaugeMetricFamily("stele_tablets", "Tablets by state.", labels=["state"])
        for state in TABLET_STATES:
            family.add_metric([state], states[state])
        return family

    def _volume(self) -> Iterator[Metric]:
        node = self._node
        yield _gauge("stele_volume_capacity_bytes", "Size of the volume.", node.volume.capacity_bytes())
        yield _gauge("stele_volume_free_bytes", "Free space of the volume.", node.gate.free_bytes)
        text = "1 while writes to partitions with a copy here are refused, because the volume is full."
        yield _gauge("stele_volume_full", text, int(node.gate.full))
        tablets = sum(
            tablet.bytes
            for replica in node.replicas.values()
            for tablet in quarantined_tablets(node.tablets, replica)
        )
        text = "Data of deleted or replaced tablets and damaged volumes that is kept for a while."
        yield _gauge("stele_quarantine_bytes", text, tablets + self._volumes_bytes)

    def _sizes(self) -> Iterator[Metric]:
        node = self._node
        ready = [replica for replica in node.replicas.values() if replica.ready]
        yield _gauge("stele_partitions_unserved", "Owned and not served.", len(node.roles.unserved()))
        yield _gauge("stele_entries", "Entries in all tablets.", sum(r.entries for r in ready))
        yield _gauge("stele_data_bytes", "Keys and values in all tablets.", sum(r.size_bytes for r in ready))
        yield from self._keyspaces()
        yield _gauge("stele_log_bytes", "Operations in all logs.", sum(r.tablet.log.bytes for r in ready))
        yield _gauge("stele_pending_bytes", "Written, not committed.", node.delayed_replies.pending_bytes)
        yield from self._near_caches()
        yield from self._local_caches()
        yield from self._events()
        connected = sum(1 for link in node.links.values() if link.ready)
        yield _gauge("stele_members_connected", "Connected links to other members.", connected)

    def _keyspaces(self) -> Iterator[Metric]:
        text, labels = "Entries of a declared keyspace that this member owns.", ["keyspace"]
        entries = GaugeMetricFamily("stele_keyspace_entries", text, labels=labels)
        sizes = GaugeMetricFamily("stele_keyspace_bytes", "Their keys and values.", labels=labels)
        for each in owned_sizes(self._node.tablets):
            entries.add_metric([each.keyspace], each.entries)
            sizes.add_metric([each.keyspace], each.bytes)
        yield entries
        yield sizes

    def _local_caches(self) -> Iterator[Metric]:
        caches, keyspace = self._node.local_caches, ["keyspace"]
        text = "Entries of a keyspace with mode Invalidation at this member."
        entries = GaugeMetricFamily("stele_local_cache_entries", text, labels=keyspace)
        sizes = GaugeMetricFamily("stele_local_cache_bytes", "Memory that they take.", labels=keyspace)
        text = "Reads of such a keyspace."
        reads = CounterMetricFamily("stele_local_cache_reads", text, labels=["keyspace", "result"])
        text = "Entries that made room for others."
        evicted = CounterMetricFamily("stele_local_cache_evicted", text, labels=keyspace)
        for each in caches.caches:
            name = each.keyspace.decode()
            entries.add_metric([name], len(each))
            sizes.add_metric([name], each.held_bytes)
            reads.add_metric([name, "hit"], each.hits)
            reads.add_metric([name, "miss"], each.misses)
            evicted.add_metric([name], each.evicted)
        yield from (entries, sizes, reads, evicted)
        text = "1 while this member answers hits of such keyspaces."
        yield _gauge("stele_local_cache_covered", text, int(caches.covered))

    def _events(self) -> Iterator[Metric]:
        node = self._node
        text = "Events of keys that this owner has sent, once for each member that listens."
        yield CounterMetricFamily("stele_events_sent", text, value=node.notifier.sent)
        text = "Gaps in the events of a partition that subscribers here were informed of."
        yield CounterMetricFamily("stele_event_gaps", text, value=node.feed.gaps)
        text = "Messages of channels that were dropped on the way to a member, or here."
        yield CounterMetricFamily("stele_messages_dropped", text, value=node.broadcast.dropped)

    def _near_caches(self) -> Iterator[Metric]:
        node = self._node
        yield _gauge("stele_near_cache_clients", "Clients with a near cache.", node.near_caches.clients)
        yield _gauge("stele_near_cache_keys", "Keys that they cache.", node.near_caches.keys)
        text = "Keys owned here that clients of members cache."
        yield _gauge("stele_near_cache_keys_owned", text, node.invalidations.keys)
        tables = GaugeMetricFamily(
            "stele_near_cache_tables_bytes", "Memory for who caches which keys.", labels=["table"]
        )
        tables.add_metric(["clients"], node.near_caches.held_bytes)
        tables.add_metric(["owned"], node.invalidations.held_bytes)
        yield tables
        text = "Keys, or whole partitions, that this owner has had dropped."
        yield CounterMetricFamily("stele_invalidations", text, value=node.invalidations.sent)
        text = "GETs for other members' partitions in keyspaces with a near cache."
        reads = CounterMetricFamily("stele_near_cache_reads", text, labels=["result"])
        reads.add_metric(["hit"], node.near_values.hits)
        reads.add_metric(["miss"], node.near_values.misses)
        yield reads


def _state(replica: Replica) -> str:
    return BROKEN if replica.broken or replica.state is None else replica.state.lower()


def _gauge(name: str, text: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(name, text, histogram.buckets(), histogram.sum_seconds)
