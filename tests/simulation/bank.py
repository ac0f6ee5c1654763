"""What clients of transactions share: accounts whose sum stays 0, and lists to which each token goes once."""

import random
from collections.abc import Sequence

from tests.simulation.history import Violation
from tests.simulation.serializability.check import check_serializable
from tests.simulation.serializability.transactions import (
    SERIALIZABLE,
    Append,
    Outcome,
    Read,
    Tokens,
    Transaction,
)
from tests.simulation.trace import Trace

SUMS = "the sum of accounts is the same in every transaction"

TAGS = 3
ACCOUNTS = 3
LISTS = 2
"""So many of each have one {hashtag}."""
APPENDS_MAX = 24
"""Begun on one list: then another one follows, so that no list grows long."""


class Group:
    """Keys that may be in one transaction. The accounts sum up to 0.

    `apart` is whether its keys have several {hashtags}, and so are in several partitions.
    """

    def __init__(self, tags: Sequence[int]) -> None:
        self.accounts = [b"{bank-%d}account-%d" % (tag, number) for tag in tags for number in range(ACCOUNTS)]
        self.briefs = [b"{bank-%d}brief" % tag for tag in tags]
        self._heads = [b"{bank-%d}list-%d" % (tag, number) for tag in tags for number in range(LISTS)]
        self._begun = dict.fromkeys(self._heads, 0)

    def lists(self) -> list[bytes]:
        """All lists that there ever were."""
        return [
            b"%b-%d" % (head, number)
            for head in self._heads
            for number in range(self._begun[head] // APPENDS_MAX + 1)
        ]

    def list(self, chance: random.Random) -> bytes:
        """One of those that tokens go to now."""
        head = chance.choice(self._heads)
        return b"%b-%d" % (head, self._begun[head] // APPENDS_MAX)

    def begin_append(self, key: bytes) -> None:
        """Count what may be in a list."""
        self._begun[key.rpartition(b"-")[0]] += 1

    def check(self, values: Sequence[int]) -> None:
        """Raise Violation unless this is what one moment can show of the accounts."""
        if sum(values):
            told = dict(zip(self.accounts, values, strict=True))
            raise Violation(SUMS, f"the sum is {sum(values)}: {told}", key=self.accounts[0])


class Bank:
    """`groups` of keys, and the `transactions` on lists.

    With `written_back` clients undo what they moved, so that values come back.
    """

    def __init__(self, *, apart: bool, written_back: bool = False) -> None:
        self.written_back = written_back
        tags = range(TAGS)
        self.groups = [Group(tags)] if apart else [Group([tag]) for tag in tags]
        self.transactions: list[Transaction] = []
        self._tokens = 0

    def begin(self, client: str, operations: list[Append | Read], now: float) -> Transaction:
        """Note a transaction whose outcome is not known yet."""
        made = Transaction(len(self.transactions) + 1, client, operations, now)
        self.transactions.append(made)
        return made

    def operation(self, chance: random.Random, group: Group) -> Append | Read:
        """Draw an append of a new token, or a read."""
        key = group.list(chance)
        if chance.random() < 0.5:
            return Read(key)
        group.begin_append(key)
        self._tokens += 1
        return Append(key, b"%d" % self._tokens)

    def check(self, trace: Trace) -> None:
        """Raise Anomaly unless one order of the transactions on lists explains all answers."""
        trace.checked[SERIALIZABLE] += check_serializable(self.transactions)


def command_of(operation: Append | Read) -> list[bytes]:
    """The request, as it is sent to a member."""
    if isinstance(operation, Append):
        return [b"APPEND", operation.key, operation.token + b" "]
    return [b"GET", operation.key]


def answered(operation: Append | Read, reply: object) -> Append | Read:
    """With what was read."""
    return Read(operation.key, tokens_of(reply)) if isinstance(operation, Read) else operation


def tokens_of(value: object) -> Tokens:
    """The tokens of a stored list."""
    assert value is None or isinstance(value, bytes), f"{value!r} is no list"
    return tuple((value or b"").split())


def commit(transaction: Transaction, replies: Sequence[object], now: float) -> None:
    """Note the answers to the last operations; those before were answered already."""
    first = len(transaction.operations) - len(replies)
    done = [
        answered(each, reply) for each, reply in zip(transaction.operations[first:], replies, strict=True)
    ]
    transaction.operations[first:] = done
    transaction.end, transaction.outcome = now, Outcome.COMMITTED
