"""Machines of `core.tablet` for cases as text: a log, a follower, an owner, leases."""

from itertools import groupby
from typing import Any

from stele.core.table.table import Partition
from stele.core.tablet.follower import Code, Tablet
from stele.core.tablet.leases import LeaseGrantor, LeaseHolder
from stele.core.tablet.log import Log, OpId
from stele.core.tablet.owner import Learner, LogPosition, Owner
from tests.golden.script import shown

Row = tuple[int, Any]
"""`4:0,1`: version and members."""


def filled(terms: tuple[int, ...], applied: int = 0) -> Log:
    """A log with one operation of each of these terms."""
    log = Log()
    for term in terms:
        log.append(term, 1, 10)
    log.commit(applied)
    log.apply(applied)
    return log


def described(log: Log) -> dict[str, str]:
    terms = [log.term_at(index) for index in range(log.first, log.last[1] + 1)]
    runs = " ".join(f"{term}*{len(list(run))}" for term, run in groupby(terms))
    return {
        "log": f"{log.first} to {shown(log.last)}, terms {runs or '-'}",
        "committed": str(log.committed),
        "applied": shown(log.applied),
    }


class LogMachine:
    """A log alone. Steps in which it is trimmed are as small as the operations that are appended."""

    def __init__(self) -> None:
        self._log = Log()

    def parts(self) -> list[Any]:
        return [self._log]

    def state(self) -> dict[str, str]:
        return described(self._log) | {"bytes": str(self._log.bytes)}

    def log(self, *terms: int) -> None:
        self._log = filled(terms)

    def restore(self, applied: OpId, first: int, last: int, size: int, *terms: tuple[int, int]) -> None:
        """`terms`: where one begins, and what it is."""
        self._log = Log.restored(applied, first, last, list(terms), size)


class TabletMachine:
    """One tablet of member 1, a follower, or of member 0 with the owner's half."""

    def __init__(self) -> None:
        self._tablet = Tablet(0, 0, Log(), 0)
        self._owner: Any = None

    def parts(self) -> list[Any]:
        return [self._owner, self._tablet, self._tablet.log]

    def state(self) -> dict[str, str]:
        tablet = self._tablet
        row = f"{tablet.row.version}:{','.join(map(str, tablet.row.replicas))}"
        state = {**described(tablet.log), "row": f"{row}, promised {tablet.promised}"}
        if tablet.leader is not None:
            state["follows"] = f"{tablet.leader} in term {tablet.leader_term}"
        return state if self._owner is None else state | self._owner_state(self._owner)

    def _owner_state(self, owner: Owner) -> dict[str, str]:
        serves = "serves" if owner.serving else "does not serve"
        waited = shown(list(owner.waited_for))
        state = {"owner": f"{owner.phase.value} in term {owner.term}, {serves}, waits for {waited}"}
        for member, progress in owner.progress.items():
            takes = "" if progress.takes else ", takes nothing yet"
            state[f"member {member}"] = f"{progress.flow.name} match {progress.match}{takes}"
        if (learner := owner.learner) is not None:
            waited = f"waited for from {learner.target}" if learner.waited else "not waited for"
            pin = f"pin {learner.pin}" if learner.pinned else "not pinned"
            near = ", near enough to wait for" if owner.wants_waiting else ""
            at = f"{learner.state.value} at {learner.member}"
            state[f"learner {learner.id}"] = f"{at}, {waited}, {pin}{near}"
        if owner.frozen:
            state["frozen"] = f"for {owner.frozen}, last {shown(owner.handed_over)}"
        return state

    # -- the follower's half

    def follower(self, row: Row, *terms: int, applied: int = 0, promised: int = 0, me: int = 1) -> None:
        self._tablet = Tablet(0, me, filled(terms, applied), promised)
        self._tablet.row = Partition(*row)

    def adopt(self, row: Row) -> bool:
        return self._tablet.adopt(Partition(*row))

    def copied(self, *terms: int) -> None:
        self._tablet.replace_log(filled(terms))

    # -- the owner's half

    def owner(
        self, row: Row, *terms: int, frozen: str = "", learner: tuple[str, int] | None = None, **kept: int
    ) -> None:
        """`frozen`: for a migration of this row; `learner`: migration and member, waited for already."""
        self.follower(row, *terms, me=0, **kept)
        waited = None if learner is None else Learner(*learner, row[0], 0, waited=True)
        self._owner = Owner(self._tablet, waited, (frozen, row[0]) if frozen else None)

    def serving(self, row: Row, *terms: int, **kept: int) -> None:
        """An owner that all have answered; they have the first operation of its term."""
        self.owner(row, *terms, **kept)
        for member in self._owner.members:
            self.position(member, self._tablet.log.last)
        self._owner.next_step()
        self.first()
        for member in self._owner.members:
            self.ack(member)
        self.sync()
        self.apply()

    def position(
        self, member: int, last: OpId | None, applied: OpId = (0, 0), code: str = "OK", **sent: int
    ) -> None:
        """What a member answers to a probe; `-`: it has no tablet, or an empty one."""
        position = LogPosition(last or (0, 0), applied, empty=last is None)
        term = sent.get("term", self._owner.term)
        self._owner.on_probe_result(member, term, Code[code], position, sent.get("promised", 0))

    def ack(self, member: int, match: int | None = None, code: str = "OK", **sent: int) -> bool:
        """What a member answers to operations: it has them all, or up to `match`."""
        match = self._tablet.log.last[1] if match is None else match
        term = sent.get("term", self._owner.term)
        return bool(self._owner.on_ack(member, term, Code[code], match, sent.get("promised", 0)))

    def step(self) -> str:
        fetch = self._owner.next_step()
        if fetch is not None:
            return f"fetch from {fetch.member} what is behind {shown(fetch.prev)}"
        return "may append" if self._owner.ready_to_commit else "wait"

    def first(self) -> None:
        """Append the first operation of the term."""
        self._tablet.log.append(self._owner.term, 1, 10)
        self._owner.appended_first()

    def sync(self) -> bool:
        self._owner.synced = self._tablet.log.last[1]
        return bool(self._owner.advance())

    def apply(self) -> bool:
        self._tablet.log.apply(self._tablet.log.committed)
        return bool(self._owner.applied())

    def publish(self, row: Row) -> None:
        self.adopt(row)
        self._owner.row_changed(self._tablet.row)


class LeaseMachine:
    """A grantor that started in second 100, and a holder; leases last ten seconds."""

    def __init__(self) -> None:
        self._halves = [LeaseGrantor(100.0, 10.0), LeaseHolder()]

    def parts(self) -> list[Any]:
        return list(self._halves)

    def state(self) -> dict[str, str]:
        return {}
