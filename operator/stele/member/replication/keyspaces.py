"""The catalog of keyspaces as known to this member."""

from collections.abc import Callable, Mapping, Set

from stele.core.kv.commands import Failure
from stele.core.kv.keyspaces import (
    DEFAULTS,
    NO_CATALOG,
    Catalog,
    Mode,
    Quota,
    Reads,
    Replication,
    Settings,
    Undeclared,
)


class Keyspaces:
    """Settings of keyspaces, for lookups in the event loop.

    `available` are those with `reads: Available`, `asynchronous` those with `replication: Async`, `local`
    those with `mode: Invalidation`; `aside` are those whose requests do not run in common batches. `only` are
    those that clients may use, and b"", or it is empty: clients may use any. Each is always the same set.
    `full` are those that may not grow, each with what clients are answered; a process begins without knowing
    any.
    """

    def __init__(self, catalog: Catalog = NO_CATALOG) -> None:
        self.available: set[bytes] = set()
        self.asynchronous: set[bytes] = set()
        self.local: set[bytes] = set()
        self.aside: set[bytes] = set()
        self.only: set[bytes] = set()
        self.full: dict[bytes, Failure] = {}
        self._over_quota: tuple[str, ...] = ()
        self.use(catalog)

    def use(self, catalog: Catalog) -> None:
        """Use a catalog from now on; it is on the volume."""
        self.catalog = catalog
        self._settings = {name.encode(): settings for name, settings in catalog.keyspaces.items()}
        _fill(self.available, self._settings, lambda each: each.reads is Reads.AVAILABLE)
        _fill(self.asynchronous, self._settings, lambda each: each.replication is Replication.ASYNC)
        self.only.clear()
        if catalog.undeclared is Undeclared.REFUSE:
            self.only |= {b"", *self._settings}
        _fill(self.local, self._settings, lambda each: each.mode is Mode.INVALIDATION)
        self.aside.clear()
        self.aside |= self.available | self.local
        self.refuse_growth(self._over_quota)

    def refuse_growth(self, over_quota: tuple[str, ...] | None) -> None:
        """Refuse writes that make these keyspaces larger, and no others; None: the same as until now."""
        if over_quota is None:
            return
        self._over_quota = over_quota
        quotas = ((name, self.settings_of(name.encode()).quota) for name in over_quota)
        self.full = {
            name.encode(): _quota_reached(name, quota) for name, quota in quotas if quota is not None
        }

    @property
    def declared(self) -> Set[bytes]:
        """Names of the declared keyspaces."""
        return self._settings.keys()

    def settings_of(self, keyspace: bytes) -> Settings:
        """Return the settings of a keyspace, the defaults for one that is not declared."""
        return self._settings.get(keyspace, DEFAULTS)


def _quota_reached(name: str, quota: Quota) -> Failure:
    limits = ((quota.entries, "entries"), (quota.bytes, "bytes"))
    text = " and ".join(f"{limit} {unit}" for limit, unit in limits if limit)
    return Failure(
        "OOM", f"keyspace {name} has reached its quota of {text}: delete entries, or raise spec.quota"
    )


def _fill(names: set[bytes], declared: Mapping[bytes, Settings], has_it: Callable[[Settings], bool]) -> None:
    names.clear()
    names |= {name for name, settings in declared.items() if has_it(settings)}
