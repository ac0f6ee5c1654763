"""What `images/install.sh` puts into an image: wheels with the hashes of the lock, and nothing else."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pip
import pytest

from e2e.cluster import images
from e2e.cluster.doctor import IMAGE_PYTHON
from e2e.supply import locks

NAME, VERSION = "stele-probe", "1.0"
EXAMPLE = locks.PROJECT / "examples" / "quota"
INFO = f"{NAME.replace('-', '_')}-{VERSION}.dist-info"


def wheel(folder: Path, text: str) -> str:
    """Write a wheel with one module of that text; its SHA-256."""
    content = folder / "content"
    (content / INFO).mkdir(parents=True)
    (content / "stele_probe.py").write_text(text)
    (content / INFO / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n")
    (content / INFO / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    (content / INFO / "RECORD").write_text("")
    made = Path(shutil.make_archive(str(folder / "made"), "zip", content))
    place = folder / f"stele_probe-{VERSION}-py3-none-any.whl"
    made.rename(place)
    shutil.rmtree(content)
    return hashlib.sha256(place.read_bytes()).hexdigest()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A folder with the script, a lock of one wheel, the wheel, and the pip that runs this as a wheel."""
    wheels = tmp_path / "wheels"
    (wheels / "tools" / "pip-0.whl").mkdir(parents=True)
    (wheels / "tools" / "pip-0.whl" / "pip").symlink_to(Path(pip.__file__).parent)
    pin = locks.Pin(NAME, VERSION, (wheel(wheels, "x = 1\n"),))
    (tmp_path / "locks").mkdir()
    locks.write("member", locks.Lock((NAME,), (pin,), ()), tmp_path / "locks")
    shutil.copy(images.INSTALL, tmp_path)
    return tmp_path


def install(recipe: Path) -> "subprocess.CompletedProcess[str]":
    words = [
        "sh",
        str(recipe / "install.sh"),
        "wheels",
        str(recipe / "wheels"),
        str(recipe / "made"),
        "member",
    ]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_what_is_in_the_lock_is_installed_and_compiled_without_pip(recipe: Path) -> None:
    done = install(recipe)
    assert done.returncode == 0, done.stderr
    (packages,) = (recipe / "made").glob("lib/python3*/site-packages")
    assert {path.name for path in packages.iterdir()} == {"stele_probe.py", INFO, "__pycache__"}
    assert not list((recipe / "made" / "bin").glob("pip*"))


def test_a_wheel_with_another_hash_is_refused(recipe: Path) -> None:
    wheel(recipe / "wheels", "x = 2\n")
    done = install(recipe)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not list((recipe / "made").glob("lib/python3*/site-packages/stele_probe*"))


def test_a_wheel_that_the_lock_has_without_a_hash_is_refused(recipe: Path) -> None:
    (recipe / "locks" / "member.txt").write_text(f"{NAME}=={VERSION}\n")
    done = install(recipe)
    assert done.returncode != 0
    assert "Hashes are required" in done.stderr


def test_the_images_install_by_nothing_else() -> None:
    text = images.DOCKERFILE.read_text()
    assert "pip" not in text.replace("pipe", "")
    assert text.count("/recipe/install.sh wheels ") == 3
    assert text.count("/recipe/install.sh code ") == 1
    for script in (images.GET, images.INSTALL):
        lines = script.read_text().replace("\\\n", "").splitlines()
        reading = [line for line in lines if '-r "$locks/' in line]
        assert reading
        assert all("--require-hashes" in line for line in reading)


def check(recipe: Path, *programs: str) -> "subprocess.CompletedProcess[str]":
    """Run the check of an image with these programs, and no others, beside its Python."""
    folder = recipe / "programs"
    folder.mkdir(exist_ok=True)
    for name in programs:
        (folder / name).symlink_to("/bin/true")
    words = ["/bin/sh", str(images.CHECK), str(recipe / "made")]
    env = {"PATH": str(folder)}
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False)


def test_an_image_that_could_build_or_install_is_refused(recipe: Path) -> None:
    assert install(recipe).returncode == 0
    (packages,) = (recipe / "made").glob("lib/python3*/site-packages")
    clean = check(recipe)
    assert clean.returncode == 0, clean.stderr
    found = check(recipe, "gcc")
    assert (found.returncode, found.stderr.splitlines()[-1]) == (1, "the image has the program gcc")
    (packages / "setuptools.py").write_text("")
    found = check(recipe)
    assert (found.returncode, found.stderr) == (1, "the image has the Python module setuptools\n")
    after = images.DOCKERFILE.read_text().partition("sh /recipe/check.sh /opt/stele\n")[2]
    assert re.search(r"^USER ", after, re.M), "it is checked in the image that is shipped"
    assert "\nRUN " not in after, "nothing is added to what was checked"


# An image with a service: examples/quota/Dockerfile, which docs/reference/services.md shows -----------------


def built_by_the_example(folder: Path) -> Path:
    """Run what its Dockerfile runs in the stage with pip, with folders of this test; what it copies."""
    source, made = folder / "source", folder / "stage"
    shutil.copytree(EXAMPLE, source)
    (command,) = re.findall(r"^RUN (.* pip .*)$", (EXAMPLE / "Dockerfile").read_text(), re.M)
    places = {"/usr/bin/python3": sys.executable, "/made": str(made), "/source": str(source)}
    words = [places.get(word, word) for word in shlex.split(command)]
    done = subprocess.run(
        words, env={**os.environ, "PIP_NO_INDEX": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return made


def test_the_example_adds_a_service_to_an_image_without_pip(recipe: Path, tmp_path: Path) -> None:
    assert install(recipe).returncode == 0
    (packages,) = (recipe / "made").glob("lib/python3*/site-packages")
    shutil.copytree(built_by_the_example(tmp_path), packages, dirs_exist_ok=True)
    clean = check(recipe)
    assert clean.returncode == 0, clean.stderr
    code = "import importlib.metadata as m; print([x.value for x in m.entry_points(group='stele.services')])"
    found = subprocess.check_output([recipe / "made" / "bin" / "python", "-c", code], text=True)
    assert found == "['stele_quota:Quota']\n"


def test_the_page_shows_the_example_which_needs_nothing_that_the_image_lacks() -> None:
    text = (EXAMPLE / "Dockerfile").read_text()
    page = (locks.PROJECT / "docs" / "reference" / "services.md").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if f"\n    {line}\n" not in page] == []
    (place,) = re.findall(r"^COPY --from=made /made/ (\S+)$", text, re.M)
    assert place == "/opt/stele/lib/python{}.{}/site-packages/".format(*IMAGE_PYTHON)
    last = text[text.rindex("\nFROM ") :]
    assert "RUN" not in last, "the image has no pip, and its user may not write"
    assert not any(f"/opt/stele/bin/{pip}" in page for pip in ("pip", "python -m pip"))
    assert (EXAMPLE / "network-policy.yaml").read_text() in page
