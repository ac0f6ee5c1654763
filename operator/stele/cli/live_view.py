"""What `kubectl stele watch` shows of a cluster: as a picture for terminals, and in sentences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stele.cli import output as out
from stele.cli.status import phase_of
from stele.explain.cluster_view import obstacles_of
from stele.model.member import MemberState

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from stele.model import TabletCluster, TabletMember, TabletRebalance
    from stele.model.rebalance import CopyDestination

BAR_LETTERS = 24
SHORT_SHOWN = 8
"""Under-replicated partitions that are named; the others are counted."""
DESTINATIONS_SHOWN = 8
"""Members that are copied to and named, of each plan; the others are counted."""
MEMBERS_SHOWN = 32
"""Members that are shown, those that are not Active first; the others are counted."""


class Short(NamedTuple):
    """A partition with fewer copies than wanted; without an owner it has none that is alive."""

    number: int
    copies: int
    wanted: int
    owner: str


@dataclass(frozen=True)
class Scene:
    """One moment of a cluster. `problem` is why it is no newer, or empty."""

    cluster: "TabletCluster"
    members: "Sequence[TabletMember]"
    plans: "Sequence[TabletRebalance]"
    short: Sequence[Short]
    problem: str = ""


def sentences(scene: Scene) -> Iterator[str]:
    """Iterate what is to be said where there is no terminal, a line each."""
    cluster = scene.cluster
    members, partitions = cluster.status.members, cluster.status.partitions
    yield (
        f"{cluster.metadata.name}: {phase_of(cluster)}, {members.ready} of {cluster.spec.members} members "
        f"ready, {partitions.safe} of {partitions.total} partitions with all copies, "
        f"{partitions.under_replicated} with fewer, {partitions.lost} lost"
    )
    for plan in scene.plans:
        yield f"{plan.metadata.name}: {plan_text(plan)}"
    if scene.problem:
        yield scene.problem


def plan_text(plan: "TabletRebalance") -> str:
    """Return how far a plan is, with its rate and the time that is left, where they are known."""
    status = plan.status
    parts = [f"{status.done.total} of {status.planned.total} migrations"]
    parts += [f"{status.failed} rolled back"] if status.failed else []
    if status.bytes_planned:
        parts.append(f"{out.size(status.bytes_copied)} of {out.size(status.bytes_planned)}")
    if status.throughput_bytes_per_second:
        parts.append(f"{out.size(status.throughput_bytes_per_second)}/s")
    if status.eta_seconds is not None:
        parts.append(f"{duration(status.eta_seconds)} left")
    return ", ".join(parts)


def duration(seconds: int) -> str:
    """Format seconds for people: the two largest units."""
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def bar(part: int, whole: int) -> str:
    """Return a bar of BAR_LETTERS that shows how much of the whole there is."""
    done = min(BAR_LETTERS, BAR_LETTERS * part // whole) if whole > 0 else 0
    return f"[{'#' * done}{'.' * (BAR_LETTERS - done)}]"


def picture(scene: Scene) -> "Group":
    """Return everything for a terminal: what is short of copies first, then plans, then members."""
    from rich.console import Group

    return Group(*_head(scene), *_shortage(scene), *_plans(scene), _text(""), _members(scene), *_foot(scene))


def _text(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(out.plain(text), style)


def _head(scene: Scene) -> Iterator["Text"]:
    cluster = scene.cluster
    partitions = cluster.status.partitions
    good = not (partitions.under_replicated or partitions.lost)
    phase = f"{cluster.metadata.name}  {phase_of(cluster)}"
    yield _text(f"{phase}  {cluster.status.message}", "bold green" if good else "bold red")
    yield _text(
        f"{cluster.status.members.ready} of {cluster.spec.members} members ready; {partitions.total} "
        f"partitions: {partitions.safe} with all copies, {partitions.under_replicated} with fewer, "
        f"{partitions.lost} lost"
    )
    for obstacle in obstacles_of(cluster):
        yield _text(f"held back: {obstacle}", "yellow")


def _shortage(scene: Scene) -> Iterator["Text"]:
    if not scene.short:
        return
    yield _text("")
    yield _text("UNDER-REPLICATED", "bold")
    for each in sorted(scene.short, key=lambda each: each.copies)[:SHORT_SHOWN]:
        owner = f"owner {each.owner}" if each.owner else "no owner"
        yield _text(f"  {each.number}: {each.copies} of {each.wanted} copies, {owner}", "red")
    if (more := len(scene.short) - SHORT_SHOWN) > 0:
        yield _text(f"  and {more} more: kubectl stele partitions CLUSTER --under-replicated")


def _plans(scene: Scene) -> Iterator["Text"]:
    for plan in scene.plans:
        status = plan.status
        yield _text("")
        phase = status.phase.value if status.phase else "not seen by the operator yet"
        yield _text(f"{plan.metadata.name}  {phase}  {status.reason}", "bold")
        yield _text(f"  {bar(status.done.total, status.planned.total)} {plan_text(plan)}")
        ahead = sorted(status.destinations, key=lambda each: each.bytes_copied >= each.bytes_planned)
        for each in ahead[:DESTINATIONS_SHOWN]:
            yield _text(f"  {_destination(each)}")
        if (more := status.destinations_total - DESTINATIONS_SHOWN) > 0:
            yield _text(f"  and {more} more members")


def _destination(each: "CopyDestination") -> str:
    parts = [f"{out.size(each.bytes_copied)} of {out.size(each.bytes_planned)}"]
    parts += [f"{each.megabytes_per_second} MB/s"] if each.megabytes_per_second else []
    parts += [each.engine.value] if each.engine else []
    parts += [f"{each.failures} copies failed"] if each.failures else []
    return f"{bar(each.bytes_copied, each.bytes_planned)} to {each.member}: {', '.join(parts)}"


def _members(scene: Scene) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", title=None)
    for title in ("MEMBER", "STATE", "PARTITIONS", "OWNED", "BACKUPS", "SIZE"):
        table.add_column(title, no_wrap=True, justify="right" if title in ("OWNED", "BACKUPS") else "left")
    most = max((each.status.owned + each.status.backups for each in scene.members), default=0) or 1
    ordered = sorted(scene.members, key=lambda each: each.status.state is MemberState.ACTIVE)
    for each in ordered[:MEMBERS_SHOWN]:
        status = each.status
        owned = BAR_LETTERS * status.owned // most
        held = BAR_LETTERS * (status.owned + status.backups) // most - owned
        letters = Text.assemble(("#" * owned, "green"), ("=" * held, "blue"))
        state, style = (status.state.value, "") if status.state else ("-", "yellow")
        style = style if status.state is MemberState.ACTIVE else "yellow"
        cells = [str(status.owned), str(status.backups), out.size(status.bytes)]
        table.add_row(_text(each.metadata.name), _text(state, style), letters, *cells)
    return table


def _foot(scene: Scene) -> Iterator["Text"]:
    if (more := len(scene.members) - MEMBERS_SHOWN) > 0:
        yield _text(f"and {more} more members: kubectl stele members CLUSTER")
    yield _text("# owned  = backups; Ctrl-C ends", "dim")
    if scene.problem:
        yield _text(scene.problem, "bold red")
