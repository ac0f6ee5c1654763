"""A graph of dependencies whose edges have kinds: its parts with cycles, and short cycles."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

SEARCHES_MAX = 200
"""From so many edges of a part a shortest cycle is looked for."""

Kinds = frozenset[str]


class Edge(NamedTuple):
    """`target` comes after `source`; `key` says because of which list."""

    source: int
    target: int
    kind: str
    key: bytes = b""


class Graph:
    """Nodes have numbers from 0. Those from `real` on stand for nothing: they join many nodes to many others,
    which would else take an edge for each pair.
    """

    def __init__(self, real: int) -> None:
        self.real = real
        self.edges: list[list[Edge]] = [[] for _ in range(real)]

    def node(self) -> int:
        """Add a node that stands for nothing, and return its number."""
        self.edges.append([])
        return len(self.edges) - 1

    def add(self, source: int, target: int, kind: str, key: bytes = b"") -> None:
        """Add an edge; nothing depends on itself."""
        if source != target:
            self.edges[source].append(Edge(source, target, kind, key))

    def parts(self, kinds: Kinds, among: Iterable[int]) -> list[set[int]]:
        """Return the strongly connected parts of more than one of these nodes, by edges of these kinds.

        Takes time linear in the edges.
        """
        search = _Tarjan(self.edges, kinds, set(among))
        return [part for root in sorted(search.inside) for part in search.from_root(root) if len(part) > 1]

    def shortest_cycle(self, part: set[int], first: str, rest: Kinds) -> list[Edge]:
        """Return a short cycle inside of a part: one edge of the first kind, then some of the rest.

        It is a shortest one from one of the first SEARCHES_MAX edges; empty when there is none from these.
        """
        starts = (edge for node in sorted(part) for edge in self.edges[node])
        fits = [edge for edge in starts if edge.kind == first and edge.target in part]
        paths = [(edge, self._path(edge, part, rest)) for edge in fits[:SEARCHES_MAX]]
        cycles = [[edge, *path] for edge, path in paths if path]
        return min(cycles, key=len, default=[])

    def _path(self, edge: Edge, part: set[int], kinds: Kinds) -> list[Edge]:
        """Return a shortest way back from an edge, breadth first; empty when there is none."""
        start, goal = edge.target, edge.source
        came: dict[int, Edge] = {}
        near = deque([start])
        while near and goal not in came:
            for following in self.edges[near.popleft()]:
                target = following.target
                if following.kind in kinds and target in part and target != start and target not in came:
                    came[target] = following
                    near.append(target) if target < self.real else near.appendleft(target)
        path: list[Edge] = []
        while goal != start and goal in came:
            path.append(came[goal])
            goal = came[goal].source
        return path[::-1]


class _Tarjan:
    """Tarjan's strongly connected components, without recursion."""

    def __init__(self, edges: list[list[Edge]], kinds: Kinds, inside: set[int]) -> None:
        self.inside = inside
        self._edges, self._kinds = edges, kinds
        self._index: dict[int, int] = {}
        self._low: dict[int, int] = {}
        self._open: dict[int, None] = {}

    def from_root(self, root: int) -> Iterator[set[int]]:
        """Yield the parts that are reached from here, and were not before."""
        work = [] if root in self._index else [self._enter(root)]
        while work:
            node, following = work[-1]
            target = next((each for each in following if self._is_new(node, each)), None)
            if target is not None:
                work.append(self._enter(target))
                continue
            work.pop()
            if work:
                above = work[-1][0]
                self._low[above] = min(self._low[above], self._low[node])
            if self._low[node] == self._index[node]:
                yield self._close(node)

    def _enter(self, node: int) -> tuple[int, Iterator[int]]:
        self._index[node] = self._low[node] = len(self._index)
        self._open[node] = None
        fits = (edge.target for edge in self._edges[node] if edge.kind in self._kinds)
        return node, (target for target in fits if target in self.inside)

    def _is_new(self, node: int, target: int) -> bool:
        """Whether nothing was there before; from what is open, the node comes back that far."""
        if target in self._open:
            self._low[node] = min(self._low[node], self._index[target])
        return target not in self._index

    def _close(self, node: int) -> set[int]:
        part: set[int] = set()
        while node not in part:
            part.add(self._open.popitem()[0])
        return part
