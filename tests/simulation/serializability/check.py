"""Whether one order of transactions, which keeps that of real time, explains all that clients saw.

The idea is that of Elle (Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies from Experimental
Observations", VLDB 2020). Every appended token is unique, so a list that was read shows in which order all
of its appends happened. That gives which transaction must come before which other one: because it appended
first (ww), because the other one read what it had appended (wr), because it read before the other one
appended (rw), or because it had ended before the other one began (rt). An order exists if there is no cycle.

What nobody knows the end of counts as done once a token of it was read, and then as done as a whole; else it
is left out: it may never have been. It has no end, so nothing comes after it by time.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tests.simulation.serializability.graph import Edge, Graph, Kinds
from tests.simulation.serializability.transactions import (
    Anomaly,
    Append,
    Outcome,
    Read,
    Tokens,
    Transaction,
)

WW, WR, RW, RT, PASS = "ww", "wr", "rw", "rt", "pass"
"""Kinds of edges; by PASS one leaves a node that joins others."""

_LEVELS = (
    ("G0", WW, (WW,)),
    ("G1c", WR, (WW, WR)),
    ("G-single", RW, (WW, WR)),
    ("G2", RW, (WW, WR, RW)),
)
LEVELS: tuple[tuple[str, str, Kinds], ...] = (
    *((name, first, frozenset({PASS, *rest})) for name, first, rest in _LEVELS),
    *((f"{name}-realtime", first, frozenset({PASS, RT, *rest})) for name, first, rest in _LEVELS),
)
"""Cycles by how bad they are: the name, the kind of one edge, and the kinds that all others may be of."""
ALL_KINDS = frozenset({WW, WR, RW, RT, PASS})

_WHY = {
    WW: "it appended to {} before",
    WR: "what it appended to {} was read by",
    RW: "it read {} before an append of",
    RT: "it had ended before the beginning of",
}


def check_serializable(transactions: Iterable[Transaction]) -> int:
    """Return how many transactions there are in the order. Raises Anomaly when there is no order.

    The time is linear in the operations and the tokens that were read, but for sorting by time. Only once
    there is a cycle, it is looked for longer, so that a short one can be told.
    """
    lists = _Lists(list(transactions))
    graph = Graph(len(lists.happened))
    for key in lists.longest:
        _add_list(graph, lists, key)
    _add_time(graph, lists.happened)
    parts = graph.parts(ALL_KINDS, range(len(graph.edges)))
    if parts:
        raise _cycle(graph, lists, set().union(*parts))
    return len(lists.happened)


class _Lists:
    """What was appended and read, by list. `happened` are the transactions that did, in the order given.

    `reads` has for each list who read it and what was there before the own appends; `orders` all tokens whose
    place is known; `later` who appended what nobody has read. Raises Anomaly for what no order can explain.
    """

    def __init__(self, transactions: list[Transaction]) -> None:
        self.writer: dict[bytes, Transaction] = {}
        self.tokens: dict[tuple[int, bytes], list[bytes]] = {}
        for each in transactions:
            self._take_appends(each)
        committed = [each for each in transactions if each.outcome is Outcome.COMMITTED]
        self.longest: dict[bytes, Tokens] = {append.key: () for append in _appends(transactions)}
        for each in committed:
            self._take_reads(each)
        for key, tokens in self.longest.items():
            self._check_tokens(key, tokens)
        seen = {self.writer[token].number for tokens in self.longest.values() for token in tokens}
        self.happened = [
            each for each in transactions if each.outcome is Outcome.COMMITTED or each.number in seen
        ]
        self.place = {each.number: place for place, each in enumerate(self.happened)}
        self.orders = {key: self._completed(key, tokens) for key, tokens in self.longest.items()}
        self.reads: dict[bytes, list[tuple[int, int]]] = {key: [] for key in self.longest}
        for each in committed:
            self._take_places(each)
        self.later = self._later()

    def _take_appends(self, transaction: Transaction) -> None:
        for append in _appends([transaction]):
            assert append.token not in self.writer, f"{append.token!r} is appended twice"
            self.writer[append.token] = transaction
            self.tokens.setdefault((transaction.number, append.key), []).append(append.token)

    def _take_reads(self, transaction: Transaction) -> None:
        """All that was read of one list must be one order, seen at several times."""
        for key, tokens in _seen(transaction):
            before = self.longest.setdefault(key, ())
            shorter, longer = sorted((before, tokens), key=len)
            if longer[: len(shorter)] != shorter:
                text = f"{key!r} was read as one order of tokens and as another one\n    {transaction}"
                raise Anomaly("incompatible-order", f"{text}\n    other: {_last(before)}", key)
            self.longest[key] = longer

    def _check_tokens(self, key: bytes, tokens: Tokens) -> None:
        known: set[bytes] = set()
        for token in tokens:
            writer = self.writer.get(token)
            if token in known:
                raise Anomaly(
                    "duplicate", f"{token!r} is in {key!r} twice: {_last(tokens)}\n    {writer}", key
                )
            if writer is None or token not in self.tokens.get((writer.number, key), ()):
                raise Anomaly("unwritten", f"{token!r} is in {key!r}, where nobody appended it", key)
            if writer.outcome is Outcome.ABORTED:
                raise Anomaly("G1a", f"{token!r} is in {key!r}, and was given up\n    {writer}", key)
            own = self.tokens[writer.number, key]
            if not known.issuperset(own[: own.index(token)]):
                text = f"{token!r} is in {key!r} without what its transaction appended before"
                raise Anomaly("incompatible-order", f"{text}\n    {writer}", key)
            known.add(token)

    def _completed(self, key: bytes, tokens: Tokens) -> Tokens:
        """With what the last one appended besides: nothing comes in between."""
        if not tokens:
            return ()
        own = self.tokens[self.writer[tokens[-1]].number, key]
        return tokens + tuple(own[own.index(tokens[-1]) + 1 :])

    def _take_places(self, transaction: Transaction) -> None:
        """Note how many tokens it saw of each list, those of its own left out."""
        for key, tokens in _before_own(transaction):
            writer = self.writer[tokens[-1]] if tokens else None
            if writer is transaction:
                raise Anomaly("internal", f"it read from {key!r} what it appended later\n    {writer}", key)
            if writer is not None and self.tokens[writer.number, key][-1] != tokens[-1]:
                text = f"{tokens[-1]!r} was read last in {key!r}, and was not the last of its transaction"
                raise Anomaly("G1b", f"{text}\n    {transaction}\n    {writer}", key)
            self.reads[key].append((self.place[transaction.number], len(tokens)))

    def _later(self) -> dict[bytes, list[int]]:
        placed = {token for tokens in self.orders.values() for token in tokens}
        found: dict[bytes, dict[int, None]] = {key: {} for key in self.longest}
        for place, transaction in enumerate(self.happened):
            for append in _appends([transaction]):
                if append.token not in placed:
                    found[append.key][place] = None
        return {key: list(places) for key, places in found.items()}


def _appends(transactions: Iterable[Transaction]) -> Iterator[Append]:
    for transaction in transactions:
        for operation in transaction.operations:
            if isinstance(operation, Append):
                yield operation


def _seen(transaction: Transaction) -> Iterator[tuple[bytes, Tokens]]:
    """Yield each list as it was read. Raises Anomaly when that contradicts what it did itself."""
    base: dict[bytes, Tokens] = {}
    own: dict[bytes, Tokens] = {}
    for operation in transaction.operations:
        key = operation.key
        mine = own.get(key, ())
        if isinstance(operation, Append):
            own[key] = (*mine, operation.token)
        elif operation.tokens is not None:
            tokens = operation.tokens
            others = tokens[: len(tokens) - len(mine)] if mine else tokens
            if tokens != others + mine or base.setdefault(key, others) != others:
                raise Anomaly("internal", f"its reads of {key!r} contradict itself\n    {transaction}", key)
            yield key, tokens


def _before_own(transaction: Transaction) -> Iterator[tuple[bytes, Tokens]]:
    """Yield what it saw of others in each list that it read."""
    own: dict[bytes, int] = {}
    told: set[bytes] = set()
    for operation in transaction.operations:
        if isinstance(operation, Append):
            own[operation.key] = own.get(operation.key, 0) + 1
        elif operation.tokens is not None and operation.key not in told:
            told.add(operation.key)
            yield operation.key, operation.tokens[: len(operation.tokens) - own.get(operation.key, 0)]


def _add_list(graph: Graph, lists: _Lists, key: bytes) -> None:
    """Add what the tokens of one list and the reads of it say."""
    order, later = lists.orders[key], lists.later[key]
    writers = [lists.place[lists.writer[token].number] for token in order]
    for before, after in pairwise(writers):
        graph.add(before, after, WW, key)
    end = graph.node()
    for writer in writers[-1:]:
        graph.add(writer, end, WW, key)
    for each in later:
        graph.add(end, each, PASS)
    for reader, count in lists.reads[key]:
        if count:
            graph.add(writers[count - 1], reader, WR, key)
        if count < len(order):
            graph.add(reader, writers[count], RW, key)
        elif reader not in later:
            graph.add(reader, end, RW, key)
    _add_readers_that_append(graph, lists, key)


def _add_readers_that_append(graph: Graph, lists: _Lists, key: bytes) -> None:
    """Those that read all of a list and append what nobody has read come before all others that do.

    Two of them are a cycle already.
    """
    later = dict.fromkeys(lists.later[key])
    both = [
        reader for reader, count in lists.reads[key] if count == len(lists.orders[key]) and reader in later
    ]
    for reader in both[:2]:
        for each in later:
            graph.add(reader, each, RW, key)


def _add_time(graph: Graph, happened: Sequence[Transaction]) -> None:
    """Join what ended before to what began after: by one node for each end, in their order."""
    ends = sorted(
        (each.end, place) for place, each in enumerate(happened) if each.outcome is Outcome.COMMITTED
    )
    nodes = [graph.node() for _ in ends]
    for node, (_, place) in zip(nodes, ends, strict=True):
        graph.add(place, node, RT)
    for before, after in pairwise(nodes):
        graph.add(before, after, PASS)
    for place, each in enumerate(happened):
        before = bisect_left(ends, (each.begin, -1))
        if before:
            graph.add(nodes[before - 1], place, PASS)


def _cycle(graph: Graph, lists: _Lists, among: set[int]) -> Anomaly:
    """The worst kind that there is, and a short cycle of it."""
    for name, first, kinds in LEVELS:
        for part in graph.parts(kinds | {first}, among):
            cycle = graph.shortest_cycle(part, first, kinds)
            if cycle:
                return Anomaly(name, *_told(cycle, lists.happened))
    raise AssertionError("a cycle has edges of some kind")


def _told(cycle: list[Edge], happened: Sequence[Transaction]) -> tuple[str, bytes]:
    """What to say of a cycle, and a list that is part of it."""
    edges = [each for each in cycle if each.kind != PASS]
    lines = [f"{len(edges)} transactions come each before the next one, and the last before the first"]
    for each in edges:
        lines.append(f"    {happened[each.source]}")
        lines.append(f"      {_WHY[each.kind].format(repr(each.key))}")
    return "\n".join(lines), next(each.key for each in edges if each.key)


def _last(tokens: Tokens) -> str:
    return str(Read(b"", tokens[-20:]).tokens)
