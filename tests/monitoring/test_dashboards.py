"""Dashboards are what is written in Python, ask for metrics that there are, and in PromQL that is valid."""

import json
import re
from pathlib import Path

import pytest
import yaml

from e2e.supply import dashboards
from e2e.supply.dashboards import DASHBOARDS, Dashboard
from tests.monitoring.test_alerts import ROOT, alerts, promtool

DOCUMENTED = (ROOT / "docs" / "reference" / "metrics.md").read_text()
PAGE = (ROOT / "docs" / "operating" / "monitoring.md").read_text()
SUFFIX = re.compile(r"_(bucket|sum|count)$")
each = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda found: found.name)


def queries(dashboard: Dashboard) -> list[str]:
    return [query for panel in dashboard.panels for query in panel.queries.values()]


def unknown(query: str) -> set[str]:
    """Metrics of Stele that no page names."""
    names = {SUFFIX.sub("", name) for name in re.findall(r"\bstele_\w+", query)}
    return {name for name in names if f"`{name}`" not in DOCUMENTED}


@each
def test_files_are_what_is_written_in_python(dashboard: Dashboard, tmp_path: Path) -> None:
    dashboards.write(tmp_path)
    name = f"{dashboard.name}.json"
    assert tmp_path.joinpath(name).read_text() == dashboards.FOLDER.joinpath(name).read_text(), (
        "run .venv/bin/python -m e2e.supply dashboards"
    )


@each
def test_queries_are_about_metrics_that_there_are(dashboard: Dashboard) -> None:
    variables = " ".join(each.get("query", "") for each in dashboard.json()["templating"]["list"])
    assert {query: unknown(query) for query in [*queries(dashboard), variables] if unknown(query)} == {}


def test_alerts_are_about_metrics_that_there_are_and_on_their_page() -> None:
    assert {name: unknown(rule["expr"]) for name, rule in alerts().items() if unknown(rule["expr"])} == {}
    assert {name for name in alerts() if f"`{name}`" not in PAGE} == set()


@each
def test_queries_are_valid(dashboard: Dashboard, tmp_path: Path) -> None:
    values = {"$__rate_interval": "1m", "$namespace": "shop", "$cluster": "demo", "$member": "demo-.*"}
    rules = []
    for number, query in enumerate(queries(dashboard)):
        asked = re.sub(r"\$\w+", lambda found: values[found[0]], query)
        rules.append({"record": f"query:{number}", "expr": asked})
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in promtool(tmp_path, "check", "rules", str(file))


@each
def test_panels_stand_beside_each_other(dashboard: Dashboard) -> None:
    made = json.loads(json.dumps(dashboard.json()))
    places = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in made["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
