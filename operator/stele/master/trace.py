"""Steps since the last tick, logged at level DEBUG, one line each."""

import logging

from stele.core.control.state import State

log = logging.getLogger(__name__)

_OF_MIGRATION = "migration %s, partition %d: %s"

Step = tuple[str, tuple[str | int, ...]]
"""Template of a line, and its values."""


class Trace:
    """Remembers the step of each running migration and session."""

    def __init__(self) -> None:
        self._steps: dict[str, Step] = {}

    def note(self, state: State) -> None:
        """Log the steps that have changed; does nothing unless the level is DEBUG."""
        if not log.isEnabledFor(logging.DEBUG):
            return
        steps: dict[str, Step] = {}
        for each in state.operations.migrations.values():
            text = f"{each.migration} {each.step.value}"
            steps[each.id] = _OF_MIGRATION, (each.id, each.partition, text)
        for session in state.operations.sessions.values():
            pair = f"{session.source} to {session.destination}"
            text = f"{len(session.partitions)} tablets {pair} {session.stage.value}"
            steps[session.id] = "session %s: %s", (session.id, text)
        for id in self._steps.keys() - steps.keys():
            template, values = self._steps[id]
            log.debug(f"{template}, and ended", *values)
        for id, (template, values) in steps.items():
            if self._steps.get(id) != (template, values):
                log.debug(template, *values)
        self._steps = steps
