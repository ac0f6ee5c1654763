"""States of a tablet: what is legal."""

from itertools import product

import pytest

from stele.core.tablet.lifecycle import MEANING, TRANSITIONS, Event, TabletState, state_name, step
from stele.errors import Refused


def test_every_event_is_explained() -> None:
    assert set(MEANING) == set(Event) == {event for _, event in TRANSITIONS}


def test_whatever_is_not_in_the_table_is_refused() -> None:
    for state, event in product((None, *TabletState), Event):
        if (state, event) not in TRANSITIONS:
            with pytest.raises(Refused, match=f"a tablet in state {state_name(state)} cannot"):
                step(state, event)
