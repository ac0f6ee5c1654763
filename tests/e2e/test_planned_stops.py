"""Members restart and nodes are drained on the real cluster: no request fails, nothing is copied."""

from pathlib import Path

import pytest

from e2e.demo.settings import COPY_NOTHING
from e2e.scenarios import planned_stops
from tests.e2e.test_report import good
from tests.e2e.test_smoke import records_without_apt


@pytest.mark.parametrize(
    ("failure", "code", "told"),
    [("", 0, "Every promise was kept."), ("no node is left", 1, "The run stopped: no node is left")],
)
def test_the_command_draws_the_result_and_fails_when_a_promise_was_broken(
    failure: str,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = good()
    result.failure = failure
    monkeypatch.setattr(planned_stops, "run", lambda: result)
    assert planned_stops.main() == code
    out = capsys.readouterr().out
    assert told in out
    assert "longest pause ms" in out


@pytest.mark.cluster
def test_no_request_fails_while_members_restart_and_nodes_are_drained(tmp_path: Path) -> None:
    result = planned_stops.run(records_without_apt(tmp_path))
    assert result.problems() == []
    assert [phase.name for phase in result.phases][1:] == list(COPY_NOTHING)
    assert sum(phase.moves.bytes_copied for phase in result.phases) == 0
