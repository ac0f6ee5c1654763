"""The file of users: what is written is read back, and no bytes are read in part or raise anything else."""

import hashlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.errors import BadInput, Corrupt
from stele.wire.users import (
    CONNECTIONS_MAX,
    FILE_BYTES_MAX,
    USERS_MAX,
    Scrypt,
    UserEntry,
    chosen_hash,
    decode_users,
    encode_files,
    encode_users,
    entry_bytes,
    generated_hash,
    read_hash,
)

HASH = generated_hash(b"x" * 43)
SALT = b"0123456789abcdef"

_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
_hashes = st.one_of(
    st.binary(max_size=40).map(generated_hash),
    st.just(f"scrypt:1024:8:1:{SALT.hex()}:{'0' * 64}"),
)
_entries = st.builds(
    UserEntry,
    name=_names,
    passwords=st.lists(_hashes, max_size=2).map(tuple),
    rules=st.lists(st.sampled_from(["+@all", "-get", "~a:*", "%R~b", "&c", "resetkeys"]), max_size=4).map(
        tuple
    ),
    keyspaces=st.lists(st.sampled_from(["shop", "default", "db7"]), max_size=3).map(tuple),
    active=st.booleans(),
    connections_max=st.integers(0, CONNECTIONS_MAX),
)


@given(st.lists(_entries, max_size=6, unique_by=lambda user: user.name))
def test_users_are_read_as_they_were_written(users):
    data = encode_users(users)
    assert decode_users(data) == tuple(sorted(users, key=lambda user: user.name))
    assert encode_users(list(reversed(users))) == data


@settings(max_examples=500)
@given(st.data())
def test_changed_bytes_are_another_file_or_corrupt(data):
    whole = bytearray(encode_users([UserEntry("a", (HASH,), ("+@all",)), UserEntry("b", (), (), ("shop",))]))
    for at, byte in data.draw(
        st.dictionaries(st.integers(0, len(whole) - 1), st.integers(0, 255), max_size=4)
    ).items():
        whole[at] = byte
    cut = data.draw(st.integers(0, len(whole)))
    try:
        users = decode_users(bytes(whole[:cut]))
    except Corrupt:
        return
    assert decode_users(encode_users(users)) == tuple(sorted(users, key=lambda user: user.name))


@given(st.binary(max_size=200))
def test_other_bytes_are_corrupt(data):
    with pytest.raises(Corrupt, match="file of users: "):
        decode_users(data)


def raw(**fields):
    user = {"name": "a", "passwords": [HASH], "rules": ["+@all"], "keyspaces": [], **fields}
    return msgspec.json.encode({"format": 1, "users": [user]})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": "a b"}, "name: expected 1 to 63"),
        ({"name": 7}, "$.users[0].name"),
        ({"passwords": [HASH] * 3}, "$.users[0].passwords"),
        ({"passwords": ["secret"]}, "passwords[0]: expected sha256:HEX or scrypt"),
        ({"passwords": [f"scrypt:1000:8:1:{SALT.hex()}:{'0' * 64}"]}, "passwords[0]: N is 1000"),
        ({"passwords": [f"scrypt:65536:8:1:{SALT.hex()}:{'0' * 64}"]}, "128*N*R*P up to"),
        ({"passwords": [f"scrypt:131072:1:1:{SALT.hex()}:{'0' * 64}"]}, "N a power of 2 below 2^(16*R)"),
        ({"passwords": [f"scrypt:1024:8:1:00:{'0' * 64}"]}, "expected 16 to 64 bytes"),
        ({"rules": ["+nosuch"]}, "rules: Error in ACL rule '+nosuch'"),
        ({"rules": [">hunter22pw"]}, "rules: Error in ACL rule '>...': passwords are no rules"),
        ({"keyspaces": ["7"]}, "keyspaces: keyspace is '7'"),
        ({"connections_max": -1}, "$.users[0].connections_max"),
        ({"bytes_per_second": 5}, "bytes_per_second is 5; expected 0, or 1024 to"),
        ({"extra": 1}, "unknown field `extra`"),
    ],
)
def test_an_impossible_field_is_named(fields, text):
    with pytest.raises(Corrupt) as caught:
        decode_users(raw(**fields))
    assert text in caught.value.text


def test_users_that_cannot_be_stored_are_refused():
    with pytest.raises(BadInput, match="a second time"):
        encode_users([UserEntry("a", (), ()), UserEntry("a", (), ())])
    with pytest.raises(BadInput, match=f"at most {USERS_MAX}"):
        encode_users([UserEntry(f"u{number}", (), ()) for number in range(USERS_MAX + 1)])
    rules = tuple(f"~{'x' * 200}{number}" for number in range(60))
    with pytest.raises(BadInput, match=f"at most {FILE_BYTES_MAX}"):
        encode_users([UserEntry(f"u{number}", (), rules) for number in range(100)])
    with pytest.raises(BadInput, match=r"passwords: 3 values"):
        encode_users([UserEntry("a", (HASH,) * 3, ())])
    with pytest.raises(BadInput, match=r"connections_max is -1"):
        encode_users([UserEntry("a", (), (), connections_max=-1)])


SHOP, TILL = "uri:spiffe://example.com/shop", "cn:till"


def entry(name, certificate, **more):
    return UserEntry(name, (), ("+@all",), certificate=certificate, **more)


def test_certificates_are_in_a_file_of_their_own_and_read_back():
    """Versions that do not know certificates read the file of users whole, and let nobody in by one."""
    held = [entry("a", SHOP), UserEntry("b", (HASH,), ()), entry("c", TILL)]
    files = encode_files(held)
    without = [msgspec.structs.replace(each, certificate="") for each in held]
    assert files.users == encode_users(without)
    assert files.certificates == b'{"format":1,"certificates":{"a":"%s","c":"%s"}}' % (
        SHOP.encode(),
        TILL.encode(),
    )
    assert decode_users(*files) == tuple(held)
    assert decode_users(files.users) == tuple(without)
    assert encode_files(without).certificates == b""


def test_a_digest_is_that_of_both_files():
    """Without certificates it is the one that versions without them report."""
    one, other = encode_files([entry("a", SHOP)]), encode_files([entry("a", TILL)])
    assert one.digest != other.digest
    assert encode_files([entry("a", "")]).digest == hashlib.sha256(one.users).hexdigest()


@pytest.mark.parametrize(
    ("certificates", "text"),
    [
        (b"[]", "file of certificates: "),
        (b'{"format":2,"certificates":{}}', "format is 2; this version of Stele reads 1"),
        (b'{"format":1,"certificates":{},"more":1}', "unknown field `more`"),
        (b'{"format":1,"certificates":{"z":"cn:z"}}', "user 'z' is not in the file of users"),
        (b'{"format":1,"certificates":{"a":"cn:x","b":"cn:x"}}', "'b': certificate is that of 'a'"),
        (
            b'{"format":1,"certificates":{"a":"x"}}',
            "certificate: 'x'; expected uri: and a URI of at most 512",
        ),
        (b'{"format":1,"certificates":{"a":"cn:"}}', "certificate: 'cn:'; expected uri"),
        (b'{"format":1,"certificates":{"a":"uri:spiffe://a b"}}', "certificate: 'uri:spiffe://a b'"),
        (b'{"format":1,"certificates":{"a":"uri:Stele://u/member/m"}}', "is of a part of a cluster"),
        (b'{"format":1,"certificates":{"a":"cn:%s"}}' % (b"x" * 65), "cn: and 1 to 64 characters"),
    ],
)
def test_impossible_certificates_are_named(certificates, text):
    users = encode_users([entry("a", ""), entry("b", "")])
    with pytest.raises(Corrupt) as caught:
        decode_users(users, certificates)
    assert text in caught.value.text


def test_users_that_share_a_certificate_and_too_many_bytes_are_not_written():
    with pytest.raises(BadInput, match="'b': certificate is that of 'a'"):
        encode_files([entry("a", TILL), entry("b", TILL)])
    many = [entry(f"u{number}", f"uri:x:{number}{'x' * 490}") for number in range(999)]
    assert sum(map(entry_bytes, many)) >= sum(map(len, encode_files(many))) - 100
    rules = tuple(f"~{'x' * 100}{number}" for number in range(3))
    with pytest.raises(BadInput, match=f"at most {FILE_BYTES_MAX} fit"):
        encode_files([msgspec.structs.replace(each, rules=rules) for each in many])


def test_another_format_and_too_many_bytes_are_refused():
    with pytest.raises(Corrupt, match="this version of Stele reads 1") as caught:
        decode_users(b'{"format":2,"people":[]}')
    assert caught.value.code == "UNKNOWN_FORMAT"
    with pytest.raises(Corrupt, match=f"at most {FILE_BYTES_MAX}"):
        decode_users(b" " * (FILE_BYTES_MAX + 1))


def test_passwords_are_checked_with_what_is_stored():
    assert read_hash(HASH) == hashlib.sha256(b"x" * 43).digest()
    chosen = read_hash(chosen_hash(b"hunter2", SALT))
    assert isinstance(chosen, Scrypt)
    assert chosen.compute(b"hunter2") == chosen.digest
    assert chosen.compute(b"hunter3") != chosen.digest
