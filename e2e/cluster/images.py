"""Builds the project's images without an image registry, from `images/Dockerfile`.

The base is a Debian made by debootstrap; wheels are got on the host by `images/wheels.sh`, which checks them
against the committed locks, and handed to the build. A tag is the hash of all that the image is made from;
the alias tag `dev` is the newest. The project's own wheel is the last layer, so that a change of code costs
seconds.
"""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import cache, debian, doctor, podman, rootfs
from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import output, run, step, succeeds
from e2e.supply import locks, native

PROJECT = Path(__file__).parents[2]
DOCKERFILE = PROJECT / "images" / "Dockerfile"
GET = PROJECT / "images" / "wheels.sh"
INSTALL = PROJECT / "images" / "install.sh"
CHECK = PROJECT / "images" / "check.sh"
NAMES = ("operator", "member", "spark")
ON_REQUEST = ("sql",)
"""Images that are only built when they are named: the demo needs none of them."""
ALIAS_TAG = "dev"
BASE_PACKAGES = ("ca-certificates", "python3", "tini")
COMPILERS = {**native.TOOLS, "python3-dev": f"{sysconfig.get_path('include')}/Python.h"}
"""What the project's own wheels are made with."""
BUILD_SECONDS_MAX = 1800.0
_PATIENCE = dict.fromkeys(("spark", "sql"), "about 90 s the first time: PySpark is an archive of 456 MB")


@dataclass(frozen=True)
class Recipe:
    """All that one image is made from, and the tag that follows from it."""

    name: str
    base: str
    code: Path
    code_key: str

    @property
    def wheels_key(self) -> str:
        """Changes with this image's lock and with how wheels are got."""
        return cache.hash_inputs(files=_recipe_of_wheels(self.name))

    @property
    def image(self) -> str:
        """Full name with tag."""
        key = cache.hash_inputs(
            [PROJECT / "images" / self.name],
            [DOCKERFILE, INSTALL, CHECK],
            [self.base, self.wheels_key, self.code_key],
        )
        return f"{repository(self.name)}:{key}"


def repository(name: str) -> str:
    """The image's name without tag, as charts and manifests use it."""
    return f"localhost/stele-{name}"


def alias(image: str) -> str:
    """The same image under the tag `dev`."""
    return f"{image.rsplit(':', 1)[0]}:{ALIAS_TAG}"


def build(names: Sequence[str] = NAMES) -> dict[str, str]:
    """Build the named images, those whose inputs did not change not at all; full names with tag by name."""
    for name in names:
        if name not in (*NAMES, *ON_REQUEST):
            known = ", ".join((*NAMES, *ON_REQUEST))
            raise ClusterError(f"There is no image {name!r}; the project's images are {known}.")
    debian.ensure_packages()
    env = podman.environment()
    with cache.locked("images"):
        base = _base(env)
        code_folder, code_key = code()
        recipes = [Recipe(name, base, code_folder, code_key) for name in names]
        return {recipe.name: _ensure(recipe, env) for recipe in recipes}


def identity(image: str) -> str:
    """The digest of an image's configuration: the same content has the same identity in every tag."""
    command = ["podman", "image", "inspect", "--format", "{{.Id}}", image]
    try:
        return output(command, env=podman.environment())
    except ClusterError as error:
        raise ClusterError(
            f"There is no image {image}; build it with `python -m e2e.cluster images`."
        ) from error


def _recipe_of_wheels(*names: str) -> list[Path]:
    """The files that say which wheels are got, and how."""
    return [GET, *(path for name in (locks.BUILD, *names) for path in locks.files(name) if path.exists())]


def _ensure(recipe: Recipe, env: Mapping[str, str]) -> str:
    image = recipe.image
    fresh = not succeeds(["podman", "image", "exists", image], env=env)
    if fresh:
        wheels = _wheels(recipe)
        with step(f"build the image {recipe.name}"):
            _build(recipe, wheels, env)
    used = _in_use(image)
    if fresh:
        _drop_older(image, used, env)
    run(["podman", "tag", image, alias(image)], _log(recipe.name), env=env)
    return image


def _build(recipe: Recipe, wheels: Path, env: Mapping[str, str]) -> None:
    arguments = {
        "BASE": recipe.base,
        "EXTRA": recipe.name,
        "WHEELS_KEY": cache.hash_inputs(files=[INSTALL], values=[recipe.wheels_key]),
        "CODE_KEY": recipe.code_key,
    }
    contexts = {"wheels": wheels, "code": recipe.code}
    command: list[str | Path] = ["buildah", "build", "--layers", "--tag", recipe.image]
    command += [f"--build-arg={key}={value}" for key, value in arguments.items()]
    command += [f"--build-context={key}={value}" for key, value in contexts.items()]
    command += ["--file", DOCKERFILE, PROJECT]
    run(command, _log(recipe.name), env=env, seconds_max=BUILD_SECONDS_MAX)


def _in_use(image: str) -> set[str]:
    """Note that this checkout uses `image` now; what it and the other checkouts that are still there use.

    Hold the lock `images` of the cache.
    """
    place, name = cache.root() / "images-in-use.json", image.rsplit(":", 1)[0]
    noted: dict[str, dict[str, str]] = json.loads(place.read_text()) if place.exists() else {}
    noted.setdefault(str(PROJECT), {})[name] = image
    noted = {checkout: images for checkout, images in noted.items() if Path(checkout).is_dir()}
    aside = place.with_suffix(".making")
    aside.write_text(json.dumps(noted, indent=1))
    aside.rename(place)
    return {used for images in noted.values() for used in images.values()}


def _drop_older(image: str, used: Collection[str], env: Mapping[str, str]) -> None:
    """Take tags away that no checkout uses, of the same repository, then what no tag and no image holds."""
    name = image.rsplit(":", 1)[0]
    listing = output(["podman", "images", "--format", "{{.Repository}}:{{.Tag}}", name], env=env)
    for other in listing.split():
        if other not in (*used, alias(image)):
            run(["podman", "untag", other, other], _log("prune"), env=env)
    run(["podman", "tag", image, alias(image)], _log("prune"), env=env)
    run(["podman", "image", "prune", "--force"], _log("prune"), env=env)


def _base(env: Mapping[str, str]) -> str:
    """The base image: a Debian with Python, imported from a file system made on this machine."""
    key = cache.hash_inputs(values=[rootfs.DEBIAN_SUITE, *BASE_PACKAGES])
    image = f"localhost/stele-base:{key}"
    if not succeeds(["podman", "image", "exists", image], env=env):
        root = rootfs.ensure("images", BASE_PACKAGES)
        with step("import the base image"):
            pipe = (
                f"set -o pipefail; tar -C '{root}' --numeric-owner -cf - . | podman import --quiet - {image}"
            )
            run(["bash", "-c", pipe], _log("base"), env=env)
    return image


def _wheels(recipe: Recipe) -> Path:
    """A folder with the wheels of all that the image needs, the project's own apart."""
    if found := doctor.python_problems(sys.version_info[:2]):
        raise ClusterError(found[0])

    def make(folder: Path) -> None:
        with step(f"get the wheels of {recipe.name}", _PATIENCE.get(recipe.name, "")):
            _get("wheels", recipe.name, folder)

    return cache.entry("wheels", f"{recipe.name}-{recipe.wheels_key}", make)


def code() -> tuple[Path, str]:
    """A folder with the project's own wheels, and the hash of their sources.

    The sources are copied first: they may be edited, and setuptools writes beside them.
    """
    with _copied_sources() as source:
        key = cache.hash_inputs([source], _recipe_of_wheels())

        def make(folder: Path) -> None:
            debian.ensure_packages(COMPILERS)
            with step("build the project's own wheels", "a minute: modules are compiled"):
                _get("code", source, folder)

        return cache.entry("code", key, make), key


@contextmanager
def _copied_sources() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stele-code-") as folder:
        source = Path(folder) / "source"
        ignored = shutil.ignore_patterns(*cache.IGNORED_NAMES)
        shutil.copytree(PROJECT / "operator" / "stele", source / "operator" / "stele", ignore=ignored)
        shutil.copytree(native.SOURCE, source / "native")
        for name in ("pyproject.toml", "setup.py", "README.md"):
            shutil.copy(PROJECT / name, source / name)
        yield source


def _get(what: str, of: str | Path, folder: Path) -> None:
    """Run `images/wheels.sh` in a virtual environment of the cache that has the locked pip and setuptools."""

    def make(tools: Path) -> None:
        run(["sh", GET, "tools", tools], _log("wheels"), env=env)

    key = cache.hash_inputs(files=_recipe_of_wheels(), values=[sys.base_prefix, sys.version])
    # The interpreter that runs this, whatever `python3` is elsewhere.
    env = native.environment()
    tools = cache.entry("tools", key, make)
    run(["sh", GET, what, tools, of, folder], _log("wheels"), env=env, seconds_max=BUILD_SECONDS_MAX)


def _log(name: str) -> Path:
    return cache.root() / "logs" / f"image-{name}.log"
