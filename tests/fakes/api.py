"""A simulated API server, and the client that a master process has of it.

Reads and writes are those of the real one (tests/contract/test_api.py): resourceVersions, 409, 404, uids,
statuses apart, deletion in two steps for pods and for what has finalizers.
What goes wrong is what goes wrong in reality: requests that do not arrive, answers that do not come back
(the write is done all the same), somebody else's write in between, watches that lag, repeat and forget.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from stele.adapters.kubernetes.api import (
    CLUSTERS,
    CONFIG_MAPS,
    EVENTS,
    KEYSPACES,
    MEMBERS,
    PODS,
    REBALANCES,
    USERS,
    AlreadyExists,
    Kind,
    NotFound,
)
from stele.errors import BadInput, Conflict, SteleError, Unavailable, Uncertain
from stele.master.merge_patch import merged
from stele.master.watch import LATER, WATCHED
from stele.model.crd import UNOBSERVED
from tests.fakes.loop import Clock, ProcessLoop
from tests.fakes.network import Network

API_PLACE = "api"
REQUEST_SECONDS = 5.0
NAMESPACE = "default"
BEGAN = datetime(2027, 1, 15, 8, 0, tzinfo=UTC)
CONFIG_MAP_BYTES_MAX = 1 << 20
WITH_STATUS = (CLUSTERS, MEMBERS, REBALANCES, KEYSPACES, USERS, PODS)
"""Kinds whose status only `patch_status` writes."""
CUSTOM = (CLUSTERS, MEMBERS, REBALANCES, KEYSPACES, USERS)
KEPT = ("uid", "creationTimestamp", "generation", "deletionTimestamp")
"""Metadata that no client writes."""

Object = dict[str, Any]
Watcher = Callable[[Kind, Object, bool], None]


@dataclass
class ApiFaults:
    """Parts of all requests (or watch events) that something happens to; `away` is nobody answering."""

    lost: float = 0.0
    unanswered: float = 0.0
    refused: float = 0.0
    conflict: float = 0.0
    watch_lost: float = 0.0
    watch_repeated: float = 0.0
    watch_seconds: float = 0.05
    away: bool = False


class ApiServer:
    """Objects of one namespace. `changed` hears of every change, in order, as it happens."""

    def __init__(self, clock: Clock, network: Network) -> None:
        self.clock, self.network = clock, network
        self.faults = ApiFaults()
        self.kinds = tuple(kind for kind in WATCHED if kind not in LATER)
        """What masters watch; of keyspaces only histories know in which users declare some."""
        self.objects: dict[tuple[str, str], tuple[Kind, Object]] = {}
        self.version = 0
        self.changed: list[Watcher] = []
        self.count: Callable[..., None] = lambda fault, *places: None

    def find(self, kind: Kind, name: str) -> Object | None:
        found = self.objects.get((kind.plural, name))
        return None if found is None else found[1]

    def list(self, kind: Kind, selector: str = "") -> list[Object]:
        listed = (stored for _, (each, stored) in sorted(self.objects.items()) if each is kind)
        return [stored for stored in listed if _selected(stored, selector)]

    def _put(self, kind: Kind, body: Object, **meta: Any) -> Object:
        """Store it under a new version, unless nothing changes."""
        name = body["metadata"]["name"]
        old = self.find(kind, name)
        kept = {} if old is None else {key: old["metadata"][key] for key in KEPT if key in old["metadata"]}
        fixed = {"namespace": NAMESPACE, "uid": f"uid-{self.version + 1}", "creationTimestamp": self._time()}
        metadata = {**body["metadata"], **fixed, **kept, **meta}
        stored = {"apiVersion": kind.api, "kind": kind.kind, **body, "metadata": metadata}
        _check_size(kind, stored)
        if old is not None and old.get("spec") != stored.get("spec"):
            metadata["generation"] = old["metadata"].get("generation", 1) + 1
        if old is not None and stored == _with_version(old, metadata.get("resourceVersion")):
            return old
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        self.objects[kind.plural, name] = (kind, stored)
        self._tell(kind, stored, gone=False)
        return stored

    def _time(self) -> str:
        """In whole seconds, as the real one: many objects may be of one age."""
        return (BEGAN + timedelta(seconds=self.clock.now)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _tell(self, kind: Kind, stored: Object, *, gone: bool) -> None:
        for each in tuple(self.changed):
            each(kind, stored, gone)

    def create(self, kind: Kind, body: Object) -> Object:
        name = body["metadata"]["name"]
        if self.find(kind, name) is not None:
            raise AlreadyExists(f"{kind.kind} {name} exists")
        if kind is EVENTS:
            return body
        body = {key: value for key, value in body.items() if key != "status" or kind not in WITH_STATUS}
        if kind in CUSTOM:
            body["status"] = {"observedGeneration": UNOBSERVED}
        made = self._put(kind, body, generation=1)
        if kind is PODS:
            self.clock.call_later(1.0, self._collect, made)
        return made

    def _collect(self, pod: Object) -> None:
        """Garbage collection: a pod whose owner is gone goes too."""
        owners = {each["uid"] for each in pod["metadata"].get("ownerReferences", ())}
        if not any(stored["metadata"]["uid"] in owners for _, stored in self.objects.values()):
            self.delete(PODS, pod["metadata"]["name"], pod["metadata"]["uid"])

    def collect_garbage(self) -> None:
        """Delete whatever has only owners that are gone."""
        uids = {stored["metadata"]["uid"] for _, stored in self.objects.values()}
        for kind, stored in list(self.objects.values()):
            meta = stored["metadata"]
            owners = {each["uid"] for each in meta.get("ownerReferences", ())}
            if owners and not owners & uids:
                self.delete(kind, meta["name"], meta["uid"])

    def replace(self, kind: Kind, body: Object) -> Object:
        name = body["metadata"]["name"]
        stored = self.find(kind, name)
        if stored is None:
            raise NotFound(f"{kind.kind} {name} is not there")
        for key in ("uid", "resourceVersion"):
            if body["metadata"].get(key, stored["metadata"][key]) != stored["metadata"][key]:
                raise Conflict(f"{kind.kind} {name} was changed by another writer")
        if kind in WITH_STATUS:
            status = {"status": stored["status"]} if "status" in stored else {}
            body = {key: value for key, value in body.items() if key != "status"} | status
        return self._finalized(kind, self._put(kind, body))

    def change_spec(self, kind: Kind, name: str, **changes: Any) -> None:
        """What a user's `kubectl patch` does."""
        stored = self.find(kind, name)
        if stored is not None:
            self._put(kind, {**stored, "spec": {**stored["spec"], **changes}})

    def annotate(self, kind: Kind, name: str, annotations: dict[str, str]) -> None:
        """What a user's `kubectl annotate` does."""
        stored = self.find(kind, name)
        if stored is not None:
            known = {**(stored["metadata"].get("annotations") or {}), **annotations}
            self._put(kind, {**stored, "metadata": {**stored["metadata"], "annotations": known}})

    def merge(self, kind: Kind, name: str, fields: Object) -> Object:
        """Of Events, which are not kept."""
        assert kind is EVENTS, f"{kind.kind} {name}"
        return fields

    def patch_status(self, kind: Kind, name: str, status: Object, version: str = "") -> Object:
        stored = self.find(kind, name)
        if stored is None:
            raise NotFound(f"{kind.kind} {name} is not there")
        if version and stored["metadata"]["resourceVersion"] != version:
            raise Conflict(f"{kind.kind} {name} was changed since version {version}")
        return self._put(kind, {**stored, "status": merged(stored.get("status") or {}, status)})

    def delete(self, kind: Kind, name: str, uid: str | None, grace_seconds: int | None = None) -> None:
        """A pod is only marked: its kubelet removes it when its processes ended, unless there is no grace.
        Finalizers hold others.
        """
        stored = self.find(kind, name)
        if stored is None or (uid is not None and stored["metadata"]["uid"] != uid):
            return
        if (kind is PODS and grace_seconds != 0) or stored["metadata"].get("finalizers"):
            if not stored["metadata"].get("deletionTimestamp"):
                self._put(kind, stored, deletionTimestamp=self._time())
        else:
            self.remove(kind, name)

    def _finalized(self, kind: Kind, stored: Object) -> Object:
        """Gone with its last finalizer, when it was to be deleted."""
        meta = stored["metadata"]
        if kind is not PODS and meta.get("deletionTimestamp") and not meta.get("finalizers"):
            self.remove(kind, meta["name"])
        return stored

    def remove(self, kind: Kind, name: str) -> None:
        _, stored = self.objects.pop((kind.plural, name))
        self.version += 1
        # The event of a deletion carries the version of the deletion.
        gone = {**stored, "metadata": {**stored["metadata"], "resourceVersion": str(self.version)}}
        self._tell(kind, gone, gone=True)
        if kind is MEMBERS and (pod := self.find(PODS, name)) is not None:
            self.delete(PODS, name, pod["metadata"]["uid"])

    def touch_tables(self) -> None:
        """Somebody else writes an annotation into the table's objects: the next compare-and-set fails."""
        for kind, stored in list(self.objects.values()):
            if kind is CONFIG_MAPS:
                touched = {"touched": str(self.version)}
                self._put(kind, {**stored, "metadata": {**stored["metadata"], "annotations": touched}})


def copied(value: Any) -> Any:
    """What a client has in its hands is its own."""
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list) else value


def _selected(stored: Object, selector: str) -> bool:
    labels = stored["metadata"].get("labels") or {}
    pairs = [each.partition("=") for each in selector.split(",") if each]
    return all(labels.get(key) == value if equal else key in labels for key, equal, value in pairs)


def _with_version(stored: Object, version: str | None) -> Object:
    meta = {key: value for key, value in stored["metadata"].items() if key != "resourceVersion"}
    return {**stored, "metadata": meta if version is None else {**meta, "resourceVersion": version}}


def _check_size(kind: Kind, stored: Object) -> None:
    if kind is CONFIG_MAPS and sum(map(len, stored.get("data", {}).values())) > CONFIG_MAP_BYTES_MAX:
        raise BadInput(f"{kind.kind}: at most {CONFIG_MAP_BYTES_MAX} bytes are allowed")


class SimApi:
    """What a master holds instead of `adapters.kubernetes.api.Api`: the same calls, the same errors."""

    def __init__(self, server: ApiServer, loop: ProcessLoop) -> None:
        self._server, self._loop = server, loop
        self.told: Callable[[Kind, Object], None] = lambda kind, status: None

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        found = await self.find(kind, namespace, name)
        if found is None:
            raise NotFound(f"{kind.kind} {name} is not there")
        return found

    async def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        found: Object | None = await self._call(False, lambda: self._server.find(kind, name))
        return found

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Object]:
        found: list[Object] = await self._call(False, lambda: self._server.list(kind, selector))
        return found

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        made: Object = await self._call(True, lambda: self._server.create(kind, copied(body)))
        return made

    async def replace(self, kind: Kind, namespace: str, body: Object) -> Object:
        made: Object = await self._call(True, lambda: self._server.replace(kind, copied(body)))
        return made

    async def merge(self, kind: Kind, namespace: str, name: str, fields: Object) -> Object:
        made: Object = await self._call(True, lambda: self._server.merge(kind, name, copied(fields)))
        return made

    async def patch_status(
        self, kind: Kind, namespace: str, name: str, status: Object, version: str = ""
    ) -> Object:
        stored = self._server.find(kind, name)
        if stored is not None and version in ("", stored["metadata"]["resourceVersion"]):
            # What was made from another version is refused, so it says nothing of the object as it is.
            self.told(kind, status)
        made: Object = await self._call(
            True, lambda: self._server.patch_status(kind, name, copied(status), version)
        )
        return made

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str | None, grace_seconds: int | None = None
    ) -> None:
        await self._call(True, lambda: self._server.delete(kind, name, uid, grace_seconds))

    async def _call(self, write: bool, work: Callable[[], Any]) -> Any:
        """Send, and wait for the answer; Unavailable or Uncertain when there is none, as the real client."""
        answer = self._loop.create_future()
        timer = self._loop.call_later(REQUEST_SECONDS, _resolve, answer, (_silence(write), None))
        server, network, here = self._server, self._server.network, self._loop.name
        network.send(here, API_PLACE, lambda: self._arrive(write, work, answer))
        assert server.clock is self._loop.clock
        error, value = await answer
        timer.cancel()
        if error is not None:
            raise error
        return value

    def _arrive(self, write: bool, work: Callable[[], Any], answer: Any) -> None:
        """At the server: whatever became of the master that asked."""
        server, faults, chance = self._server, self._server.faults, self._server.clock.random.random
        if faults.away or chance() < faults.lost:
            server.count("api request lost")
            return
        if chance() < faults.refused:
            server.count("api refused")
            outcome: tuple[SteleError | None, Any] = (_silence(write), None)
        else:
            if write and chance() < faults.conflict:
                server.count("api conflict")
                server.touch_tables()
            outcome = _outcome(work)
        if chance() < faults.unanswered:
            server.count("api answer lost")
            return
        loop, read_at = self._loop, server.version
        back = partial(self._back, write, read_at, answer, outcome)
        server.network.send(API_PLACE, loop.name, back, back=True)

    def _back(self, write: bool, read_at: int, answer: Any, outcome: tuple[SteleError | None, Any]) -> None:
        if not write and read_at < self._server.version:
            self._server.count("api stale read")
        self._loop.call_soon(_resolve, answer, outcome)


def _silence(write: bool) -> SteleError:
    return Uncertain("no answer from the API server") if write else Unavailable("no answer")


def _outcome(work: Callable[[], Any]) -> tuple[SteleError | None, Any]:
    try:
        return None, copied(work())
    except SteleError as error:
        return error, None


def _resolve(answer: Any, outcome: tuple[SteleError | None, Any]) -> None:
    if not answer.done():
        answer.set_result(outcome)
