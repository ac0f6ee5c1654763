"""What `up` prints: one line of the cluster that changes as it does, and events above it."""

import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import TextIO

from stele.adapters.kubernetes.api import CLUSTERS, EVENTS, REBALANCES, Kind
from stele.model import TabletCluster
from stele.playground.cluster import NAME
from stele.playground.files import Object

BAR_LETTERS = 12


class Progress:
    """Hears of changes of objects. On a terminal the last line is written over."""

    def __init__(self, out: TextIO = sys.stdout, now: Callable[[], float] = time.time) -> None:
        self._out, self._now, self._line, self._engine = out, now, "", ""

    def changed(self, kind: Kind, stored: Object, gone: bool) -> None:
        """Print what of a change people should see."""
        if kind is EVENTS:
            involved = stored.get("involvedObject") or {}
            if involved.get("kind", CLUSTERS.kind) != CLUSTERS.kind:
                # The cluster has the same Event.
                return
            self.say(f"{stored.get('reason', '')}: {stored.get('message', '')}")
        elif kind is REBALANCES and not gone:
            self._engine = str((stored.get("status") or {}).get("engine") or "")
        elif kind is CLUSTERS and stored["metadata"]["name"] == NAME and not gone:
            cluster = TabletCluster.read(stored)
            if isinstance(cluster, TabletCluster) and cluster.status.phase is not None:
                self._show(line_of(cluster, self._engine))

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._clear()
        self._out.write(f"{self._time()}  {text}\n")
        if self._out.isatty():
            self._out.write(self._line)
        self._out.flush()

    def _show(self, line: str) -> None:
        if line == self._line:
            return
        self._clear()
        self._line = line
        self._out.write(line if self._out.isatty() else f"{self._time()}  {line}\n")
        self._out.flush()

    def _clear(self) -> None:
        if self._out.isatty():
            self._out.write("\r\x1b[K")

    def _time(self) -> str:
        return datetime.fromtimestamp(self._now()).astimezone().strftime("%H:%M:%S")


def line_of(cluster: TabletCluster, engine: str = "") -> str:
    """Return the state of a cluster in one line; safe are partitions that have all their copies.

    `engine` is what copies now, if that is known.
    """
    spec, status = cluster.spec, cluster.status
    partitions, migrations = status.partitions, status.migrations
    text = (
        f"{status.phase}: members {status.members.ready}/{spec.members}, "
        f"safe {partitions.safe}/{partitions.total}"
    )
    left = migrations.active + migrations.waiting
    if left:
        planned = left + migrations.done
        done = BAR_LETTERS * migrations.done // planned
        by = f" by {engine}" if engine else ""
        text += f", moved {migrations.done}/{planned}{by} [{'#' * done}{'.' * (BAR_LETTERS - done)}]"
    return text
