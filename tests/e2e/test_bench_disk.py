"""Benchmarks wait for a disk that is busy with what came before."""

from pathlib import Path

import pytest

from e2e.bench import disk


def test_it_waits_until_small_files_are_synced_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = iter([0.05, 0.04, 0.001, 0.05])
    monkeypatch.setattr(disk, "_small_file_seconds", lambda folder: next(found))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert disk.until_idle(tmp_path / "new") == 0.001
    assert "busy" not in capsys.readouterr().err


def test_a_disk_that_stays_busy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(disk, "IDLE_SECONDS_MAX", 0.0)
    monkeypatch.setattr(disk, "_small_file_seconds", lambda folder: 0.05)
    assert disk.until_idle(tmp_path) == 0.05
    told = capsys.readouterr()
    assert "a sync of a small file takes 50 ms" in told.err + told.out


def test_a_small_file_is_made_and_nothing_is_left(tmp_path: Path) -> None:
    assert 0 < disk._small_file_seconds(tmp_path) < 60
    assert not list(tmp_path.iterdir())
