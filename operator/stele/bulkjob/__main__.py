"""`stele-bulk`: loads a Parquet file into a cluster, or dumps a keyspace to one, with Spark on this machine.

`kubectl stele load` and `dump` start it, locally or in a pod. It reports progress on standard output, one
JSON object per line; the last one has `result` or `error`. `serve` is the pod's side: it receives a file over
HTTP, runs one job on it, reports its last line, and returns a file.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stele.client.members import Members, parse_addresses
from stele.errors import BadInput, SteleError
from stele.wire.copy.bulk import LoadList

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 1.0
COUNT_SECONDS_MAX = 60.0
"""How long a member that is busy may keep the final count waiting."""
PORT = 7003
_TOLD = re.compile(re.escape(SteleError.__module__) + r"\.\w+: ([A-Z_]+): (.*)")


def tell(**facts: Any) -> None:
    """Print one line of progress for the parent process."""
    print(json.dumps(facts), flush=True)


def load(options: argparse.Namespace) -> dict[str, Any]:
    """Load `options.file` and return the totals."""
    members = Members(parse_addresses(options.address), options.tls_folder)
    rows = _rows_in(options.file)
    begun, skipped = time.monotonic(), _taken(members, options.load, COUNT_SECONDS_MAX)
    with _spark(options) as spark, _watching(members, options.load, options.keyspace):
        writing = spark.read.parquet(options.file).write.format("stele").mode("append")
        for name in ("address", "keyspace", "load", "duplicates"):
            writing = writing.option(name, getattr(options, name))
        writing = writing.option("tlsFolder", options.tls_folder)
        for name in ("key", "value", "expire"):
            if column := getattr(options, f"{name}_column"):
                writing = writing.option(f"{name}Column", column)
        writing.save()
    seconds, taken = time.monotonic() - begun, _taken(members, options.load, COUNT_SECONDS_MAX)
    facts = {"rows": rows, "tablets": taken, "skipped": skipped, "seconds": round(seconds, 1)}
    return {"load": options.load, "keyspace": options.keyspace, **facts}


def dump(options: argparse.Namespace) -> dict[str, Any]:
    """Write all rows of a keyspace to `options.file`, which must not exist."""
    begun, target = time.monotonic(), Path(options.file)
    if target.exists():
        raise BadInput(f"{target} exists already: remove it, or name another file")
    # Checked early, because Spark takes seconds to start.
    Members(parse_addresses(options.address), options.tls_folder)
    with _spark(options) as spark, tempfile.TemporaryDirectory(dir=target.parent, prefix=".dump-") as folder:
        reading = spark.read.format("stele").option("address", options.address)
        reading = reading.option("tlsFolder", options.tls_folder)
        tell(step="reading", done=0, all=0)
        reading.option("keyspace", options.keyspace).load().write.parquet(f"{folder}/parts")
        rows = _join(sorted(Path(folder, "parts").glob("*.parquet")), Path(folder) / "joined")
        os.replace(Path(folder) / "joined", target)
    seconds = round(time.monotonic() - begun, 1)
    size = target.stat().st_size
    return {"keyspace": options.keyspace, "rows": rows, "bytes": size, "seconds": seconds}


def _rows_in(file: str) -> int:
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(file).num_rows)
    except FileNotFoundError:
        raise BadInput(f"file {file} does not exist") from None
    except Exception as error:
        raise BadInput(f"{file} cannot be read as Parquet: {error}") from error


def _join(parts: Sequence[Path], target: Path) -> int:
    """Join files row group by row group; return the number of rows."""
    import pyarrow.parquet as pq

    rows, writer = 0, None
    for part in parts:
        file = pq.ParquetFile(part)
        writer = writer or pq.ParquetWriter(target, file.schema_arrow)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            writer.write_table(table)
            rows += table.num_rows
    if writer is None:
        raise BadInput("Spark wrote no files")
    writer.close()
    return rows


@contextmanager
def _spark(options: argparse.Namespace) -> Iterator["SparkSession"]:
    try:
        from pyspark.sql import SparkSession

        from stele.client.spark import SteleDataSource
    except ImportError as error:
        raise BadInput(
            f"Spark is not installed here ({error}): pip install '.[cli,sql]' in a checkout of Stele, "
            "or run it in the cluster by omitting --address"
        ) from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[*,4]").appName("stele-bulk")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Who may forward ports of the pod reaches 127.0.0.1. Spark in one process makes its own secret.
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.saslFallback": "false",
        "spark.driver.memory": options.memory,
        "spark.sql.files.maxPartitionBytes": "64m",
    }.items():
        builder = builder.config(name, value)
    tell(step="starting", done=0, all=0)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(SteleDataSource)
    try:
        yield spark
    finally:
        spark.stop()


def _taken(members: Members, load: str, retry_seconds: float = 0.0) -> int:
    """Return the number of tablets that have applied the load.

    A member that does not answer is asked again for `retry_seconds`; after that its tablets are missing.
    """
    until = time.monotonic() + retry_seconds
    return sum(_taken_at(members, member.index, load, until) for member in members.table.members)


def _taken_at(members: Members, index: int, load: str, until: float) -> int:
    while True:
        with suppress(SteleError):
            answer = members.call(members.admin(index), "GET", f"/v1/bulk/loads/{load}")
            return len(msgspec.json.decode(answer, type=LoadList).partitions)
        if time.monotonic() >= until:
            return 0
        time.sleep(POLL_SECONDS)


@contextmanager
def _watching(members: Members, load: str, keyspace: str) -> Iterator[None]:
    """Report how many tablets are loaded while the block runs."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            with suppress(SteleError):
                done = _taken(members, load)
                tablets = len(members.table.group(keyspace))
                tell(step="loading" if done else "sending", done=done, all=tablets)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def error_facts(error: BaseException) -> dict[str, str]:
    """Return code and text of an error: those of a SteleError inside Spark's error, if there is one."""
    if isinstance(error, SteleError):
        return {"code": error.code, "detail": error.text}
    matches = _TOLD.findall(str(error))
    if matches:
        return {"code": matches[-1][0], "detail": matches[-1][1]}
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return {"code": "FAILED", "detail": f"{type(error).__name__}: {lines[0]}"}


def parser() -> argparse.ArgumentParser:
    """Return the program's argument parser."""
    result = argparse.ArgumentParser(prog="stele-bulk", description=__doc__)
    commands = result.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="wait for one job over HTTP")
    serve.add_argument("--port", type=int, default=PORT)
    serve.add_argument("--folder", default="/work")
    serve.add_argument(
        "--tls-folder", default="", help="with it, nothing but TLS is taken, from administrators"
    )
    for name in ("load", "dump"):
        command = commands.add_parser(name)
        command.add_argument("file")
        command.add_argument("--address", required=True)
        command.add_argument("--keyspace", default="default")
        command.add_argument("--memory", default="1g")
        command.add_argument("--tls-folder", default="")
    loading = commands.choices["load"]
    loading.add_argument("--load", required=True)
    loading.add_argument("--duplicates", default="error")
    for name in ("key", "value", "expire"):
        loading.add_argument(f"--{name}-column", default="")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job. Return 1 when it failed."""
    options = parser().parse_args(arguments)
    if options.command == "serve":
        from stele.bulkjob.server import serve

        return serve(options.port, Path(options.folder), options.tls_folder)
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        tell(error={"code": "BAD_INPUT", "detail": "Spark needs Java 17, but java is not on the PATH"})
        return 1
    try:
        tell(result=load(options) if options.command == "load" else dump(options))
    except Exception as error:  # noqa: BLE001  reported to the parent process
        tell(error=error_facts(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
