"""The compiled module is built where there is a compiler or one can be had; elsewhere it is left out."""

from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import debian
from e2e.supply import cli, native


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was installed and run, on a machine without a compiler."""
    found: list[Any] = []
    monkeypatch.setattr(debian, "missing_packages", list)
    monkeypatch.setattr(debian, "ensure_packages", lambda packages: found.append(sorted(packages)))
    monkeypatch.setattr(native, "run", lambda words, *_, **__: found.append(words))
    return found


def test_the_compiler_of_debian_is_installed_and_builds(
    done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian, "can_install", lambda: True)
    assert cli.main(["native"]) == 0
    packages, words = done
    assert packages == ["cargo-web", "gcc", "libc6-dev", "rustc-web"]
    assert words[-1] == str(native.SOURCE)


def test_without_a_compiler_plain_python_is_used(
    done: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(debian, "can_install", lambda: False)
    assert cli.main(["native"]) == 0
    assert done == []
    said = capsys.readouterr().err
    assert "plain Python is used" in said
    assert "apt-get install rustc-web cargo-web gcc libc6-dev" in said


def test_what_was_built_from_other_sources_is_built_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever their times: Cargo takes files that are older than the last build for the ones it built."""
    monkeypatch.setenv("STELE_CACHE", str(tmp_path / "cache"))
    sources = [tmp_path / name / "native" for name in ("one", "other")]
    for number, source in enumerate(sources):
        source.mkdir(parents=True)
        (source / "lib.rs").write_text(str(number), encoding="utf-8")
    prints = tmp_path / "cache" / "native" / "release" / ".fingerprint"
    built, dependency = prints / f"{native.NAME}-0123", prints / "pyo3-4567"
    dependency.mkdir(parents=True)
    kept = []
    for source in (sources[0], sources[0], sources[1], sources[0]):
        monkeypatch.setattr(native, "SOURCE", source)
        assert native.environment()["CARGO_TARGET_DIR"] == str(tmp_path / "cache" / "native")
        kept.append(built.exists())
        built.mkdir(exist_ok=True)
    assert kept == [False, True, False, False]
    assert dependency.exists()
