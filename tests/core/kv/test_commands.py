"""Each single-key command on a missing, a present and an expired entry, and Redis's error texts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.kv import commands
from stele.core.kv.commands import (
    ARITIES,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    Delete,
    Failure,
    Put,
    Simple,
    evaluate,
)

NOW = 1_000_000
OK = Simple("OK")
DEL = Delete(b"k")


def run(text, stored=None, now=NOW):
    made = evaluate([word.encode() for word in text.split()], stored, now)
    return made.reply, made.op


def put(value, expire=0):
    return Put(b"k", value, expire)


@pytest.mark.parametrize(
    ("text", "stored", "reply", "op"),
    [
        ("GET k", None, None, None),
        ("get k", (b"v", 0), b"v", None),
        ("GET k", (b"v", NOW), None, None),
        ("GET k", (b"v", NOW + 1), b"v", None),
        ("SET k v", None, OK, put(b"v")),
        ("SET k v", (b"o", NOW + 9), OK, put(b"v")),
        ("SET k v EX 2", None, OK, put(b"v", NOW + 2000)),
        ("SET k v px 7", None, OK, put(b"v", NOW + 7)),
        ("SET k v EXAT 2000", None, OK, put(b"v", 2_000_000)),
        ("SET k v PXAT 1000001", None, OK, put(b"v", NOW + 1)),
        ("SET k v PXAT 5", (b"o", 0), OK, DEL),
        ("SET k v PXAT 5", None, OK, None),
        ("SET k v NX", None, OK, put(b"v")),
        ("SET k v NX", (b"o", 0), None, None),
        ("SET k v NX", (b"o", NOW - 1), OK, put(b"v")),
        ("SET k v XX", None, None, None),
        ("SET k v XX", (b"o", 0), OK, put(b"v")),
        ("SET k v GET", (b"o", 0), b"o", put(b"v")),
        ("SET k v NX GET", (b"o", 0), b"o", None),
        ("SET k v KEEPTTL", (b"o", NOW + 5), OK, put(b"v", NOW + 5)),
        ("SET k v KEEPTTL", (b"o", NOW - 5), OK, put(b"v")),
        ("SETNX k v", (b"o", 0), 0, None),
        ("SETNX k v", None, 1, put(b"v")),
        ("SETEX k 3 v", None, OK, put(b"v", NOW + 3000)),
        ("PSETEX k 3 v", None, OK, put(b"v", NOW + 3)),
        ("GETSET k v", (b"o", NOW + 4), b"o", put(b"v")),
        ("GETDEL k", (b"o", 0), b"o", DEL),
        ("GETDEL k", None, None, None),
        ("GETEX k", (b"o", NOW + 1), b"o", None),
        ("GETEX k", None, None, None),
        ("GETEX k EX 2", (b"o", 0), b"o", Put(b"k", b"o", NOW + 2000)),
        ("GETEX k PERSIST", (b"o", NOW + 1), b"o", put(b"o")),
        ("GETEX k PERSIST", (b"o", 0), b"o", None),
        ("GETEX k PXAT 5", (b"o", 0), b"o", DEL),
        ("GETRANGE k 1 -2", (b"abcd", 0), b"bc", None),
        ("GETRANGE k -2 9", (b"abcd", 0), b"cd", None),
        ("GETRANGE k 0 -100", (b"abcd", 0), b"a", None),
        ("SUBSTR k 0 1", None, b"", None),
        ("SETRANGE k 2 x", None, 3, put(b"\0\0x")),
        ("SETRANGE k 1 x", (b"abc", NOW + 1), 3, put(b"axc", NOW + 1)),
        ("EXPIRETIME k", (b"", NOW + 1500), 1002, None),
        ("EXPIRETIME k", (b"", 0), -1, None),
        ("PEXPIRETIME k", (b"", NOW + 15), NOW + 15, None),
        ("PEXPIRETIME k", None, -2, None),
        ("INCRBYFLOAT k 0.1", (b"0.2", NOW + 1), b"0.3", put(b"0.3", NOW + 1)),
        ("DEL k", (b"o", 0), 1, DEL),
        ("DEL k", (b"o", NOW), 0, None),
        ("UNLINK k", (b"o", 0), 1, DEL),
        ("EXISTS k", (b"o", 0), 1, None),
        ("TOUCH k", None, 0, None),
        ("INCR k", None, 1, put(b"1")),
        ("INCR k", (b"-1", NOW + 8), 0, put(b"0", NOW + 8)),
        ("DECR k", (b"10", 0), 9, put(b"9")),
        ("INCRBY k -5", (b"2", 0), -3, put(b"-3")),
        ("DECRBY k 5", None, -5, put(b"-5")),
        ("APPEND k xy", (b"o", NOW + 1), 3, put(b"oxy", NOW + 1)),
        ("STRLEN k", (b"abc", 0), 3, None),
        ("TYPE k", (b"abc", 0), Simple("string"), None),
        ("TYPE k", None, Simple("none"), None),
        ("TTL k", None, -2, None),
        ("TTL k", (b"", 0), -1, None),
        ("TTL k", (b"", NOW + 1499), 1, None),
        ("PTTL k", (b"", NOW + 1499), 1499, None),
        ("PERSIST k", (b"v", NOW + 1), 1, put(b"v")),
        ("PERSIST k", (b"v", 0), 0, None),
        ("EXPIRE k 10", (b"v", 0), 1, put(b"v", NOW + 10_000)),
        ("EXPIRE k 10", None, 0, None),
        ("EXPIRE k -1", (b"v", 0), 1, DEL),
        ("EXPIREAT k 0", (b"v", 0), 1, DEL),
        ("PEXPIREAT k -5", (b"v", 0), 1, DEL),
        ("PEXPIRE k 10 NX", (b"v", NOW + 5), 0, None),
        ("PEXPIRE k 10 XX", (b"v", 0), 0, None),
        ("PEXPIRE k 10 GT", (b"v", NOW + 11), 0, None),
        ("PEXPIRE k 10 GT", (b"v", 0), 0, None),
        ("PEXPIRE k 10 LT", (b"v", NOW + 9), 0, None),
        ("PEXPIRE k 10 LT", (b"v", 0), 1, put(b"v", NOW + 10)),
    ],
)
def test_reply_and_operation(text, stored, reply, op):
    assert run(text, stored) == (reply, op)


@pytest.mark.parametrize(
    ("text", "stored", "error"),
    [
        ("GET", None, "wrong number of arguments for 'get' command"),
        ("SET k", None, "wrong number of arguments for 'set' command"),
        ("DEL k l", None, "wrong number of arguments for 'del' command"),
        ("SET k v EX", None, "syntax error"),
        ("SET k v NX XX", None, "syntax error"),
        ("SET k v EX 1 PX 1", None, "syntax error"),
        ("SET k v EX 1 KEEPTTL", None, "syntax error"),
        ("SET k v WAT", None, "syntax error"),
        ("SET k v EX 0", None, "invalid expire time in 'set' command"),
        ("SET k v EX 9223372036854775807", None, "invalid expire time in 'set' command"),
        ("SET k v EX 1.5", None, "value is not an integer or out of range"),
        ("SET k v EX x WAT", None, "syntax error"),
        ("GETEX k PERSIST EX 1", (b"v", 0), "syntax error"),
        ("GETEX k NX", None, "syntax error"),
        ("GETEX k EX -1", (b"v", 0), "invalid expire time in 'getex' command"),
        ("SETRANGE k -1 v", None, "offset is out of range"),
        ("SETRANGE k 8388608 v", None, "string exceeds maximum allowed size (8388608 bytes)"),
        ("SETRANGE k 9223372036854775807 v", None, "string exceeds maximum allowed size (8388608 bytes)"),
        ("INCRBYFLOAT k x", None, "value is not a valid float"),
        ("INCRBYFLOAT k 1", (b"1 ", 0), "value is not a valid float"),
        ("INCRBYFLOAT k -inf", None, "increment would produce NaN or Infinity"),
        ("SETEX k -1 v", None, "invalid expire time in 'setex' command"),
        ("EXPIRE k 9223372036854775807", (b"v", 0), "invalid expire time in 'expire' command"),
        ("EXPIRE k 1 NX GT", None, "NX and XX, GT or LT options at the same time are not compatible"),
        ("EXPIRE k 1 LT GT", None, "GT and LT options at the same time are not compatible"),
        ("EXPIRE k 1 maybe", None, "Unsupported option maybe"),
        ("INCR k", (b"x", 0), "value is not an integer or out of range"),
        ("INCR k", (b"01", 0), "value is not an integer or out of range"),
        ("INCR k", (b" 1", 0), "value is not an integer or out of range"),
        ("INCR k", (b"9223372036854775807", 0), "increment or decrement would overflow"),
        ("INCRBY k 9223372036854775808", None, "value is not an integer or out of range"),
        ("DECRBY k -9223372036854775808", None, "decrement would overflow"),
        ("FLUSHALL k", None, "unknown command 'FLUSHALL' for a single key"),
    ],
)
def test_errors_change_nothing(text, stored, error):
    assert run(text, stored) == (Failure("ERR", error), None)


@pytest.mark.parametrize(
    "text",
    [
        "SET k v PXAT 9223372036854775807",
        "SET k v PX 9223372036854775807",
        "SET k v EX 9223372036854775",
        "GETEX k PXAT 9223372036854775807",
        "PEXPIREAT k 9223372036854775807",
        "EXPIREAT k 9223372036854775807",
    ],
)
def test_the_top_bit_of_an_expiry_stays_clear(text):
    """Later formats may use it for values of other types."""
    _, op = run(text, (b"v", 0))
    assert op is None or op.expire_at_ms < 2**63


def test_sizes_are_limited_and_the_message_says_both_numbers():
    long_key = evaluate([b"GET", b"k" * (KEY_BYTES_MAX + 1)], None, NOW).reply
    assert long_key == Failure("ERR", "key of 65537 bytes exceeds the limit of 65536 bytes")
    full = b"v" * VALUE_BYTES_MAX
    assert evaluate([b"SET", b"k", full], None, NOW).op == put(full)
    grown = evaluate([b"APPEND", b"k", b"x"], (full, 0), NOW)
    assert grown.op is None
    assert isinstance(grown.reply, Failure)
    assert "8388609 bytes" in grown.reply.text


def test_writes_are_told_apart():
    assert commands.is_write(b"set")
    assert not commands.is_write(b"GET")
    assert not commands.is_write(b"nosuch")


@given(
    st.sampled_from(sorted(ARITIES)),
    st.lists(st.sampled_from([b"NX", b"GET", b"EX", b"1", b"-1", b"", b"\xff", b"9" * 30]), max_size=5),
    st.none() | st.tuples(st.sampled_from([b"", b"7", b"x", b"\x00"]), st.integers(0, 2 * NOW)),
)
def test_any_arguments_get_an_answer_and_only_writes_change_anything(name, rest, stored):
    made = evaluate([name, *rest], stored, NOW)
    if made.op is not None:
        assert commands.is_write(name)
        assert not isinstance(made.reply, Failure)
        assert made.op.key == rest[0]
        assert not isinstance(made.op, Put) or made.op.expire_at_ms == 0 or made.op.expire_at_ms > NOW


TTL = 5_000
DEFAULT = NOW + TTL
KEPT = (b"1", 0)
LATER = (b"1", NOW + 9)


@pytest.mark.parametrize(
    ("text", "stored", "expire"),
    [
        ("SET k v", None, DEFAULT),
        ("set k v", KEPT, DEFAULT),
        ("SET k v", LATER, DEFAULT),
        ("SET k v NX", None, DEFAULT),
        ("SET k v XX GET", KEPT, DEFAULT),
        ("SET k v EX 1", None, NOW + 1_000),
        ("SET k v PXAT 2000000", KEPT, 2_000_000),
        ("SET k v KEEPTTL", LATER, NOW + 9),
        ("SET k v keepttl", KEPT, 0),
        ("SET k v KEEPTTL", None, DEFAULT),
        ("SET k KEEPTTL", KEPT, DEFAULT),
        ("SETNX k v", None, DEFAULT),
        ("SETEX k 1 v", None, NOW + 1_000),
        ("PSETEX k 7 v", KEPT, NOW + 7),
        ("GETSET k v", KEPT, DEFAULT),
        ("GETSET k v", None, DEFAULT),
        ("INCR k", None, DEFAULT),
        ("INCR k", KEPT, 0),
        ("decrby k 2", LATER, NOW + 9),
        ("INCRBY k 2", (b"1", NOW), DEFAULT),
        ("DECR k", None, DEFAULT),
        ("INCRBYFLOAT k 2", None, DEFAULT),
        ("INCRBYFLOAT k 2", KEPT, 0),
        ("SETRANGE k 1 v", None, DEFAULT),
        ("SETRANGE k 1 v", LATER, NOW + 9),
        ("GETEX k EX 1", KEPT, NOW + 1_000),
        ("GETEX k PERSIST", LATER, 0),
        ("APPEND k v", None, DEFAULT),
        ("APPEND k v", KEPT, 0),
        ("APPEND k v", LATER, NOW + 9),
        ("PERSIST k", LATER, 0),
        ("EXPIRE k 3", KEPT, NOW + 3_000),
        ("PEXPIREAT k 2000000", LATER, 2_000_000),
    ],
)
def test_an_entry_written_without_an_expiry_gets_that_of_its_keyspace(text, stored, expire):
    """A command that keeps the expiry of an existing entry keeps that it has none."""
    op = evaluate([word.encode() for word in text.split()], stored, NOW, TTL).op
    assert isinstance(op, Put)
    assert op.expire_at_ms == expire


@given(st.sampled_from(sorted(ARITIES)), st.lists(st.binary(max_size=8), max_size=4))
def test_the_expiry_of_a_keyspace_changes_neither_replies_nor_which_entries_change(name, rest):
    args = [name, b"k", *rest]
    for stored in (None, KEPT, LATER):
        with_ttl, without = evaluate(args, stored, NOW, TTL), evaluate(args, stored, NOW)
        assert with_ttl.reply == without.reply
        assert type(with_ttl.op) is type(without.op)


@pytest.mark.parametrize("name", sorted(commands.WRITES))
def test_each_write_is_in_the_table_of_documented_expiries(name):
    path = Path(__file__).parents[3] / "docs" / "operating" / "keyspaces.md"
    section = path.read_text().split("## Expiry", 1)[1].split("\n## ", 1)[0]
    assert f"`{name.decode()}`" in section
