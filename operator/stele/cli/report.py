"""`kubectl stele report`: all that others need to find out what is wrong with a cluster, in one file."""

import asyncio
import json
import tarfile
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

import stele
from stele.cli import output as out
from stele.cli.options import Where, on_cluster
from stele.cli.part_file import PartFile, check_new
from stele.cli.redaction import log_without_secrets, text_without_secrets, without_secrets
from stele.cli.status import ClusterArgument
from stele.core.table.ids import PARTITIONS_MAX
from stele.errors import BadInput, SteleError

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.adapters.kubernetes.pod_logs import Container
    from stele.adapters.kubernetes.report_source import ReportSource

LOG_LINES_MAX = 20_000
"""Lines of one log, the last ones."""
LOG_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of one log, the last ones; what comes before them is left out, and said."""
TABLET_PAGES_MAX = 100
"""Answers with tablets of one member, 1,000 each; what comes after them is left out, and said."""
REPORT_BYTES_MAX = 1024 * 1024 * 1024
"""Bytes of all that is in a report, before it is packed; what exceeds them is left out, and said."""
ASKED = ("status", "sessions", "transactions", "quarantine")
"""What members are asked for at their admin port, besides their tablets."""

TABLETS = "tablets"

Content = tuple[bytes, str]
"""What is in a file, and what is missing in it; the latter is empty for a whole one."""
Entry = tuple[str, Awaitable[Content]]


@on_cluster
def report(
    where: Where,
    cluster: ClusterArgument,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="File to create; by default CLUSTER-report-TIME.tar.gz here."),
    ] = None,
) -> None:
    """Write a support bundle: objects, events, logs, the table, members' state, metrics and versions.

    Secrets are not read, and what looks like a password, a key or a token is left out of all else. Look
    through it before you give it to others: logs and names may tell more than you want.

    \b
    Examples:
      kubectl stele report demo -n stele
      kubectl stele report demo demo.tar.gz -n stele
    """
    target = file or Path(f"{cluster}-report-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    check_new(target)
    try:
        with PartFile(target) as part:
            missing = where.ask(lambda console: _write(console, cluster, part))
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {error.strerror}") from None
    out.progress(f"{target} has {out.size(target.stat().st_size)}", last=True)
    if missing:
        text = f"{len(missing)} things could not be read, or not whole; errors.txt in it names them"
        out.progress(text, last=True)
    print(target)


async def _write(console: "Console", cluster: str, part: IO[bytes]) -> list[str]:
    """Write the archive; return what is missing in it. Raises NotFound without such a cluster."""
    source = console.report_source(cluster)
    await source.check()
    with tarfile.open(fileobj=part, mode="w:gz") as archive:
        bundle = _Bundle(archive, cluster)
        async for name, reading in _entries(source):
            await bundle.add(name, reading)
        bundle.close()
    return bundle.missing


class _Bundle:
    """The archive. `missing` says what is not in it, and why."""

    def __init__(self, archive: tarfile.TarFile, root: str) -> None:
        self._archive, self._root = archive, root
        self._left = REPORT_BYTES_MAX
        self.missing: list[str] = []

    async def add(self, name: str, reading: Awaitable[Content]) -> None:
        out.progress(f"reading {name}")
        try:
            data, cut = await reading
        except SteleError as error:
            self._miss(name, str(error))
            return
        self.put(name, data)
        if cut:
            self._miss(name, cut)

    def _miss(self, name: str, text: str) -> None:
        self.missing.append(text_without_secrets(f"{name}: {text}"))

    def put(self, name: str, data: bytes) -> None:
        if len(data) > self._left:
            self.missing.append(f"{name}: {len(data)} bytes more than the {REPORT_BYTES_MAX} of a report")
        else:
            self._left -= len(data)
            self._write(name, data)

    def close(self) -> None:
        """Write what is missing, however large the rest is."""
        self._write("errors.txt", "".join(f"{each}\n" for each in self.missing).encode())

    def _write(self, name: str, data: bytes) -> None:
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            self._archive.addfile(
                self._archive.gettarinfo(arcname=f"{self._root}/{name}", fileobj=file), file
            )


async def _entries(source: "ReportSource") -> AsyncIterator[Entry]:
    """Iterate names with how their content is read; what is read in vain ends nothing."""
    yield "versions.json", _json(_versions(source))
    for plural in source.plurals:
        yield f"objects/{plural}.json", _json(source.objects(plural))
    yield "objects/events.json", _json(source.events())
    yield "table.json", _json(source.table())
    for name in await _names(source.member_names):
        for what in ASKED:
            yield f"members/{name}/{what}.json", _json(source.ask(name, f"/v1/{what}"))
        yield f"members/{name}/{TABLETS}.json", _tablets(source, name)
        yield f"members/{name}/metrics.txt", _text(source.metrics(name))
    for namespace, container in await _names(source.containers):
        at = f"logs/{container.pod}/{container.name}"
        yield f"{at}.log", _log(source, namespace, container, "false")
        if container.before:
            yield f"{at}.previous.log", _log(source, namespace, container, "true")


async def _names(read: Callable[[], Awaitable[list[Any]]]) -> list[Any]:
    """Return what is read, nothing where that is not possible: the objects' file says why."""
    try:
        return await read()
    except SteleError:
        return []


async def _versions(source: "ReportSource") -> Any:
    return {"kubectl-stele": stele.__version__, **await source.versions()}


async def _json(reading: Awaitable[Any]) -> Content:
    return _text_of(await reading), ""


def _text_of(found: Any) -> bytes:
    text = json.dumps(without_secrets(found), indent=1, ensure_ascii=False, default=str)
    return text.encode(errors="replace") + b"\n"


async def _text(reading: Awaitable[bytes]) -> Content:
    return text_without_secrets((await reading).decode(errors="replace")).encode(), ""


async def _tablets(source: "ReportSource", member: str) -> Content:
    """Return all pages of a member's tablets as one document, as far as they go."""
    whole = await source.ask(member, f"/v1/{TABLETS}")
    tablets, after, last, why = _tablets_of(whole), whole.get("next"), -1, ""
    for _ in range(TABLET_PAGES_MAX - 1):
        if not isinstance(after, int) or not last < after < PARTITIONS_MAX:
            break
        try:
            page = await source.ask(member, f"/v1/{TABLETS}", after=str(after))
        except SteleError as error:
            why = f": {error}"
            break
        tablets += _tablets_of(page)
        last, after = after, page.get("next")
    cut = f"has {len(tablets)} tablets; those after {str(after)[:40]} are missing{why}"
    return _text_of({**whole, TABLETS: tablets, "next": after}), "" if after is None else cut


def _tablets_of(page: dict[str, Any]) -> list[Any]:
    found = page.get(TABLETS)
    return found if isinstance(found, list) else []


async def _log(source: "ReportSource", namespace: str, container: "Container", previous: str) -> Content:
    """Return the end of a log."""
    lines, size, is_cut = deque[bytes](), 0, False
    query = {"tailLines": str(LOG_LINES_MAX), "previous": previous, "timestamps": "true"}
    async for line in source.log_lines(namespace, container, query):
        lines.append(line)
        size += len(line) + 1
        while size > LOG_BYTES_MAX:
            size, is_cut = size - len(lines.popleft()) - 1, True
    text = b"\n".join([*lines, b""]).decode(errors="replace")
    data = (await asyncio.to_thread(log_without_secrets, text)).encode()
    if not is_cut:
        return data, ""
    cut = f"what comes before the last {LOG_BYTES_MAX} bytes is left out"
    return f"({cut})\n".encode() + data, cut
