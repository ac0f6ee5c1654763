"""What `images/install.sh` puts into an image: wheels with the hashes of the lock, and nothing else."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pip
import pytest

from e2e.cluster import images
from e2e.supply import locks

NAME, VERSION = "stele-probe", "1.0"
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
    assert "sh /recipe/check.sh /opt/stele\nUSER" in images.DOCKERFILE.read_text()
