"""A CA is changed without a moment in which two members distrust each other, wherever the operator ends."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.security.rotation import (
    CA_DAYS,
    CLIENT_OVERLAP,
    DAY,
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
    ca = CaState(OLD, promote_at(CaState(OLD), "", NOW), has_next=True)
    assert step(ca) is Step.KEEP
    assert step(ca, now=NOW + CLIENT_OVERLAP) is Step.PROMOTE
    assert step(ca, used=False, now=NOW + CLIENT_OVERLAP) is Step.KEEP
    assert step(ca, "now") is Step.HURRY
    hurried = replace(ca, promote_at=NOW, handled="now")
    assert step(hurried, "now") is Step.PROMOTE
    assert promote_at(CaState(NEW), "now", NOW) == NOW


def test_a_ca_that_ends_waits_for_no_client() -> None:
    ending = CaState(Validity(NOW - DAY, NOW + DAY), NOW + CLIENT_OVERLAP, has_next=True)
    assert step(ending) is Step.PROMOTE


@pytest.mark.parametrize("used", [True, False])
def test_the_old_ca_is_trusted_until_nobody_shows_it(used: bool) -> None:
    expected = Step.RETIRE if used else Step.KEEP
    assert step(CaState(NEW, has_old=True), "again", used=used) is expected


@dataclass
class Stage:
    """Stored CAs by number, the members' Secrets, and what each member has read of its own."""

    ca: CaState = field(default_factory=lambda: CaState(NEW))
    signs: int = 0
    trusts: tuple[int, ...] = (0,)
    secrets: list[tuple[int, tuple[int, ...]]] = field(default_factory=lambda: [(0, (0,))] * MEMBERS)
    loaded: list[tuple[int, tuple[int, ...]]] = field(default_factory=lambda: [(0, (0,))] * MEMBERS)

    def decide(self, asked: str) -> None:
        """One round of the operator up to its first write: a crash after any write is the next round."""
        wanted = self.signs, self.trusts
        for index, secret in enumerate(self.secrets):
            if secret != wanted:
                self.secrets[index] = wanted
                return
        used = all(each == wanted for each in self.loaded)
        match next_step(self.ca, asked, everybody_uses_it=used, now=NOW):
            case Step.ADD_NEXT:
                at = promote_at(self.ca, asked, NOW)
                self.ca = CaState(NEW, at, has_next=True, handled=asked)
                self.trusts = (self.signs, self.signs + 1)
            case Step.PROMOTE:
                self.ca = CaState(NEW, has_old=True, handled=self.ca.handled)
                self.signs += 1
            case Step.RETIRE:
                self.ca, self.trusts = CaState(NEW, handled=self.ca.handled), (self.signs,)

    def check(self) -> None:
        for shown, _ in self.loaded:
            assert all(shown in trusted for _, trusted in self.loaded), self.loaded


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
    assert stage.loaded == [(1, (1,))] * MEMBERS
    assert stage.ca == CaState(NEW, handled=asked)
