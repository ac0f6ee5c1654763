"""One storm from the empty cluster to the report."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from e2e.cluster import cache, kind
from e2e.cluster.steps import say, step
from e2e.demo import own_operator, padded, stage
from e2e.demo.errors import DemoError
from e2e.demo.history import Violation
from e2e.demo.judge import Tally, partition_of
from e2e.demo.kube import Api, proxy
from e2e.demo.loader import load
from e2e.demo.resp import Endpoint
from e2e.demo.settings import PADDED_KEYSPACE, Settings
from e2e.demo.state import unsafe_reason
from e2e.storm import final, member_ports
from e2e.storm.clients import Load
from e2e.storm.faults import MEMBERS_AT_FIRST, MEMBERS_DRAWN, READY_MIN, Clock, draw
from e2e.storm.network import Network, process_of_node
from e2e.storm.report import Report
from e2e.storm.story import Scene, tell
from e2e.storm.strikes import Strikes, Struck
from e2e.storm.watch import Watch

NAME = "stele-storm"
"""Namespace and release: an operator of its own, for it is struck too."""
CLUSTER, NODE_PORT, PARTITIONS = "storm", 30383, 31
REPLICAS, PADDED_ENTRIES = 2, 400
GRACE_SECONDS = 8
"""A member that stays away for longer is replaced by a copy, so that a storm has both."""
TELL_SECONDS, TURN_SECONDS = 10.0, 0.05
WELL_SECONDS_MAX, WELL_HELD_SECONDS = 300.0, 3.0
VIOLATIONS_TOLD_MAX = 3


def settings() -> Settings:
    """The cluster of a storm, beside whatever a demo left."""
    return replace(
        own_operator.settings(NAME),
        cluster=CLUSTER,
        node_port=NODE_PORT,
        members=MEMBERS_AT_FIRST,
        partitions=PARTITIONS,
        padded_entries=PADDED_ENTRIES,
    )


def run(seed: int, seconds: float) -> tuple[Report, Path]:
    """The report, and the folder of all that is kept. The cluster and its operator are removed afterwards.

    One after the other: a second storm would take the first one's cluster away.
    """
    with cache.locked(CLUSTER):
        return _run(seed, seconds)


def _run(seed: int, seconds: float) -> tuple[Report, Path]:
    wanted = settings()
    stage.check(wanted)
    report = Report(seed, seconds, time.strftime("%Y%m%d-%H%M%S", time.gmtime()))
    folder = cache.root() / "results" / f"{CLUSTER}-{seed}-{report.began}"
    (folder / "logs").mkdir(parents=True)
    prepared = stage.Stage(wanted, folder)
    try:
        endpoint = prepared.prepare()
        asyncio.run(Course(wanted, folder, report, endpoint).run(kind.env()))
    finally:
        (folder / "result.json").write_text(json.dumps(asdict(report), indent=1), encoding="utf-8")
        with step("remove the cluster and the operator of the storm"):
            own_operator.remove(wanted, folder / "clear.log")
    return report, folder


class Course:
    """What happens once the cluster is ready; fills the report as it goes."""

    def __init__(self, wanted: Settings, folder: Path, report: Report, endpoint: Endpoint) -> None:
        self._settings, self._folder, self._report = wanted, folder, report
        self._endpoint, self._start = endpoint, time.monotonic()
        self._violations: list[tuple[float, Violation]] = []
        self._broken = asyncio.Event()
        self._all_endpoints: dict[str, Endpoint] = {}

    async def run(self, env: Mapping[str, str]) -> None:
        """All of it; what was begun is undone whatever happens."""
        await load(self._endpoint, PADDED_KEYSPACE, padded.entries(PADDED_ENTRIES), lambda _: None)
        async with proxy(env) as api:
            watch = Watch(api, self._settings.namespace, CLUSTER, self._folder / "logs")
            await watch.look()
            self._all_endpoints = await member_ports.make(
                env, api, self._settings, self._endpoint, self._folder, members=max(MEMBERS_DRAWN)
            )
            nodes = {name: await process_of_node(env, name) for name in await _nodes(api)}
            network = Network(env, nodes.values())
            strikes = Strikes(env, self._settings, nodes, watch, network, self._struck)
            self._load = Load(self._report.seed, dict(self._all_endpoints), self._violated, PARTITIONS)
            try:
                await self._course(api, watch, network, strikes)
            except DemoError as error:
                self._report.failure = str(error)
            finally:
                self._sum_up(strikes)
            self._tell(watch, strikes)

    async def _course(self, api: Api, watch: Watch, network: Network, strikes: Strikes) -> None:
        clients: asyncio.Task[None] | None = None
        watching = asyncio.create_task(watch.run())
        try:
            await strikes.prepare(GRACE_SECONDS)
            await network.begin()
            clients = asyncio.create_task(self._load.run(self._all_endpoints))
            try:
                await self._storm(watch, strikes, clients)
            finally:
                await strikes.heal()
            await self._until_well(watch, strikes, clients)
            self._load.stopping = True
            await clients
            await self._compare(api, watch)
        finally:
            self._load.stopping = True
            watching.cancel()
            tasks = [each for each in (watching, clients) if each is not None]
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- the storm

    async def _storm(self, watch: Watch, strikes: Strikes, clients: asyncio.Task[None]) -> None:
        """Faults as they were drawn, until time is up or an answer is wrong."""
        todo = draw(self._report.seed, self._report.seconds)
        begin = self._start = told = time.monotonic()
        clock = Clock(begin)
        while (now := time.monotonic()) < begin + self._report.seconds and not self._broken.is_set():
            calm = bool(todo) and todo[0].calm
            seconds = clock.turn(now, watch.ready() >= READY_MIN and (watch.safe() or not calm))
            while todo and todo[0].at <= seconds:
                strikes.begin(todo.pop(0))
            if now - told >= TELL_SECONDS:
                told = now
                self._progress(watch)
            await self._turn(watch, strikes, clients)
            await asyncio.sleep(TURN_SECONDS)
        self._report.storm_seconds = time.monotonic() - begin

    async def _turn(self, watch: Watch, strikes: Strikes, clients: asyncio.Task[None]) -> None:
        """What is done all the time, in the storm and after it."""
        if clients.done():
            await clients
        await strikes.relieve()
        present = {str(each["metadata"]["name"]) for each in watch.members()}
        self._load.endpoints = {
            name: endpoint for name, endpoint in self._all_endpoints.items() if name in present
        } or self._all_endpoints

    async def _until_well(self, watch: Watch, strikes: Strikes, clients: asyncio.Task[None]) -> None:
        start = safe_since = time.monotonic()
        healed_at = time.time()
        while (now := time.monotonic()) - safe_since < WELL_HELD_SECONDS:
            reason = unsafe_reason(watch.resource, MEMBERS_AT_FIRST)
            if reason or watch.looked_at < healed_at:
                safe_since = now
            if now - start > WELL_SECONDS_MAX:
                raise DemoError(f"The cluster is not well {WELL_SECONDS_MAX:.0f} s after the storm: {reason}")
            await self._turn(watch, strikes, clients)
            await asyncio.sleep(TURN_SECONDS)
        self._report.well_after_seconds = round(time.monotonic() - start, 1)
        self._say(f"well again after {self._report.well_after_seconds} s")

    async def _compare(self, api: Api, watch: Watch) -> None:
        present = {str(each["metadata"]["name"]) for each in watch.staying()}
        open_endpoints = {name: endpoint for name, endpoint in self._all_endpoints.items() if name in present}
        for violation in await final.read_all(open_endpoints, self._load.books):
            self._violated(violation)
        self._report.keys, self._report.members_read = len(self._load.books.keys()), len(open_endpoints)
        tally: Tally = await final.compare_replicas(api, self._settings, self._load.books)
        self._report.replicas = dict(tally.faults)
        if tally.replicas != REPLICAS * tally.partitions:
            raise DemoError(f"{tally.partitions} partitions have {tally.replicas} replicas at the end")
        for each in tally.differences:
            self._say(f"replica of partition {each.partition} at {each.member}: {each.fault}: {each.key!r}")

    # -- what is told

    def _violated(self, violation: Violation) -> None:
        self._violations.append((time.time(), violation))
        self._say(f"VIOLATION {violation.breach}: {violation.key}: {violation.detail}")
        self._broken.set()

    def _struck(self, struck: Struck) -> None:
        self._say(f"{struck.kind}: {struck.text}")

    def _progress(self, watch: Watch) -> None:
        status = watch.resource.get("status") or {}
        partitions, members = status.get("partitions") or {}, status.get("members") or {}
        self._say(
            f"-- {sum(self._load.counts.values()):,} operations, {members.get('ready', 0)} members ready, "
            f"{partitions.get('safe', 0)} of {partitions.get('total', 0)} partitions safe"
        )

    def _say(self, text: str) -> None:
        say(f"[{time.monotonic() - self._start:7.1f} s] {text}")

    def _sum_up(self, strikes: Strikes) -> None:
        report = self._report
        report.operations = dict(self._load.counts)
        report.faults = dict(Counter(str(each.kind) for each in strikes.struck if not each.missed))
        report.missed = dict(Counter(str(each.kind) for each in strikes.struck if each.missed))
        report.violations = [asdict(each) for _, each in self._violations]

    def _tell(self, watch: Watch, strikes: Strikes) -> None:
        """The story of the first violations, on standard error and in the folder."""
        logs = {
            path.stem: path.read_text(errors="replace").splitlines()
            for path in sorted((self._folder / "logs").glob("*.log"))
        }
        scene = Scene(self._load.history, watch.rows, strikes.struck, logs)
        for number, (at, violation) in enumerate(self._violations[:VIOLATIONS_TOLD_MAX], 1):
            partition = partition_of(violation.key.encode(), PARTITIONS)
            text = "\n".join(tell(violation, partition, at, scene))
            (self._folder / f"violation-{number}.txt").write_text(text + "\n", encoding="utf-8")
            say(text)


async def _nodes(api: Api) -> list[str]:
    return [str(each["metadata"]["name"]) for each in await api.list("/api/v1/nodes")]
