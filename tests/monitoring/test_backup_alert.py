"""The alert on old dumps that docs/operating/backup.md has: promtool runs it as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.test_alerts import ROOT, named, promtool

PAGE = (ROOT / "docs" / "operating" / "backup.md").read_text()
EXAMPLE = (ROOT / "examples" / "dump-cronjob.yaml").read_text()
CRONJOB = {"namespace": "stele", "cronjob": "dump-users"}
SUCCESS, CREATED = (
    named(metric, CRONJOB) for metric in ("kube_cronjob_status_last_successful_time", "kube_cronjob_created")
)
HOUR = 3600
SAMPLES = 61 * 60
"""One a minute, for longer than the alert is asked about."""
FIRES = [
    {
        "exp_labels": {**CRONJOB, "severity": "ticket"},
        "exp_annotations": {
            "summary": "stele/dump-users has made no dump for 2d 11h 0m 0s",
            "description": "kubectl -n stele get jobs, and the log of the newest that failed",
        },
    }
]


def rules() -> dict[str, Any]:
    """Return the file of rules that the page's PrometheusRule is."""
    (block,) = re.findall(r"```yaml\n(.*?kind: PrometheusRule\n.*?)```", PAGE, re.DOTALL)
    return {"groups": yaml.safe_load(block)["spec"]["groups"]}


@pytest.mark.parametrize(
    ("hours_by_series", "fires"),
    [
        ({SUCCESS: 1, CREATED: 0}, FIRES),
        ({CREATED: 1}, FIRES),
        ({SUCCESS: 50, CREATED: 0}, []),
        ({CREATED: 50}, []),
        ({SUCCESS.replace("dump-users", "others"): 1}, []),
    ],
    ids=["it is old", "there was none", "it is new", "the CronJob is new", "of others"],
)
def test_an_old_dump_is_said(
    tmp_path: Path, hours_by_series: dict[str, int], fires: list[dict[str, Any]]
) -> None:
    tmp_path.joinpath("rules.yaml").write_text(yaml.safe_dump(rules()))
    series = [
        {"series": name, "values": f"{hours * HOUR}+0x{SAMPLES}"} for name, hours in hours_by_series.items()
    ]
    asked = {"eval_time": "60h", "alertname": "SteleBackupTooOld", "exp_alerts": fires}
    test = {"interval": "1m", "input_series": series, "alert_rule_test": [asked]}
    tmp_path.joinpath("test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [test]}))
    promtool(tmp_path, "test", "rules", "test.yaml")


def test_the_example_is_what_the_alert_looks_for() -> None:
    (cronjob,) = [each for each in yaml.safe_load_all(EXAMPLE) if each["kind"] == "CronJob"]
    assert re.fullmatch("dump-.*", cronjob["metadata"]["name"])
