"""States of a tablet on a volume, with every legal transition as data (docs/design/tablets.md).

None stands for no tablet. docs/tools/diagrams.py draws docs/internals/state-machines.md from these tables.
"""

from enum import Enum, StrEnum

from stele.errors import Refused


class TabletState(StrEnum):
    COPYING = "COPYING"
    READY = "READY"
    DELETED = "DELETED"


class Event(Enum):
    CREATE = "CREATE"
    START_COPY = "START_COPY"
    INGEST = "INGEST"
    FILL = "FILL"
    ABANDON = "ABANDON"
    DELETE = "DELETE"
    RESTORE = "RESTORE"


_S, _E = TabletState, Event
TRANSITIONS: dict[tuple[TabletState | None, Event], TabletState] = {
    (None, _E.CREATE): _S.READY,
    (None, _E.START_COPY): _S.COPYING,
    (_S.DELETED, _E.START_COPY): _S.COPYING,
    (_S.COPYING, _E.INGEST): _S.READY,
    (_S.COPYING, _E.FILL): _S.READY,
    (_S.COPYING, _E.ABANDON): _S.DELETED,
    (_S.READY, _E.INGEST): _S.READY,
    (_S.READY, _E.DELETE): _S.DELETED,
    (_S.DELETED, _E.DELETE): _S.DELETED,
    (_S.DELETED, _E.RESTORE): _S.READY,
}


MEANING: dict[Event, str] = {
    _E.CREATE: "a first assignment: empty",
    _E.START_COPY: "a copy to this member starts",
    _E.INGEST: "the copy is complete, under a new generation",
    _E.FILL: "the owner's log has everything: nothing to copy",
    _E.ABANDON: "the copy is aborted or interrupted by a restart",
    _E.DELETE: "the row no longer names this member: data and log are quarantined",
    _E.RESTORE: "a user restored it from quarantine",
}


def state_name(state: TabletState | None) -> str:
    return "DOES_NOT_EXIST" if state is None else state.value


def step(state: TabletState | None, event: Event) -> TabletState:
    """Return the state after the event. Raises Refused (ILLEGAL_STATE) when there is none."""
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise Refused(
            f"a tablet in state {state_name(state)} cannot {event.value.lower().replace('_', ' ')}",
            "ILLEGAL_STATE",
        )
    return after
