"""The ConfigMap of the catalog of keyspaces: written, read back, and refused when it is not one."""

import pytest

from stele.core.kv.keyspaces import (
    NO_CATALOG,
    Catalog,
    Mode,
    NearCache,
    Quota,
    Reads,
    Replication,
    Settings,
    Undeclared,
)
from stele.errors import BadInput, Corrupt
from stele.wire.keyspaces import decode_catalog, encode_catalog

CATALOG = Catalog(
    7,
    {
        "b": Settings(mode=Mode.REPLICATED, reads=Reads.AVAILABLE, own_partitions=True),
        "c": Settings(60, mode=Mode.INVALIDATION, local_cache_bytes=1000),
        "a": Settings(60, "KEg$xM", NearCache(1 << 20, 30), Reads.AVAILABLE, Quota(5, 6), Replication.ASYNC),
    },
)


def test_a_catalog_is_one_line_for_each_keyspace() -> None:
    data = encode_catalog(CATALOG)
    assert data["keyspaces"].splitlines() == [
        'a {"ttl_seconds":60,"notify":"KEg$xM",'
        '"near_cache":{"bytes":1048576,"seconds":30},"reads":"Available",'
        '"quota":{"entries":5,"bytes":6},"replication":"Async",'
        '"mode":"Distributed","local_cache_bytes":0,"own_partitions":false}',
        'b {"ttl_seconds":0,"notify":"","near_cache":null,"reads":"Available",'
        '"quota":null,"replication":"Sync","mode":"Replicated","local_cache_bytes":0,'
        '"own_partitions":true}',
        'c {"ttl_seconds":60,"notify":"","near_cache":null,"reads":"Linearizable",'
        '"quota":null,"replication":"Sync","mode":"Invalidation","local_cache_bytes":1000,'
        '"own_partitions":false}',
    ]
    assert decode_catalog(data) == CATALOG
    assert data["undeclared"] == "Allow"
    for each in (NO_CATALOG, Catalog(1, {}, Undeclared.REFUSE)):
        assert decode_catalog(encode_catalog(each)) == each


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"format": "2"}, "reads '1'"),
        ({"more": ""}, "keys are"),
        ({"version": "-1"}, "version is '-1'"),
        ({"version": "9" * 40}, "whole number"),
        ({"undeclared": "Deny"}, "undeclared is 'Deny'; Allow or Refuse was expected"),
        ({"keyspaces": "a\n"}, "'NAME SETTINGS'"),
        ({"keyspaces": 'a {"ttl_seconds":"x"}\n'}, "ttl_seconds"),
        ({"keyspaces": 'a {"replication":"Never"}\n'}, "replication"),
        ({"keyspaces": 'a {"ttl_seconds":-1}\n'}, "ttl of keyspace a is -1"),
        ({"keyspaces": 'a {"mode":"Replicated"}\n'}, "mode Replicated, which needs reads Available"),
        ({"keyspaces": "A {}\n"}, "keyspace is 'A'"),
    ],
)
def test_what_is_not_a_catalog_is_refused(changes: dict[str, str], text: str) -> None:
    with pytest.raises(Corrupt, match=text):
        decode_catalog(encode_catalog(CATALOG) | changes)


def test_what_could_not_be_read_back_is_not_written() -> None:
    with pytest.raises(BadInput, match="keyspace is"):
        encode_catalog(Catalog(1, {"A": Settings()}))
