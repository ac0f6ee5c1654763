"""The catalog of keyspaces: names, limits, versions."""

import pytest

from stele.core.kv.keyspaces import (
    KEYSPACES_MAX,
    NO_CATALOG,
    Catalog,
    Mode,
    NearCache,
    Quota,
    Reads,
    Replication,
    Settings,
    Undeclared,
    catalog_fault,
    name_fault,
)


@pytest.mark.parametrize("name", ["default", "db7", "a", "0-a", "x" * 63])
def test_a_name_that_clients_can_select(name: str) -> None:
    assert name_fault(name) is None


@pytest.mark.parametrize("name", ["", "-a", "A", "a.b", "@@tx", "x" * 64, "7", "ä"])
def test_a_name_that_clients_cannot_select(name: str) -> None:
    fault = name_fault(name)
    assert fault is not None
    assert repr(name[:80]) in fault


def test_the_version_grows_only_with_a_change() -> None:
    first = NO_CATALOG.changed_to({"a": Settings(ttl_seconds=5)})
    assert first.version == 1
    assert first.changed_to({"a": Settings(ttl_seconds=5)}) is first
    assert first.changed_to({}) == Catalog(2)
    refused = first.changed_to(first.keyspaces, Undeclared.REFUSE)
    assert refused == Catalog(2, first.keyspaces, Undeclared.REFUSE)
    assert refused.next() == Catalog(3, first.keyspaces, Undeclared.REFUSE)


@pytest.mark.parametrize(
    ("catalog", "text"),
    [
        (Catalog(-1), "version is -1"),
        (Catalog(1, {f"k{n}": Settings() for n in range(KEYSPACES_MAX + 1)}), "1001 keyspaces"),
        (Catalog(1, {"a": Settings(ttl_seconds=-1)}), "ttl of keyspace a is -1"),
        (Catalog(1, {"a": Settings(notify="KQ")}), "notify of keyspace a is 'KQ'"),
        (Catalog(1, {"a": Settings(near_cache=NearCache(0, 5))}), "nearCache.bytes of keyspace a is 0"),
        (Catalog(1, {"a": Settings(near_cache=NearCache(5, 0))}), "nearCache.seconds of keyspace a is 0"),
        (Catalog(1, {"a": Settings(quota=Quota(-1, 5))}), "quota.entries of keyspace a is -1; expected 1 to"),
        (Catalog(1, {"a": Settings(quota=Quota(5, -1))}), "quota.bytes of keyspace a is -1; expected 1 to"),
        (Catalog(1, {"A": Settings()}), "keyspace is 'A'"),
    ],
)
def test_an_impossible_catalog(catalog: Catalog, text: str) -> None:
    assert text in str(catalog_fault(catalog))


def test_a_possible_catalog() -> None:
    settings = Settings(60, "KEA$M", NearCache(1 << 20, 30))
    assert catalog_fault(Catalog(1, {"a": settings, "default": Settings()})) is None


@pytest.mark.parametrize(
    ("quota", "size", "reached"),
    [
        (Quota(), (10**9, 10**9), False),
        (Quota(entries=5), (4, 10**9), False),
        (Quota(entries=5), (5, 0), True),
        (Quota(bytes=5), (10**9, 4), False),
        (Quota(bytes=5), (0, 6), True),
        (Quota(5, 5), (0, 5), True),
    ],
)
def test_a_quota_is_reached_by_entries_or_by_bytes(
    quota: Quota, size: tuple[int, int], reached: bool
) -> None:
    assert quota.reached(*size) is reached


def _cache(**others: object) -> Settings:
    return Settings(mode=Mode.INVALIDATION, **{"local_cache_bytes": 1000, **others})  # type: ignore[arg-type]


def test_a_cache_may_have_an_expiry_only() -> None:
    assert catalog_fault(Catalog(1, {"a": _cache(), "b": _cache(ttl_seconds=60)})) is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (_cache(local_cache_bytes=0), "localCache.bytes of keyspace a is 0; expected 1 to"),
        (_cache(local_cache_bytes=2**41), "localCache.bytes of keyspace a is 2199023255552; expected 1 to"),
        (Settings(local_cache_bytes=1), "localCache.bytes of keyspace a takes mode Invalidation"),
        (_cache(notify="KEA"), "keyspace a has mode Invalidation: notify"),
        (_cache(near_cache=NearCache(1, 1)), "keyspace a has mode Invalidation: notify, nearCache"),
        (_cache(reads=Reads.AVAILABLE), "keyspace a has mode Invalidation"),
        (_cache(quota=Quota(1, 1)), "keyspace a has mode Invalidation"),
        (_cache(replication=Replication.ASYNC), "keyspace a has mode Invalidation"),
    ],
)
def test_what_makes_no_sense_with_a_mode_is_refused(settings: Settings, text: str) -> None:
    fault = catalog_fault(Catalog(1, {"a": settings}))
    assert fault is not None
    assert fault.startswith(text)
