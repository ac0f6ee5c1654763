"""Whose certificate is taken: cluster, role and name, all of them, and exactly one."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from stele.core.security.identity import Holder, Role, parse_uri, refusal

UID = "11111111-2222-3333-4444-555555555555"
RIGHT = f"stele://{UID}/member/demo-0"


@given(st.from_regex(r"[a-z0-9-]{1,64}", fullmatch=True), st.sampled_from(Role))
def test_what_is_written_is_read(cluster: str, role: Role) -> None:
    holder = Holder(cluster, role, "demo-0.x")
    assert parse_uri(holder.uri) == holder


@given(st.text())
def test_any_text_is_one_of_ours_or_nothing(text: str) -> None:
    for uri in (text, f"stele://{text}", f"{RIGHT}{text}", f"stele://{UID}/{text}/demo-0"):
        holder = parse_uri(uri)
        assert holder is None or holder.uri == uri


@pytest.mark.parametrize(
    "uri",
    [
        "",
        f"https://{UID}/member/demo-0",
        f"stele://{UID}/member/",
        f"stele://{UID}/member/demo-0\n",
        f"stele://{UID}/member/demo-0/more",
        f"stele://{UID}/metrics/demo-0",
        f"stele://{UID}/MEMBER/demo-0",
        f"stele://user@{UID}/member/demo-0",
        "stele:///member/demo-0",
        f"stele://{UID}/member/{'x' * 600}",
    ],
)
def test_what_is_not_exactly_of_the_form_names_nobody(uri: str) -> None:
    assert parse_uri(uri) is None
    assert refusal([uri], UID, [Role.MEMBER]).startswith("its certificate names 0 parts of clusters")


def test_who_is_taken() -> None:
    other = "99999999-2222-3333-4444-555555555555"
    assert refusal([RIGHT], UID, [Role.MEMBER], "demo-0") == ""
    assert refusal(["https://example.org", RIGHT], UID, [Role.MASTER, Role.MEMBER]) == ""
    assert refusal([RIGHT], other, [Role.MEMBER]) == f"it is of cluster {UID}, and this is {other}"
    expected = "it is a member; expected master or admin"
    assert refusal([RIGHT], UID, [Role.MASTER, Role.ADMIN]) == expected
    assert refusal([RIGHT], UID, [Role.MEMBER], "demo-1") == "it is demo-0; expected demo-1"
    assert refusal([RIGHT, RIGHT.replace("-0", "-1")], UID, [Role.MEMBER]).startswith(
        "its certificate names 2"
    )
    assert refusal([], UID, [Role.MEMBER]).startswith("its certificate names 0")
