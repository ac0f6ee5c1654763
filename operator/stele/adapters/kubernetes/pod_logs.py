"""Logs of the containers of a cluster's pods."""

from collections.abc import AsyncIterator
from typing import NamedTuple

from stele.adapters.kubernetes.api import PODS, Api, Object
from stele.model.ownership import CLUSTER_LABEL

LINE_BYTES_MAX = 64 * 1024
"""Bytes of a line; the rest of a longer one is printed as lines of its own."""


class Container(NamedTuple):
    """One start of a container, empty while it has not started; `before` is whether another one preceded."""

    pod: str
    name: str
    start: str = ""
    before: bool = False

    @property
    def title(self) -> str:
        return f"{self.pod}/{self.name}"


async def pods_of(api: Api, namespace: str, cluster: str) -> list[Object]:
    """Return the pods of members and copies of a cluster, by name."""
    found = await api.list(PODS, namespace, f"{CLUSTER_LABEL}={cluster}")
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def containers_of(pod: Object) -> list[Container]:
    """Return all containers of a pod, without its init containers."""
    statuses = {each["name"]: each for each in (pod.get("status") or {}).get("containerStatuses") or ()}
    found = []
    for each in pod["spec"]["containers"]:
        status = statuses.get(each["name"]) or {}
        start, before = str(status.get("containerID") or ""), bool(status.get("restartCount"))
        found.append(Container(str(pod["metadata"]["name"]), str(each["name"]), start, before))
    return found


async def lines_of(api: Api, namespace: str, of: Container, **query: str) -> AsyncIterator[bytes]:
    """Iterate the lines of a log, without their ends; `query` is for the API server.

    Raises Unavailable when it ends early, and as a GET does.
    """
    rest = b""
    async with api.log(namespace, of.pod, {"container": of.name, **query}) as answer:
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                for piece in pieces(line):
                    yield piece
            while len(rest) > LINE_BYTES_MAX:
                yield rest[:LINE_BYTES_MAX]
                rest = rest[LINE_BYTES_MAX:]
    if rest:
        yield rest


def pieces(line: bytes) -> list[bytes]:
    """Return a line in pieces that are not too long."""
    return [line[at : at + LINE_BYTES_MAX] for at in range(0, len(line) or 1, LINE_BYTES_MAX)]
