"""Each alert fires when it should, with a text that says what is wrong, and not when all is well.

Prometheus' own promtool runs the rules.
"""

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import packages

ROOT = Path(__file__).parents[2]
RULES = ROOT / "charts" / "stele" / "files" / "monitoring" / "rules.yaml"
AT = {"namespace": "shop", "cluster": "demo"}
POD = {**AT, "pod": "demo-1"}
LONG = "x2000"
"""So many samples, one a minute: longer than any alert waits."""


@dataclass(frozen=True)
class Case:
    """`wrong` and `well` are series, values by name with labels, and `text` is the alert's summary."""

    wrong: dict[str, str]
    well: dict[str, str]
    text: str
    labels: dict[str, str] = field(default_factory=lambda: POD)


def named(metric: str, labels: dict[str, str], **more: str) -> str:
    return metric + "{" + ",".join(f'{name}="{value}"' for name, value in {**labels, **more}.items()) + "}"


def gauge(metric: str, wrong: float, well: float, text: str, labels: dict[str, str], **more: str) -> Case:
    series = named(metric, labels, **more)
    steady = (f"{wrong}+0{LONG}", f"{well}+0{LONG}")
    return Case({series: steady[0]}, {series: steady[1]}, text, {**labels, **more})


def counter(metric: str, per_minute: int, text: str, labels: dict[str, str], **more: str) -> Case:
    series = named(metric, POD if "pod" in labels else AT, **more)
    return Case({series: f"0+{per_minute}{LONG}"}, {series: f"7+0{LONG}"}, text, labels)


def members(state: str, other: str, text: str) -> Case:
    less, all_of_them = (named("stele_cluster_members", AT, state=each) for each in (state, other))
    three = {all_of_them: f"3+0{LONG}"}
    return Case({less: f"2+0{LONG}", **three}, {less: f"3+0{LONG}", **three}, text, AT)


def volume(free: int) -> dict[str, str]:
    sizes = {"stele_volume_free_bytes": free, "stele_volume_capacity_bytes": 1 << 30}
    return {named(metric, POD): f"{size}+0{LONG}" for metric, size in sizes.items()}


def leader(namespace: str, pod: str = "operator") -> str:
    return named("stele_operator_leader", {"namespace": namespace, "pod": pod})


NO_LEADER = "no operator leads{}: nothing is repaired, and no spec is followed"
CASES = {
    "SteleDataLoss": gauge(
        "stele_cluster_partitions", 2, 0, "2 partitions of shop/demo have no live copy", AT, state="lost"
    ),
    "SteleUnderReplicated": gauge(
        "stele_cluster_partitions",
        5,
        0,
        "5 partitions of shop/demo lack copies",
        AT,
        state="under_replicated",
    ),
    "SteleStalled": gauge(
        "stele_cluster_condition",
        1,
        0,
        "shop/demo waits for somebody to act",
        AT,
        type="Stalled",
        status="True",
    ),
    "SteleMembersMissing": members("ready", "desired", "only 2 members of shop/demo are ready"),
    "SteleMembersOutdated": members("updated", "current", "only 2 members of shop/demo run the spec"),
    "SteleMigrationsFail": counter(
        "stele_migrations_finished_total",
        1,
        "60 migrations of shop/demo were rolled back within an hour",
        AT,
        type="MOVE",
        result="rolled_back",
    ),
    "SteleNoLeader": Case(
        {leader("stele"): f"0+0{LONG}", leader("other"): f"1+0{LONG}"},
        {leader("stele"): f"1+0{LONG}", leader("stele", "standby"): f"0+0{LONG}"},
        NO_LEADER.format(" in namespace stele"),
        {"namespace": "stele"},
    ),
    "SteleReconcileErrors": counter(
        "stele_reconcile_errors_total",
        1,
        "shop/demo meets CONFLICT again and again",
        {**AT, "code": "CONFLICT"},
        code="CONFLICT",
    ),
    "StelePartitionsUnserved": gauge(
        "stele_partitions_unserved", 4, 0, "shop/demo-1 does not serve 4 of its partitions", POD
    ),
    "SteleTabletsBroken": gauge(
        "stele_tablets", 1, 0, "1 tablets of shop/demo-1 are damaged", POD, state="broken"
    ),
    "SteleVolumeFillingUp": Case(
        volume(100 << 20), volume(200 << 20), "100MiB of the volume of shop/demo-1 are free"
    ),
    "SteleWritesRefused": gauge(
        "stele_volume_full",
        1,
        0,
        "the volume of shop/demo-1 is full: writes to partitions with a copy on it are refused",
        POD,
    ),
    "SteleRequestsFail": counter(
        "stele_requests_total",
        120,
        "2 requests per second at shop/demo-1 fail",
        {"namespace": "shop", "pod": "demo-1", "result": "unavailable"},
        operation="read",
        result="unavailable",
    ),
    "SteleReplicationLag": gauge(
        "stele_replication_lag_operations",
        20_000,
        9_000,
        "demo-2 is 20k operations behind demo-1",
        POD,
        peer="demo-2",
    ),
    "SteleTransactionsInDoubt": gauge(
        "stele_transactions_in_doubt",
        3,
        0,
        "keys stay locked until somebody ends 3 transactions at demo-1",
        POD,
    ),
    "SteleTransactionPartsLost": counter(
        "stele_transactions_lost_parts_total",
        1,
        "60 parts of committed transactions were lost with data of their partition",
        POD,
    ),
    "SteleAsyncWritesLost": counter(
        "stele_async_lost_operations_total",
        1,
        "at most 60 writes to Async keyspaces were lost at demo-1",
        POD,
    ),
    "SteleCertificateEnds": gauge(
        "stele_tls_certificate_left_days",
        6,
        20,
        "the certificate of shop/demo-1 ends soon, or cannot be used",
        POD,
    ),
}


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def promtool(folder: Path, *arguments: str) -> str:
    packages.ensure("prometheus")
    words = [shutil.which("promtool") or "promtool", *arguments]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expected(name: str, rule: dict[str, Any], case: Case) -> dict[str, Any]:
    annotations = {"summary": case.text}
    if "description" in rule["annotations"]:
        written = rule["annotations"]["description"]
        annotations["description"] = written.replace("{{ $labels.result }}", case.labels.get("result", ""))
    return {"exp_labels": {**case.labels, **rule["labels"]}, "exp_annotations": annotations}


def asked(name: str, series: dict[str, str], fires: list[dict[str, Any]]) -> dict[str, Any]:
    """A test of promtool: what the alert is after 26 hours."""
    return {
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "alert_rule_test": [{"eval_time": "26h", "alertname": name, "exp_alerts": fires}],
    }


def run(folder: Path, name: str, *tests: dict[str, Any]) -> None:
    """Run tests of one alert, without the rules of others, which take promtool most of the time."""
    group = {"name": "stele", "rules": [alerts()[name]]}
    folder.joinpath("rules.yaml").write_text(yaml.safe_dump({"groups": [group]}))
    asks = {"rule_files": ["rules.yaml"], "tests": list(tests)}
    folder.joinpath("test.yaml").write_text(yaml.safe_dump(asks))
    promtool(folder, "test", "rules", "test.yaml")


def test_the_rules_are_valid(tmp_path: Path) -> None:
    assert f"SUCCESS: {len(alerts())} rules found" in promtool(tmp_path, "check", "rules", str(RULES))


def test_each_alert_has_a_case() -> None:
    assert CASES.keys() == alerts().keys()


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_when_something_is_wrong_and_not_when_all_is_well(tmp_path: Path, name: str) -> None:
    case, rule = CASES[name], alerts()[name]
    run(tmp_path, name, asked(name, case.wrong, [expected(name, rule, case)]), asked(name, case.well, []))


HOURS = 60
"""Samples of an hour."""


@pytest.mark.parametrize(
    ("series", "namespaces"),
    [
        ({"stele": 25 * HOURS, "other": 30 * HOURS}, [" in namespace stele"]),
        ({"stele": 1 * HOURS, "other": 30 * HOURS}, []),
        ({"stele": 25 * HOURS}, [" in namespace stele"]),
        ({}, [""]),
    ],
    ids=["one of two is gone", "it is gone for a day", "the only one is gone", "there was none"],
)
def test_an_operator_that_is_gone_is_missed_for_a_day(
    tmp_path: Path, series: dict[str, int], namespaces: list[str]
) -> None:
    rule = alerts()["SteleNoLeader"]
    cases = [
        Case({}, {}, NO_LEADER.format(where), {"namespace": where.split()[-1]} if where else {})
        for where in namespaces
    ]
    fires = [expected("SteleNoLeader", rule, case) for case in cases]
    given = {leader(namespace): f"1+0x{samples}" for namespace, samples in series.items()}
    run(tmp_path, "SteleNoLeader", asked("SteleNoLeader", given, fires))


def test_an_alert_waits(tmp_path: Path) -> None:
    """A member that is missing for less than a quarter of an hour is nobody's work."""
    case = asked("SteleMembersMissing", CASES["SteleMembersMissing"].wrong, [])
    case["alert_rule_test"][0]["eval_time"] = "14m"
    run(tmp_path, "SteleMembersMissing", case)
