"""`kubectl stele promote`: a lite member becomes a data member."""

from typing import TYPE_CHECKING, Annotated

import typer

from stele.cli.options import Where, on_cluster
from stele.cli.waiting import Progress, follow
from stele.errors import BadInput, Refused

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.model import TabletMember


@on_cluster
def promote(
    where: Where,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="Name of a lite TabletMember.")],
    *,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it is a data member, for 600 s at most.")
    ] = False,
) -> None:
    """Make a lite member a data member, which gets its share of the partitions.

    It becomes one with the next member list, as soon as it answers and speaks the cluster's format; then
    data is moved to it.

    \b
    Examples:
      kubectl stele promote demo-3 -n stele
      kubectl stele promote demo-3 --wait -n stele
    """
    print(where.ask(lambda console: _promote(console, member)))
    if wait:
        undone = f"{member} is not promoted"
        print(where.ask(lambda console: follow(lambda: _progress(console, member), undone)))


async def _promote(console: "Console", name: str) -> str:
    from stele.model.conditions import Reason

    member = await _member(console, name)
    if not member.spec.lite and not member.status.lite:
        return f"{name} is a data member already"
    reason, text = _ready(member)
    if reason == Reason.MEMBERS_INCOMPATIBLE:
        raise Refused(f"{name} cannot be promoted: {text}", "UNSUPPORTED_FORMAT")
    if member.spec.lite:
        await console.change_member(name, {"lite": False})
    waits = f"; waits: {text}" if reason == Reason.MEMBER_UNREACHABLE else ""
    return f"{name} is being promoted{waits}"


async def _member(console: "Console", name: str) -> "TabletMember":
    members = await console.members()
    for each in members:
        if each.metadata.name == name:
            return each
    names = ", ".join(each.metadata.name for each in members) or "none"
    raise BadInput(f"there is no TabletMember {name}; there are: {names}")


def _ready(member: "TabletMember") -> tuple[str, str]:
    """Return the reason and the message of its condition Ready."""
    from stele.model.conditions import ConditionType, find_condition

    ready = find_condition(member.status.conditions, ConditionType.READY)
    return ("", "no operator has seen it yet") if ready is None else (ready.reason, ready.message)


async def _progress(console: "Console", name: str) -> Progress:
    member = await _member(console, name)
    if not member.status.lite:
        return Progress(f"{name} is a data member now and gets its share", done=True)
    return Progress(f"waits: {_ready(member)[1]}")
