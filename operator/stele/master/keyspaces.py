"""Keyspace objects: what they declare, the catalog that is made of them, and their statuses."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from stele.adapters.kubernetes.api import CLUSTERS, KEYSPACES, Api
from stele.adapters.kubernetes.keyspace_store import KeyspaceStore
from stele.core.control.state import State
from stele.core.formats import CLEARS
from stele.core.formats import KEYSPACES as KEYSPACES_FORMAT
from stele.core.kv.keyspaces import (
    KEYSPACES_MAX,
    NO_CATALOG,
    Catalog,
    Undeclared,
    fault_of,
    name_fault,
)
from stele.core.kv.keyspaces import Settings as KeyspaceSettings
from stele.core.table.groups import DesiredGroup
from stele.core.table.ids import MemberIndex
from stele.core.table.steps import jump
from stele.errors import SteleError
from stele.master.cache import Cache
from stele.master.dropped_keyspaces import DroppedKeyspaces
from stele.master.keyspace_sizes import EMPTY, ShownSizes, Size, over_quota, quota_conditions, sizes
from stele.master.kstatus import Observed, Progress, Verdict, progress_conditions, with_conditions
from stele.master.placements import Wait, misfit, placement_verdict, shown_placement
from stele.master.status_writer import show
from stele.model import Keyspace, Unreadable
from stele.model.conditions import Reason
from stele.model.keyspace import KeyspaceMembers, KeyspaceStatus, OnDelete, WantedGroup

Object = dict[str, Any]

FINALIZER = "stele.dev/drop-entries"
"""Keeps a Keyspace with `onDelete: Drop` until its entries are deleted."""

MEMBERS_SHOWN = 5
"""Members that a message lists."""


@dataclass
class Declared:
    """What a cluster's Keyspace objects say: settings by keyspace, partitions of their own that keyspaces
    should have, and why objects are refused, by name."""

    settings: dict[str, KeyspaceSettings] = field(default_factory=dict)
    by: dict[str, str] = field(default_factory=dict)
    """The object that declares a keyspace."""
    groups: dict[str, WantedGroup] = field(default_factory=dict)
    refused: dict[str, tuple[Reason, str]] = field(default_factory=dict)

    def add(self, model: Keyspace) -> None:
        """Add an object, after all older ones. Of two that declare one keyspace the older one counts."""
        name, keyspace, settings = model.metadata.name, model.keyspace, model.settings
        if (fault := fault_of(keyspace, settings)) is not None:
            self.refused[name] = Reason.INVALID_RESOURCE, fault
        elif keyspace in self.by:
            text = f"Keyspace {self.by[keyspace]}, which is older, declares {keyspace} already"
            self.refused[name] = Reason.ALREADY_DECLARED, f"{text}: delete one of the two"
        elif len(self.settings) >= KEYSPACES_MAX:
            text = f"{KEYSPACES_MAX} older Keyspaces of this cluster are the most that are possible"
            self.refused[name] = Reason.TOO_MANY_KEYSPACES, f"{text}: delete some of them"
        else:
            self.settings[keyspace], self.by[keyspace] = settings, name
            if (group := model.wanted_group) is not None:
                self.groups[keyspace] = group


class KeyspaceObjects:
    """The Keyspaces of one cluster, and their catalog as it is stored.

    `catalog` was stored before it is seen here, so it may be sent to members. `problem` is why the present
    objects could not be stored, if so. `over_quota` are keyspaces that may not grow; None before
    members have reported. `groups` are partitions of keyspaces that may be added by the stored catalog.
    """

    def __init__(self, api: Api, cache: Cache, store: KeyspaceStore, namespace: str, cluster: str) -> None:
        self._api, self._cache, self._store = api, cache, store
        self._namespace, self._cluster = namespace, cluster
        self._loaded_epoch = 0
        self._since: dict[str, int] = {}
        self._read: dict[str, tuple[Object, Keyspace | Unreadable]] = {}
        self.catalog = NO_CATALOG
        self.dropped = DroppedKeyspaces(self._bump)
        self.over_quota: tuple[str, ...] | None = None
        self.groups: tuple[DesiredGroup, ...] = ()
        self._sizes: dict[str, Size] = {}
        self._shown_sizes = ShownSizes()
        self._waits = ""
        self.problem: SteleError | None = None

    def objects(self) -> list[Object]:
        """Return the stored objects, oldest first."""
        return sorted(of_cluster(self._cache, self._namespace, self._cluster), key=_age)

    def _models(self) -> list[tuple[Object, Keyspace | Unreadable]]:
        """Return each object with its model; each stored version is parsed once."""
        before, self._read = self._read, {}
        for stored in self.objects():
            uid = stored["metadata"]["uid"]
            known = before.get(uid)
            self._read[uid] = known if known and known[0] is stored else (stored, Keyspace.read(stored))
        return list(self._read.values())

    def declared(self) -> Declared:
        """Return what the objects declare; one that cannot be read keeps what is in force."""
        declared = Declared()
        for stored, model in self._models():
            if _is_deleted(stored):
                continue
            if isinstance(model, Unreadable):
                self._keep(declared, stored)
            else:
                declared.add(model)
        return declared

    def _keep(self, declared: Declared, stored: Object) -> None:
        name = _keyspace_of(stored)
        if name in self.catalog.keyspaces and name not in declared.by:
            declared.settings[name] = self.catalog.keyspaces[name]
            declared.by[name] = stored["metadata"]["name"]

    async def ensure(
        self,
        state: State,
        reachable: Collection[MemberIndex],
        undeclared: Undeclared = Undeclared.ALLOW,
        waits: str = "",
    ) -> None:
        """Store the catalog when the objects have changed, and drop entries of deleted ones.

        `waits` says until when no keyspace can get its own partitions, empty when it can.
        """
        self._waits = waits
        self._sizes = sizes(state, reachable)
        try:
            await self._keep_finalizers()
            await self._ensure(state, reachable, undeclared)
            await self._drop(state, reachable)
            self.problem = None
        except SteleError as error:
            self._loaded_epoch, self.problem = 0, error
            raise
        finally:
            self.over_quota = over_quota(self.catalog, self._sizes)

    async def _ensure(self, state: State, reachable: Collection[MemberIndex], undeclared: Undeclared) -> None:
        known = self.catalog.version
        reported = (used for used, _ in _reported(state).values())
        highest = max((each for each in reported if not jump("", known, each)), default=0)
        silent = undeclared is Undeclared.ALLOW and not self._read
        if silent and not highest and self.catalog is NO_CATALOG:
            return
        if self._loaded_epoch != state.epoch or highest > self.catalog.version:
            self._use(await self._store.load())
            self._loaded_epoch = state.epoch
        # After the loss of the ConfigMap members have a later one.
        base, declared = replace(self.catalog, version=max(self.catalog.version, highest)), self.declared()
        for keyspace, group in declared.groups.items():
            own = self._may_be_placed(keyspace, group, state, reachable)
            declared.settings[keyspace] = replace(declared.settings[keyspace], own_partitions=own)
        wanted = base.changed_to(declared.settings, undeclared)
        if wanted is base and base.version > self.catalog.version:
            wanted = base.next()
        if wanted.version > self.catalog.version:
            await self._store.save(wanted)
            self._use(wanted)
        placed = {name for name, each in self.catalog.keyspaces.items() if each.own_partitions}
        self.groups = tuple(
            DesiredGroup(keyspace, *group, self._since[keyspace])
            for keyspace, group in declared.groups.items()
            if keyspace in placed
        )

    def _may_be_placed(
        self, keyspace: str, wanted: WantedGroup, state: State, reachable: Collection[MemberIndex]
    ) -> bool:
        """Return whether a keyspace has partitions of its own, or nothing that is known speaks against it.

        What is known of one that was declared before is what all members have reported since. While none is
        added, nobody is refused for it; that is not taken back, as a decision may just be adding it.
        """
        if state.table.groups.of(keyspace) is not None:
            return True
        if misfit(state, keyspace, wanted) or self._sizes.get(keyspace, EMPTY).entries:
            return False
        before, since = self.catalog.keyspaces.get(keyspace), self._since.get(keyspace, 0)
        if self._waits and (before is None or not before.own_partitions):
            return False
        if before is None or before.own_partitions:
            return True
        reported = _reported(state)
        return reported.keys() <= set(reachable) and all(used >= since for used, _ in reported.values())

    async def _bump(self) -> int:
        catalog = self.catalog.next()
        await self._store.save(catalog)
        self._use(catalog)
        return catalog.version

    async def _keep_finalizers(self) -> None:
        """Give each object the finalizer as long as its entries are to be dropped with it."""
        for stored, model in self._models():
            if isinstance(model, Unreadable) or _is_deleted(stored):
                continue
            await self._finalizer(stored, wanted=model.spec.on_delete is OnDelete.DROP)

    async def _drop(self, state: State, reachable: Collection[MemberIndex]) -> None:
        # An object that this build cannot read is deleted, too: by the two fields that matter for that.
        leaving = [each for each in self.objects() if _is_deleted(each) and _has_finalizer(each)]
        # What another object declares, or no member can have cleared, is kept.
        names = {_keyspace_of(each) for each in leaving if self._drops(each)}
        clearing = names if state.operations.change.features >= CLEARS else set[str]()
        gone = await self.dropped.advance(clearing, self.catalog.version, _reported(state), reachable)
        for stored in leaving:
            if _keyspace_of(stored) not in names or gone:
                await self._finalizer(stored, wanted=False)

    def _drops(self, stored: Object) -> bool:
        keyspace = _keyspace_of(stored)
        wanted = stored["spec"].get("onDelete") == OnDelete.DROP and name_fault(keyspace) is None
        return wanted and keyspace not in self.catalog.keyspaces

    async def _finalizer(self, stored: Object, *, wanted: bool) -> None:
        await set_finalizer(self._api, self._cache, stored, wanted=wanted)

    def _use(self, catalog: Catalog) -> None:
        """Take a stored catalog, and note since which version each keyspace has its settings."""
        before = self.catalog.keyspaces
        self._since = {
            name: self._since[name] if before.get(name) == settings else catalog.version
            for name, settings in catalog.keyspaces.items()
        }
        self.catalog = catalog

    def statuses(self, state: State, clock: datetime) -> list[tuple[Object, KeyspaceStatus]]:
        """Return the status of each object."""
        declared, found = self.declared(), []
        self._shown_sizes.keep(self._read.keys())
        for stored, model in self._models():
            if isinstance(model, Unreadable):
                found.append((stored, _invalid(stored, model, clock)))
            elif not _is_deleted(stored):
                found.append((stored, self._status(model, declared, state, clock)))
            else:
                verdict: Verdict = Progress.UNDER_WAY, Reason.DROPPING, "its entries are being deleted"
                found.append((stored, status_of(model, verdict, clock)))
        return found

    def _status(self, model: Keyspace, declared: Declared, state: State, clock: datetime) -> KeyspaceStatus:
        keyspace = model.keyspace
        reported = {index: used for index, (used, _) in _reported(state).items()}
        declares = declared.by.get(keyspace) == model.metadata.name
        known = self.catalog.keyspaces.get(keyspace)
        stored = declares and known is not None and replace(known, own_partitions=False) == model.settings
        version = self._since[keyspace] if stored else 0
        behind = [state.name_of(index) for index, has in sorted(reported.items()) if not 0 < version <= has]
        counts = KeyspaceMembers(total=len(reported), current=len(reported) - len(behind))
        verdict = self._verdict(model, declared, state, version, behind)
        size = self._size(model, clock) if declares else EMPTY
        return status_of(
            model,
            verdict,
            clock,
            quota_conditions(model, size),
            catalog_version=version,
            members=counts,
            placement=shown_placement(state, keyspace),
            entries=size.entries,
            bytes=size.bytes,
        )

    def _size(self, model: Keyspace, clock: datetime) -> Size:
        before = Size(model.status.entries, model.status.bytes)
        size = self._sizes.get(model.keyspace, EMPTY)
        return self._shown_sizes.of(model.metadata.uid, before, size, model.settings.quota, clock)

    def _verdict(
        self, model: Keyspace, declared: Declared, state: State, version: int, behind: list[str]
    ) -> Verdict:
        refused = declared.refused.get(model.metadata.name)
        if refused is not None:
            return Progress.STALLED, *refused
        if self.problem is not None and not version:
            return Progress.STALLED, Reason.CREATION_REFUSED, f"the catalog is not stored: {self.problem}"
        if state.operations.change.features < KEYSPACES_FORMAT:
            text = "it takes effect once all members run a version that knows keyspaces"
            return Progress.UNDER_WAY, Reason.MEMBERS_OUTDATED, text
        if not version or behind:
            waits = ", ".join(behind[:MEMBERS_SHOWN]) + (" and others" if len(behind) > MEMBERS_SHOWN else "")
            text = f"members that do not use these settings yet: {waits}"
            return Progress.UNDER_WAY, Reason.WAITS_FOR_MEMBERS, text
        entries = self._sizes.get(model.keyspace, EMPTY).entries
        held = self.catalog.keyspaces[model.keyspace].own_partitions
        wait = Wait(self._waits, held=held)
        if (placement := placement_verdict(model, state, entries, wait)) is not None:
            return placement
        return Progress.DONE, Reason.AS_DESIRED, "all members use these settings"


def _age(stored: Object) -> tuple[str, str]:
    meta = stored["metadata"]
    return str(meta.get("creationTimestamp", "")), meta["name"]


def _keyspace_of(stored: Object) -> str:
    return str(stored["spec"].get("name") or stored["metadata"]["name"])


def _is_deleted(stored: Object) -> bool:
    return bool(stored["metadata"].get("deletionTimestamp"))


def _has_finalizer(stored: Object) -> bool:
    return FINALIZER in (stored["metadata"].get("finalizers") or ())


def of_cluster(cache: Cache, namespace: str, cluster: str) -> list[Object]:
    return [
        each
        for each in cache.all(KEYSPACES)
        if each["metadata"]["namespace"] == namespace and each["spec"].get("cluster") == cluster
    ]


def _reported(state: State) -> dict[MemberIndex, tuple[int, int]]:
    """Return, of each member of the list, the catalog's version that it uses, and for which it has cleared
    keyspaces, as last reported; 0 for none."""
    found: dict[MemberIndex, tuple[int, int]] = {}
    for index in state.table.members:
        liveness = state.membership.liveness.get(index)
        report = None if liveness is None else liveness.report
        found[index] = (0, 0) if report is None else (report.catalog_version, report.cleared)
    return found


def status_of(
    model: Keyspace, verdict: Verdict, clock: datetime, more: Iterable[Observed] = (), **fields: Any
) -> KeyspaceStatus:
    generation = model.metadata.generation
    observed = [*progress_conditions(verdict), *more]
    conditions = with_conditions(model.status.conditions, observed, generation, clock)
    return KeyspaceStatus(
        observed_generation=generation, keyspace=model.keyspace, conditions=conditions, **fields
    )


def _invalid(stored: Object, why: Unreadable, clock: datetime) -> KeyspaceStatus:
    before = KeyspaceStatus.model_validate(stored.get("status") or {})
    verdict = Progress.STALLED, Reason.INVALID_RESOURCE, str(why)
    conditions = with_conditions(before.conditions, progress_conditions(verdict), why.generation, clock)
    return before.model_copy(update={"observed_generation": why.generation, "conditions": conditions})


async def set_finalizer(api: Api, cache: Cache, stored: Object, *, wanted: bool) -> None:
    """Add or remove our finalizer, unless the object is as wanted. Raises Conflict when it has changed."""
    meta = stored["metadata"]
    finalizers = [each for each in meta.get("finalizers") or () if each != FINALIZER]
    if wanted:
        finalizers.append(FINALIZER)
    if finalizers != (meta.get("finalizers") or []):
        body = {**stored, "metadata": {**meta, "finalizers": finalizers}}
        cache.put(KEYSPACES, await api.replace(KEYSPACES, meta["namespace"], body))


async def report_without_cluster(api: Api, cache: Cache, clock: datetime) -> None:
    """Report Keyspaces of a cluster that does not exist; nothing is left to drop with a deleted one."""
    clusters = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in cache.all(CLUSTERS)}
    for stored in list(cache.all(KEYSPACES)):
        if (stored["metadata"]["namespace"], stored["spec"].get("cluster")) in clusters:
            continue
        if _is_deleted(stored):
            await set_finalizer(api, cache, stored, wanted=False)
            continue
        model = Keyspace.read(stored)
        if isinstance(model, Unreadable):
            continue
        text = f"no TabletCluster here is named {model.spec.cluster}; create it, or delete this Keyspace"
        verdict: Verdict = Progress.STALLED, Reason.CLUSTER_NOT_FOUND, text
        await show(api, cache, KEYSPACES, stored, status_of(model, verdict, clock))
