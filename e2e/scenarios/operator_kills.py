"""The operator is killed again and again while a member joins: its copies go on, and no byte comes twice.

python -m e2e.scenarios.operator_kills --mebibytes 1024 --kills 10
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from e2e.cluster import cache, kind
from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import output, say, step
from e2e.demo import own_operator, stage
from e2e.demo.errors import DemoError
from e2e.demo.settings import Settings
from e2e.demo.state import unsafe_reason
from e2e.demo.victims import container_of, kill, runs
from e2e.scenarios.entries import Entries

NAME = "stele-kills"
"""Namespace and release: an operator of its own, for it is killed."""

CLUSTER, NODE_PORT, MEMBERS = "kills", 30384, 2
"""A third member gets a third of all copies: two thirds of the data, which has two copies."""

PARTITIONS = 31
MIB = 1 << 20
VALUE_BYTES, BATCH = 64 * 1024, 32
BANDWIDTH_MIN = MIB
KILL_SECONDS = 30
"""About the time from one kill until the next operator has the Lease (15 s), has taken over, and copies."""

AFTER_TAKE_OVER_SECONDS = 3.0
POLL_SECONDS = 0.5
SAFE_SECONDS, SAFE_SECONDS_MAX = 5.0, 900.0


@dataclass(frozen=True)
class Join:
    """What the new member received until all was safe, and in how many seconds; `kills` of the operator."""

    received_bytes: int
    seconds: float
    kills: int = 0


@dataclass(frozen=True)
class Outcome:
    """Both times; `wrong` counts entries that are not as written afterwards."""

    undisturbed: Join
    disturbed: Join
    wrong: int

    @property
    def ratio(self) -> float:
        return self.disturbed.received_bytes / self.undisturbed.received_bytes


def settings() -> Settings:
    """Two members with two replicas, beside whatever a demo left."""
    return replace(
        own_operator.settings(NAME),
        cluster=CLUSTER,
        node_port=NODE_PORT,
        members=MEMBERS,
        partitions=PARTITIONS,
        engine="Direct",
    )


def run(folder: Path, copied_bytes: int, kills: int) -> Outcome:
    """Let so many bytes be copied twice, the second time while the operator is killed.

    The bandwidth is limited, so that a copy takes as long as the kills. The cluster and its operator are
    removed afterwards. Raises DemoError and ClusterError.
    """
    wanted = settings()
    stage.check(wanted)
    prepared = stage.Stage(wanted, folder)
    try:
        data_bytes = copied_bytes * (MEMBERS + 1) // 2
        entries = Entries(prepared.prepare(), data_bytes // VALUE_BYTES, VALUE_BYTES, BATCH)
        case = Case(wanted)
        bandwidth = max(BANDWIDTH_MIN, copied_bytes // (kills * KILL_SECONDS))
        with step("write the data"):
            entries.write()
        with step("a member joins"):
            undisturbed = case.join(bandwidth)
        with step("it leaves"):
            case.leave()
        marks = tuple(undisturbed.received_bytes * number // (kills + 1) for number in range(1, kills + 1))
        with step(f"it joins while the operator is killed {kills} times"):
            disturbed = case.join(bandwidth, marks)
        return Outcome(undisturbed, disturbed, entries.wrong())
    finally:
        own_operator.remove(wanted, cache.root() / "logs" / "operator-kills.log")


class Case:
    """The cluster: a member that joins, and the operator."""

    def __init__(self, wanted: Settings) -> None:
        self._wanted = wanted

    # -- the member that joins

    def join(self, bandwidth: int, marks: tuple[int, ...] = ()) -> Join:
        """Kill the operator each time when the new member has received so many bytes."""
        began, kills = time.monotonic(), 0
        self._scale(MEMBERS + 1, bandwidth)
        for mark in marks:
            if self._receives(mark):
                self._kill()
                kills += 1
        self._until_safe(MEMBERS + 1)
        return Join(self._received(), round(time.monotonic() - began, 1), kills)

    def leave(self) -> None:
        self._scale(MEMBERS, 0)
        self._until_safe(MEMBERS)

    def _scale(self, members: int, bandwidth: int) -> None:
        migration = {"bandwidthPerMember": str(bandwidth) if bandwidth else None}
        patch = json.dumps({"spec": {"members": members, "migration": migration}})
        self._kubectl("patch", self._wanted.resource, "--type=merge", "--patch", patch)

    def _received(self) -> int:
        """Return what its pod received since it began, all members' and the operator's messages included."""
        selector = f"--selector={stage.CLUSTER_LABEL}={CLUSTER},{stage.COMPONENT_LABEL}=member"
        pods = json.loads(self._kubectl("get", "pods", selector, "--output=json"))["items"]
        if len(pods) <= MEMBERS:
            return 0
        newest = max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        if not runs(newest, "member"):
            return 0
        name = newest["metadata"]["name"]
        text = self._kubectl("exec", name, "--container=member", "--", "cat", "/proc/net/dev")
        (line,) = [each for each in text.splitlines() if each.strip().startswith("eth0:")]
        return int(line.split(":")[1].split()[0])

    def _receives(self, mark: int) -> bool:
        """Wait until it has received so many bytes; return whether it still receives."""
        end = time.monotonic() + SAFE_SECONDS_MAX
        while self._received() < mark:
            if time.monotonic() > end:
                raise DemoError(f"the member did not receive {mark} bytes within {SAFE_SECONDS_MAX:.0f} s")
            time.sleep(POLL_SECONDS)
        return bool(unsafe_reason(self._cluster(), MEMBERS + 1))

    def _until_safe(self, members: int) -> None:
        """For SAFE_SECONDS: a member that has just joined is there before the plan that fills it."""
        end, since = time.monotonic() + SAFE_SECONDS_MAX, time.monotonic()
        while time.monotonic() - since < SAFE_SECONDS:
            if reason := unsafe_reason(self._cluster(), members):
                since = time.monotonic()
                if since > end:
                    raise DemoError(
                        f"not safe with {members} members within {SAFE_SECONDS_MAX:.0f} s: {reason}"
                    )
            time.sleep(POLL_SECONDS)

    # -- the operator

    def _kill(self) -> None:
        """SIGKILL it, replace its pod, so that no back-off delays the next one, and wait until that leads."""
        before, received = self._epoch(), self._received()
        for pod in self._operators():
            asyncio.run(kill(kind.env(), container_of(pod, "operator")))
            name = pod["metadata"]["name"]
            words = ("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")
            output(["kubectl", "-n", self._wanted.operator_namespace, *words], env=kind.env())
            say(f"{name} was killed in epoch {before}: {received / MIB:.0f} MiB were received")
        end = time.monotonic() + SAFE_SECONDS_MAX
        while self._epoch() <= before:
            if time.monotonic() > end:
                raise DemoError(f"no operator took over within {SAFE_SECONDS_MAX:.0f} s")
            time.sleep(POLL_SECONDS)
        time.sleep(AFTER_TAKE_OVER_SECONDS)

    def _operators(self) -> list[dict[str, Any]]:
        words = ["kubectl", "-n", self._wanted.operator_namespace, "get", "pods", "--output=json"]
        pods = json.loads(output(words, env=kind.env()))["items"]
        return [pod for pod in pods if runs(pod, "operator") and not pod["metadata"].get("deletionTimestamp")]

    def _epoch(self) -> int:
        return int(self._cluster()["status"].get("epoch", 0))

    def _cluster(self) -> dict[str, Any]:
        return dict(json.loads(self._kubectl("get", self._wanted.resource, "--output=json")))

    def _kubectl(self, *words: str) -> str:
        command = ["kubectl", "--namespace", self._wanted.namespace, *words]
        return output(command, env=kind.env(), seconds_max=120.0)


def main() -> int:
    """Print the outcome; 1 when bytes were copied twice or data is lost."""
    parser = argparse.ArgumentParser(prog="operator_kills", description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=1024, help="to be copied (1024)")
    parser.add_argument("--kills", type=int, default=10, help="of the operator meanwhile (10)")
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="stele-kills-") as folder:
            outcome = run(Path(folder), given.mebibytes * MIB, given.kills)
    except (ClusterError, DemoError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{outcome}, ratio {outcome.ratio:.3f}")
    return int(outcome.ratio > 1.1 or outcome.disturbed.kills < given.kills or bool(outcome.wrong))


if __name__ == "__main__":
    sys.exit(main())
