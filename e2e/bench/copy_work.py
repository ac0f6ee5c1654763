"""What `copy_ways` measures, as a program that needs nothing but `stele`: it runs here or in a pod.

    make SOURCE BYTES VALUE_BYTES          a volume at SOURCE with a session that holds the tablets
    cp SOURCE DEST                         cp of the session's database, and sync
    alone SOURCE DEST URL PROCESSES        the copy function in so many processes, started before
    job SOURCE DEST URL JOBS DESTINATION   a job at JOBS, the URL of a transfer process or a copier

`alone` with one more word TLS_DIR dials the source with TLS, by the certificate there and the level on DEST;
a transfer process has both from its environment. The source's certificate is that of the member `source`.
The last line of standard output is JSON: {"seconds": ..} and more.
"""

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from stele.adapters import pod_token
from stele.core.control.commands import CopyItem, OpId, SessionTablet
from stele.wire.copy.jobs import CopyJob, SessionFile, decode_manifest
from stele.wire.storage.keys import meta_key, pack_value, user_key
from stele.wire.storage.volume import APPLIED, DataState, encode_state

TOKEN = "bench"
SOURCE_NAME = "source"
TABLETS = 271
GENERATION = 1
BATCH_BYTES = 4 << 20
POLL_SECONDS = 0.02
JOB_SECONDS_MAX = 300.0


def make(source: str, data_bytes: str, value_bytes: str) -> dict[str, float]:
    """Values cannot be compressed, and keys are those of a map named `default`."""
    from stele.adapters.rocksdb.engine import RocksEngine

    root, size = Path(source), int(value_bytes)
    # A transfer process keeps sessions open for a while: by a name that it knows it would serve older data.
    session = f"bench-{time.time_ns()}"
    shutil.rmtree(root / "checkpoints", ignore_errors=True)
    (root / "checkpoints" / session).mkdir(parents=True)
    engine = RocksEngine(root / "made", root / "made-wal")
    pool, each = os.urandom(16 << 20), max(1, int(data_bytes) // TABLETS // size)
    tablets = []
    for partition in range(TABLETS):
        state = DataState(OpId(1, each), {b"default": (each, each * (size + 16))})
        engine.write_data([(meta_key(partition, GENERATION, APPLIED), encode_state(state))])
        per_batch = max(1, BATCH_BYTES // size)
        for first in range(0, each, per_batch):
            engine.write_data(
                [
                    (
                        user_key(partition, GENERATION, b"default", b"key-%012d" % number),
                        _value(pool, partition + number, size),
                    )
                    for number in range(first, min(each, first + per_batch))
                ]
            )
        tablets.append(SessionTablet(partition, GENERATION, OpId(1, each), each * (size + 16), (each, each)))
    engine.checkpoint(str(root / "checkpoints" / session / "db"))
    engine.close()
    shutil.rmtree(root / "made")
    shutil.rmtree(root / "made-wal", ignore_errors=True)
    told = msgspec.json.encode(SessionFile(session, TOKEN, tuple(tablets)))
    (root / "checkpoints" / session / "session.json").write_bytes(told)
    return {"entries": each * TABLETS, "bytes": sum(tablet.bytes for tablet in tablets)}


def _value(pool: bytes, number: int, size: int) -> bytes:
    begin = number * 7_919_993 % (len(pool) - size)
    return pack_value(pool[begin : begin + size], 0)


def cp(source: str, dest: str) -> dict[str, float]:
    """Files of the database as they are."""
    target = Path(dest) / "cp"
    shutil.rmtree(target, ignore_errors=True)
    begin = time.monotonic()
    subprocess.run(["cp", "-r", str(_session(source) / "db"), str(target)], check=True)
    files = [str(path) for path in target.rglob("*") if path.is_file()]
    subprocess.run(["sync", *files], check=True)
    seconds = time.monotonic() - begin
    shutil.rmtree(target)
    return {"seconds": seconds}


def _session(source: str) -> Path:
    """The folder of the one session that was made."""
    return next((Path(source) / "checkpoints").iterdir())


def _known(source: str) -> SessionFile:
    return msgspec.json.decode((_session(source) / "session.json").read_bytes(), type=SessionFile)


def _items(source: str) -> tuple[CopyItem, ...]:
    known = _known(source)
    return tuple(CopyItem(each.partition, each.generation, GENERATION, each.bytes) for each in known.tablets)


def alone(source: str, dest: str, url: str, processes: str, tls_dir: str = "") -> dict[str, float]:
    """Interpreters are started before the clock; each copies its share in one thread."""
    staging = Path(dest) / "staging"
    _clear(staging)
    command = [sys.executable, __file__, "part", source, str(staging), url]
    parts = [
        subprocess.Popen(
            [*command, str(each), processes, tls_dir], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for each in range(int(processes))
    ]
    for part in parts:
        assert part.stdout is not None
        part.stdout.readline()
    begin = time.monotonic()
    for part in parts:
        assert part.stdin is not None
        part.stdin.close()
    codes = [part.wait(JOB_SECONDS_MAX) for part in parts]
    seconds = time.monotonic() - begin
    if any(codes):
        raise SystemExit("a process of the copy function failed")
    _check(source, staging)
    return {"seconds": seconds}


def part(source: str, staging: str, url: str, *share_and_tls: str) -> dict[str, float]:
    """One share, NUMBER OF; begins when standard input ends."""
    from stele.transfer.client.copy import copy_tablets
    from stele.transfer.tls import VolumeTls

    number, of, tls_dir = share_and_tls
    items = _items(source)[int(number) :: int(of)]
    job = CopyJob(_session(source).name, "bench", "", url, TOKEN, items)
    tls = VolumeTls(Path(staging).parent, tls_dir)
    print("ready", flush=True)
    sys.stdin.read()
    begin = time.monotonic()
    copy_tablets(
        job,
        items,
        staging=Path(staging),
        progress=lambda more: None,
        finished=lambda made: None,
        secured=lambda: tls.dialling(SOURCE_NAME),
    )
    return {"seconds": time.monotonic() - begin}


def job(source: str, dest: str, url: str, jobs: str, destination: str) -> dict[str, float]:
    """From the request until the job is done; `first` is when copying began."""
    staging = Path(dest) / "staging"
    _clear(staging)
    session = _session(source).name
    pod_token.write(Path(dest), TOKEN)
    _ask("DELETE", f"{jobs}/{session}")
    wanted = CopyJob(session, destination, destination, url, TOKEN, _items(source), source=SOURCE_NAME)
    begin = time.monotonic()
    status = _ask("POST", jobs, msgspec.json.encode(wanted))
    first = 0.0
    while status.get("state") not in ("DONE", "FAILED"):
        if status.get("state") == "RUNNING" and not first:
            first = time.monotonic() - begin
        if time.monotonic() - begin > JOB_SECONDS_MAX:
            raise SystemExit(f"the job did not end in {JOB_SECONDS_MAX:g} s: {status}")
        time.sleep(POLL_SECONDS)
        status = _ask("GET", f"{jobs}/{session}")
    seconds = time.monotonic() - begin
    if status["state"] == "FAILED":
        raise SystemExit(f"the job failed: {status['error']}")
    _check(source, staging)
    return {"seconds": seconds, "first_seconds": first or seconds}


def _ask(method: str, url: str, body: bytes | None = None) -> dict[str, object]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=30)
    try:
        connection.request(method, parts.path, body, pod_token.headers(TOKEN))
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    found: dict[str, object] = json.loads(text) if text else {}
    if answer.status >= 400 and method != "DELETE":
        raise SystemExit(f"{method} {url}: {answer.status} {text[:300]!r}")
    return found


def _clear(staging: Path) -> None:
    staging.mkdir(exist_ok=True)
    for folder in staging.iterdir():  # not the folder itself: executors have it mounted
        shutil.rmtree(folder, ignore_errors=True)
    os.sync()


def _check(source: str, staging: Path) -> None:
    """What is there now is what was to be copied: each tablet with all its entries and its state."""
    session, known = _session(source).name, _known(source)
    for tablet in known.tablets:
        path, wanted = staging / session / f"{tablet.partition}.json", tablet.applied.index + 1
        found = decode_manifest(path.read_bytes(), path.name).entries
        if found != wanted:
            raise SystemExit(f"{path.name}: {found} entries; {wanted} were to be copied")


def main(words: list[str]) -> int:
    """Do one thing."""
    known: dict[str, Callable[..., dict[str, float]]] = {
        "make": make,
        "cp": cp,
        "alone": alone,
        "part": part,
        "job": job,
    }
    print(json.dumps(known[words[0]](*words[1:])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
