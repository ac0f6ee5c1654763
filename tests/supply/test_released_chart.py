"""A released chart names images by digest, and nothing else is released as one."""

import re
from pathlib import Path

import pytest

from e2e.cluster.control_plane import ControlPlane
from e2e.supply import chart, cli, locks

DIGEST = "sha256:" + "a" * 64
WORDS = [f"{name}=registry.example.com/stele-{name}:1.0@{DIGEST}" for name in locks.IMAGES]
KEYS = tuple(chart.VALUES.values())


def template(plane: ControlPlane, folder: Path, *sets: str) -> str:
    values = [each for pair in ("images.requireDigests=true", *sets) for each in ("--set", pair)]
    done = plane.run("helm", "template", str(folder), "--kube-version=v1.34.4", *values)
    return done.stdout if done.returncode == 0 else done.stderr


@pytest.mark.control_plane
def test_every_image_of_a_released_chart_has_its_digest(
    bare_control_plane: ControlPlane, tmp_path: Path
) -> None:
    out = tmp_path / "stele"
    assert cli.main(["chart", str(out), *WORDS]) == 0
    rendered = template(bare_control_plane, out)
    assert set(re.findall(r"\S*stele-\w+\S*@\S+", rendered)) == {
        f'"{word.partition("=")[2]}"' for word in WORDS
    }
    assert "localhost/" not in rendered
    assert chart.CHART.joinpath("values.yaml").read_text().count("localhost/stele-") == len(WORDS)


@pytest.mark.control_plane
@pytest.mark.parametrize("key", KEYS)
def test_an_image_without_a_digest_is_refused_by_name(bare_control_plane: ControlPlane, key: str) -> None:
    others = [f"images.{name}=x@{DIGEST}" for name in KEYS if name != key]
    for bad in ("registry.example.com/stele:1.0", f"x@{DIGEST[:-1]}"):
        said = template(bare_control_plane, chart.CHART, f"images.{key}={bad}", *others)
        assert f'images.{key} is "{bad}", and images.requireDigests is set' in said


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([WORDS[0].partition("@")[0], *WORDS[1:]], "operator is 'registry.example.com/stele-operator:1.0'"),
        (WORDS[1:], "expected each image once"),
        ([*WORDS, WORDS[0]], "expected each image once"),
        ([*WORDS[1:], WORDS[0].replace("operator=", "operators=")], "expected each image once"),
    ],
)
def test_a_chart_without_all_digests_is_not_written(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["chart", str(tmp_path / "stele"), *words]) == 1
    assert text in capsys.readouterr().err
    assert not (tmp_path / "stele").exists()


def test_a_folder_that_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("x")
    assert cli.main(["chart", str(tmp_path), *WORDS]) == 1
    assert "exists; name a folder that does not" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "x"
