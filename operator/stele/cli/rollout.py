"""`kubectl stele rollout`: watch, pause, resume, start and undo rolling updates of members."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stele.cli import output as out
from stele.cli.options import Where, on_cluster
from stele.cli.waiting import POLL_SECONDS
from stele.errors import BadInput, Refused
from stele.model import TabletCluster
from stele.model.conditions import ConditionType, Reason, find_condition, timestamp
from stele.model.rollout import RESTARTED_AT, Revision

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console

app = typer.Typer(
    help="""Update members to their spec, one after the other.

    \b
    Examples:
      kubectl stele rollout status demo -n stele
      kubectl stele rollout undo demo -n stele
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)

ClusterArgument = Annotated[str, typer.Argument(metavar="CLUSTER", help="Name of a TabletCluster.")]


@app.command()
@on_cluster
def status(
    where: Where,
    name: ClusterArgument,
    *,
    watch: Annotated[
        bool, typer.Option("--watch/--no-watch", help="Wait until all members are updated.")
    ] = True,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait at most; 0 waits without a limit.")
    ] = 0.0,
) -> None:
    """Show how many members are as the spec says, and wait for the others.

    Exits with 1 when a member does not come back, or when the time is over.

    \b
    Examples:
      kubectl stele rollout status demo -n stele
      kubectl stele rollout status demo --no-watch -n stele
    """
    where.ask(lambda console: _follow(console, name, watch, timeout))


async def _follow(console: "Console", name: str, watch: bool, timeout: float) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    deadline, shown = loop.time() + (timeout or float("inf")), ""
    while True:
        cluster = await console.cluster(name)
        text = progress_of(cluster)
        if text != shown:
            print(text, flush=True)
            shown = text
        if is_done(cluster) or not watch:
            return
        stalled = find_condition(cluster.status.conditions, ConditionType.STALLED)
        if stalled is not None and stalled.reason == Reason.UPDATE_FAILED and stalled.status == "True":
            raise Refused(f"{name}: {stalled.message}", "UPDATE_FAILED")
        if loop.time() > deadline:
            raise Refused(f"{name} is not updated after {timeout:g} s: {text}", "TIMED_OUT")
        await asyncio.sleep(POLL_SECONDS)


def is_done(cluster: TabletCluster) -> bool:
    """Return whether the operator has seen the spec, and all members are as it says and serve."""
    counts, status = cluster.status.members, cluster.status
    seen = status.observed_generation >= cluster.metadata.generation
    ready = find_condition(status.conditions, ConditionType.READY)
    return seen and counts.updated >= counts.desired and ready is not None and ready.status == "True"


def progress_of(cluster: TabletCluster) -> str:
    """Return one sentence about the update."""
    status, name = cluster.status, cluster.metadata.name
    if status.observed_generation < cluster.metadata.generation:
        return f"{name}: the operator has not seen the latest spec yet"
    counts = f"{name}: {status.members.updated} of {status.members.desired} members are as the spec says"
    if is_done(cluster):
        return counts
    found = find_condition(status.conditions, ConditionType.PROGRESSING)
    return f"{counts}; {found.message}" if found is not None and found.message else counts


def _changes(name: str, spec: dict[str, Any], text: str, where: Where) -> None:
    where.ask(lambda console: console.change_cluster(name, spec))
    print(f"{name}: {text}")


@app.command()
@on_cluster
def pause(where: Where, name: ClusterArgument) -> None:
    """Restart no further member; a restart that has begun is completed.

    \b
    Example:
      kubectl stele rollout pause demo -n stele
    """
    text = "no further member is restarted until: kubectl stele rollout resume"
    _changes(name, {"updateStrategy": {"paused": True}}, text, where)


@app.command()
@on_cluster
def resume(where: Where, name: ClusterArgument) -> None:
    """Continue a paused update.

    \b
    Example:
      kubectl stele rollout resume demo -n stele
    """
    text = "outdated members are restarted one after the other"
    _changes(name, {"updateStrategy": {"paused": False}}, text, where)


@app.command()
@on_cluster
def restart(where: Where, name: ClusterArgument) -> None:
    """Restart all members, one after the other.

    \b
    Example:
      kubectl stele rollout restart demo -n stele
    """
    at = timestamp(datetime.now(UTC))
    where.ask(lambda console: console.annotate_cluster(name, {RESTARTED_AT: at}))
    print(f"{name}: members are restarted one after the other")


@app.command()
@on_cluster
def history(where: Where, name: ClusterArgument) -> None:
    """List the specs of members that `undo` can restore, the present one last.

    \b
    Example:
      kubectl stele rollout history demo -n stele
    """
    revisions = where.ask(lambda console: _revisions(console, name))
    rows = [
        [str(each.number), each.created, each.template.get("images", {}).get("member") or "-"]
        for each in revisions
    ]
    out.table(["REVISION", "CREATED", "IMAGE"], rows)


@app.command()
@on_cluster
def undo(
    where: Where,
    name: ClusterArgument,
    *,
    to_revision: Annotated[
        int,
        typer.Option("--to-revision", min=0, help="Revision to restore; 0 is the one before the present."),
    ] = 0,
) -> None:
    """Set the members' image, resources and settings back to those of an earlier revision.

    \b
    Examples:
      kubectl stele rollout undo demo -n stele
      kubectl stele rollout undo demo --to-revision 3 -n stele
    """
    number = where.ask(lambda console: _undo(console, name, to_revision))
    print(f"{name}: the spec of members is that of revision {number} again")


async def _revisions(console: "Console", name: str) -> list[Revision]:
    cluster = await console.cluster(name)
    return await console.revisions(cluster)


async def _undo(console: "Console", name: str, number: int) -> int:
    cluster = await console.cluster(name)
    revision = chosen(await console.revisions(cluster), number, name)
    _check_features(cluster, revision)
    await console.change_cluster(name, _patch(cluster, revision.template))
    return revision.number


def chosen(revisions: list[Revision], number: int, name: str) -> Revision:
    """Return the revision with that number, or the last but one. Raises BadInput when there is none."""
    if not number and len(revisions) > 1:
        return revisions[-2]
    found = next((each for each in revisions if each.number == number), None)
    if found is None:
        there = ", ".join(str(each.number) for each in revisions) or "none"
        wanted = f"revision {number}" if number else "earlier revision"
        raise BadInput(f"{name} has no {wanted} of its members' spec; there are: {there}")
    return found


def _check_features(cluster: TabletCluster, revision: Revision) -> None:
    """Raise Refused for an image whose members might not understand what is on the volumes by now."""
    present = Revision.template_of(cluster.spec.to_dict()).get("images")
    if revision.template.get("images") != present and revision.features < cluster.status.features:
        text = (
            f"the cluster uses format {cluster.status.features} since then, and revision {revision.number} "
            f"used {revision.features}: members of its image would not start; features never fall"
        )
        raise Refused(text, "FEATURES_ROSE")


def _patch(cluster: TabletCluster, template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that restores a template: what it does not name is removed."""
    present = Revision.template_of(cluster.spec.to_dict())
    return _merge(present, template)


def _merge(present: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {name: None for name in present if name not in wanted}
    for name, value in wanted.items():
        before = present.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := _merge(before, value):
                patch[name] = inner
        elif value != before:
            patch[name] = value
    return patch
