"""`make demo` installs the extra `demo` only, which must be all that the demo imports."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution

from e2e.supply.locks import PROJECT

# The phase `image-change` runs `stele.cli`.
IMPORT = """
import sys
before = set(sys.modules)
import e2e.demo.__main__, e2e.demo.workload, stele.cli.main
names = {name.partition(".")[0] for name in sys.modules.keys() - before}
print(*(name for name in names if getattr(sys.modules.get(name), "__spec__", None)))
"""
OWN = {"e2e", "stele", "stele__mypyc", "stele_native"}


def provided_by(asked: list[str]) -> set[str]:
    """Top-level modules of these distributions and of all that they need, without their extras."""
    modules: set[str] = set()
    seen: set[str] = set()
    names = [name_in(each) for each in asked]
    while names:
        name = names.pop()
        if name not in seen:
            seen.add(name)
            needed, files = found(name)
            names += needed
            modules |= files
    return modules


def found(name: str) -> tuple[list[str], set[str]]:
    """What a distribution needs, and its modules; nothing when it is not there, as on another platform."""
    try:
        made = distribution(name)
    except PackageNotFoundError:
        return [], set()
    needed = [name_in(each) for each in made.requires or () if "extra ==" not in each]
    return needed, {file.parts[0].partition(".")[0] for file in made.files or ()}


def name_in(requirement: str) -> str:
    """The name of the distribution that a requirement asks for."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def test_the_demo_imports_nothing_that_its_extra_does_not_install() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    own, *others = extras["demo"]
    assert own == "stele[cli]"
    provided = provided_by(project["dependencies"] + extras["cli"] + others)
    assert "hiredis" in provided
    said = subprocess.run(
        [sys.executable, "-c", IMPORT], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    used = set(said.stdout.split())
    assert "hiredis" in used
    unknown = used - provided - OWN - sys.stdlib_module_names
    assert {name for name in unknown if not name.startswith("_sysconfigdata")} == set()
