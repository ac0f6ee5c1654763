"""The phases in which the cluster is changed and hurt while clients read and write."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from e2e.demo.clients import Clients
from e2e.demo.errors import DemoError
from e2e.demo.kube import GROUP, Api, command, kubectl, workers
from e2e.demo.progress import Board, Snapshot
from e2e.demo.settings import (
    COPY_NOTHING,
    DRAIN_SECONDS_MAX,
    KILL_POLL_SECONDS,
    NO_SUCH_IMAGE,
    OPERATOR_NAMESPACE,
    POLL_SECONDS,
    RESTART_SECONDS_MAX,
    RESTARTED_AT,
    ROLL_SECONDS_MAX,
    SAFE_HELD_SECONDS,
    PhaseName,
    Settings,
)
from e2e.demo.stage import CLUSTER_LABEL, COMPONENT_LABEL, HELM_SECONDS_MAX, second_tag, upgrade_command
from e2e.demo.state import Moves, MoveTracker, condition, conditions_text, unsafe_reason
from e2e.demo.verify import read_table
from e2e.demo.victims import Container, container_of, kill, runs

KILL_FROM, KILL_UPTO = 0.2, 0.8
MEMBER_CONTAINER, OPERATOR_CONTAINER = "member", "operator"


@dataclass
class PhaseResult:
    """What happened in one phase. `error` is why it did not come to its end.

    `open_at_kill`: moves that were not done yet when the operator had been killed; None when it was not
    killed. `members_missing`: how many members, at most, rows of the partition table lacked at
    one time; None when nobody looked.
    """

    name: PhaseName
    seconds: float = 0.0
    moves: Moves = field(default_factory=Moves)
    events: list[str] = field(default_factory=list)
    error: str = ""
    open_at_kill: int | None = None
    members_missing: int | None = None


class Phases:
    """Runs phases one after another; all waits have an end, and a phase that fails says why."""

    def __init__(
        self, settings: Settings, env: Mapping[str, str], api: Api, clients: Clients, board: Board
    ) -> None:
        self._settings, self._env, self._api = settings, env, api
        self._clients, self._board = clients, board
        self._result = PhaseResult(PhaseName.QUIET)
        self._tracker = MoveTracker(())
        self._start = 0.0
        self._kill_due = False
        self._image = ""
        self._rows: tuple[tuple[str, ...], ...] = ()

    async def run(self) -> list[PhaseResult]:
        """All phases of the settings, up to the first one that fails."""
        actions: dict[PhaseName, Callable[[], Awaitable[None]]] = {
            PhaseName.QUIET: self._quiet,
            PhaseName.SCALE_UP: self._scale_up,
            PhaseName.KILL_MEMBER: self._kill_member,
            PhaseName.ROLLING_UPDATE: self._rolling_update,
            PhaseName.UPGRADE: self._upgrade,
            PhaseName.IMAGE_CHANGE: self._image_change,
            PhaseName.EVICT: self._evict,
            PhaseName.DRAIN_NODES: self._drain_nodes,
            PhaseName.SCALE_DOWN: self._scale_down,
        }
        results: list[PhaseResult] = []
        for name in self._settings.phases:
            results.append(await self._phase(name, actions[name]))
            if results[-1].error:
                break
        return results

    async def _phase(self, name: PhaseName, action: Callable[[], Awaitable[None]]) -> PhaseResult:
        self._result, self._start, self._kill_due = PhaseResult(name), time.monotonic(), False
        self._tracker = MoveTracker(await self._rebalances())
        await self._clients.phase(name)
        try:
            await action()
        except DemoError as error:
            self._result.error = str(error)
        self._result.seconds = round(time.monotonic() - self._start, 2)
        self._result.moves = self._tracker.moves()
        ended = f"failed: {self._result.error}" if self._result.error else "done"
        self._board.say(f"[{self._result.seconds:7.1f} s] {name}: {ended}")
        return self._result

    async def _quiet(self) -> None:
        end = self._start + self._settings.quiet_seconds
        while time.monotonic() < end:
            self._clients.check()
            self._show("")
            await asyncio.sleep(POLL_SECONDS)

    async def _scale_up(self) -> None:
        await self._scale(self._settings.scaled_members)
        await self._wait_until_safe(self._settings.scaled_members)

    async def _kill_member(self) -> None:
        members = await self._api.list(self._path("tabletmembers"))
        ready = [each for each in members if (each.get("status") or {}).get("owned", 0)]
        if not ready:
            raise DemoError("No member owns a partition, so there is none whose loss would be noticed.")
        most = max(ready, key=lambda each: (each["status"]["owned"], each["metadata"]["name"]))
        victim = container_of(await self._pod(most["metadata"]["name"]), MEMBER_CONTAINER)
        self._event(await kill(self._env, victim))
        await self._wait_until_restarted(victim)
        self._event(f"{victim.pod} runs again and is ready")
        await self._wait_until_safe(self._members_now())

    async def _rolling_update(self) -> None:
        """Restart all members, one after the other: what a new image or more memory does."""
        before = {each["metadata"]["uid"] for each in await self._member_pods()}
        at = f"{RESTARTED_AT}={datetime.now(UTC).isoformat(timespec='seconds')}"
        await kubectl(
            self._env, "--namespace", self._settings.namespace, "annotate", self._settings.resource, at
        )
        self._event(f"kubectl annotate {self._settings.resource} {at}")
        await self._until_replaced(before)

    async def _upgrade(self) -> None:
        """Give the operator and all members another image, as an upgrade of Stele does."""
        before = {each["metadata"]["uid"] for each in await self._member_pods()}
        self._image = await self._image_of_members()
        words = upgrade_command(self._settings)
        await command(self._env, *words, seconds_max=HELM_SECONDS_MAX)
        self._event(" ".join(words[:3]))
        await self._until_replaced(before)

    async def _image_change(self) -> None:
        """Name an image that does not exist, take that back, and name another: the one before the upgrade,
        if there was one."""
        await self._set_image(NO_SUCH_IMAGE)
        await self._until_update_fails()
        undo = ("rollout", "undo", self._settings.cluster, "--namespace", self._settings.namespace)
        await command(self._env, sys.executable, "-m", "stele.cli", *undo)
        self._event("kubectl stele rollout undo")
        await self._wait_until_safe(self._members_now())
        before = {each["metadata"]["uid"] for each in await self._member_pods()}
        await self._set_image(self._image or second_tag("member"))
        await self._until_replaced(before)

    async def _set_image(self, image: str) -> None:
        patch = json.dumps({"spec": {"images": {"member": image}}})
        words = ("patch", self._settings.resource, "--type=merge", f"--patch={patch}")
        await kubectl(self._env, "--namespace", self._settings.namespace, *words)
        self._event(f"spec.images.member is {image}")

    async def _image_of_members(self) -> str:
        containers = (await self._member_pods())[0]["spec"]["containers"]
        return next(str(each["image"]) for each in containers if each["name"] == MEMBER_CONTAINER)

    async def _until_update_fails(self) -> None:
        """Wait until the status says that a member does not come back; the others still serve."""
        deadline = time.monotonic() + RESTART_SECONDS_MAX
        while (stalled := condition(await self._observe(), "Stalled")).get("reason") != "UpdateFailed":
            self._show("the update to fail")
            if time.monotonic() > deadline:
                raise DemoError(f"The status does not say that no member can start from {NO_SUCH_IMAGE}.")
            await asyncio.sleep(POLL_SECONDS)
        self._event(str(stalled["message"]))

    async def _evict(self) -> None:
        """Evict each member's pod; Kubernetes refuses while that would leave too few."""
        for pod in await self._member_pods():
            name = pod["metadata"]["name"]
            await self._evict_pod(name)
            self._event(f"{name} is evicted")
            await self._until_replaced({pod["metadata"]["uid"]})

    async def _evict_pod(self, name: str) -> None:
        namespace = self._settings.namespace
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(body, file)
            file.flush()
            await self._while_refused("create", "--raw", path, "--filename", file.name)

    async def _while_refused(self, *words: str) -> None:
        """Run kubectl again while the disruption budget, which is counted some seconds later, refuses."""
        deadline = time.monotonic() + RESTART_SECONDS_MAX
        while True:
            try:
                await kubectl(self._env, *words)
                return
            except DemoError as error:
                if "disruption budget" not in str(error) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(1.0)

    async def _until_replaced(self, before: set[str]) -> None:
        """Wait until none of these pods is left, and the cluster is safe."""
        deadline, left = time.monotonic() + ROLL_SECONDS_MAX, len(before)
        while left:
            cluster = await self._observe()
            old = [each for each in await self._member_pods() if each["metadata"]["uid"] in before]
            if len(old) < left:
                left = len(old)
                self._event(f"{len(before) - left} of {len(before)} members have restarted")
            self._show(f"{left} members to restart")
            if time.monotonic() > deadline:
                raise DemoError(f"{left} members did not restart: {conditions_text(cluster)}")
            await asyncio.sleep(POLL_SECONDS)
        await self._wait_until_safe(self._members_now())

    async def _drain_nodes(self) -> None:
        """Empty each worker of everything, the operator too, and give it back; volumes stay on their node."""
        used = {each["spec"]["nodeName"] for each in await self._member_pods()}
        for node in sorted(used & await workers(self._api)):
            options = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={DRAIN_SECONDS_MAX}s")
            try:
                await kubectl(self._env, "drain", node, *options, seconds_max=DRAIN_SECONDS_MAX + 30)
                self._event(f"kubectl drain {node}")
            finally:
                await kubectl(self._env, "uncordon", node)
            self._event(f"kubectl uncordon {node}")
            await self._wait_until_safe(self._members_now())

    async def _member_pods(self) -> list[dict[str, Any]]:
        pods = await self._pods()
        return [each for each in pods if each["metadata"]["labels"].get(COMPONENT_LABEL) == "member"]

    def _members_now(self) -> int:
        scaled = PhaseName.SCALE_UP in self._settings.phases
        return self._settings.scaled_members if scaled else self._settings.members

    async def _scale_down(self) -> None:
        await self._scale(self._settings.members)
        self._kill_due = True
        await self._wait_until_safe(self._settings.members)

    async def _scale(self, members: int) -> None:
        words = ("scale", self._settings.resource, f"--replicas={members}")
        await kubectl(self._env, "--namespace", self._settings.namespace, *words)
        self._event(f"kubectl scale {self._settings.resource} --replicas={members}")

    async def _kill_in_time(self) -> None:
        """Kill the operator once, when at least `KILL_FROM` of the moves of the phase are done.

        Past `KILL_UPTO` it is late, and done all the same while any move is open. When all are done it waits:
        another plan may follow.
        """
        fraction = self._tracker.moves().fraction_done
        if not self._kill_due or not KILL_FROM <= fraction < 1:
            return
        self._kill_due = False
        if fraction > KILL_UPTO:
            self._event(f"{fraction:.0%} of the moves were done before the operator could be killed")
        await self._kill_operator()

    async def _kill_operator(self) -> None:
        """SIGKILL the operator's process, and note when in the plan that was.

        The moves are read again afterwards: some end while the signal is on its way.
        """
        pods = await self._api.list(f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods")
        running = [each for each in pods if runs(each, OPERATOR_CONTAINER)]
        if not running:
            raise DemoError(f"No operator runs in namespace {OPERATOR_NAMESPACE}.")
        done = await kill(self._env, container_of(running[0], OPERATOR_CONTAINER))
        await self._observe()
        moves = self._tracker.moves()
        self._result.open_at_kill = max(0, moves.planned.total() - moves.done.total())
        self._event(f"{done}, with {moves.done.total()} of {moves.planned.total()} moves done")

    async def _wait_until_restarted(self, victim: Container) -> None:
        deadline = time.monotonic() + RESTART_SECONDS_MAX
        while time.monotonic() < deadline:
            await self._observe()
            self._show(f"{victim.pod} to run again")
            pod = await self._pod(victim.pod, missing_is_none=True)
            if pod is not None and runs(pod, victim.name):
                now = container_of(pod, victim.name)
                if now.ready and (now.identity, now.pod_uid) != (victim.identity, victim.pod_uid):
                    return
            await asyncio.sleep(POLL_SECONDS)
        raise DemoError(
            f"{victim.pod} does not run again within {RESTART_SECONDS_MAX:.0f} s after it was killed."
        )

    async def _wait_until_safe(self, members: int) -> None:
        """Until the cluster is safe with so many members and has been so for `SAFE_HELD_SECONDS`."""
        limit = self._settings.safe_seconds_max
        deadline = time.monotonic() + limit
        safe_since: float | None = None
        while True:
            cluster = await self._observe()
            await self._kill_in_time()
            now, reason = time.monotonic(), unsafe_reason(cluster, members)
            safe_since = None if reason else safe_since or now
            self._show(reason)
            if safe_since is not None and now - safe_since >= SAFE_HELD_SECONDS:
                return
            if now > deadline:
                facts = "; ".join(filter(None, [conditions_text(cluster), self._tracker.refusal()]))
                raise DemoError(f"not safe after {limit:.0f} s: {reason}. {facts}")
            await asyncio.sleep(KILL_POLL_SECONDS if self._kill_due else POLL_SECONDS)

    async def _observe(self) -> dict[str, Any]:
        self._clients.check()
        self._tracker.observe(await self._rebalances())
        if self._result.name in COPY_NOTHING:
            await self._count_missing()
        return await self._api.get(f"{self._path('tabletclusters')}/{self._settings.cluster}")

    async def _count_missing(self) -> None:
        """Count the members that rows had when the phase began, and lack now."""
        table = await read_table(self._api, self._settings.namespace, self._settings.cluster)
        if self._result.members_missing is None:
            self._rows = table.rows
        lacks = (set(before) - set(now) for before, now in zip(self._rows, table.rows, strict=True))
        missing = len(set().union(*lacks))
        self._result.members_missing = max(missing, self._result.members_missing or 0)

    async def _rebalances(self) -> list[dict[str, Any]]:
        return await self._api.list(self._path("tabletrebalances"))

    async def _pods(self) -> list[dict[str, Any]]:
        selector = f"labelSelector={CLUSTER_LABEL}%3D{self._settings.cluster}"
        return await self._api.list(f"/api/v1/namespaces/{self._settings.namespace}/pods?{selector}")

    async def _pod(self, name: str, missing_is_none: bool = False) -> Any:
        found = next((each for each in await self._pods() if each["metadata"]["name"] == name), None)
        if found is None and not missing_is_none:
            raise DemoError(f"There is no pod {name} of cluster {self._settings.cluster}.")
        return found

    def _path(self, plural: str) -> str:
        return f"{GROUP}/namespaces/{self._settings.namespace}/{plural}"

    def _event(self, text: str) -> None:
        told = f"{time.monotonic() - self._start:.1f} s: {text}"
        self._result.events.append(told)
        self._board.say(f"{self._result.name} {told}")

    def _show(self, waits_for: str) -> None:
        seconds = time.monotonic() - self._start
        moves = self._tracker.moves()
        self._board.show(Snapshot(self._result.name, seconds, waits_for, moves, self._clients.tick))
