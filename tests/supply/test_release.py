"""A release: the same commit gives the same bytes, and what is in it works."""

import hashlib
import os
import platform
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import stele
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import ClusterError
from e2e.supply import chart, cli, commit, locks, manifest, plugin, release
from e2e.supply.archives import Entry, zipped
from e2e.supply.commit import Commit

HERE = (sys.platform, platform.machine())
VERSION = stele.__version__
DIGEST = "sha256:" + "a" * 64
IMAGES = {name: f"registry.example.com/stele-{name}:1.0@{DIGEST}" for name in locks.IMAGES}


TICK_SECONDS = 2.1
"""More than the times of any archive are apart."""


def head_of_here() -> Commit:
    words = ["git", "-C", str(locks.PROJECT), "log", "-1", "--format=%H %ct"]
    name, seconds = subprocess.check_output(words, text=True).split()
    return Commit(locks.PROJECT, name, int(seconds))


@pytest.fixture
def head() -> Commit:
    """The commit that is checked out, whatever else is in the folder."""
    return head_of_here()


def download_nothing(_: plugin.Platform, folder: Path, lock: Path) -> dict[str, list[Path]]:
    assert "--hash=sha256:" in lock.read_text()
    path = folder / "needed-1-py3-none-any.whl"
    path.write_bytes(zipped([Entry("needed.py", b"")], 0))
    return {"3.11": [path]}


def render_nothing(folder: Path, _: str) -> str:
    return (folder / "values.yaml").read_text()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an index for wheels, and without Helm."""
    monkeypatch.setattr(plugin, "download", download_nothing)
    monkeypatch.setattr(manifest, "rendered", render_nothing)


def released_elsewhere(out: Path, *, offline: bool, platforms: Sequence[plugin.Platform]) -> None:
    """Release later, by another process with another folder, time zone, umask, locale and order of sets."""
    code = "import sys; from pathlib import Path; from e2e.supply import manifest, plugin, release;"
    code += "from tests.supply import test_release as t;"
    if offline:
        code += "plugin.download = t.download_nothing; manifest.rendered = t.render_nothing;"
    code += f"options = release.Options(url='https://example.com/x', platforms={list(platforms)!r});"
    code += "release.write(Path(sys.argv[1]), t.head_of_here(), options)"
    work = out.parent / "elsewhere"
    work.mkdir()
    other = {"TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "7", "LC_ALL": "C", "TMPDIR": str(work)}
    env = {**os.environ, **other, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    time.sleep(TICK_SECONDS)
    words = [sys.executable, "-c", code, str(out)]
    done = subprocess.run(words, cwd=work, env=env, umask=0o077, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    work.rmdir()


def names(version: str, platforms: Sequence[plugin.Platform] = locks.PLUGIN_PLATFORMS) -> set[str]:
    bills = {f"stele-{name}.cdx.json" for name in locks.IMAGES} | {"kubectl-stele.cdx.json"}
    archives = {plugin.archive_name(version, each) for each in platforms}
    return bills | archives | {f"stele-{version}.tgz", "install.yaml", "stele.yaml", release.SUMS}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def values(folder: Path) -> dict[str, Any]:
    with tarfile.open(folder / f"stele-{VERSION}.tgz") as archive:
        file = archive.extractfile("stele/values.yaml")
        assert file is not None
        found: dict[str, Any] = yaml.safe_load(file.read())
        return found


@pytest.mark.usefixtures("offline")
def test_the_same_commit_gives_the_same_bytes(head: Commit, tmp_path: Path) -> None:
    release.write(tmp_path / "one", head, release.Options(url="https://example.com/x"))
    released_elsewhere(tmp_path / "two", offline=True, platforms=locks.PLUGIN_PLATFORMS)
    first = contents(tmp_path / "one")
    assert first == contents(tmp_path / "two")
    assert set(first) == names(VERSION)
    lines = first.pop(release.SUMS).decode().splitlines()
    assert lines == [f"{hashlib.sha256(first[name]).hexdigest()}  {name}" for name in sorted(first)]
    krew = yaml.safe_load(first["stele.yaml"])["spec"]["platforms"]
    assert {each["sha256"] for each in krew} < {line.split()[0] for line in lines}
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two"}


@pytest.mark.usefixtures("offline")
def test_the_chart_has_its_folder_its_version_and_nothing_of_the_checkout(
    head: Commit, tmp_path: Path
) -> None:
    release.write(tmp_path / "out", head, release.Options(platforms=[HERE]))
    with tarfile.open(tmp_path / "out" / f"stele-{VERSION}.tgz") as archive:
        inside = archive.getnames()
    assert {name.partition("/")[0] for name in inside} == {"stele"}
    assert {"stele/Chart.yaml", "stele/values.schema.json", "stele/templates/tests/ready.yaml"} <= set(inside)
    words = ["git", "-C", str(locks.PROJECT), "ls-tree", "-r", "--name-only", head.name, "charts/stele"]
    listed = subprocess.check_output(words, text=True).split()
    assert sorted(inside) == sorted(name.removeprefix("charts/") for name in listed)


@pytest.mark.usefixtures("offline")
def test_images_are_at_the_registry_or_have_their_digests(head: Commit, tmp_path: Path) -> None:
    release.write(tmp_path / "a", head, release.Options(registry="example.com:5000/team", platforms=[HERE]))
    assert values(tmp_path / "a")["images"]["registry"] == "example.com:5000/team"
    release.write(tmp_path / "b", head, release.Options(images=IMAGES, platforms=[HERE]))
    images = values(tmp_path / "b")["images"]
    for name, key in chart.VALUES.items():
        repository = f"registry.example.com/stele-{name}"
        assert images[key] == {"repository": repository, "tag": "1.0", "digest": DIGEST}


@pytest.mark.usefixtures("offline")
def test_what_failed_leaves_nothing(head: Commit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match=r"--version is '9\.9\.9'"):
        release.write(tmp_path / "out", head, release.Options(version="9.9.9"))

    def fails(*_: object) -> None:
        raise ClusterError("no index")

    monkeypatch.setattr(plugin, "download", fails)
    with pytest.raises(ClusterError, match="no index"):
        release.write(tmp_path / "out", head, release.Options())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(head: Commit, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(ClusterError, match=r"exists; remove it, or name another folder with --out"):
        release.write(tmp_path, head, release.Options())
    assert contents(tmp_path) == {"mine": b"x"}


def test_without_helm_it_says_where_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STELE_CACHE", str(tmp_path))
    monkeypatch.setenv("STELE_PROGRAMS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"build it with `python -m e2e.cluster programs`"):
        manifest.helm()
    (tmp_path / "helm").touch(mode=0o755)
    assert manifest.helm() == tmp_path / "helm"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--registry", "HTTP://x"], "--registry is 'HTTP://x', expected HOST"),
        (["--image", "operator=x"], "expected each image once"),
        (["--platform", "windows_amd64"], "--platform is 'windows_amd64'"),
    ],
)
def test_options_that_cannot_be_are_refused(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["release", "--out", str(tmp_path / "out"), *words]) == 1
    assert text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_release_of_changed_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def changed() -> Commit:
        raise ClusterError("the clone has changes")

    monkeypatch.setattr(commit, "head", changed)
    assert cli.main(["release", "--out", str(tmp_path / "out")]) == 1
    assert "the clone has changes" in capsys.readouterr().err


@pytest.mark.control_plane
def test_the_api_server_takes_the_plain_manifests(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, in one command, and it has what the chart installs by default but Spark's Secret."""
    monkeypatch.setenv("STELE_PROGRAMS", str(control_plane.bin))
    text = manifest.rendered(chart.CHART, VERSION)
    assert manifest.rendered(chart.CHART, VERSION) == text
    path = tmp_path / "install.yaml"
    path.write_text(text)
    control_plane.run("kubectl", "create", "namespace", manifest.NAMESPACE)
    how = ("--server-side", "--dry-run=server", "--force-conflicts", "--validate=strict")
    said = control_plane.kubectl("apply", *how, "-f", str(path))
    for each in ("namespace/stele", "deployment.apps/stele-operator", "tabletclusters.stele.dev"):
        assert each in said
    kinds = [each["kind"] for each in yaml.safe_load_all(text) if each]
    assert kinds[0] == "Namespace"
    assert {"Secret", "Pod"} & set(kinds) == set()
    assert f'image: "localhost/stele-operator:{VERSION}"' in text


@pytest.mark.long
@pytest.mark.control_plane
def test_a_whole_release_for_this_machine(
    bare_control_plane: ControlPlane, head: Commit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STELE_PROGRAMS", str(bare_control_plane.bin))
    out = tmp_path / "dist"
    release.write(out, head, release.Options(url="https://example.com/x", platforms=[HERE]))
    assert set(contents(out)) == names(VERSION, [HERE])
    released_elsewhere(tmp_path / "again", offline=False, platforms=[HERE])
    assert contents(out) == contents(tmp_path / "again")
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", release.SUMS], cwd=out, check=True)
    lint = bare_control_plane.run("helm", "lint", "--strict", str(out / f"stele-{VERSION}.tgz"))
    assert lint.returncode == 0, lint.stdout
    with tarfile.open(out / plugin.archive_name(VERSION, HERE)) as archive:
        file = archive.extractfile(plugin.NAME)
        assert file is not None
        program = tmp_path / plugin.NAME
        program.write_bytes(file.read())
    # Nothing of this environment: another Python's path, and none of its packages.
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    python = f"{sys.base_prefix}/bin/python3"
    for words, text in ((["version"], VERSION), (["--help"], "rollout"), (["plan", "--help"], "--offline")):
        done = subprocess.run(
            [python, "-s", str(program), *words], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert text in done.stdout
