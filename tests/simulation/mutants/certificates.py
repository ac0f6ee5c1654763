"""Bugs planted in the steps of TLS among members and of a CA, for `tests.simulation.security_course`."""

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from stele.core.control import member_tls
from stele.core.security import level, rotation
from stele.core.security.level import InternalTls
from stele.core.security.rotation import CaState, Step
from stele.master import certificates
from stele.master.authority import Authority
from stele.member.replication.member_tls import MemberTls
from tests.simulation.mutants.plant import Plant


def level_rises_before_all_have_reported() -> AbstractContextManager[Any]:
    """The next level is told whatever members have."""

    def next_level(now: InternalTls, wanted: InternalTls, _: Collection[InternalTls | None]) -> InternalTls:
        return level.next_level(now, wanted, ())

    return patch.object(member_tls, "next_level", next_level)


def ca_changes_before_all_use_it() -> AbstractContextManager[Any]:
    """Each step of a CA is taken as soon as the one before is written."""

    def next_step(ca: CaState, asked: str, *, everybody_uses_it: bool, now: float) -> Step:
        return rotation.next_step(ca, asked, everybody_uses_it=True, now=now)

    return patch.object(certificates, "next_step", next_step)


def old_ca_is_dropped_one_step_early() -> AbstractContextManager[Any]:
    """It is not trusted from the moment at which the next one signs."""
    real = Authority.after

    def after(self: Authority, *step: Any) -> Authority:
        return replace(real(self, *step), old=b"")

    return patch.object(Authority, "after", after)


def required_takes_plain_connections() -> AbstractContextManager[Any]:
    """A member refuses certificates, and takes those that show none."""
    real = MemberTls.refusal

    def refusal(self: MemberTls, certificate: Any, *more: Any) -> str:
        return real(self, certificate, *more) if certificate is not None else ""

    return patch.object(MemberTls, "refusal", refusal)


CERTIFICATES: dict[Plant, int] = {
    level_rises_before_all_have_reported: 0,
    ca_changes_before_all_use_it: 1,
    old_ca_is_dropped_one_step_early: 1,
    required_takes_plain_connections: 0,
}
"""Each with the first seed that showed it when this was written."""
