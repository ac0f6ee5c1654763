"""A worker is lost for good while clients write: its member is replaced, and no acknowledged write is lost.

python -m e2e.scenarios.lost_node

The worker's container is stopped, not removed: what ran there is gone at once, as with a removed one, but the
test cluster gets its node back afterwards. Kubernetes is informed as a cloud provider or an administrator
does it, by the taint out-of-service, and the member is replaced after `replaceAfterSeconds`. The Node object
is deleted when all that is over, so that the node joins as a new one.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from e2e.cluster import cache, kind
from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import say
from e2e.demo import own_operator, padded, stage
from e2e.demo.errors import DemoError
from e2e.demo.history import Violation
from e2e.demo.kube import Api, kubectl, proxy, workers
from e2e.demo.loader import load
from e2e.demo.resp import Endpoint
from e2e.demo.settings import EVERY_NODE, PADDED_KEYSPACE, Settings
from e2e.demo.state import condition, unsafe_reason
from e2e.storm import final, member_ports
from e2e.storm.clients import Load
from e2e.storm.watch import Watch

NAME = "stele-lost-node"
"""Namespace and release: an operator of its own, for the worker may be the one that it runs on."""

CLUSTER, NODE_PORT, MEMBERS, REPLICAS, PARTITIONS = "lost", 30386, 3, 2, 31
PADDED_ENTRIES = 1_000
GRACE_SECONDS, REPLACE_AFTER_SECONDS = 6, 20
UNDISTURBED_SECONDS = 3.0
WAIT_SECONDS_MAX, POLL_SECONDS = 180.0, 0.2
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"

Json = Mapping[str, Any]


@dataclass
class Outcome:
    """What became of the member of the lost worker.

    `seconds` has what was reached and when, counted from the loss. `violations` are wrong answers to clients
    (a lost write, a read from a second owner), `differences` entries of replicas that are not as written.
    """

    lost: str = ""
    unavailable: str = ""
    members: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    acknowledged: int = 0
    violations: list[Violation] = field(default_factory=list)
    differences: dict[str, int] = field(default_factory=dict)


def settings() -> Settings:
    """Three members on three nodes: the control plane takes one, because a lost worker leaves one other."""
    return replace(
        own_operator.settings(NAME),
        cluster=CLUSTER,
        node_port=NODE_PORT,
        members=MEMBERS,
        partitions=PARTITIONS,
        padded_entries=PADDED_ENTRIES,
        engine="Direct",
        spec={
            **EVERY_NODE,
            "failureDetection": {
                "rejoinGracePeriodSeconds": GRACE_SECONDS,
                "replaceAfterSeconds": REPLACE_AFTER_SECONDS,
            },
        },
    )


def run(folder: Path) -> Outcome:
    """Raise DemoError or ClusterError when a step is not reached. All that was made is removed afterwards."""
    wanted = settings()
    stage.check(wanted)
    (folder / "logs").mkdir(parents=True)
    prepared = stage.Stage(wanted, folder)
    try:
        endpoint = prepared.prepare()
        return asyncio.run(_run(wanted, endpoint, folder))
    finally:
        own_operator.remove(wanted, cache.root() / "logs" / "lost-node.log")


async def _run(wanted: Settings, endpoint: Endpoint, folder: Path) -> Outcome:
    await load(endpoint, PADDED_KEYSPACE, padded.entries(PADDED_ENTRIES), lambda _: None)
    async with proxy(kind.env()) as api:
        watch = Watch(api, wanted.namespace, wanted.cluster, folder / "logs")
        await watch.look()
        ports = await member_ports.make(kind.env(), api, wanted, endpoint, folder, members=MEMBERS + 1)
        return await Case(wanted, api, watch, ports).run()


class Case:
    """The clients, and what is waited for while they write."""

    def __init__(self, wanted: Settings, api: Api, watch: Watch, ports: Mapping[str, Endpoint]) -> None:
        self._settings, self._api, self._watch, self._ports = wanted, api, watch, ports
        self._outcome, self._start = Outcome(), time.monotonic()
        self._load = Load(1, ports, self._outcome.violations.append, PARTITIONS)

    async def run(self) -> Outcome:
        """Lose the worker, get it back when its member was replaced, and compare all replicas."""
        watching = asyncio.create_task(self._watch.run())
        clients = asyncio.create_task(self._load.run(self._ports))
        try:
            await asyncio.sleep(UNDISTURBED_SECONDS)
            await self._lose(await self._victim())
            self._load.stopping = True
            await clients
            await self._compare()
        finally:
            self._load.stopping = True
            watching.cancel()
            await asyncio.gather(watching, clients, return_exceptions=True)
        return self._outcome

    async def _victim(self) -> Json:
        """Return the pod of a member on a worker, if possible one on which the operator is not."""
        on_workers = await workers(self._api)
        operators = {each["spec"]["nodeName"] for each in self._watch.operators()}
        members = self._watch.members()
        on = [each["spec"]["nodeName"] for each in members]
        alone = [each for each in members if on.count(each["spec"]["nodeName"]) == 1]
        if not (lost := [each for each in alone if each["spec"]["nodeName"] in on_workers]):
            raise DemoError(f"No worker has one member alone: {on}.")
        return min(lost, key=lambda each: each["spec"]["nodeName"] in operators)

    async def _lose(self, pod: Json) -> None:
        """Stop the pod's node for good; it joins again as an empty one, whatever happens."""
        self._outcome.lost, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        self._start = time.monotonic()
        try:
            await asyncio.to_thread(kind.stop_node, node)
            await kubectl(kind.env(), "taint", "nodes", node, OUT_OF_SERVICE)
            self._say(f"node {node} with {self._outcome.lost} is lost")
            await self._until("the volume is unavailable", self._volume_unavailable)
            await self._until("all copies are there again", self._has_all_copies)
            await self._until("another member has taken the place", self._is_replaced)
        finally:
            await asyncio.to_thread(kind.start_node, node)
        await self._until("the cluster is as desired, and the node is back", self._is_well)
        self._outcome.claims = await self._names("persistentvolumeclaims")

    async def _until(self, what: str, reached: Callable[[], Awaitable[bool]]) -> None:
        """Wait until it is reached by what the API server shows from now on."""
        end, since = time.monotonic() + WAIT_SECONDS_MAX, time.time()
        while self._watch.looked_at < since or not await reached():
            if time.monotonic() > end:
                reason = unsafe_reason(self._watch.resource, MEMBERS)
                raise DemoError(f"Not reached within {WAIT_SECONDS_MAX:.0f} s: {what}. {reason}")
            await asyncio.sleep(POLL_SECONDS)
        self._outcome.seconds[what] = round(time.monotonic() - self._start, 1)
        self._say(what)

    async def _volume_unavailable(self) -> bool:
        stalled = condition(self._watch.resource, "Stalled")
        self._outcome.unavailable = str(stalled.get("message"))
        return stalled.get("reason") == "VolumeUnavailable"

    async def _has_all_copies(self) -> bool:
        """Return whether no row needs the lost member, whatever the status says."""
        rows = [rows[-1][2] for rows in self._watch.rows.values()]
        complete = all(len(members) >= REPLICAS and self._outcome.lost not in members for members in rows)
        return complete and condition(self._watch.resource, "ReplicationSatisfied").get("status") == "True"

    async def _is_replaced(self) -> bool:
        self._outcome.members = await self._names("pods", "stele.dev/component=member")
        gone = self._outcome.lost not in self._outcome.members
        return gone and len(self._outcome.members) == MEMBERS and await self._is_well()

    async def _is_well(self) -> bool:
        return not unsafe_reason(self._watch.resource, MEMBERS)

    async def _names(self, plural: str, selector: str = "stele.dev/cluster") -> tuple[str, ...]:
        path = f"/api/v1/namespaces/{self._settings.namespace}/{plural}?labelSelector={selector}"
        return tuple(sorted(str(each["metadata"]["name"]) for each in await self._api.list(path)))

    async def _compare(self) -> None:
        """Read every key through each member, and every replica."""
        ports = {name: self._ports[name] for name in self._outcome.members}
        self._outcome.violations += await final.read_all(ports, self._load.books)
        tally = await final.compare_replicas(self._api, self._settings, self._load.books)
        self._outcome.differences = dict(tally.faults)
        counts = self._load.counts
        self._outcome.acknowledged = sum(counts[f"{word} acknowledged"] for word in ("INCR", "ONCE", "SET"))

    def _say(self, text: str) -> None:
        say(f"[{time.monotonic() - self._start:7.1f} s] {text}")


def main() -> int:
    """Print the outcome; 1 when a promise was broken."""
    try:
        with tempfile.TemporaryDirectory(prefix="stele-lost-node-") as folder:
            outcome = run(Path(folder))
    except (ClusterError, DemoError) as error:
        print(error, file=sys.stderr)
        return 1
    print(asdict(outcome))
    return int(bool(outcome.violations or outcome.differences))


if __name__ == "__main__":
    sys.exit(main())
