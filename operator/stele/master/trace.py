"""Steps since the last tick, logged at level DEBUG, one line each."""

import logging

from stele.core.control.state import State

log = logging.getLogger(__name__)


class Trace:
    """Remembers the step of each running migration and session."""

    def __init__(self) -> None:
        self._steps: dict[str, str] = {}

    def note(self, state: State) -> None:
        """Log the steps that have changed; does nothing unless the level is DEBUG."""
        if not log.isEnabledFor(logging.DEBUG):
            return
        migrations = state.operations.migrations.values()
        steps = {each.id: f"{each.migration} {each.step.value}" for each in migrations}
        for session in state.operations.sessions.values():
            pair = f"{session.source} to {session.destination}"
            steps[session.id] = f"{len(session.partitions)} tablets {pair} {session.stage.value}"
        for id in self._steps.keys() - steps.keys():
            log.debug("%s ended after %s", id, self._steps[id])
        for id, step in steps.items():
            if self._steps.get(id) != step:
                log.debug("%s %s", id, step)
        self._steps = steps
