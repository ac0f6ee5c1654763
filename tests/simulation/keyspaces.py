"""Users who declare keyspaces, change their settings, and take that back, with or without the entries."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stele.adapters.kubernetes.api import KEYSPACES
from stele.core.control import commands as m
from stele.core.kv.keyspaces import Catalog
from tests.fakes.objects import body
from tests.simulation.kinds import DECLARE
from tests.simulation.profile import CLUSTER

if TYPE_CHECKING:
    from tests.simulation.faults import Faults
    from tests.simulation.world import World

ONE_PER_VERSION = "one catalog per version"
STORED_FIRST = "catalogs are stored before they are sent"
TTL_SECONDS = (0, 5_000, 9_000)
"""Longer than any run: what clients see does not change, what replicas store does."""


class KeyspaceFaults:
    """Three objects: two declare the keyspace of the clients, one another, which goes with its entries."""

    def __init__(self, faults: "Faults") -> None:
        self._faults, self._api = faults, faults.api
        self.todo: dict[str, Callable[[], bool]] = {DECLARE: self._declare}

    def _declare(self) -> bool:
        random = self._faults.random
        name = random.choice(("first", "second", "unused"))
        stored = self._api.find(KEYSPACES, name)
        if stored is None:
            spec: dict[str, Any] = {"cluster": CLUSTER, "ttl": random.choice(TTL_SECONDS)}
            spec |= {"onDelete": "Drop"} if name == "unused" else {"name": "default"}
            self._api.create(KEYSPACES, body(KEYSPACES, name, spec))
            return self._faults.say(f"the user declares {name}: {spec}", "user")
        if random.random() < 0.5:
            self._api.delete(KEYSPACES, name, None)
            return self._faults.say(f"the user deletes {name}", "user")
        changes = {"ttl": random.choice(TTL_SECONDS)}
        self._api.change_spec(KEYSPACES, name, **changes)
        return self._faults.say(f"the user changes {name}: {changes}", "user")


class Catalogs:
    """What is stored is there before members are sent it, and no version is used twice."""

    def __init__(self, world: "World", check: Callable[..., None]) -> None:
        self._check = check
        self._stored: dict[int, Catalog] = {}
        world.exchanged.append(self._exchanged)

    def stored(self, catalog: Catalog) -> None:
        known = self._stored.setdefault(catalog.version, catalog)
        self._check(ONE_PER_VERSION, known == catalog, "{} after {}", catalog, known)

    def _exchanged(self, place: str, request: m.ExchangeRequest, reply: m.ExchangeReply) -> None:
        catalog = request.catalog
        if catalog is not None:
            found = self._stored.get(catalog.version)
            self._check(STORED_FIRST, found == catalog, "{} is sent {}, {} is stored", place, catalog, found)


def undeclared(world: "World") -> str:
    """What is not yet as users have declared it; empty when all is."""
    objects = world.api.list(KEYSPACES)
    if world.missed() or not objects:
        return ""
    for stored in objects:
        name, status = stored["metadata"]["name"], stored.get("status") or {}
        ready = {each["type"]: each["reason"] for each in status.get("conditions", ())}.get("Ready")
        if stored["metadata"].get("deletionTimestamp"):
            return f"keyspace {name} is still being deleted"
        if ready not in ("AsDesired", "AlreadyDeclared", "NotEmpty"):
            return f"keyspace {name} is not ready: {ready}"
    wanted = {each["spec"].get("name") or each["metadata"]["name"] for each in objects}
    ttls = {each["spec"]["ttl"] for each in objects if each["spec"].get("name")}
    for machine in world.present():
        node = machine.node
        if node is None:
            return f"{machine.place} starts"
        found = node.table.keyspaces.catalog.keyspaces
        if set(found) != wanted or (ttls and found["default"].ttl_seconds not in ttls):
            return f"{machine.place} has the keyspaces {found}"
    return ""
