"""`crds/` and the chart's copy are what the models give."""

from pathlib import Path

import pytest

from stele.model import crd

REPOSITORY = Path(__file__).parents[2]
PLACES = [REPOSITORY / "crds", REPOSITORY / "charts" / "stele" / "files" / "crds"]


@pytest.mark.parametrize("place", PLACES, ids=["crds", "chart"])
def test_the_files_are_what_the_models_give(place: Path) -> None:
    assert crd.drifted(place) == []
    assert sorted(path.name for path in place.iterdir()) == sorted(each.file_name for each in crd.DEFINITIONS)


def test_writing_twice_gives_the_same_and_a_changed_or_missing_file_is_found(tmp_path: Path) -> None:
    said: list[str] = []
    assert crd.main([str(tmp_path)]) == 0
    assert crd.main(["--check", str(tmp_path)], said.append) == 0

    (tmp_path / "tabletmembers.yaml").write_text("changed")
    (tmp_path / "tabletclusters.yaml").unlink()

    assert crd.main(["--check", str(tmp_path)], said.append) == 1
    assert len(said) == 1
    assert "tabletmembers.yaml" in said[0]
    assert "tabletclusters.yaml" in said[0]
    assert "run python -m stele.model.crd" in said[0]
    assert (tmp_path / "tabletmembers.yaml").read_text() == "changed"
