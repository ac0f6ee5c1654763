"""Files that a command writes: they get their names once they are complete."""

import os
import tempfile
from pathlib import Path
from typing import IO

from stele.errors import BadInput


def check_new(file: Path) -> None:
    """Raise BadInput when there is a file of that name."""
    if file.exists():
        raise BadInput(f"{file} exists already: remove it, or name another file")


class PartFile:
    """A temporary file beside `file`, which gets that name when all was written, and else is removed.

    Nobody else may read it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> IO[bytes]:
        number, self._name = tempfile.mkstemp(prefix=f"{self._file.name}.", dir=self._file.absolute().parent)
        self._part: IO[bytes] = os.fdopen(number, "wb")
        return self._part

    def __exit__(self, wrong: object, *_: object) -> None:
        try:
            self._part.close()
            if wrong is None:
                Path(self._name).rename(self._file)
        finally:
            Path(self._name).unlink(missing_ok=True)
