"""The Grafana dashboards of the chart: what each panel asks, and where it stands. Written as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.supply.chart import CHART

FOLDER = CHART / "files" / "monitoring"
PANELS_IN_ROW, WIDTH, HEIGHT = 3, 8, 8
CLUSTER = 'namespace="$namespace", cluster="$cluster"'
MEMBER = f'{CLUSTER}, pod=~"$member"'
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph, or a number when `number`; `queries` are expressions by the legend of their series."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    about: str = ""
    number: bool = False

    def json(self, number: int) -> dict[str, Any]:
        """The panel at place `number` of its dashboard, counted from 0."""
        row, column = divmod(number, PANELS_IN_ROW)
        place = {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT}
        return {
            "id": number + 1,
            "type": "stat" if self.number else "timeseries",
            "title": self.title,
            "description": self.about,
            "datasource": _SOURCE,
            "gridPos": place,
            "fieldConfig": {"defaults": {"unit": self.unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
                for at, (legend, query) in enumerate(self.queries.items())
            ],
        }


@dataclass(frozen=True, slots=True)
class Dashboard:
    """`members` adds a choice of members to that of a cluster."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    members: bool = False

    def json(self) -> dict[str, Any]:
        """The dashboard as Grafana imports it."""
        return {
            "uid": f"stele-{self.name}",
            "title": f"Stele / {self.title}",
            "tags": ["stele"],
            "editable": True,
            "schemaVersion": 36,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": list(_variables(members=self.members))},
            "panels": [panel.json(number) for number, panel in enumerate(self.panels)],
        }


def _variables(*, members: bool) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    yield _variable("namespace", "label_values(stele_cluster_members, namespace)")
    yield _variable("cluster", 'label_values(stele_cluster_members{namespace="$namespace"}, cluster)')
    if members:
        yield _variable("member", f"label_values(stele_entries{{{CLUSTER}}}, pod)") | {
            "includeAll": True,
            "multi": True,
        }


def _variable(name: str, query: str) -> dict[str, Any]:
    found = {"name": name, "type": "query", "datasource": _SOURCE, "query": query, "definition": query}
    return found | {"label": name.capitalize(), "refresh": 2, "sort": 1}


def rate(metric: str, labels: str, by: str = "") -> str:
    """Per second, summed; `by` names the labels that stay."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{labels}}}[$__rate_interval]))"


def quantile(share: float, metric: str, labels: str, by: str = "") -> str:
    """Of a histogram: `share` of what was measured is at most so much."""
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', labels, f'le, {by}' if by else 'le')})"


def total(metric: str, labels: str, by: str = "") -> str:
    """The sum of a gauge; `by` names the labels that stay."""
    return f"sum{f' by ({by})' if by else ''} ({metric}{{{labels}}})"


def _requests(labels: str) -> tuple[Panel, ...]:
    """How clients are served by what `labels` select."""
    duration = "stele_request_duration_seconds"
    return (
        Panel("Requests", {"{{operation}}": rate("stele_requests_total", labels, "operation")}, "reqps"),
        Panel(
            "Duration of requests",
            {
                f"{name} of 100, {{{{operation}}}}": quantile(share, duration, labels, "operation")
                for name, share in (("50", 0.5), ("99", 0.99))
            },
            "s",
            "From the arrival at the owner to the answer.",
        ),
        Panel(
            "Requests that failed",
            {"{{result}}": rate("stele_requests_total", f'{labels}, result!="ok"', "result")},
            "reqps",
            "unavailable: not done. uncertain: it may have been done.",
        ),
    )


CLUSTERS = Dashboard(
    "clusters",
    "Clusters",
    (
        Panel(
            "Ready",
            {"Ready": f'stele_cluster_condition{{{CLUSTER}, type="Ready", status="True"}}'},
            number=True,
            about="1: the cluster is as its spec says.",
        ),
        Panel(
            "Partitions without a live copy",
            {"lost": f'stele_cluster_partitions{{{CLUSTER}, state="lost"}}'},
            number=True,
        ),
        Panel(
            "Partitions that lack copies",
            {"under-replicated": f'stele_cluster_partitions{{{CLUSTER}, state="under_replicated"}}'},
            number=True,
        ),
        *_requests(CLUSTER),
        Panel("Members", {"{{state}}": f"stele_cluster_members{{{CLUSTER}}}"}),
        Panel("Partitions", {"{{state}}": f"stele_cluster_partitions{{{CLUSTER}}}"}),
        Panel(
            "Free space of volumes",
            {"{{pod}}": f"stele_volume_free_bytes{{{CLUSTER}}} / stele_volume_capacity_bytes{{{CLUSTER}}}"},
            "percentunit",
            "A member refuses writes when less than 64 MiB are free.",
        ),
        Panel("Entries, with copies", {"entries": total("stele_entries", CLUSTER)}),
        Panel(
            "Bytes, with copies",
            {
                "keys and values": total("stele_data_bytes", CLUSTER),
                "logs": total("stele_log_bytes", CLUSTER),
            },
            "bytes",
        ),
        Panel(
            "Keyspaces",
            {"{{keyspace}}": total("stele_keyspace_bytes", CLUSTER, "keyspace")},
            "bytes",
            "Declared keyspaces, each entry once.",
        ),
        Panel(
            "Rounds of the operator",
            {"99 of 100": quantile(0.99, "stele_reconcile_duration_seconds", "")},
            "s",
            "Of all clusters; requests to the API server are included.",
        ),
        Panel("Errors of the operator", {"{{code}}": rate("stele_reconcile_errors_total", CLUSTER, "code")}),
        Panel(
            "Requests to the API server",
            {"{{verb}} {{kind}}": rate("stele_kubernetes_requests_total", "", "verb, kind")},
            "reqps",
        ),
    ),
)
MEMBERS = Dashboard(
    "members",
    "Members",
    (
        *_requests(MEMBER),
        Panel(
            "Requests sent on to owners", {"{{pod}}": rate("stele_requests_forwarded_total", MEMBER, "pod")}
        ),
        Panel(
            "Syncs of the log",
            {"99 of 100, {{pod}}": quantile(0.99, "stele_log_sync_duration_seconds", MEMBER, "pod")},
            "s",
        ),
        Panel("Operations behind", {"{{pod}} to {{peer}}": f"stele_replication_lag_operations{{{MEMBER}}}"}),
        Panel("Tablets", {"{{state}}": total("stele_tablets", MEMBER, "state")}),
        Panel("Partitions that are not served", {"{{pod}}": f"stele_partitions_unserved{{{MEMBER}}}"}),
        Panel(
            "Bytes",
            {
                "data": total("stele_data_bytes", MEMBER),
                "logs": total("stele_log_bytes", MEMBER),
                "quarantine": total("stele_quarantine_bytes", MEMBER),
                "free": total("stele_volume_free_bytes", MEMBER),
            },
            "bytes",
        ),
        Panel("Connections of clients", {"{{pod}}": f"stele_connected_clients{{{MEMBER}}}"}),
        Panel("Processor", {"{{pod}}": rate("process_cpu_seconds_total", MEMBER, "pod")}),
        Panel("Memory", {"{{pod}}": f"process_resident_memory_bytes{{{MEMBER}}}"}, "bytes"),
        Panel("Operations not committed yet", {"{{pod}}": f"stele_pending_bytes{{{MEMBER}}}"}, "bytes"),
        Panel(
            "Handshakes",
            {"clients, {{result}}": rate("stele_tls_handshakes_total", MEMBER, "result")}
            | {"members, {{result}}": rate("stele_member_tls_handshakes_total", MEMBER, "result")},
        ),
        Panel(
            "Requests without a right", {"{{reason}}": rate("stele_access_denied_total", MEMBER, "reason")}
        ),
        Panel("Days of certificates", {"{{pod}}": f"stele_tls_certificate_left_days{{{MEMBER}}}"}, "d"),
    ),
    members=True,
)
MIGRATIONS = Dashboard(
    "migrations",
    "Migrations",
    (
        Panel("Migrations of the plan", {"{{state}}": f"stele_migrations{{{CLUSTER}}}"}),
        Panel("Active ones by step", {"{{step}}": f"stele_migrations_active{{{CLUSTER}}}"}),
        Panel("Left to copy", {"bytes": f"stele_rebalance_remaining_bytes{{{CLUSTER}}}"}, "bytes"),
        Panel(
            "Ended",
            {"{{type}} {{result}}": rate("stele_migrations_finished_total", CLUSTER, "type, result")},
            "ops",
        ),
        Panel(
            "Copied",
            {"to {{destination}}": rate("stele_copied_bytes_total", CLUSTER, "destination")},
            "Bps",
        ),
        Panel(
            "Copies that failed or were repeated",
            {
                "repeated": rate("stele_copy_retries_total", CLUSTER),
                "failed": rate("stele_copy_failures_total", CLUSTER),
            },
            "ops",
        ),
        *_requests(CLUSTER),
        Panel(
            "How long partitions were frozen",
            {"99 of 100": quantile(0.99, "stele_handover_duration_seconds", CLUSTER)},
            "s",
            "So long clients waited while their owner changed.",
        ),
        Panel(
            "Partitions that lack copies",
            {"under-replicated": f'stele_cluster_partitions{{{CLUSTER}, state="under_replicated"}}'},
        ),
        Panel("Bytes of logs", {"{{pod}}": f"stele_log_bytes{{{CLUSTER}}}"}, "bytes"),
    ),
)
DASHBOARDS = (CLUSTERS, MEMBERS, MIGRATIONS)


def write(folder: Path = FOLDER) -> None:
    """Write each dashboard to a file of its own."""
    for each in DASHBOARDS:
        text = json.dumps(each.json(), indent=1) + "\n"
        folder.joinpath(f"{each.name}.json").write_text(text, encoding="utf-8")
