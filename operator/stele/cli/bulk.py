"""`kubectl stele load` and `dump`: a Parquet file into a cluster, and a keyspace into a Parquet file.

Spark runs in a Job of the cluster's namespace, and the file goes through the API server. With --address it
runs on this machine, which then has to reach the members.
"""

import json
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stele.cli import output as out
from stele.cli.options import OutputOption, Where, on_cluster
from stele.cli.output import Output
from stele.errors import BadInput, SteleError

if TYPE_CHECKING:
    from stele.adapters.kubernetes.bulk_job import BulkJob
    from stele.adapters.kubernetes.console import Console

PARQUET = b"PAR1"
STRAY_LINES_MAX = 5
"""Lines of other output of Java that the error of a failed job includes."""

ClusterOption = Annotated[str, typer.Option("--cluster", metavar="NAME", help="The TabletCluster.")]
KeyspaceOption = Annotated[str, typer.Option("--keyspace", metavar="NAME", help="Keyspace to load or dump.")]
AddressOption = Annotated[
    str,
    typer.Option(
        "--address",
        metavar="HOST[:PORT]",
        help="Run Spark on this machine; the admin port of any member.",
    ),
]
TlsFolderOption = Annotated[
    str,
    typer.Option(
        "--tls-folder",
        metavar="DIR",
        help="With --address: files of the Secret CLUSTER-admin-tls, where members take TLS only.",
    ),
]
ImageOption = Annotated[
    str,
    typer.Option(
        "--image",
        metavar="IMAGE",
        help="Image of the Job; by default that of the cluster's spec, or of the installation.",
    ),
]
MemoryOption = Annotated[str, typer.Option("--memory", help="Memory of the Job; Spark gets half of it.")]


@on_cluster
def load(
    where: Where,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Parquet file.")],
    *,
    cluster: ClusterOption = "",
    keyspace: KeyspaceOption = "default",
    key_column: Annotated[str, typer.Option("--key-column", help="Column of text or binary keys.")] = "key",
    value_column: Annotated[str, typer.Option("--value-column", help="Column of values.")] = "value",
    expire_column: Annotated[
        str, typer.Option("--expire-column", help="Timestamps, or milliseconds since 1970; null for never.")
    ] = "",
    duplicates: Annotated[
        str,
        typer.Option("--duplicates", metavar="error|last", help="Reject repeated keys, or keep the last."),
    ] = "error",
    load_id: Annotated[
        str, typer.Option("--load", metavar="ID", help="Resume this load: completed tablets are skipped.")
    ] = "",
    address: AddressOption = "",
    tls_folder: TlsFolderOption = "",
    image: ImageOption = "",
    memory: MemoryOption = "2Gi",
    output: OutputOption = None,
) -> None:
    """Load a Parquet file into a cluster.

    Each tablet loads its rows atomically, at all replicas. An interrupted or failed load can be resumed
    with its id, which is printed first.

    \b
    Examples:
      kubectl stele load users.parquet --cluster demo --keyspace users -n stele
      kubectl stele load users.parquet --cluster demo --key-column id --value-column profile -n stele
    """
    _check_file(file)
    if duplicates not in ("error", "last"):
        raise BadInput(f"--duplicates is {duplicates}; expected error or last")
    name = load_id or f"load-{uuid.uuid4().hex[:12]}"
    arguments = ["--load", name, "--keyspace", keyspace, "--duplicates", duplicates]
    for option, column in (("key", key_column), ("value", value_column), ("expire", expire_column)):
        arguments += [f"--{option}-column", column]
    print(f"load {name}", file=sys.stderr)
    job = _Job("load", file, arguments, where)
    again = f"resume it with: kubectl stele load {file} --load {name} and the same other options"
    with _interrupted(again):
        result = (
            job.run_here(address, tls_folder, memory) if address else job.run_there(cluster, image, memory)
        )
    loaded = result["tablets"] - result["skipped"]
    _show(result, output, f"{result['rows']} rows in {result['seconds']} s; {loaded} tablets loaded")


@on_cluster
def dump(
    where: Where,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Parquet file to create.")],
    *,
    cluster: ClusterOption = "",
    keyspace: KeyspaceOption = "default",
    address: AddressOption = "",
    tls_folder: TlsFolderOption = "",
    image: ImageOption = "",
    memory: MemoryOption = "2Gi",
    output: OutputOption = None,
) -> None:
    """Write all rows of a keyspace to a Parquet file: key, value, expire_at_ms (0: never).

    Each tablet is a consistent snapshot; those of different tablets may differ slightly in time.

    \b
    Example:
      kubectl stele dump users.parquet --cluster demo --keyspace users -n stele
    """
    if file.exists():
        raise BadInput(f"{file} exists already: remove it, or name another file")
    if not file.absolute().parent.is_dir():
        raise BadInput(f"{file.absolute().parent} is not a directory")
    job = _Job("dump", file, ["--keyspace", keyspace], where)
    with _interrupted("nothing was written; run the command again"):
        result = (
            job.run_here(address, tls_folder, memory) if address else job.run_there(cluster, image, memory)
        )
    _show(result, output, f"{result['rows']} rows, {out.size(result['bytes'])}, in {result['seconds']} s")


class _Job:
    """One run of `stele-bulk`."""

    def __init__(self, command: str, file: Path, arguments: list[str], where: Where) -> None:
        self._command, self._file, self._arguments, self._where = command, file, arguments, where

    def run_here(self, address: str, tls_folder: str, memory: str) -> dict[str, Any]:
        """Run the job on this machine."""
        line = [sys.executable, "-m", "stele.bulkjob", self._command, str(self._file)]
        line += [*self._arguments, "--address", address, "--memory", _half(memory)]
        line += ["--tls-folder", tls_folder]
        latest: dict[str, Any] = {}
        with (
            tempfile.TemporaryFile("w+") as noise,
            subprocess.Popen(line, stdout=subprocess.PIPE, stderr=noise, text=True) as process,
        ):
            assert process.stdout is not None
            other_lines: list[str] = []
            try:
                for text in process.stdout:
                    facts = _facts(text)
                    if facts is None:
                        other_lines = [*other_lines, text.strip()][-STRAY_LINES_MAX:]
                        continue
                    latest = facts
                    _progress(latest)
            except BaseException:
                process.terminate()
                raise
            process.wait()
            noise.seek(0)
            stderr_text = noise.read().strip()[-1000:]
        if "result" not in latest:
            raise _failure(
                latest.get("error") or {"code": "FAILED", "detail": stderr_text}, "; ".join(other_lines)
            )
        result: dict[str, Any] = latest["result"]
        return result

    def run_there(self, cluster: str, image: str, memory: str) -> dict[str, Any]:
        """Run the job in a Job of the cluster's namespace."""
        if not cluster:
            raise BadInput("name the TabletCluster with --cluster, or a member with --address")
        _half(memory)
        return self._where.ask(lambda console: self._in_job(console, cluster, image, memory))

    async def _in_job(self, console: "Console", cluster: str, image: str, memory: str) -> dict[str, Any]:
        await console.cluster(cluster)
        _progress({"step": "starting a job", "done": 0, "all": 0})
        async with console.bulk_job(cluster, image, memory) as job:
            if job.tls_folder:
                self._arguments += ["--tls-folder", job.tls_folder]
            return await self._with(job, console.members_address(cluster), memory)

    async def _with(self, job: "BulkJob", address: str, memory: str) -> dict[str, Any]:
        if self._command == "load":
            _progress({"step": "sending the file to the job", "done": 0, "all": 0})
            await job.send(self._file)
        await job.start(self._command, [*self._arguments, "--address", address, "--memory", _half(memory)])
        result = await job.follow(_progress)
        if self._command == "dump":
            await job.receive(self._file)
        return result


def _check_file(file: Path) -> None:
    try:
        with file.open("rb") as opened:
            head = opened.read(len(PARQUET))
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from None
    if head != PARQUET:
        raise BadInput(f"{file} is not a Parquet file: it does not begin with PAR1")


def _facts(line: str) -> dict[str, Any] | None:
    """Parse a report of the job; None for any other line, since Java logs to the same output."""
    try:
        facts = json.loads(line)
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None


def _failure(facts: dict[str, str], other_lines: str) -> SteleError:
    """Return the job's error. When it did not start, Java's other output is the only reason available."""
    code, detail = facts["code"], facts["detail"]
    if code == "FAILED" and other_lines:
        detail = f"{detail}; output of Java: {other_lines}"
    return (BadInput if code == "BAD_INPUT" else SteleError)(detail, code)


def _half(memory: str) -> str:
    """Return half of a Kubernetes quantity in Spark's format: Python and the page cache need the rest."""
    number, unit = memory[:-2], memory[-2:]
    if unit not in ("Mi", "Gi") or not number.isascii() or not number.isdigit() or int(number) < 1:
        raise BadInput(f"--memory is {memory}; expected a number with Mi or Gi, such as 2Gi")
    megabytes = int(number) * (1024 if unit == "Gi" else 1) // 2
    if megabytes < 512:
        raise BadInput(f"--memory is {memory}; at least 1Gi is needed")
    return f"{megabytes}m"


def _progress(latest: dict[str, Any]) -> None:
    if not latest.get("step"):
        return
    count = f" {latest['done']}/{latest['all']} tablets" if latest["all"] else ""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"{out.plain(latest['step'])}{count}".ljust(60), end=end, file=sys.stderr, flush=True)


@contextmanager
def _interrupted(advice: str) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, SteleError):
        print(advice, file=sys.stderr)
        raise


def _show(result: dict[str, Any], output: Output | None, text: str) -> None:
    if not out.data(result, output):
        print(text)
