"""The check of transactions: what no order explains is found, by its name; what one explains is not."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.serializability.check import check_serializable
from tests.simulation.serializability.transactions import (
    Anomaly,
    Append,
    Outcome,
    Read,
    Tokens,
    Transaction,
)

KEYS = (b"x", b"y", b"z")
LAST = 1_000_000
"""Number of the transaction that reads all in the end."""


def history(*lines: str) -> list[Transaction]:
    """`0-1 x+a y=bc z?`: from 0 to 1 it appended a to x, read b and c in y, and got no answer from z.

    `0-?` has no known end, `0-!` was aborted.
    """
    return [_transaction(number, *line.split()) for number, line in enumerate(lines, 1)]


def _transaction(number: int, times: str, *texts: str) -> Transaction:
    begin, end = times.split("-")
    outcome = {"?": Outcome.UNKNOWN, "!": Outcome.ABORTED}.get(end, Outcome.COMMITTED)
    ended = float(end) if outcome is Outcome.COMMITTED else float("inf")
    return Transaction(number, f"c{number}", [*map(_operation, texts)], float(begin), ended, outcome)


def _operation(text: str) -> Append | Read:
    key, what, tokens = text[:1].encode(), text[1], text[2:].encode()
    if what == "+":
        return Append(key, tokens)
    return Read(key, None if what == "?" else tuple(b"%c" % each for each in tokens))


def found(transactions: Sequence[Transaction]) -> str:
    """The name of the anomaly, "" for none."""
    try:
        check_serializable(transactions)
    except Anomaly as anomaly:
        return anomaly.name
    return ""


PLANTED = {
    "G0": ("0-9 x+a y+b", "0-9 x+c y+d", "0-9 x=ac y=db"),
    "G1a": ("0-! x+a", "1-2 x=a"),
    "G1b": ("0-9 x+a x+b", "0-9 x=a"),
    "G1c": ("0-9 x+a y=b", "0-9 y+b x=a"),
    "G-single": ("0-9 x= x+a", "0-9 x= x+b", "0-9 x=ab"),
    "G2": ("0-9 x= y+a", "0-9 y= x+b"),
    "G0-realtime": ("0-1 x+a", "2-3 x+b", "0-9 x=ba"),
    "G1c-realtime": ("0-1 x=a", "2-3 x+a"),
    "G-single-realtime": ("0-1 x+a", "2-3 x=", "4-5 x=a"),
    "G2-realtime": ("0-1 y+b", "2-3 x=", "0-9 x+a y="),
    "incompatible-order": ("0-9 x+a", "0-9 x+b", "0-9 x=ab", "0-9 x=ba"),
    "duplicate": ("0-9 x+a", "0-9 x=aa"),
    "unwritten": ("0-9 x+a", "0-9 x=ab"),
    "internal": ("0-9 x+a x=",),
}


@pytest.mark.parametrize("name", PLANTED)
def test_each_anomaly_is_found_by_its_name(name: str) -> None:
    assert found(history(*PLANTED[name])) == name


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("internal", ("0-9 x= x=a", "0-9 x+a")),
        ("internal", ("0-9 x=a x+a",)),
        ("incompatible-order", ("0-9 x+a x+b", "0-9 x=ba")),
        ("incompatible-order", ("0-9 x+a x+b", "0-9 x=b")),
        ("G0", ("0-9 x+a x+b", "0-9 x+c", "0-9 x=acb")),
        ("G0", ("0-9 x+a x+b", "0-9 x+c", "0-9 x=ac")),
        # Nobody has read the second append to y: it comes after all that was read.
        ("G-single", ("0-? x+a y+b", "0-9 x=a y=")),
        ("G2", ("0-9 x= x+a", "0-9 x= x+b")),
        ("unwritten", ("0-9 x+a", "0-9 y=a")),
    ],
)
def test_more_of_what_no_order_explains(name: str, lines: tuple[str, ...]) -> None:
    assert found(history(*lines)) == name


@pytest.mark.parametrize(
    "lines",
    [
        ("0-? x+a y+b", "0-1 x= y=", "2-3 x=a y=b"),  # It may be done late,
        ("0-? x+a y+b", "0-1 x= y=", "2-3 x= y="),  # or never;
        ("0-? x+a x?", "5-6 x=", "7-8 x=a"),  # and its own reads say nothing.
        ("0-! x+a", "1-2 x="),
        ("0-9 x+a x=a x+b", "0-9 x=ab"),
        ("0-9 x+a x=a x+b",),
        ("0-9 x= x+a x=a", "0-9 y+b x= y=b"),
        ("0-1 x+a", "1-2 x="),  # Ends and begins at the same moment are in no order.
    ],
)
def test_what_an_order_explains_is_right(lines: tuple[str, ...]) -> None:
    assert found(history(*lines)) == ""


def test_a_cycle_is_short_and_says_why() -> None:
    many = [f"{n}-{n + 1} z+{chr(65 + n)}" for n in range(20)]
    with pytest.raises(Anomaly) as complaint:
        check_serializable(history(*many, "0-30 x= y+a", "0-30 y= x+b", "0-30 z= x=b y=a"))
    assert str(complaint.value).splitlines() == [
        "G2: 2 transactions come each before the next one, and the last before the first",
        "    #21 c21 0.0000 .. 30.0000: read x -> [], append y a",
        "      it read b'x' before an append of",
        "    #22 c22 0.0000 .. 30.0000: read y -> [], append x b",
        "      it read b'y' before an append of",
    ]


# -- random histories


def serial(
    chance: random.Random,
    count: int,
    keys: Sequence[bytes] = KEYS,
    unknown: float = 0.1,
    aborted: float = 0.1,
) -> list[Transaction]:
    """Transactions that happened one after the other, at times about those at which they were asked for.

    Of some the client knows no end; some did nothing. The last one reads all.
    """
    lists: dict[bytes, Tokens] = dict.fromkeys(keys, ())
    made = []
    for number in range(1, count + 1):
        drawn, moment = chance.random(), float(number)
        operations = _drawn(chance, number, keys)
        begin, end = moment - chance.uniform(0, 5), moment + chance.uniform(0, 5)
        if drawn < aborted:
            made.append(Transaction(number, "c", operations, begin, outcome=Outcome.ABORTED))
            continue
        if drawn >= aborted + unknown / 2:
            operations = _run(operations, lists)
        if drawn < aborted + unknown:
            made.append(Transaction(number, "c", _unanswered(operations), begin))
        else:
            made.append(Transaction(number, "c", operations, begin, end, Outcome.COMMITTED))
    reads: list[Append | Read] = [Read(key, lists[key]) for key in keys]
    return [*made, Transaction(LAST, "c", reads, count + 10.0, count + 11.0, Outcome.COMMITTED)]


def _unanswered(operations: Sequence[Append | Read]) -> list[Append | Read]:
    return [Read(each.key) if isinstance(each, Read) else each for each in operations]


def _drawn(chance: random.Random, number: int, keys: Sequence[bytes]) -> list[Append | Read]:
    return [
        Append(key, b"%d.%d" % (number, place)) if chance.random() < 0.5 else Read(key)
        for place, key in enumerate(chance.choices(keys, k=chance.randint(1, 4)))
    ]


def _run(operations: Sequence[Append | Read], lists: dict[bytes, Tokens]) -> list[Append | Read]:
    """Do it, and return it with what was read."""
    done: list[Append | Read] = []
    for each in operations:
        if isinstance(each, Append):
            lists[each.key] = (*lists.get(each.key, ()), each.token)
            done.append(each)
        else:
            done.append(Read(each.key, lists.get(each.key, ())))
    return done


@settings(max_examples=300)
@given(st.integers(), st.integers(1, 60), st.floats(0, 0.5), st.floats(0, 0.4))
def test_a_serial_history_is_right(seed: int, count: int, unknown: float, aborted: float) -> None:
    chance = random.Random(seed)
    made = serial(chance, count, unknown=unknown, aborted=aborted)
    chance.shuffle(made)
    assert found(made) == ""


@settings(max_examples=50)
@given(st.integers(), st.sampled_from(sorted(PLANTED)))
def test_an_anomaly_is_found_in_a_long_history(seed: int, name: str) -> None:
    """The planted transactions have keys of their own, and go on at the same time as the others."""
    chance = random.Random(seed)
    others = serial(chance, 60, keys=(b"k", b"l", b"m"))
    start = chance.uniform(0, 50)
    for each in history(*PLANTED[name]):
        end = start + each.end if each.outcome is Outcome.COMMITTED else each.end
        others.append(replace(each, number=LAST + each.number, begin=start + each.begin, end=end))
    chance.shuffle(others)
    assert found(others) == name


def broken(chance: random.Random, made: list[Transaction]) -> list[Transaction]:
    """The same with one thing wrong, perhaps: a read, an order, a time, or what became of a transaction."""
    place = chance.randrange(len(made))
    one = made[place]
    kind = chance.choice(("read", "swap", "time", "outcome"))
    if kind == "read":
        operations = [_misread(chance, each) for each in one.operations]
        return [*made[:place], replace(one, operations=operations), *made[place + 1 :]]
    if kind == "swap":
        first, second = (chance.choice(made[:-1]).operations for _ in range(2))
        tokens = {e.token: f for e, f in zip(_tokens(first), _tokens(second), strict=False)}
        return [replace(each, operations=[_renamed(o, tokens) for o in each.operations]) for each in made]
    if kind == "time" and one.outcome is Outcome.COMMITTED:
        moved = chance.uniform(-9, 9)
        return [*made[:place], replace(one, begin=one.begin + moved, end=one.end + moved), *made[place + 1 :]]
    other = chance.choice((Outcome.ABORTED, Outcome.UNKNOWN))
    ended = replace(one, operations=_unanswered(one.operations), outcome=other, end=float("inf"))
    return [*made[:place], ended, *made[place + 1 :]]


def _misread(chance: random.Random, operation: Append | Read) -> Append | Read:
    if isinstance(operation, Append) or operation.tokens is None:
        return operation
    tokens = list(operation.tokens)
    if chance.random() < 0.5:
        return Read(operation.key, tuple(tokens[: chance.randint(0, len(tokens))]))
    chance.shuffle(tokens)
    return Read(operation.key, tuple(tokens))


def _tokens(operations: Sequence[Append | Read]) -> list[Append]:
    return [each for each in operations if isinstance(each, Append)]


def _renamed(operation: Append | Read, tokens: dict[bytes, Append]) -> Append | Read:
    """Of appends alone: reads then tell another story."""
    if isinstance(operation, Append) and operation.token in tokens:
        return Append(tokens[operation.token].key, operation.token)
    return operation


def explained(transactions: Sequence[Transaction]) -> bool:
    """Whether some order explains all, by trying each; one without a known end may be left out."""
    must = [each for each in transactions if each.outcome is Outcome.COMMITTED]
    may = [each for each in transactions if each.outcome is Outcome.UNKNOWN]
    for chosen in product((False, True), repeat=len(may)):
        some = must + [each for each, is_in in zip(may, chosen, strict=True) if is_in]
        if any(_is_right(order) for order in permutations(some) if _keeps_time(order)):
            return True
    return False


def _keeps_time(order: Sequence[Transaction]) -> bool:
    return all(not after.end < before.begin for before, after in _pairs(order))


def _pairs(order: Sequence[Transaction]) -> Iterator[tuple[Transaction, Transaction]]:
    return ((before, after) for place, before in enumerate(order) for after in order[place + 1 :])


def _is_right(order: Sequence[Transaction]) -> bool:
    lists: dict[bytes, Tokens] = {}
    for each in order:
        for asked, done in zip(each.operations, _run(each.operations, lists), strict=True):
            if isinstance(asked, Read) and asked.tokens is not None and asked != done:
                return False
    return True


@settings(max_examples=1500)
@given(st.integers(), st.integers(1, 4), st.integers(0, 3))
def test_it_says_what_trying_all_orders_says(seed: int, count: int, wrong: int) -> None:
    chance = random.Random(seed)
    made = serial(chance, count, keys=(b"x", b"y"), unknown=0.3)
    for _ in range(wrong):
        made = broken(chance, made)
    assert (found(made) == "") == explained(made)


def test_broken_histories_are_often_wrong() -> None:
    """Else the comparison above would compare little."""
    names = dict.fromkeys(("", *PLANTED), 0)
    for seed in range(3000):
        chance = random.Random(seed)
        names[found(broken(chance, broken(chance, serial(chance, 6, keys=(b"x", b"y")))))] += 1
    assert names[""] < 2000
    assert all(names[each] for each in names if each not in ("G0", "G2", "G2-realtime", "duplicate")), names


def test_the_order_of_the_last_is_that_of_time() -> None:
    """A chain of nodes joins all ends to all beginnings: none of the pairs is forgotten."""
    lines = [f"{2 * n}-{2 * n + 1} x+{chr(97 + n)}" for n in range(8)]
    for one, two in pairwise(range(8)):
        order = [chr(97 + n) for n in range(8)]
        order[one], order[two] = order[two], order[one]
        assert found(history(*lines, "0-99 x=" + "".join(order))) == "G0-realtime"
