"""What the chart makes for the Prometheus operator and Grafana."""

import json
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.control_plane import ControlPlane
from tests.operator.test_chart import CHART, by_kind, render

KINDS = ("podMonitor", "serviceMonitor", "prometheusRule", "dashboards")


def made(plane: ControlPlane, *sets: str) -> dict[str, list[dict[str, Any]]]:
    return by_kind(render(plane, "stele", *sets))


def everything(plane: ControlPlane, *sets: str) -> dict[str, list[dict[str, Any]]]:
    return made(plane, *(f"metrics.{kind}.enabled=true" for kind in KINDS), *sets)


def boards(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [each for each in found["ConfigMap"] if "-dashboard-" in each["metadata"]["name"]]


def test_nothing_is_made_without_being_asked_for(bare_control_plane: ControlPlane) -> None:
    found = made(bare_control_plane)
    assert found.keys().isdisjoint({"PodMonitor", "ServiceMonitor", "PrometheusRule"})
    assert boards(found) == []


def test_monitors_select_what_there_is_where_it_is(bare_control_plane: ControlPlane) -> None:
    found = everything(
        bare_control_plane, "watchNamespaces={shop,bank}", "metrics.podMonitor.labels.release=prometheus"
    )
    (pods,), (operator,) = found["PodMonitor"], found["ServiceMonitor"]
    assert pods["metadata"]["labels"]["release"] == "prometheus"
    assert "release" not in operator["metadata"]["labels"]
    assert pods["spec"]["namespaceSelector"] == {"matchNames": ["shop", "bank"]}
    (service,) = found["Service"]
    wanted = operator["spec"]["selector"]["matchLabels"].items()
    assert wanted <= service["metadata"]["labels"].items()
    assert operator["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_members_of_all_namespaces_are_found(bare_control_plane: ControlPlane) -> None:
    (pods,) = everything(bare_control_plane, "watchNamespaces={*}")["PodMonitor"]
    assert pods["spec"]["namespaceSelector"] == {"any": True}


def test_rules_and_dashboards_are_those_of_the_files(bare_control_plane: ControlPlane) -> None:
    files = Path(CHART) / "files" / "monitoring"
    found = everything(bare_control_plane)
    (rules,) = found["PrometheusRule"]
    assert rules["spec"] == yaml.safe_load((files / "rules.yaml").read_text())
    shown = {
        name.removeprefix("stele-"): json.loads(text)
        for each in boards(found)
        for name, text in each["data"].items()
    }
    assert shown == {path.name: json.loads(path.read_text()) for path in files.glob("*.json")}
    assert all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in boards(found))
