"""The whole way on the real cluster, small: create, write, scale up, kill a member, verify every replica."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from e2e.demo import padded, stage
from e2e.demo.settings import EXAMPLE, SMALL_PHASES
from e2e.scenarios import smoke
from stele.core.tablet.owner import FILL_BYTES_MAX

RECORDS = 3_000
CUT_SECONDS_MAX = 5.0


def records_without_apt(folder: Path) -> Path | None:
    """None where Debian's package index is there; else a file, for machines without apt."""
    if shutil.which("apt-cache"):
        return None
    path = folder / "records.jsonl"
    lines = (json.dumps({"key": f"record-{n}", "value": f"{n} " * 200}) for n in range(RECORDS))
    path.write_text("\n".join(lines))
    return path


def test_every_tablet_is_larger_than_what_an_owner_sends_from_its_log() -> None:
    wanted = smoke.settings()
    spec = stage.manifest(EXAMPLE.read_text(), wanted)["spec"]
    assert wanted.values == ("admissionPolicies.enabled=true",)
    assert (spec["partitions"], spec["migration"]["engine"], wanted.spark_expected) == (31, "Spark", True)
    assert spec["migration"].items() >= yaml.safe_load(EXAMPLE.read_text())["spec"]["migration"].items()
    assert wanted.padded_entries * padded.VALUE_BYTES // smoke.PARTITIONS > 3 * FILL_BYTES_MAX


@pytest.mark.cluster
def test_nothing_is_lost_while_members_come_and_die(tmp_path: Path) -> None:
    result, client, user, rotation = smoke.run(records_without_apt(tmp_path))
    assert result.problems() == []
    assert [phase.name for phase in result.phases] == list(SMALL_PHASES)
    assert result.clients["acknowledged"] > 0
    assert result.phases[1].moves.done.total() > 0
    assert result.phases[1].moves.bytes_by_spark > 0
    assert result.verification is not None
    assert result.verification.tally.replicas == 2 * result.verification.tally.partitions
    assert client.owners <= client.expected
    assert len(client.owners) > 1
    assert (client.wrong, client.forwarded) == (0, 0)
    assert user.cut_seconds < CUT_SECONDS_MAX
    assert "user is disabled" in user.refusal
    assert rotation.errors == []
    assert rotation.requests > 100
    assert "certificate verify failed" in rotation.refusal
    assert rotation.pods[0] == rotation.pods[1]
