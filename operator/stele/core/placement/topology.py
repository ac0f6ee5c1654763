"""Topology: zones and the domains within them, such as racks and hosts.

A member's *path* names its domain for each topology key, widest first. The replicas of a partition are spread
over the domains of the first key as evenly as the domains have members, then within each over the domains of
the second key, and so on. A member without a value for a key is a domain of its own.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from stele.core.placement.quotas import Domain
from stele.core.table.ids import MemberIndex

Path = tuple[str, ...]
Members = Sequence[MemberIndex | None]


class Topology:
    """The domains of the members that can hold data.

    Members that are unknown here are unconstrained. Answers are cached per combination of domains, of which
    there are few, however many partitions there are.
    """

    def __init__(self, paths: Mapping[MemberIndex, Path]) -> None:
        levels = max(map(len, paths.values()), default=0)
        # No name has a control character, so no domain is taken for another.
        padded = {member: (*path, *[f"\0{member}"] * (levels - len(path))) for member, path in paths.items()}
        while levels and len({path[:levels] for path in padded.values()}) == len(padded):
            levels -= 1
        self.paths = {member: path[:levels] for member, path in padded.items()}
        domains = [path[:depth] for path in self.paths.values() for depth in range(levels + 1)]
        self._sizes = Counter(domains)
        self._parts = Counter(domain[:-1] for domain in self._sizes if domain)
        self._leaves = sorted(set(self.paths.values()))
        self._best: dict[tuple[tuple[Path, ...], int], tuple[Path, ...]] = {}
        self._known: dict[tuple[tuple[Path, ...], Path], bool] = {}
        self.matters = any(parts > 1 for parts in self._parts.values())

    def apart(self, others: Iterable[MemberIndex | None], member: MemberIndex) -> bool:
        """Return whether no other domain is better for the next replica of a row that has `others`."""
        present = (self.paths[m] for m in others if m is not None and m in self.paths)
        return self._apart(present, self.paths[member])

    def _apart(self, present: Iterable[Path], path: Path) -> bool:
        key = (tuple(sorted(present)), path)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._is_apart(*key)
        return known

    def misplaced(self, row: Members) -> list[int]:
        """Return the indexes of a row whose member shares a domain while another domain is better.

        Empty indexes are assumed to be filled as well as possible.
        """
        known = [member for member in row if member is not None and member in self.paths]
        coming = self._coming(tuple(sorted(self.paths[member] for member in known)), row.count(None))
        return [
            index
            for index, member in enumerate(row)
            if member is not None
            and member in self.paths
            and not self._apart((*coming, *(self.paths[m] for m in known if m != member)), self.paths[member])
        ]

    def _coming(self, present: tuple[Path, ...], number: int) -> tuple[Path, ...]:
        """Return the domains of `number` further replicas, spread as evenly as possible."""
        key = (present, number)
        if number and key not in self._best:
            last = self._coming(present, number - 1)
            counts = Counter(path[:depth] for path in (*present, *last) for depth in range(1, len(path) + 1))
            free = [path for path in self._leaves if counts[path] < self._sizes[path]]
            best = min(
                free, key=lambda p: [counts[p[:depth]] for depth in range(1, len(p) + 1)], default=None
            )
            self._best[key] = last if best is None else (*last, best)
        return self._best[key] if number else ()

    def tree(self, weights: Mapping[MemberIndex, int]) -> Domain:
        """Return the domains with their weights, for quotas; members of a domain are in the given order."""
        ordered = sorted(weights, key=lambda member: self.paths[member])
        return self._domain(ordered, weights, 0)

    def _is_apart(self, present: Sequence[Path], path: Path) -> bool:
        for depth in range(len(path)):
            counts = Counter(other[: depth + 1] for other in present if other[:depth] == path[:depth])
            own = counts[path[: depth + 1]]
            if not own:
                return True
            if len(counts) < self._parts[path[:depth]]:
                return False
            if any(count < own and count < self._sizes[domain] for domain, count in counts.items()):
                return False
        return True

    def _domain(
        self, members: Sequence[MemberIndex], weights: Mapping[MemberIndex, int], depth: int
    ) -> Domain:
        if members and depth < len(self.paths[members[0]]):
            same = groupby(members, key=lambda member: self.paths[member][depth])
            parts = tuple(self._domain(list(group), weights, depth + 1) for _, group in same)
        else:
            parts = tuple(Domain(weights[member], (member,)) for member in members)
        return Domain(sum(part.weight for part in parts), tuple(members), parts)
