"""A CA is changed without a moment in which two members distrust each other, wherever the operator ends."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.security.rotation import (
    CA_DAYS,
    CLIENT_OVERLAP,
    DAY,
    Brought,
    CaState,
    Step,
    Validity,
    next_step,
    promote_at,
)

NOW = 1_800_000_000.0
NEW = Validity(NOW, NOW + CA_DAYS * DAY)
OLD = Validity(NOW - CA_DAYS * DAY * 0.7, NOW + CA_DAYS * DAY * 0.3)
MEMBERS = 3


def step(ca: CaState, asked: str = "", *, used: bool = True, now: float = NOW) -> Step:
    return next_step(ca, asked, everybody_uses_it=used, now=now)


def test_a_certificate_is_renewed_after_two_thirds_of_its_life() -> None:
    leaf = Validity(NOW, NOW + 30 * DAY)
    assert leaf.renew_at == NOW + 20 * DAY
    assert [leaf.days_left(NOW + days * DAY) for days in (0, 29.5, 30, 31)] == [30, 0, 0, -1]


def test_a_ca_is_kept_until_it_is_due_or_a_user_asks() -> None:
    assert step(CaState(NEW)) is Step.KEEP
    assert step(CaState(NEW), "1") is Step.ADD_NEXT
    assert step(CaState(NEW, handled="1"), "1") is Step.KEEP
    assert step(CaState(OLD)) is Step.ADD_NEXT


def test_clients_have_time_to_take_the_next_ca_unless_a_user_is_in_a_hurry() -> None:
    ca = CaState(OLD, promote_at("", "", NOW), has_next=True)
    assert step(ca) is Step.KEEP
    assert step(ca, now=NOW + CLIENT_OVERLAP) is Step.PROMOTE
    assert step(ca, used=False, now=NOW + CLIENT_OVERLAP) is Step.KEEP
    assert step(ca, "now") is Step.HURRY
    hurried = replace(ca, promote_at=NOW, handled="now")
    assert step(hurried, "now") is Step.PROMOTE
    assert promote_at("", "now", NOW) == NOW


def test_a_ca_that_ends_waits_for_no_client() -> None:
    ending = CaState(Validity(NOW - DAY, NOW + DAY), NOW + CLIENT_OVERLAP, has_next=True)
    assert step(ending) is Step.PROMOTE


@pytest.mark.parametrize("used", [True, False])
def test_the_old_ca_is_trusted_until_nobody_shows_it(used: bool) -> None:
    expected = Step.RETIRE if used else Step.KEEP
    assert step(CaState(NEW, has_old=True), "again", used=used) is expected


@pytest.mark.parametrize("has_next", [True, False])
def test_a_ca_that_a_user_brings_is_taken_and_no_other_is_made(has_next: bool) -> None:
    other, current = (
        CaState(NEW, has_next=has_next, brought=Brought.OTHER),
        replace(CaState(OLD, has_next=has_next), brought=Brought.CURRENT),
    )
    assert step(other) is Step.ADD_NEXT
    assert step(current, "again") is (Step.DROP_NEXT if has_next else Step.KEEP)
    assert step(replace(other, has_old=True), used=False) is Step.KEEP
    assert step(CaState(OLD, NOW, has_next=True, brought=Brought.NEXT)) is Step.PROMOTE


Trusted = frozenset[int]


@dataclass
class Stage:
    """Stored CAs by number, the one a user brings, the members' Secrets, and what each member has read."""

    signs: int = 0
    next: int | None = None
    old: int | None = None
    brought: int | None = None
    promote_at: float = 0.0
    handled: str = ""
    secrets: list[tuple[int, Trusted]] = field(default_factory=lambda: [(0, frozenset({0}))] * MEMBERS)
    loaded: list[tuple[int, Trusted]] = field(default_factory=lambda: [(0, frozenset({0}))] * MEMBERS)

    @property
    def wanted(self) -> tuple[int, Trusted]:
        return self.signs, frozenset({self.signs, self.next, self.old} - {None})

    @property
    def ca(self) -> CaState:
        which = {None: Brought.NONE, self.next: Brought.NEXT, self.signs: Brought.CURRENT}
        brought = Brought.NONE if self.brought is None else which.get(self.brought, Brought.OTHER)
        has = self.next is not None, self.old is not None
        return CaState(NEW, self.promote_at, *has, self.handled, brought)

    def decide(self, asked: str) -> None:
        """One round of the operator up to its first write: a crash after any write is the next round."""
        for index, secret in enumerate(self.secrets):
            if secret != self.wanted:
                self.secrets[index] = self.wanted
                return
        used = all(each == self.wanted for each in self.loaded)
        match next_step(self.ca, asked, everybody_uses_it=used, now=NOW):
            case Step.ADD_NEXT:
                self.promote_at = promote_at(self.handled, asked, NOW)
                self.next = self.signs + 1 if self.brought is None else self.brought
                self.handled = asked
            case Step.HURRY:
                self.promote_at, self.handled = NOW, asked
            case Step.DROP_NEXT:
                self.next, self.promote_at = None, 0.0
            case Step.PROMOTE if self.next is not None:
                self.signs, self.old, self.next = self.next, self.signs, None
            case Step.RETIRE:
                self.old = None

    def check(self) -> None:
        for shown, _ in self.loaded:
            assert all(shown in trusted for _, trusted in self.loaded), self.loaded


def _run(events: list[int], asked: str) -> Stage:
    """-1 is a round of the operator, a member's number a look at its files, others are brought CAs."""
    stage = Stage()
    for event in events:
        if event < 0:
            stage.decide(asked)
        elif event < MEMBERS:
            stage.loaded[event] = stage.secrets[event]
        else:
            stage.brought = event
        stage.check()
    for number in range(10 * MEMBERS):
        stage.decide(f"{asked}{number}")
        stage.loaded = list(stage.secrets)
        stage.check()
    return stage


@given(st.lists(st.integers(-1, MEMBERS - 1), max_size=200), st.sampled_from(["a", "b"]))
def test_all_members_trust_each_other_at_any_moment_of_a_change(events: list[int], asked: str) -> None:
    stage = Stage()
    for event in events:
        if event < 0:
            stage.decide(asked)
        else:
            stage.loaded[event] = stage.secrets[event]
        stage.check()
    for _ in range(5 * MEMBERS):
        stage.decide(asked)
        stage.loaded = list(stage.secrets)
        stage.check()
    assert stage.loaded == [(1, frozenset({1}))] * MEMBERS
    assert (stage.signs, stage.next, stage.old, stage.handled) == (1, None, None, asked)


@given(st.lists(st.integers(-1, MEMBERS + 2), max_size=200))
def test_the_ca_that_is_brought_last_signs_in_the_end(events: list[int]) -> None:
    """Also where users bring another one in the middle of a change."""
    stage = _run([*events, MEMBERS + 1], "a")
    assert stage.loaded == [(MEMBERS + 1, frozenset({MEMBERS + 1}))] * MEMBERS
    assert (stage.next, stage.old) == (None, None)
