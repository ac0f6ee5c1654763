"""The cache's promise: the same inputs give the same key, any change another; an entry is whole or absent."""

from pathlib import Path

import pytest

from e2e.cluster import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STELE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _tree(place: Path) -> Path:
    (place / "inner").mkdir(parents=True)
    (place / "a.txt").write_text("one")
    (place / "inner" / "b.txt").write_text("two")
    return place


def test_the_hash_does_not_depend_on_where_the_inputs_lie(tmp_path: Path) -> None:
    first, second = _tree(tmp_path / "x" / "recipe"), _tree(tmp_path / "y" / "recipe")
    assert cache.hash_inputs([first]) == cache.hash_inputs([second])


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: (tree / "a.txt").write_text("ONE"),
        lambda tree: (tree / "a.txt").rename(tree / "c.txt"),
        lambda tree: (tree / "new.txt").write_text(""),
        lambda tree: (tree / "inner" / "b.txt").unlink(),
    ],
    ids=["content", "name", "added", "removed"],
)
def test_every_change_of_a_file_changes_the_hash(tmp_path: Path, change: object) -> None:
    tree = _tree(tmp_path / "recipe")
    before = cache.hash_inputs([tree])
    assert callable(change)
    change(tree)
    assert cache.hash_inputs([tree]) != before


def test_values_are_not_run_together() -> None:
    assert cache.hash_inputs(values=["ab", "c"]) != cache.hash_inputs(values=["a", "bc"])


def test_what_python_leaves_behind_is_no_input(tmp_path: Path) -> None:
    tree = _tree(tmp_path / "recipe")
    before = cache.hash_inputs([tree])
    (tree / "__pycache__").mkdir()
    (tree / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert cache.hash_inputs([tree]) == before


def test_an_entry_is_made_once() -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "f").write_text("whole")

    assert (cache.entry("kind", "key", make) / "f").read_text() == "whole"
    assert (cache.entry("kind", "key", make) / "f").read_text() == "whole"
    assert len(made) == 1


def test_an_interrupted_entry_is_absent_and_made_anew(own_cache: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.entry("kind", "key", interrupted)
    assert not (own_cache / "kind" / "key").exists()

    whole = cache.entry("kind", "key", lambda folder: (folder / "f").touch())
    assert [path.name for path in whole.iterdir()] == ["f"]
    assert not list(own_cache.glob("kind/*.making"))
