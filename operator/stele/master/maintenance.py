"""Until when users have members' places kept: an annotation of the TabletMember or of its Node.

Nodes are read while one of their members is silent or its pod is being deleted. The annotation of a Node
goes with the Node.
"""

from collections.abc import Callable
from datetime import datetime

from stele.core.control.failure_detector import NEVER
from stele.master.nodes import Nodes
from stele.model import TabletMember

MAINTENANCE_UNTIL = "stele.dev/maintenance-until"
"""Annotation, an RFC 3339 time."""

VALUE_SHOWN = 60
"""Characters of an invalid value that a message shows."""


def seconds_at(time: str, clock_at: Callable[[float], datetime]) -> float | None:
    """Return a time in monotonic seconds; None when it is no RFC 3339 time, which has an offset from UTC."""
    try:
        return (datetime.fromisoformat(time) - clock_at(0.0)).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None


class Maintenance:
    """Reads the annotation where users set it. `clock_at` converts monotonic seconds to the time of day."""

    def __init__(self, nodes: Nodes, clock_at: Callable[[float], datetime]) -> None:
        self._nodes, self._clock_at = nodes, clock_at

    def kept_until_seconds(self, member: TabletMember, node: str) -> float:
        """Return the later of the two times; an invalid one does not count."""
        times = (seconds_at(time, self._clock_at) for time in self._written(member, node).values())
        return max((seconds for seconds in times if seconds is not None), default=NEVER)

    def problem(self, member: TabletMember, node: str) -> str:
        """Return what is wrong with the annotations, and what to do; empty when nothing is."""
        wrong = (
            f"metadata.annotations[{MAINTENANCE_UNTIL}] of {place} is {time[:VALUE_SHOWN]!r}, expected an "
            "RFC 3339 time such as 2030-01-01T12:00:00Z; until it is corrected or removed, it keeps no place"
            for place, time in self._written(member, node).items()
            if seconds_at(time, self._clock_at) is None
        )
        return "; ".join(wrong)

    def _written(self, member: TabletMember, node: str) -> dict[str, str]:
        """Return the values by the object that has them."""
        meta = member.metadata
        values = {
            f"TabletMember {meta.name}": meta.annotations.get(MAINTENANCE_UNTIL),
            f"Node {node}": self._nodes.annotations(node).get(MAINTENANCE_UNTIL),
        }
        return {place: value for place, value in values.items() if value is not None}
