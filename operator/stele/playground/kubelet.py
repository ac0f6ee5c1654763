"""Runs the pods of members, and of a copier, on this machine, as a kubelet does.

A member's pod gets a loopback address, and its claim a folder. What ends is started again, and what is
deleted stops as its manifest says. It shows the container of the pod's component in the pod's status.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from stele.adapters.kubernetes.api import CLAIMS, NODES, PODS, Kind, NotFound
from stele.errors import Uncertain
from stele.master.manifests import COMPONENT_LABEL, index_of
from stele.playground.files import Object, link_to
from stele.playground.objects import ObjectFiles, now_text
from stele.playground.ports import Ports, address_of
from stele.playground.processes import Container
from stele.playground.spark import HOST, copier_environment

MEMBER, COPIER = "member", "copier"
"""Components of pods that are run, and the names of the containers that say how these are."""

NODE = "this-machine"
TERMINATION_SECONDS = 10.0
"""Seconds from SIGTERM to SIGKILL."""

LOOK_SECONDS = 0.1
"""Seconds between two looks whether a member listens."""

LAST_LINE_LETTERS = 200
"""What is said of the last line that a process logged."""

_MOUNTED = frozenset({"STELE_TLS_DIR", "STELE_USERS_FILE"})
"""Settings that name what a playground does not mount."""


class Place:
    """One pod with its processes."""

    def __init__(self, name: str, uid: str, component: str, address: str) -> None:
        self.name, self.uid, self.component, self.address = name, uid, component, address
        self.containers: dict[str, Container] = {}
        self.hook: list[str] = []
        self.starts, self.began = 0, now_text()
        self.tasks: list[asyncio.Task[None]] = []
        self.ending: asyncio.Task[None] | None = None

    async def stop(self, seconds: float) -> None:
        """End all processes, politely for so many seconds."""
        await asyncio.gather(*(each.stop(seconds) for each in self.containers.values()))
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class Kubelet:
    """`say` is told what people should hear: ends of processes."""

    def __init__(self, files: ObjectFiles, folder: Path, ports: Ports, say: Callable[[str], None]) -> None:
        self._files, self._folder, self._ports, self._say = files, folder, ports, say
        self._places: dict[str, Place] = {}
        self._woken = asyncio.Event()
        self._failure: BaseException | None = None
        files.changed.append(self._noted)

    def _noted(self, kind: Kind, stored: Object, gone: bool) -> None:
        if kind in (PODS, CLAIMS):
            self._woken.set()

    async def run(self) -> None:
        """Run until cancelled; `close` ends the processes. Raises what keeps one from being run."""
        if self._files.find(NODES, NODE) is None:
            self._files.create(NODES, {"metadata": {"name": NODE}})
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self._files.patch_status(NODES, NODE, ready)
        while True:
            self._woken.clear()
            self._bind_claims()
            self._match()
            await self._woken.wait()
            if self._failure is not None:
                raise self._failure

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._note_failure)
        return task

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
            self._woken.set()

    async def until_listening(self, seconds: float) -> None:
        """Return once the members that there are listen, at most after so many seconds.

        A master that takes over meanwhile would report the loss of all copies.
        """
        pods = self._files.list(PODS, f"{COMPONENT_LABEL}={MEMBER}")
        wanted = [address for each in pods if (address := (each.get("status") or {}).get("podIP"))]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for address in wanted:
                    while not await _listens(address, self._ports.admin):  # noqa: ASYNC110  no event
                        await asyncio.sleep(LOOK_SECONDS)

    def _bind_claims(self) -> None:
        for claim in self._files.list(CLAIMS):
            asked = claim["spec"]["resources"]["requests"]
            if (claim.get("status") or {}).get("capacity") != asked:
                status = {"phase": "Bound", "capacity": asked}
                self._files.patch_status(CLAIMS, claim["metadata"]["name"], status)

    def _match(self) -> None:
        """Start what is new, and end what is deleted."""
        pods = {
            each["metadata"]["name"]: each for each in self._files.list(PODS) if _component(each) is not None
        }
        for name, place in list(self._places.items()):
            pod = pods.get(name)
            forced = pod is None or pod["metadata"]["uid"] != place.uid
            if place.ending is None and (forced or (pod and pod["metadata"].get("deletionTimestamp"))):
                place.ending = self._begin(self._end(place, politely=not forced))
        for name, pod in pods.items():
            if name in self._places:
                continue
            if pod["metadata"].get("deletionTimestamp"):
                self._files.delete(PODS, name, pod["metadata"]["uid"], grace_seconds=0)
            elif _component(pod) == COPIER or self._files.find(CLAIMS, name) is not None:
                self._start(name, pod)

    def _start(self, name: str, pod: Object) -> None:
        component = _component(pod) or MEMBER
        place = Place(name, pod["metadata"]["uid"], component, _address(name, component))
        self._places[name] = place
        if not pod["spec"].get("nodeName"):
            self._files.patch(PODS, name, {"spec": {"nodeName": NODE}})
        place.starts = 1 + max(
            (each["restartCount"] for each in (pod.get("status") or {}).get("containerStatuses") or ()),
            default=-1,
        )
        settings = self._settings(place)
        for container in pod["spec"]["containers"]:
            self._start_container(place, container, settings)

    def _settings(self, place: Place) -> dict[str, str]:
        """Return the settings that are other ones than in Kubernetes; make the folders that they name."""
        if place.component == COPIER:
            return copier_environment(place.name, self._folder, self._ports)
        volume = self.volume(place.name)
        volume.mkdir(parents=True, exist_ok=True)
        link_to(volume.with_name(place.name), volume)
        return {
            "STELE_POD_UID": place.uid,
            "STELE_DATA_DIR": str(volume),
            "STELE_BIND": place.address,
            **self._ports.environment(),
        }

    def volume(self, name: str) -> Path:
        """Return the folder of a claim: another claim of that name has another one."""
        uid = self._files.get(CLAIMS, name)["metadata"]["uid"]
        return self._folder / "volumes" / f"{name}-{uid[:8]}"

    def _start_container(self, place: Place, container: Object, settings: dict[str, str]) -> None:
        name = str(container["name"])
        given = {each["name"]: each.get("value", "") for each in container["env"]}
        env = {key: value for key, value in given.items() if key not in _MOUNTED} | settings
        log = self._folder / "logs" / f"{place.name}-{name}.log"
        made = place.containers[name] = Container(container["command"], env, log)
        if "lifecycle" in container:
            place.hook = container["lifecycle"]["preStop"]["exec"]["command"]
        if name == place.component:
            began, ended = lambda: self._show_running(place), lambda code: self._show_end(place, code, log)
        else:
            began, ended = lambda: None, lambda code: self._say_end(place, name, code, log)
        place.tasks.append(self._begin(made.keep(began, ended)))

    # -- what pods show

    def _show_running(self, place: Place) -> None:
        place.starts, place.began = place.starts + 1, now_text()
        self._show(place, {"running": {"startedAt": place.began}})

    def _show_end(self, place: Place, code: int, log: Path) -> None:
        self._say_end(place, place.component, code, log)
        end = {"exitCode": code, "startedAt": place.began, "finishedAt": now_text()}
        self._show(place, {"terminated": end})

    def _say_end(self, place: Place, what: str, code: int, log: Path) -> None:
        why = (
            f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}: {_last_line(log)}"
        )
        self._say(f"{place.name}: the {what} process {why}")

    def _show(self, place: Place, state: Object) -> None:
        container = {
            "name": place.component,
            "ready": "running" in state,
            "restartCount": place.starts - 1,
            "containerID": f"process://{place.uid}-{place.starts}",
            "state": state,
        }
        pod = self._files.find(PODS, place.name)
        if pod is None or pod["metadata"]["uid"] != place.uid:
            return
        ready = [{"type": "Ready", "status": str("running" in state)}]
        status = {
            "phase": "Running", "podIP": place.address, "containerStatuses": [container], "conditions": ready,
        }  # fmt: skip
        try:
            self._files.patch_status(PODS, place.name, status)
        except Uncertain as error:
            # The process goes on; what is shown is outdated until it ends or starts the next time.
            self._say(str(error))

    # -- ends

    def kill(self, name: str, away_seconds: float) -> None:
        """SIGKILL to all processes of a pod. Raises NotFound with the pods that there are."""
        place = self._places.get(name)
        if place is None:
            listed = ", ".join(sorted(self._places)) or "none"
            raise NotFound(f'no member "{name}" runs; running are: {listed}')
        for container in place.containers.values():
            container.kill(away_seconds)

    async def _end(self, place: Place, *, politely: bool) -> None:
        """End a pod that was deleted: its preStop hook while the member runs, SIGTERM, SIGKILL."""
        if politely and place.hook:
            await place.containers["transfer"].stop(TERMINATION_SECONDS)
            hook = await place.containers["member"].run(place.hook)
            await hook.wait()
        await place.stop(TERMINATION_SECONDS if politely else 0.0)
        self._show(place, {"terminated": {"exitCode": 0, "startedAt": place.began, "finishedAt": now_text()}})
        del self._places[place.name]
        self._files.delete(PODS, place.name, place.uid, grace_seconds=0)
        self._woken.set()

    async def close(self) -> None:
        """End all processes. Pods stay, for the next playground."""
        self._files.changed.remove(self._noted)
        places = list(self._places.values())
        for place in places:
            if place.ending is not None:
                place.ending.cancel()
        await asyncio.gather(*(each.ending for each in places if each.ending), return_exceptions=True)
        await asyncio.gather(*(place.stop(TERMINATION_SECONDS) for place in places))
        for place in places:
            end = {"exitCode": 0, "startedAt": place.began, "finishedAt": now_text()}
            self._show(place, {"terminated": end})


def _component(pod: Object) -> str | None:
    """Return what a pod is, if it is one that is run."""
    label = (pod["metadata"].get("labels") or {}).get(COMPONENT_LABEL)
    return label if label in (MEMBER, COPIER) else None


def _address(name: str, component: str) -> str:
    if component == COPIER:
        return HOST
    index = index_of(name.rpartition("-")[0], name)
    assert index is not None, name
    return address_of(index)


async def _listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


def _last_line(log: Path) -> str:
    """Return the last line of a log, in which a process says why it ends; only text that shows."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").strip().splitlines() or [""]
    line = "".join(each if each.isprintable() else " " for each in lines[-1]).strip()
    return f"{line[:LAST_LINE_LETTERS]} (see {log})"
