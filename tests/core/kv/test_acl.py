"""Rights that Redis does not have, bounds, and what wrong rules are told; the rest is compared with Redis."""

import pytest

from stele.core.kv.acl import (
    MATCH_STEPS_MAX,
    PATTERN_STEPS,
    PATTERNS_MAX,
    RULE_BYTES_MAX,
    RULES_MAX,
    RuleError,
    compile_user,
    may_run,
    steps_of,
)
from stele.core.kv.dedup import ONCE


def denied(user, *words, keyspace=b"default"):
    request = [word.encode() if isinstance(word, str) else word for word in words]
    found = may_run(user, request[0].upper(), request, keyspace)
    return None if found is None else (found.reason, found.what)


def test_the_write_of_stele_once_needs_its_own_rights():
    user = compile_user("u", ["+stele.once", "+set", "~orders:*"])
    assert denied(user, "STELE.ONCE", "c", "1", "SET", "orders:1", "x") is None
    assert denied(user, "stele.once", "c", "1", "set", "other", "x") == ("key", b"other")
    assert denied(user, "STELE.ONCE", "c", "1", "INCR", "orders:1") == ("command", b"incr")
    assert denied(compile_user("u", ["+set", "~*"]), "STELE.ONCE", "c", "1", "SET", "a", "x") == (
        "command",
        b"stele.once",
    )


def test_a_stele_once_in_a_stele_once_is_not_looked_into():
    """It never runs, and a request has room for a thousand of them."""
    user = compile_user("u", ["+stele.once", "+set", "~orders:*"])
    assert denied(user, *["STELE.ONCE", "c", "1"] * 100_000, "SET", "other", "x") is None
    assert denied(user, "STELE.ONCE", "c", "1") is None


@pytest.mark.parametrize(
    "words", [("GET", "a"), ("SCAN", "0"), ("DBSIZE",), ("FLUSHDB",), ("MSET", "a", "1")]
)
def test_keys_of_other_keyspaces_are_refused(words):
    user = compile_user("u", ["+@all", "~*", "&*"], ["shop", "cart"])
    assert not user.unrestricted
    assert denied(user, *words, keyspace=b"cart") is None
    assert denied(user, *words) == ("keyspace", b"default")
    assert [user.may_select(each) for each in (b"shop", b"cart", b"default")] == [True, True, False]


def test_flushall_is_for_those_who_may_use_all_keyspaces():
    assert denied(compile_user("u", ["+@all", "~*"], ["shop"]), "FLUSHALL", keyspace=b"shop") == (
        "keyspace",
        b"*",
    )
    assert denied(compile_user("u", ["+@all", "~*"]), "FLUSHALL") is None


def test_commands_of_other_versions_need_all_commands():
    everything = compile_user("u", ["+@all", "~*", "&*"])
    assert everything.unrestricted
    assert denied(everything, "NOSUCH", "a") is None
    assert denied(compile_user("u", ["+@all", "-get"]), "NOSUCH", "a") == ("command", b"")


def test_rules_are_described_as_they_are_written():
    user = compile_user("u", ["~a", "%R~b", "%W~b", "&c", "+@read", "-get", "+@read", "+client|id"])
    assert user.rules == ["~a", "~b", "resetchannels", "&c", "-@all", "-get", "+@read", "+client|id"]
    assert compile_user("u", user.rules).rules == user.rules
    assert compile_user("u", ["+@all", "allkeys", "allchannels"]).rules == ["~*", "&*", "+@all"]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("+nosuch", "Unknown command or category name in ACL"),
        ("+@nosuch", "@transaction"),
        ("nosuch", "expected on, off, reset"),
        ("%X~a", "%RW~pattern"),
        (">secret", "passwords are no rules"),
        ("nopass", "passwords are no rules"),
        ("(+get ~a)", "no space"),
        ("(+get)", "make another user"),
        ("~a b", "no space"),
        ("", "at least one character"),
        ("~\ud800", "at least one character"),
        ("~" + "x" * RULE_BYTES_MAX, f"longer than {RULE_BYTES_MAX} bytes"),
    ],
)
def test_a_wrong_rule_is_named_with_what_was_expected(rule, text):
    with pytest.raises(RuleError) as caught:
        compile_user("u", ["+get", rule])
    assert text in str(caught.value)
    assert str(caught.value).startswith("Error in ACL rule '")


@pytest.mark.parametrize(
    "rule", [">{}", "<{}", "#{}", "!{}", ">{} more", "on >{}", " >{}", "~a\t<{}", ">" + "{}" * RULE_BYTES_MAX]
)
def test_an_error_does_not_repeat_a_password(rule):
    with pytest.raises(RuleError) as caught:
        compile_user("u", [rule.format(*["hunter22pw"] * RULE_BYTES_MAX)])
    assert "hunter22" not in str(caught.value)
    assert "...': " in str(caught.value)


def test_a_user_that_is_locked_out_stays_so_whatever_its_rules_say():
    found = [
        compile_user("u", rules, active=active).active
        for rules in (["on"], ["off"])
        for active in (True, False)
    ]
    assert found == [True, False, False, False]


def test_numbers_of_rules_and_patterns_are_limited():
    with pytest.raises(RuleError, match=f"at most {RULES_MAX}"):
        compile_user("u", ["+get"] * (RULES_MAX + 1))
    for kind in "~&":
        with pytest.raises(RuleError, match=f"more than {PATTERNS_MAX} patterns"):
            compile_user("u", [f"{kind}{number}" for number in range(PATTERNS_MAX + 1)])


def test_a_request_takes_bounded_time_with_patterns():
    hard = "~*" + "[ab]" * 20 + "*" + "[ab]" * 20 + "x"
    user = compile_user("u", ["+get", "+mget", hard])
    assert denied(user, "GET", b"a" * 100) == ("key", b"a" * 100)
    long = b"a" * 65_000
    assert denied(user, "MGET", *[long] * 200) == ("key", long)
    assert len(long) * 20 * 200 > MATCH_STEPS_MAX


@pytest.mark.parametrize(
    ("words", "number", "allowed"),
    [(1, 12_000, True), (1, 131_000, False), (64, 900, True), (64, 20_000, False)],
)
def test_many_keys_take_bounded_time_with_patterns(words, number, allowed):
    user = compile_user("u", ["+mget", "+subscribe", *(f"~a{each}*" for each in range(words - 1)), "~k*"])
    found = denied(user, "MGET", *[b"k1"] * number)
    assert found == (None if allowed else ("key", b"k1"))
    steps = steps_of(user, b"MGET", [b"MGET", *[b"k1"] * number])
    text = may_run(user, b"MGET", [b"MGET", *[b"k1"] * number], b"default")
    assert (
        allowed
        or f"more than {MATCH_STEPS_MAX} steps (MATCH_STEPS_MAX); send fewer keys" in text.failure.text
    )
    assert steps >= number * words * PATTERN_STEPS


def test_only_names_that_are_compared_with_patterns_take_steps():
    user = compile_user("u", ["+@all", "~k*", "&*"])
    assert steps_of(user, b"PING", [b"PING"]) == steps_of(user, b"SUBSCRIBE", [b"SUBSCRIBE", b"a"]) == 0
    assert steps_of(user, ONCE, [ONCE, b"c", b"1", b"SET", b"k", b"x"]) == steps_of(
        user, b"GET", [b"GET", b"k"]
    )
    assert steps_of(user, ONCE, [ONCE, b"c", b"1"]) == 0
    listener = compile_user("u", ["+@all", "~*", "&a*"])
    assert denied(listener, "SUBSCRIBE", *[b"a1"] * 20_000) == ("channel", b"a1")
    assert denied(listener, "MGET", *[b"a1"] * 20_000) is None
