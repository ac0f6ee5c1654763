"""Transactions as a pure function: each command sees those before it, and all change at once."""

from hypothesis import given
from hypothesis import strategies as st

from stele.core.kv import transaction
from stele.core.kv.commands import OK, Failure, Stored, evaluate
from stele.core.kv.transaction import MISSING, evaluate_all, fingerprint

NOW = 1_000_000

keys = st.sampled_from([b"a", b"b", b"c"])
numbers = st.integers(-5, 5).map(lambda number: b"%d" % number)
commands = st.one_of(
    st.tuples(st.just(b"SET"), keys, numbers),
    st.tuples(st.just(b"INCRBY"), keys, numbers),
    st.tuples(st.just(b"APPEND"), keys, st.just(b"x")),
    st.tuples(st.sampled_from([b"GET", b"DEL", b"PERSIST", b"GETDEL"]), keys),
    st.tuples(st.just(b"PEXPIRE"), keys, st.just(b"100")),
)


def test_each_command_sees_the_effects_of_those_before_it() -> None:
    steps = [(b"SET", b"k", b"1"), (b"INCR", b"k"), (b"GET", b"k"), (b"DEL", b"k"), (b"GET", b"k")]
    assert evaluate_all(steps, lambda key: None, NOW) == ([OK, 2, b"2", 1, None], {b"k": None})


def test_one_that_fails_does_not_keep_the_others_from_their_effect() -> None:
    steps = [(b"SET", b"k", b"text"), (b"INCR", b"k"), (b"SET", b"l", b"1")]
    replies, changed = evaluate_all(steps, lambda key: None, NOW)
    assert isinstance(replies, list)
    assert isinstance(replies[1], Failure)
    assert changed == {b"k": (b"text", 0), b"l": (b"1", 0)}


def test_one_that_writes_too_much_changes_nothing(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(transaction, "WRITTEN_BYTES_MAX", 10)
    replies, changed = evaluate_all([(b"SET", b"k", b"123456")] * 2, lambda key: None, NOW)
    assert isinstance(replies, Failure)
    assert (replies.code, changed) == ("EXECABORT", {})
    assert evaluate_all([(b"SET", b"k", b"12345")] * 2, lambda key: None, NOW)[0] == [OK, OK]


@given(st.lists(commands, max_size=12), st.dictionaries(keys, numbers.map(lambda value: (value, 0))))
def test_it_does_what_the_commands_do_one_by_one(
    steps: list[tuple[bytes, ...]], before: dict[bytes, Stored]
) -> None:
    stored, expected = dict(before), []
    for args in steps:
        made = evaluate(args, stored.get(args[1]), NOW)
        expected.append(made.reply)
        if made.op is not None:
            stored.pop(args[1], None)
            if hasattr(made.op, "value"):
                stored[args[1]] = made.op.value, made.op.expire_at_ms
    replies, changed = evaluate_all(steps, before.get, NOW)
    assert replies == expected
    assert {key: value for key, value in (before | changed).items() if value is not None} == stored


def test_fingerprints_differ_with_value_and_expiry() -> None:
    one = fingerprint((b"v", 0), NOW)
    assert len({one, fingerprint((b"w", 0), NOW), fingerprint((b"v", NOW + 1), NOW), MISSING}) == 4
    assert fingerprint((b"v", 0), NOW + 5) == one
    assert fingerprint(None, NOW) == fingerprint((b"v", NOW), NOW) == MISSING
