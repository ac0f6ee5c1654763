"""A TabletCluster is deleted by mistake, with its partition table, and recovered from its volumes.

python -m e2e.scenarios.recover
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from e2e.cluster import cache, kind
from e2e.cluster.steps import output, step
from e2e.demo import stage
from e2e.demo.settings import Settings
from e2e.scenarios import smoke
from e2e.scenarios.entries import Entries

CLUSTER = "recover"
ENTRIES, FEW = 20_000, 1_000
VALUE_BYTES = 16_384
BATCH = 64
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


def run(folder: Path, number: int = ENTRIES) -> Outcome:
    """Raise ClusterError, with what was said, when a step fails. Removes the cluster and its volumes."""
    wanted = settings()
    prepared = stage.Stage(wanted, folder)
    case, entries = Case(wanted), Entries(prepared.prepare(), number, VALUE_BYTES, BATCH)
    try:
        entries.write()
        with step("delete the TabletCluster and recover it"):
            uid = case.delete()
            case.recover(uid)
            case.wait("Ready")
        wrong = replace(entries, endpoint=prepared.endpoint()).wrong()
        with step("delete it again, with a volume, and recover it"):
            case.delete()
            case.kubectl("delete", "persistentvolumeclaim", f"{CLUSTER}-1", "--wait")
            case.recover(uid)
            case.wait("Stalled")
            refusal = case.kubectl("get", wanted.resource, f"--output=jsonpath={STALLED}")
            case.recover(uid, "--accept-loss", f"{CLUSTER}-1")
            case.wait("Ready")
        return Outcome(wrong, replace(entries, endpoint=prepared.endpoint()).wrong(), refusal)
    finally:
        stage.clear(wanted.namespace, wanted.cluster, cache.root() / "logs" / "recover.log")


class Case:
    """The cluster, which is deleted and recovered."""

    def __init__(self, wanted: Settings) -> None:
        self._wanted = wanted

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

    def wait(self, condition: str) -> None:
        limit = f"--timeout={READY_SECONDS_MAX}s"
        self.kubectl(
            "wait",
            f"--for=condition={condition}",
            self._wanted.resource,
            limit,
            seconds_max=READY_SECONDS_MAX + 60,
        )


def main() -> int:
    """Print the outcome; 1 when something that was acknowledged is lost."""
    with tempfile.TemporaryDirectory(prefix="stele-recover-") as folder:
        outcome = run(Path(folder))
    print(outcome)
    return int(bool(outcome.wrong or outcome.wrong_without_a_volume))


if __name__ == "__main__":
    sys.exit(main())
