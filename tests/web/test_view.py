"""The document of a cluster."""

import msgspec

from e2e.page.facts import copy_to, facts_of, plan_of
from stele.core.table.table import Partition
from stele.web import limits
from stele.web.view import base_of, view


def test_the_first_document_has_every_row_and_later_ones_those_that_changed() -> None:
    facts = facts_of(partitions=12)
    first = view(facts)
    assert first["base"] == ""
    assert [row[0] for row in first["rows"]] == list(range(12))
    assert first["rows"][1] == [1, 1, 2]
    base = base_of(facts.state, first["version"])
    assert view(facts, base)["rows"] == []
    facts.state.table.store({5: Partition(3, (1, None, 0))})
    later = view(facts, base)
    assert (later["base"], later["rows"]) == (first["version"], [[5, 1, None, 0]])


def test_who_has_the_rows_of_another_master_or_none_gets_all() -> None:
    facts = facts_of(partitions=4)
    for since in ("", "2-1", "3-0", "3-2", "3-", "-", "x", "3-9999999999999999999999", "3-\u0663"):
        assert base_of(facts.state, since) == "", since
    assert (view(facts)["base"], len(view(facts)["rows"])) == ("", 4)


def test_a_document_has_what_moves_and_how_far_it_is() -> None:
    facts = facts_of(members=4)
    row = facts.state.table.partitions[0].replicas
    free = next(each for each in range(4) if each not in row)
    copy_to(facts, 0, free)
    found = view(facts)
    (move,), (session,) = found["moves"], found["sessions"]
    assert (move["partition"], move["source"], move["destination"]) == (0, row[-1], free)
    assert (move["leaves"], move["step"], move["seconds"]) == (True, "START", 10.0)
    assert (session["engine"], session["copied"], session["seconds"]) == ("Direct", 5, 5.0)


def test_members_bring_their_counters_once_they_have_reported() -> None:
    facts = facts_of(members=2)
    facts.state.membership.liveness[1].report = None
    known, silent = view(facts)["members"]
    assert known["counters"] == [0, 0, 0, 0]
    assert known["silent"] == 1.0
    assert "counters" not in silent


def test_plans_under_way_come_first_then_the_newest() -> None:
    ended = {"phase": "Done", "finishedAt": "2026-01-05T00:00:00Z"}
    plans = [
        plan_of("old", "2026-01-01T00:00:00Z", **ended),
        plan_of("present", "2026-01-02T00:00:00Z", planned={"total": 3, "move": 3}, etaSeconds=7),
        plan_of("new", "2026-01-03T00:00:00Z", **ended),
    ]
    found = view(facts_of(plans=plans))["plans"]
    assert [each["name"] for each in found] == ["present", "new", "old"]
    assert (found[0]["types"], found[0]["eta"]) == ({"move": 3}, 7)


def test_a_large_cluster_is_small_on_the_wire() -> None:
    facts = facts_of(members=100, partitions=16384)
    first = msgspec.json.encode(view(facts))
    assert len(first) < 400_000
    assert len(msgspec.json.encode(view(facts, view(facts)["version"]))) < 60_000


def test_what_moves_has_a_limit() -> None:
    facts = facts_of(members=4, partitions=limits.MOVES_SHOWN_MAX + 10)
    for number, row in enumerate(facts.state.table.partitions):
        copy_to(facts, number, next(each for each in range(4) if each not in row.replicas))
    found = view(facts)
    assert len(found["moves"]) == limits.MOVES_SHOWN_MAX
    assert len(found["sessions"]) == limits.SESSIONS_SHOWN_MAX
    assert found["moving"] == limits.MOVES_SHOWN_MAX + 10
