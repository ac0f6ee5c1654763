"""What is copied is counted: no byte travels twice because of a change of the master alone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stele.core.control import commands as m
from tests.simulation.kinds import OF_THE_MASTER, USERS_MOVES

if TYPE_CHECKING:
    from tests.simulation.world import World

RULE = "no byte is copied twice for a new master"

Check = Callable[..., None]
Key = tuple[str, int]
"""A destination's UUID and the partition that it receives."""


@dataclass(frozen=True)
class Copied:
    """What was copied: by the master of this epoch last, in this session, on this version of the row."""

    epoch: int
    session: str
    version: int


class Copies:
    """Looks at the copies that destinations begin.

    Only where nothing but the master fails, and users change what they desire: then a copy that began is
    used, unless the master that began it also ended it.
    """

    def __init__(self, world: "World", check: Check) -> None:
        self.world, self._check = world, check
        self._copied: dict[Key, Copied] = {}
        profile = world.profile
        drawn = {*profile.faults} - profile.without
        late_only = all(not profile.rate(name) for name in profile.rates if name != "copy late")
        if drawn <= {*OF_THE_MASTER, *USERS_MOVES} and late_only and not profile.ending:
            world.exchanged.append(self._exchanged)

    def _exchanged(self, place: str, request: m.ExchangeRequest, reply: m.ExchangeReply) -> None:
        for command, result in zip(request.commands, reply.results, strict=False):
            if result.code != m.OK:
                continue
            if isinstance(command, m.FetchDirect):
                self._begun(reply.uuid, request.epoch, command)
            elif isinstance(command, m.OpenSession):
                self._continued(request.epoch, command.session)
            elif isinstance(command, m.Ingest):
                for partition in command.partitions:
                    self._copied.pop((reply.uuid, partition), None)
            elif isinstance(command, m.Abort):
                self._aborted(request.epoch, command.partition)

    def _continued(self, epoch: int, session: str) -> None:
        """From now on it is this master's copy."""
        for key, each in self._copied.items():
            if each.session == session and each.epoch < epoch:
                self._copied[key] = replace(each, epoch=epoch)
                self.world.trace.cover("copy that a new master continues")

    def _begun(self, uuid: str, epoch: int, command: m.FetchDirect) -> None:
        rows = self.world.rows()
        for item in command.items:
            key = uuid, item.partition
            made = Copied(epoch, command.session, rows[item.partition].version)
            before = self._copied.get(key, made)
            same = before.version != made.version or before.epoch == epoch or before.session == made.session
            text = "{} copies {} bytes in {}, after {} did in {}"
            shown = epoch, item.bytes, made.session, before.epoch, before.session
            self._check(RULE, same, text, *shown, partition=item.partition)
            self._copied[key] = made

    def _aborted(self, epoch: int, partition: int) -> None:
        """A master may end what it began itself: another one copies again."""
        for key in [key for key, each in self._copied.items() if key[1] == partition and each.epoch == epoch]:
            del self._copied[key]
