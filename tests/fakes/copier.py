"""The copier in memory: `ports.control_loop.Copier` without Spark."""

from collections.abc import Mapping, Sequence
from typing import Any

from stele.core.control.commands import Reason
from stele.core.control.operations.copy_session import CopySession, Job
from stele.core.control.state import State


class NoCopier:
    """Where every copy is a direct one."""

    def problem(self) -> str:
        return "there is none"

    def want(self, waves: Sequence[CopySession], state: State) -> None:
        assert not waves

    def jobs(self) -> Mapping[str, Job]:
        return {}

    async def close(self) -> None:
        return


class Copier:
    """`outcome` is what becomes of a job that begins: DONE stages what the source holds, RUNNING goes on for
    ever, anything else is why it fails. `waves` are all that were ever wanted.
    """

    def __init__(self, harness: Any, outcome: str = "DONE") -> None:
        self._harness = harness
        self.outcome = outcome
        self.told: dict[str, Job] = {}
        self.waves: dict[str, CopySession] = {}

    def problem(self) -> str:
        return ""

    def want(self, waves: Sequence[CopySession], state: State) -> None:
        wanted = {wave.id for wave in waves}
        self.told = {session: job for session, job in self.told.items() if session in wanted}
        for wave in waves:
            self.waves[wave.id] = wave
            if wave.id not in self.told:
                self._begin(wave)

    def _begin(self, wave: CopySession) -> None:
        if self.outcome == "DONE":
            member = self._harness.world.volumes[wave.destination]
            if member.stage(wave.id, wave.source, sorted(wave.partitions)):
                self.told[wave.id] = Job("DONE", wave.bytes, tasks=4, retries=1)
        elif self.outcome == "RUNNING":
            self.told[wave.id] = Job("RUNNING", wave.bytes // 2, tasks=4)
        else:
            self.told[wave.id] = Job("FAILED", 0, Reason(*self.outcome.split(": ", 1)))

    def jobs(self) -> Mapping[str, Job]:
        return self.told

    async def close(self) -> None:
        return
