"""What the one file `kubectl-stele` runs first: it unpacks itself once, then runs the command.

The file is a zip with the modules of Stele, and wheels of what they import, for several versions of Python.
Compiled modules cannot be imported out of a zip, so those for this Python are unpacked into
`$XDG_CACHE_HOME/kubectl-stele` (`~/.cache/kubectl-stele`), a folder for each release and Python. Called as
`kubectl_complete-stele`, by a link of that name, it completes command lines.

It imports nothing but Python itself, and is written so that an old Python can say that it is too old.
"""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import sys
import tempfile
import zipfile
from typing import Any

CONTENTS = "contents.json"
CODE = "code/"
WHEELS = "wheels/"


class UnfitError(Exception):
    """This machine cannot run the file; the text says what to do."""


def wheels_for(contents: dict[str, Any], system: str, machine: str, python: str) -> list[str]:
    """The names of the wheels for this machine. Raises UnfitError when there are none."""
    if (system, machine) != (contents["system"], contents["machine"]):
        raise UnfitError(
            f"this file is for {contents['system']} on {contents['machine']}, and this machine is "
            f"{system} on {machine}: get the file for it"
        )
    if python not in contents["pythons"]:
        known = ", ".join(sorted(contents["pythons"], key=lambda each: int(each.partition(".")[2])))
        raise UnfitError(
            f"it runs with Python {known}, and this is Python {python}: start it with another one, as in "
            f"python3.12 {sys.argv[0]}"
        )
    names: list[str] = contents["pythons"][python]
    return names


def unpacked(file: str, cache: str) -> str:
    """The folder with what the zip `file` has for this Python; fills it first when it is not there."""
    with zipfile.ZipFile(file) as archive:
        contents = json.loads(archive.read(CONTENTS))
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        names = wheels_for(contents, sys.platform, platform.machine(), python)
        place = os.path.join(cache, f"{contents['key']}-{python}")
        if not os.path.isdir(place):
            os.makedirs(cache, mode=0o700, exist_ok=True)
            aside = tempfile.mkdtemp(dir=cache)
            try:
                _unpack(archive, names, aside)
                _rename(aside, place)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    return place


def _unpack(archive: zipfile.ZipFile, names: list[str], folder: str) -> None:
    for name in names:
        with zipfile.ZipFile(io.BytesIO(archive.read(WHEELS + name))) as wheel:
            wheel.extractall(folder)
    for each in archive.namelist():
        if each.startswith(CODE):
            path = os.path.join(folder, each[len(CODE) :])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as out:
                out.write(archive.read(each))


def _rename(aside: str, place: str) -> None:
    """Give the whole folder its name; another process may have been faster, with the same content."""
    try:
        os.rename(aside, place)
    except OSError:
        if not os.path.isdir(place):
            raise


def main() -> int:
    """Run `kubectl stele`, or what completes its command lines."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    try:
        folder = unpacked(os.path.dirname(os.path.abspath(__file__)), os.path.join(cache, "kubectl-stele"))
    except UnfitError as error:
        print(f"kubectl stele: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"kubectl stele: could not unpack into {cache}/kubectl-stele: {error}; "
            "name a folder that can be written in XDG_CACHE_HOME",
            file=sys.stderr,
        )
        return 1
    sys.path.insert(0, folder)
    # A load or dump with --address is a process of its own, of the same Python and with the same modules.
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = folder + (os.pathsep + others if others else "")
    if os.path.basename(sys.argv[0]).startswith("kubectl_complete"):
        from stele.cli.completion import main as run
    else:
        from stele.cli.main import main as run
    return run()


if __name__ == "__main__":
    sys.exit(main())
