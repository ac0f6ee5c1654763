"""States of a tablet: what is legal, and the diagram that is drawn of it."""

from itertools import product
from pathlib import Path

import pytest

from docs.tools.diagrams import drawn, replaced
from stele.core.tablet.lifecycle import MEANING, TRANSITIONS, Event, TabletState, step
from stele.errors import Refused

DOCUMENT = Path(__file__).parents[3] / "docs" / "internals" / "member.md"


def test_the_document_has_the_present_diagram() -> None:
    text = DOCUMENT.read_text()
    assert replaced(text) == text, "run: python -m docs.tools.diagrams docs/internals/member.md"


def test_every_transition_is_drawn_and_every_event_is_explained() -> None:
    text = drawn()
    for (before, event), after in TRANSITIONS.items():
        assert f"{before.value} --> {after.value}: {event.value}" in text
    assert set(MEANING) == set(Event) == {event for _, event in TRANSITIONS}


def test_whatever_is_not_in_the_table_is_refused() -> None:
    for state, event in product(TabletState, Event):
        if (state, event) not in TRANSITIONS:
            with pytest.raises(Refused, match=f"a tablet in state {state.value} cannot"):
                step(state, event)
