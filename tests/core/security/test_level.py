"""Members can always dial each other while TLS between them is switched on or off, in any order of events."""

import itertools

import hypothesis.strategies as st
from hypothesis import given

from stele.core.security.level import STEPS, InternalTls, can_dial, next_level

MEMBERS = 4
levels = st.sampled_from(STEPS)
member = st.integers(0, MEMBERS - 1)
events = st.lists(
    st.one_of(
        st.tuples(st.just("want"), levels),
        st.tuples(st.just("decide"), st.just(0)),
        *(st.tuples(st.just(kind), member) for kind in ("send", "adopt", "report", "restart")),
    ),
    max_size=80,
)


def test_neighbouring_levels_can_talk_and_the_ends_cannot() -> None:
    for first, second in itertools.product(STEPS, STEPS):
        distance = abs(STEPS.index(first) - STEPS.index(second))
        both = can_dial(first, second) and can_dial(second, first)
        assert both == (distance <= 1), (first, second)


class Members:
    """A master that decides, and members: what was sent to each, what each does, and what each reported."""

    def __init__(self) -> None:
        self.current = self.wanted = InternalTls.OFF
        self.sent = [InternalTls.OFF] * MEMBERS
        self.in_force = [InternalTls.OFF] * MEMBERS
        self.reported: list[InternalTls | None] = [InternalTls.OFF] * MEMBERS

    def take(self, kind: str, value: InternalTls | int) -> None:
        if isinstance(value, InternalTls):
            self.wanted = value
        elif kind == "decide":
            self.current = next_level(self.current, self.wanted, self.reported)
        elif kind == "send":
            self.sent[value] = self.current
        elif kind == "adopt":
            self.in_force[value] = self.sent[value]
        elif kind == "report":
            self.reported[value] = self.in_force[value]
        else:
            # A member that starts has what it wrote, and the master does not know it.
            self.reported[value] = None

    def all_can_talk(self) -> bool:
        return all(can_dial(a, b) for a, b in itertools.permutations(self.in_force, 2))


@given(events)
def test_any_two_members_can_talk_at_any_moment(history: list[tuple[str, InternalTls | int]]) -> None:
    members = Members()
    for kind, value in history:
        members.take(kind, value)
        assert members.all_can_talk(), members.in_force


@given(events, levels)
def test_whatever_happened_the_wanted_level_is_reached(
    history: list[tuple[str, InternalTls | int]], wanted: InternalTls
) -> None:
    members = Members()
    for kind, value in [*history, ("want", wanted)]:
        members.take(kind, value)
    for _ in range(len(STEPS)):
        for kind in ("send", "adopt", "report"):
            for index in range(MEMBERS):
                members.take(kind, index)
        members.take("decide", 0)
    assert members.current is wanted


def test_a_member_that_has_not_reported_holds_the_step_up() -> None:
    off, accept = InternalTls.OFF, InternalTls.ACCEPT
    assert next_level(off, InternalTls.REQUIRED, [off, None]) is off
    assert next_level(off, InternalTls.REQUIRED, [off, off]) is accept
    assert next_level(accept, InternalTls.REQUIRED, [off, accept]) is accept
    assert next_level(accept, off, [accept]) is off
    assert next_level(off, InternalTls.REQUIRED, []) is accept
