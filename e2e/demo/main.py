"""One run from the first check to the result."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from e2e.cluster import cache, kind, steps
from e2e.demo import inputs, padded, stage, verify
from e2e.demo.admin_ports import admin_ports
from e2e.demo.clients import Clients, config_of, ledger_of
from e2e.demo.errors import DemoError
from e2e.demo.history import Ledger
from e2e.demo.inputs import Records
from e2e.demo.judge import Tally
from e2e.demo.kube import Api, proxy
from e2e.demo.loader import Load, load
from e2e.demo.phases import Phases
from e2e.demo.progress import Board, Snapshot, board, size
from e2e.demo.report import Result
from e2e.demo.resp import Endpoint
from e2e.demo.settings import LEDGER_KEYSPACE, PADDED_KEYSPACE, RECORDS_KEYSPACE, Settings
from e2e.demo.workload import hash_of


def run(settings: Settings) -> tuple[Result, Path]:
    """The result, and the file that holds it too. Raises PreflightError before anything was changed."""
    start = time.monotonic()
    stage.check(settings)
    records = inputs.read(settings.data)
    if settings.records_max is not None:
        records = records.first(settings.records_max)
    name = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = cache.root() / "results" / f"{settings.cluster}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    result = Result(name, records.source, len(records.values), records.replaced)
    result.spark_expected = settings.spark_expected
    endpoint = stage.Stage(settings, folder).prepare()
    result.setup = steps.parts(start)
    with board(settings.live) as shown:
        course = _Course(settings, folder, records=records, endpoint=endpoint, shown=shown, result=result)
        asyncio.run(course.run(kind.env()))
    result.seconds = time.monotonic() - start
    path = folder / "result.json"
    path.write_text(json.dumps(result.as_json(), indent=1), encoding="utf-8")
    return result, path


class _Course:
    """What happens once the cluster is ready; fills `result` as it goes."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        *,
        records: Records,
        endpoint: Endpoint,
        shown: Board,
        result: Result,
    ) -> None:
        self._settings, self._folder, self._endpoint = settings, folder, endpoint
        self._records, self._board, self._result = records, shown, result
        self._hashes = {key: hash_of(value) for key, value in records.values.items()}

    async def run(self, env: Mapping[str, str]) -> None:
        """Load, hurt, verify. What stops it goes into the result, beside what was found before."""
        try:
            await self._load()
            async with proxy(env) as api:
                ledger = await self._hurt(env, api)
                await self._verify(api, ledger)
        except* DemoError as errors:
            self._result.failure = "; ".join(map(str, errors.exceptions))

    async def _load(self) -> None:
        for keyspace, pairs in (
            (RECORDS_KEYSPACE, self._records.values.items()),
            (PADDED_KEYSPACE, padded.entries(self._settings.padded_entries)),
        ):
            done = await load(self._endpoint, keyspace, pairs, self._load_teller(keyspace))
            self._result.loads.append(done)
            self._board.say(f"[{done.seconds:7.1f} s] load {keyspace}: {_load_text(done)}")

    async def _hurt(self, env: Mapping[str, str], api: Api) -> Ledger:
        config = config_of(
            self._endpoint,
            self._folder,
            self._result.run,
            self._hashes,
            clients=self._settings.clients,
            rate=self._settings.rate,
            keyspace=LEDGER_KEYSPACE,
            records_keyspace=RECORDS_KEYSPACE,
        )
        clients = Clients(config, self._folder)
        try:
            await clients.start()
            self._result.phases = await Phases(self._settings, env, api, clients, self._board).run()
            self._result.clients = await clients.stop()
        finally:
            await clients.kill()
        self._result.measures = clients.phases
        return ledger_of(self._folder)

    async def _verify(self, api: Api, ledger: Ledger) -> None:
        table = await verify.read_table(api, self._settings.namespace, self._settings.cluster)
        wanted = await asyncio.to_thread(
            verify.expected,
            self._hashes,
            self._settings.padded_entries,
            ledger,
            self._result.run,
            len(table.rows),
        )
        told = self._teller("verify", time.monotonic())

        def tell(tally: Tally) -> None:
            done = f"{tally.partitions} of {len(table.rows)} partitions"
            told(f"{done}, {tally.entries.total():,} entries compared")

        start = time.monotonic()
        violations = await verify.read_ledger(self._endpoint, ledger)
        async with admin_ports(kind.env(), self._settings.namespace, self._settings.cluster) as ports:
            tally = await verify.ReplicaCheck(verify.ReplicaReader(ports), table, wanted, tell).run()
        seconds = round(time.monotonic() - start, 1)
        self._result.verification = verify.Verification(tally, violations, len(ledger.keys()), seconds)

    def _load_teller(self, keyspace: str) -> Callable[[Load], None]:
        told = self._teller(f"load {keyspace}", time.monotonic())
        return lambda progress: told(_load_text(progress))

    def _teller(self, phase: str, start: float) -> Callable[[str], None]:
        return lambda work: self._board.show(Snapshot(phase, time.monotonic() - start, work=work))


def _load_text(progress: Load) -> str:
    speed = f"{progress.megabytes_per_second:.1f} MB/s"
    again = f", {progress.retries} batches sent again" if progress.retries else ""
    return f"{progress.entries:,} entries, {size(progress.bytes)}, {speed}{again}"
