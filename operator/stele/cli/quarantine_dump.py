"""Writes the entries of a quarantined tablet to a file or to standard output, as JSON lines."""

import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

from stele.cli import output as out
from stele.cli.options import Where
from stele.cli.part_file import PartFile, check_new
from stele.errors import BadInput, SteleError

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console

STDOUT = Path("-")
PROGRESS_SECONDS = 1.0
"""Seconds between two lines of progress."""


def dump_entries(where: Where, member: str, item: str, path: str, file: Path) -> None:
    """Write the entries. A file appears once it is complete; raises BadInput when it cannot be written."""
    if file == STDOUT:
        where.ask(lambda console: _copy(console, member, item, path, sys.stdout.buffer))
        return
    check_new(file)
    try:
        with PartFile(file) as part:
            where.ask(lambda console: _copy(console, member, item, path, part))
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}") from None


async def _copy(console: "Console", member: str, item: str, path: str, sink: IO[bytes]) -> None:
    """Copy lines from the member. Raises Unavailable when they end early: what was written is not all."""
    expected = await _expected(console, member, item)
    done, shown, last = 0, time.monotonic(), b"\n"
    try:
        async for chunk in console.stream_member(member, f"{path}/entries"):
            sink.write(chunk)
            done, last = done + chunk.count(b"\n"), chunk[-1:]
            if time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                out.progress(f"{done} of about {expected} entries")
        if last != b"\n":
            raise SteleError(f"{member}: the last line is cut off", "INCOMPLETE")
        sink.flush()
    except SteleError as error:
        raise type(error)(f"{error.text}; the dump is incomplete: run it again", error.code) from error
    out.progress(f"{done} entries of {item} of {member}", last=True)


async def _expected(console: "Console", member: str, item: str) -> int:
    """Return how many entries the item has. Raises BadInput with the items that there are."""
    from stele.wire.admin import QuarantineList

    answer = await console.ask_member("GET", member, "/v1/quarantine", QuarantineList)
    entries = {f"{each.partition}/{each.generation}": each.entries for each in answer.tablets}
    if item not in entries:
        there = ", ".join(entries) or "none"
        raise BadInput(f"{item} is not in the quarantine of {member}; its tablets there are: {there}")
    return entries[item]
