"""Completes `kubectl stele playground ...` in the shell; `stele.cli.completion` runs it with its words."""

import sys
from collections.abc import Sequence
from pathlib import Path

from stele.cli.completion import complete, print_offer, values_of
from stele.playground.folder import DEFAULT
from stele.playground.main import Here, app


def _here(before: Sequence[str]) -> Here:
    folder = values_of(before, {"--dir": "folder"}).get("folder")
    return Here(folder=Path(folder).expanduser().absolute() if folder else DEFAULT)


if __name__ == "__main__":
    print_offer(complete(sys.argv[1:], app, _here))
