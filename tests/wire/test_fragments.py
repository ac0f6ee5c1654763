"""The plan of a tablet: every key in exactly one fragment, whatever the tablet says of its keyspaces."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.control.commands import OpId
from stele.errors import BadInput, Corrupt
from stele.wire.copy import fragments
from stele.wire.copy.fragments import place_text, plan, read_place, service_keyspace, travels_alone
from stele.wire.copy.jobs import MANIFEST_FORMAT, Fragment, Manifest, decode_manifest
from stele.wire.storage.keys import meta_key, tablet_range, user_key

P, G = 7, 3
LARGE = fragments.GATHERED_BYTES
keyspaces = st.sampled_from([b"", b"a", b"b", b"map1", b"map2", b"@quota", b"@lock/x", b"longer-name"])
keys_strategy = st.lists(
    st.one_of(
        st.builds(lambda name: meta_key(P, G, name), st.binary(max_size=5)),
        st.builds(lambda space, key: user_key(P, G, space, key), keyspaces, st.binary(max_size=5)),
        st.binary(max_size=8).map(lambda rest: tablet_range(P, G)[0] + rest),
    ),
    unique=True,
)


def holders(made, key):
    return [n for n, each in enumerate(made) if any(begin <= key < end for begin, end in each.ranges)]


@given(keys_strategy, st.dictionaries(keyspaces, st.sampled_from([(1, 1), (1, LARGE), (1, 3 * LARGE)])))
def test_every_key_is_in_one_fragment_named_or_not(found, named):
    made = plan(P, G, named)
    for key in found:
        assert len(holders(made, key)) == 1
    assert sorted(name for each in made for name in each.namespaces) == sorted(named)
    for each in made:
        assert all(begin < end for begin, end in each.ranges)
        assert all(one[1] < other[0] for one, other in pairwise(each.ranges))


def test_services_share_the_first_and_each_large_keyspace_is_one_of_its_own():
    large = (10, 2 * LARGE)
    named = dict.fromkeys((b"map1", b"", b"@lock/b", b"map2", b"@queue", b"@lock/a", b"cache1"), large)
    made = plan(P, G, named)
    assert [each.namespaces for each in made] == [
        (b"", b"@queue"),
        (b"map1",),
        (b"map2",),
        (b"cache1",),
        (b"@lock/a",),
        (b"@lock/b",),
    ]
    assert holders(made, meta_key(P, G, b"applied")) == [5]
    assert (
        holders(made, user_key(P, G, b"", b"once")) == holders(made, user_key(P, G, b"@queue", b"q")) == [0]
    )
    assert holders(made, user_key(P, G, b"not told of", b"k")) == [0]


def test_what_is_small_is_one_piece():
    assert [each.ranges for each in plan(P, G, {b"": (1, 9), b"a": (1, 9)})] == [(tablet_range(P, G),)]
    assert [each.ranges for each in plan(P, G, {})] == [(tablet_range(P, G),)]


def test_who_travels_alone():
    spaces = [b"", b"default", service_keyspace("quota"), service_keyspace("lock", "a")]
    assert spaces[2:] == [b"@quota", b"@lock/a"]
    assert [travels_alone(each) for each in spaces] == [False, True, False, True]


@given(st.integers(0, 99_999), st.binary(max_size=100))
def test_places_are_read_as_they_were_told(number, key):
    assert read_place(place_text(number, key)) == (number, key)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.", "1.f", "1.FF", "1.00.00", "123456", "1 "])
def test_a_wrong_place_is_named(text):
    with pytest.raises(BadInput, match="at is '"):
        read_place(text)


def piece(at, following, **changes):
    made = Fragment(at, following, {"a": (5, 4)}, 1, 10, "x.sst", 3, 1)
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([], "it ends at '0'"),
        ([piece("0", "1")], "it ends at '1'"),
        ([piece("1", "")], "fragment 0 begins at '1', the one before ended at '0'"),
        ([piece("0", "1"), piece("2", "")], "fragment 1 begins at '2'"),
        ([piece("0", ""), piece("", "")], "fragment 1 follows the last one"),
        ([piece("0", "", file="../x")], "names the file"),
        ([piece("0", "", namespaces={"a": (6,)})], "expected -1 to 5"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(parts, text):
    manifest = Manifest(MANIFEST_FORMAT, "s", P, 1, 2, OpId(1, 5), tuple(parts))
    with pytest.raises(Corrupt, match=r"manifest s/7\.json: .*" + text):
        decode_manifest(msgspec.json.encode(manifest), "s/7.json")


def test_a_manifest_is_read_as_it_was_written():
    parts = (piece("0", "1"), piece("1", "1.00ff"), piece("1.00ff", "", file="", entries=0))
    manifest = Manifest(MANIFEST_FORMAT, "s", P, 1, 2, OpId(1, 5), parts)
    assert decode_manifest(msgspec.json.encode(manifest), "s/7.json") == manifest
    assert (manifest.entries, manifest.bytes, manifest.files) == (2, 30, ["x.sst", "x.sst"])


@pytest.mark.parametrize("content", [b'{"format":1,"entries":3}', b'{"format":3}'])
def test_another_format_is_named(content):
    with pytest.raises(Corrupt, match=r"format is .*, expected 2") as raised:
        decode_manifest(content, "s/7.json")
    assert raised.value.code == "UNKNOWN_FORMAT"


@given(st.binary(max_size=60))
def test_no_bytes_crash_reading_a_manifest(content):
    with pytest.raises(Corrupt):
        decode_manifest(content, "m")
