"""Carries the faults of a storm out: each is a few commands to kubectl or on a node, and undoes itself."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from e2e.demo.errors import DemoError
from e2e.demo.kube import kubectl
from e2e.demo.settings import Settings
from e2e.demo.victims import container_of, kill, kubelet_of, main_process, send, until_ended
from e2e.storm.faults import ALONE, REACHABLE, Fault, Kind
from e2e.storm.network import Network, Way, between, but_clients, to_admin, to_api_server
from e2e.storm.watch import Json, Watch

MEMBERS_LATER_SECONDS = 0.5
"""Before that the operator takes nobody for dead who does not answer
(core.control.failure_detector.CONFIRM_SECONDS)."""
UNDISTURBED = {"state": "Active", "migration": {"engine": "Auto"}}


@dataclass
class Struck:
    """What became of a fault, and when (of the day)."""

    moment: float
    kind: Kind
    text: str
    missed: bool = False


@dataclass
class Strikes:
    """One storm's hand. What it stopped or cut is known, so that `heal` undoes all of it at any time.

    `nodes` has the number of a process of each node.
    """

    env: Mapping[str, str]
    settings: Settings
    nodes: Mapping[str, int]
    watch: Watch
    network: Network
    told: Callable[[Struck], None]
    struck: list[Struck] = field(default_factory=list)
    _stopped: set[int] = field(default_factory=set)
    _relieved: set[str] = field(default_factory=set)
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)

    async def prepare(self, grace_seconds: int) -> None:
        """Let members that stay away be replaced so soon; kubelets go on that another storm left stopped."""
        self._go_on(map(kubelet_of, self.nodes.values()))
        await self._patch({"failureDetection": {"rejoinGracePeriodSeconds": grace_seconds}})

    def begin(self, fault: Fault) -> None:
        """Let the fault strike, and end by itself."""
        task = asyncio.create_task(self._carry_out(fault))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def relieve(self) -> None:
        """Take away pods that their kubelet lets wait before it starts them again, up to five minutes: a new
        pod starts at once.
        """
        for pod in self.watch.pods:
            if _waits(pod) and pod["metadata"]["uid"] not in self._relieved:
                self._relieved.add(pod["metadata"]["uid"])
                with suppress(DemoError):
                    await self._kubectl("delete", "pod", _name(pod), "--wait=false")

    async def heal(self) -> None:
        """End all that lasts: stopped processes go on, cuts are mended, the spec is as it was at first."""
        for task in tuple(self._under_way):
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        self._go_on(self._stopped)
        await self.network.end()
        await self._patch(UNDISTURBED | {"members": self.settings.members})

    async def _carry_out(self, fault: Fault) -> None:
        moment = time.time()
        try:
            text = await _DEEDS[fault.kind](self, fault)
        except DemoError as error:
            self._note(Struck(moment, fault.kind, f"missed: {error}", missed=True))
        else:
            if text:
                self._note(Struck(moment, fault.kind, text))

    def _note(self, struck: Struck) -> None:
        self.struck.append(struck)
        self.told(struck)

    # -- whom

    def _victim(self, fault: Fault, component: str = "member") -> Json:
        """Of members and operators one whose container runs."""
        pods = {"member": self.watch.members, "operator": self.watch.operators}.get(component)
        return self._pick(pods() if pods else self.watch.of(component), fault.victim)

    def _two(self, fault: Fault) -> tuple[Json, Json]:
        members = self.watch.members()
        one = self._pick(members, fault.victim)
        return one, self._pick([each for each in members if each is not one], fault.other)

    @staticmethod
    def _pick(pods: list[Json], number: int) -> Json:
        if not pods:
            raise DemoError("none is there")
        return pods[number % len(pods)]

    # -- how

    async def _kubectl(self, *words: str) -> None:
        await kubectl(self.env, "--namespace", self.settings.namespace, *words)

    async def _patch(self, spec: Mapping[str, Any]) -> None:
        patch = json.dumps({"spec": spec})
        await self._kubectl("patch", self.settings.resource, "--type=merge", "--patch", patch)

    def _go_on(self, processes: Iterable[int]) -> None:
        for process in tuple(processes):
            self._stopped.discard(process)
            with suppress(DemoError):  # It may have ended: a kubelet kills what does not answer for long.
                send(process, signal.SIGCONT)

    def _signal(self, pods: Iterable[Json], name: str, number: signal.Signals) -> list[int]:
        """Send a signal to the main processes of these containers at once."""
        processes = [_process(each, name) for each in pods]
        if number is signal.SIGSTOP:
            self._stopped |= set(processes)
        for process in processes:
            with suppress(DemoError):  # One that has ended is what the others are struck with.
                send(process, number)
        return processes

    @asynccontextmanager
    async def _cut(self, ways: list[Way]) -> AsyncIterator[None]:
        await self.network.cut(ways)
        try:
            yield
        finally:
            await self.network.mend(ways)

    async def _cut_for(self, fault: Fault, ways: list[Way], text: str) -> str:
        async with self._cut(ways):
            self._note(Struck(time.time(), fault.kind, f"{text} for {fault.lasts} s"))
            await asyncio.sleep(fault.lasts)
        return ""

    # -- the faults

    async def _kill(self, fault: Fault, component: str = "member") -> str:
        return await kill(self.env, container_of(self._victim(fault, component), component))

    async def _kill_all(self, fault: Fault) -> str:
        members = self.watch.members()
        self._signal(members, "member", signal.SIGKILL)
        return f"SIGKILL to {_names(members)}"

    async def _pause(self, fault: Fault, component: str = "member") -> str:
        victim = self._victim(fault, component)
        stopped = self._signal([victim], component, signal.SIGSTOP)
        self._note(Struck(time.time(), fault.kind, f"SIGSTOP to {_name(victim)} for {fault.lasts} s"))
        await asyncio.sleep(fault.lasts)
        self._go_on(stopped)
        return ""

    async def _delete(self, fault: Fault, *words: str, component: str = "member") -> str:
        victim = self._victim(fault, component)
        await self._kubectl("delete", "pod", _name(victim), "--wait=false", *words)
        return f"kubectl delete pod {' '.join((_name(victim), *words))}"

    async def _orphan(self, fault: Fault) -> str:
        """Nothing shows the process any more, and it goes on until its kubelet does.

        The operator is cut off first, so that no answer tells it that the process runs; the members later,
        so that the leases that the process reads by are young when a backup may take its place.
        """
        victim = self._victim(fault)
        kubelet = kubelet_of(self.nodes[victim["spec"]["nodeName"]])
        address = _address(victim)
        first = [] if fault.word == REACHABLE else to_admin(address)
        then = but_clients(address) if fault.word == ALONE else []
        text = f"deleted {_name(victim)} by force, {fault.word}, its kubelet stands still"
        self._stopped.add(kubelet)
        send(kubelet, signal.SIGSTOP)
        try:
            async with self._cut(first):
                await self._kubectl("delete", "pod", _name(victim), "--wait=false", *FORCE)
                await asyncio.sleep(MEMBERS_LATER_SECONDS)
                return await self._cut_for(fault, then, text)
        finally:
            self._go_on([kubelet])

    async def _evict(self, fault: Fault) -> str:
        name, namespace = _name(self._victim(fault)), self.settings.namespace
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        path = Path(self.watch.folder) / "eviction.json"
        path.write_text(json.dumps(eviction), encoding="utf-8")
        await self._kubectl(
            "create", "--raw", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", "-f", str(path)
        )
        return f"evicted {name}"

    async def _stop_then_strike(self, fault: Fault) -> str:
        """What the first acknowledged while it stopped, and has not, nobody else can tell any more."""
        first = self._victim(fault)
        others = [each for each in self.watch.members() if each is not first]
        process = _process(first, "member")
        await self._kubectl("delete", "pod", _name(first), "--wait=false")
        await until_ended(process)
        number = signal.Signals[fault.word]
        struck = self._signal(others, "member", number)
        done = f"kubectl delete pod {_name(first)}, and {fault.word} to {_names(others)} when it ended"
        if number is signal.SIGSTOP:
            self._note(Struck(time.time(), fault.kind, f"{done} for {fault.lasts} s"))
            await asyncio.sleep(fault.lasts)
            self._go_on(struck)
            return ""
        return done

    async def _cut_two(self, fault: Fault, one_way: bool) -> str:
        one, other = self._two(fault)
        ways = between(_address(one), _address(other))
        arrow = "->" if one_way else "<->"
        text = f"cut {_name(one)} {arrow} {_name(other)}"
        return await self._cut_for(fault, ways[:1] if one_way else ways, text)

    async def _cut_off(self, fault: Fault, members_too: bool) -> str:
        victim = self._victim(fault)
        members = self.watch.members() if members_too else []
        others = [each for each in (*members, *self.watch.operators()) if each is not victim]
        ways = [way for each in others for way in between(_address(victim), _address(each))]
        return await self._cut_for(fault, ways, f"cut {_name(victim)} off {_names(others)}")

    async def _cut_operator(self, fault: Fault) -> str:
        operator = self._pick(self.watch.operators(), 0)
        ways = to_api_server(_address(operator))
        return await self._cut_for(fault, ways, f"cut {_name(operator)} off the API server")

    async def _scale(self, fault: Fault) -> str:
        await self._patch({"members": fault.victim, "migration": {"engine": fault.word}})
        return f"{fault.victim} members, copies by {fault.word}"

    async def _state(self, fault: Fault) -> str:
        await self._patch({"state": fault.word})
        self._note(Struck(time.time(), fault.kind, f"{fault.word} for {fault.lasts} s"))
        try:
            await asyncio.sleep(fault.lasts)
        finally:
            await self._patch({"state": "Active"})
        return ""


FORCE = ("--grace-period=0", "--force")
_DEEDS: dict[Kind, Callable[[Strikes, Fault], Awaitable[str]]] = {
    Kind.KILL: Strikes._kill,
    Kind.KILL_ALL: Strikes._kill_all,
    Kind.PAUSE: Strikes._pause,
    Kind.DELETE: Strikes._delete,
    Kind.DELETE_BY_FORCE: lambda strikes, fault: strikes._delete(fault, *FORCE),
    Kind.ORPHAN: Strikes._orphan,
    Kind.EVICT: Strikes._evict,
    Kind.STOP_THEN_STRIKE: Strikes._stop_then_strike,
    Kind.CUT: partial(Strikes._cut_two, one_way=False),
    Kind.CUT_ONE_WAY: partial(Strikes._cut_two, one_way=True),
    Kind.ISOLATE: partial(Strikes._cut_off, members_too=True),
    Kind.HIDE: partial(Strikes._cut_off, members_too=False),
    Kind.OPERATOR_KILL: partial(Strikes._kill, component="operator"),
    Kind.OPERATOR_PAUSE: partial(Strikes._pause, component="operator"),
    Kind.OPERATOR_DELETE: partial(Strikes._delete, component="operator"),
    Kind.OPERATOR_CUT: Strikes._cut_operator,
    Kind.COPIER_DELETE: lambda strikes, fault: strikes._delete(fault, *FORCE, component="copier"),
    Kind.SCALE: Strikes._scale,
    Kind.STATE: Strikes._state,
}


def _process(pod: Json, name: str) -> int:
    return main_process(container_of(pod, name).identity)


def _waits(pod: Json) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    reasons = [((each.get("state") or {}).get("waiting") or {}).get("reason") for each in statuses]
    return "CrashLoopBackOff" in reasons


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def _names(pods: Iterable[Json]) -> str:
    return ", ".join(map(_name, pods))


def _address(pod: Json) -> str:
    address = (pod.get("status") or {}).get("podIP")
    if not address:
        raise DemoError(f"{_name(pod)} has no address")
    return str(address)
