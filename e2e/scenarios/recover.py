"""A TabletCluster is deleted by mistake, with its partition table, and recovered from its volumes.

python -m e2e.scenarios.recover
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import redis

from e2e.cluster import cache, kind
from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import output, step
from e2e.demo import stage
from e2e.demo.resp import Endpoint
from e2e.demo.settings import Settings
from e2e.scenarios import smoke

CLUSTER = "recover"
ENTRIES = 20_000
VALUE_BYTES = 512
BATCH = 500
READY_SECONDS_MAX = 300
STOP_SECONDS_MAX = 180
STALLED = '{.status.conditions[?(@.type=="Stalled")].message}'


@dataclass(frozen=True)
class Outcome:
    """Entries that were acknowledged and are not as written, after each recovery; the refusal's message."""

    wrong: int
    wrong_without_a_volume: int
    refusal: str


def settings() -> Settings:
    """Three members with two replicas, beside whatever a demo left."""
    return replace(smoke.settings(), cluster=CLUSTER, engine="Direct", spark_expected=False)


def run(folder: Path, entries: int = ENTRIES) -> Outcome:
    """Raise ClusterError, with what was said, when a step fails. Removes the cluster and its volumes."""
    wanted = settings()
    endpoint = stage.Stage(wanted, folder).prepare()
    case = Case(wanted, endpoint, entries)
    try:
        case.write()
        with step("wait until each claim has a copy of the spec"):
            case.wait_for_copies()
        with step("delete the TabletCluster and recover it"):
            uid = case.delete()
            case.recover(uid)
            case.wait("Ready")
        wrong = case.wrong()
        with step("delete it again, with a volume, and recover it"):
            case.delete()
            case.kubectl("delete", "persistentvolumeclaim", f"{CLUSTER}-1", "--wait")
            case.recover(uid)
            case.wait("Stalled")
            refusal = case.kubectl("get", wanted.resource, f"--output=jsonpath={STALLED}")
            case.recover(uid, "--accept-loss", f"{CLUSTER}-1")
            case.wait("Ready")
        return Outcome(wrong, case.wrong(), refusal)
    finally:
        stage.clear(wanted.namespace, wanted.cluster, cache.root() / "logs" / "recover.log")


class Case:
    """The cluster, and the entries that were acknowledged."""

    def __init__(self, wanted: Settings, endpoint: Endpoint, entries: int) -> None:
        self._wanted, self._endpoint, self._entries = wanted, endpoint, entries

    def kubectl(self, *words: str, seconds_max: float = READY_SECONDS_MAX) -> str:
        command = ["kubectl", "--namespace", self._wanted.namespace, *words]
        return output(command, env=kind.env(), seconds_max=seconds_max)

    def recover(self, uid: str, *words: str) -> None:
        command = [sys.executable, "-m", "stele.cli", "recover", CLUSTER, "--from-uid", uid, *words]
        output([*command, "-n", self._wanted.namespace], env={**os.environ, **kind.env()})

    def delete(self) -> str:
        """Delete the TabletCluster, and wait until pods and table are gone. Return the volumes' UID."""
        label = r"{.items[0].metadata.labels.stele\.dev/cluster-uid}"
        selector = f"--selector={stage.CLUSTER_LABEL}={CLUSTER}"
        uid = self.kubectl("get", "persistentvolumeclaim", selector, f"--output=jsonpath={label}")
        limit = f"--timeout={STOP_SECONDS_MAX}s"
        self.kubectl("delete", self._wanted.resource, "--wait", limit)
        for kind_ in ("pod", "configmap"):
            self.kubectl("wait", "--for=delete", kind_, selector, limit)
        return uid

    def wait_for_copies(self) -> None:
        """The operator writes them some seconds after the table exists."""
        path = r"{range .items[*]}{.metadata.annotations.stele\.dev/cluster-spec}{'\n'}{end}"
        words = ("get", "persistentvolumeclaim", f"--selector={stage.CLUSTER_LABEL}={CLUSTER}")
        end = time.monotonic() + READY_SECONDS_MAX
        while not all(self.kubectl(*words, f"--output=jsonpath={path}").split("\n")[: self._wanted.members]):
            if time.monotonic() > end:
                raise ClusterError(f"no copy of the spec on the claims within {READY_SECONDS_MAX} s")
            time.sleep(1.0)

    def wait(self, condition: str) -> None:
        limit = f"--timeout={READY_SECONDS_MAX}s"
        self.kubectl(
            "wait",
            f"--for=condition={condition}",
            self._wanted.resource,
            limit,
            seconds_max=READY_SECONDS_MAX + 60,
        )

    def write(self) -> None:
        """Every entry is acknowledged."""
        with self._client() as client:
            for batch in self._batches():
                assert client.mset(batch)

    def wrong(self) -> int:
        """Count entries that are not as written."""
        with self._client() as client:
            return sum(
                found != value
                for batch in self._batches()
                for found, value in zip(client.mget(list(batch)), batch.values(), strict=True)
            )

    def _client(self) -> redis.Redis:
        return redis.Redis(self._endpoint.host, self._endpoint.port, socket_timeout=60)

    def _batches(self) -> Iterator[dict[str, bytes]]:
        chance = random.Random(7)
        for begin in range(0, self._entries, BATCH):
            yield {f"key-{n}": chance.randbytes(VALUE_BYTES) for n in range(begin, begin + BATCH)}


def main() -> int:
    """Print the outcome; 1 when something that was acknowledged is lost."""
    with tempfile.TemporaryDirectory(prefix="stele-recover-") as folder:
        outcome = run(Path(folder))
    print(outcome)
    return int(bool(outcome.wrong or outcome.wrong_without_a_volume))


if __name__ == "__main__":
    sys.exit(main())
