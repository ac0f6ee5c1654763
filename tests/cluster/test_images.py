"""Which tags a build takes away: those that no checkout uses any more."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from e2e.cluster import images

NAME = images.repository("member")


class Podman:
    """The tags of an image store, and the few commands that a build gives."""

    def __init__(self) -> None:
        self.tags: set[str] = set()

    def succeeds(self, command: list[str], **_: Any) -> bool:
        return command[-1] in self.tags

    def output(self, command: list[str], **_: Any) -> str:
        return "\n".join(sorted(self.tags))

    def run(self, command: list[str], *_: Any, **__: Any) -> None:
        if command[1] == "untag":
            self.tags.remove(command[-1])
        if command[1] == "tag":
            self.tags.add(command[-1])


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Podman:
    made = Podman()
    monkeypatch.setenv("STELE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(images, "_wheels", lambda recipe: tmp_path)
    monkeypatch.setattr(images, "_build", lambda recipe, wheels, env: made.tags.add(recipe.image))
    for name in ("succeeds", "output", "run"):
        monkeypatch.setattr(images, name, getattr(made, name))
    return made


def ensure(monkeypatch: pytest.MonkeyPatch, checkout: Path, tag: str) -> None:
    """Build in that checkout, whose files give the image this tag."""
    checkout.mkdir(exist_ok=True)
    monkeypatch.setattr(images, "PROJECT", checkout)
    recipe = SimpleNamespace(name="member", image=f"{NAME}:{tag}")
    images._ensure(cast("images.Recipe", recipe), {})


def test_a_build_keeps_what_other_checkouts_use(
    podman: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for checkout, tag in ((one, "a"), (other, "a"), (one, "b"), (other, "c"), (one, "d")):
        ensure(monkeypatch, checkout, tag)
    assert podman.tags == {f"{NAME}:{tag}" for tag in ("c", "d", images.ALIAS_TAG)}
    shutil.rmtree(other)
    ensure(monkeypatch, one, "e")
    assert podman.tags == {f"{NAME}:{tag}" for tag in ("e", images.ALIAS_TAG)}


def test_a_checkout_that_built_nothing_itself_counts(
    podman: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for checkout, tag in (("one", "a"), ("other", "a"), ("one", "b")):
        ensure(monkeypatch, tmp_path / checkout, tag)
    assert podman.tags == {f"{NAME}:{tag}" for tag in ("a", "b", images.ALIAS_TAG)}
