"""What is made of a TabletCluster once for each version of it, however often a round needs it."""

from collections.abc import Callable
from typing import Generic, TypeVar

from stele.model import TabletCluster

T = TypeVar("T")


class OncePerVersion(Generic[T]):
    """Call it with the parsed cluster. A version that was read is one object, and is never changed."""

    def __init__(self, make: Callable[[TabletCluster], T]) -> None:
        self._make = make
        self._made: tuple[TabletCluster, T] | None = None

    def __call__(self, cluster: TabletCluster) -> T:
        if self._made is None or self._made[0] is not cluster:
            self._made = cluster, self._make(cluster)
        return self._made[1]
