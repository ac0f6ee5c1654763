"""`kubectl stele rollout`: watch, pause, resume, start and undo rolling updates of members."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stele.cli import output as out
from stele.cli.options import Where, on_cluster
from stele.cli.waiting import POLL_SECONDS
from stele.core.control.state import UpdatePolicy
from stele.errors import BadInput, Refused
from stele.explain.cluster_view import PAUSED_ANNOTATION
from stele.model import TabletCluster
from stele.model.conditions import Condition, ConditionType, Reason, find_condition, timestamp
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
    image: Annotated[
        str,
        typer.Option(
            metavar="IMAGE", help="Image that members are to run: waits for the operator that says so, too."
        ),
    ] = "",
) -> None:
    """Show how many members are as the spec says, and wait for the others.

    After a helm upgrade, name the image of members: an operator of before may still report that all is done.
    Exits with 1 when a member does not come back, when a pause or the strategy keeps members from being
    restarted, or when the time is over.

    \b
    Examples:
      kubectl stele rollout status demo -n stele
      kubectl stele rollout status demo --image registry.example.com/team/stele-member:0.2.0 -n stele
      kubectl stele rollout status demo --no-watch -n stele
    """
    where.ask(lambda console: _follow(console, name, image, timeout if watch else None))


async def _follow(console: "Console", name: str, image: str, timeout: float | None) -> None:
    """Print the progress until all is done; once without a timeout, and without an end with 0."""
    import asyncio

    loop = asyncio.get_running_loop()
    deadline, shown = loop.time() + (timeout or float("inf")), ""
    while True:
        cluster = await console.cluster(name)
        _check_image(cluster, image)
        text = progress_of(cluster, image)
        if text != shown:
            print(text, flush=True)
            shown = text
        if is_done(cluster, image) or timeout is None:
            return
        _check_goes_on(cluster, image)
        if loop.time() > deadline:
            raise Refused(f"{name} is not updated after {timeout:g} s: {text}", "TIMED_OUT")
        await asyncio.sleep(POLL_SECONDS)


def _check_image(cluster: TabletCluster, image: str) -> None:
    """Raise BadInput when members would never run the image."""
    own = cluster.spec.images.member
    if image and own not in (None, image):
        text = f"--image is {image}, but spec.images.member of {cluster.metadata.name} is {own}"
        raise BadInput(f"{text}, which members run whatever is installed; name that, or change the spec")


def _check_goes_on(cluster: TabletCluster, image: str) -> None:
    """Raise Refused when a user has to set something right first, or keeps members from being restarted."""
    if _not_seen(cluster, image):
        return
    name, stalled = cluster.metadata.name, find_condition(cluster.status.conditions, ConditionType.STALLED)
    failed = (Reason.UPDATE_FAILED, Reason.INVALID_RESOURCE)
    if stalled is not None and stalled.status == "True" and stalled.reason in failed:
        raise Refused(f"{name}: {stalled.message}", "UPDATE_FAILED")
    found = find_condition(cluster.status.conditions, ConditionType.PROGRESSING)
    waits = found is not None and (found.status, found.reason) == ("False", Reason.MEMBERS_OUTDATED)
    if waits and (held := _held_back(cluster)):
        raise Refused(f"{name}: no member is restarted by itself: {held}", "HELD_BACK")


def _not_seen(cluster: TabletCluster, image: str) -> str:
    """Return what the status does not tell of yet; empty when its counts are about all that is wanted.

    The annotation and the installation have no part in metadata.generation, so the status names them.
    """
    status, wanted = cluster.status, cluster.metadata.annotations.get(RESTARTED_AT, "")
    if status.observed_generation < cluster.metadata.generation:
        return "the operator has not seen the latest spec yet"
    if wanted and not status.member_image:
        return f"the operator that leads is too old to report {RESTARTED_AT}: upgrade it"
    if status.restarted_at != wanted:
        return f"the operator has not seen {RESTARTED_AT} {wanted or 'removed'} yet"
    if image and status.member_image != image:
        has = status.member_image or "an image that it does not name"
        return f"the operator wants members of {has}, not of {image} yet"
    return ""


def is_done(cluster: TabletCluster, image: str = "") -> bool:
    """Return whether the operator has seen what is wanted, and all members are as it says and serve.

    Members below spec.updateStrategy.partition are not wanted to be.
    """
    counts, ready = cluster.status.members, find_condition(cluster.status.conditions, ConditionType.READY)
    if ready is None or _not_seen(cluster, image):
        return False
    if ready.status == "True":
        return counts.updated >= counts.desired
    return bool(_left_alone(cluster, ready))


def _left_alone(cluster: TabletCluster, ready: Condition) -> str:
    """Return which members keep their pods, if these are all that is not as the spec says.

    How many are updated does not tell: those that are new have the newest pods, also with a low index.
    """
    from stele.core.control.restarts.rolling_update import left_alone

    left = left_alone(_policy(cluster))
    is_last = left and ready.reason == Reason.MEMBERS_OUTDATED and ready.message.endswith(f"; {left}")
    return left if is_last else ""


def progress_of(cluster: TabletCluster, image: str = "") -> str:
    """Return one sentence about the update."""
    status, name = cluster.status, cluster.metadata.name
    if unseen := _not_seen(cluster, image):
        return f"{name}: {unseen}"
    counts = f"{name}: {status.members.updated} of {status.members.desired} members are as the spec says"
    if is_done(cluster, image):
        ready = find_condition(status.conditions, ConditionType.READY)
        left = _left_alone(cluster, ready) if ready is not None else ""
        counts += f"; {left}" if left else ""
        return f"{counts} (image {status.member_image})" if status.member_image else counts
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

    Says so when the spec or a pause keeps them from being restarted.

    \b
    Example:
      kubectl stele rollout restart demo -n stele
    """
    print(f"{name}: {where.ask(lambda console: _restart(console, name))}")


async def _restart(console: "Console", name: str) -> str:
    cluster = await console.cluster(name)
    await console.annotate_cluster(name, {RESTARTED_AT: timestamp(datetime.now(UTC))})
    return restart_of(cluster)


def restart_of(cluster: TabletCluster) -> str:
    """Return what becomes of a restart that was asked for."""
    from stele.core.control.restarts.rolling_update import left_alone

    if held := _held_back(cluster):
        return f"no member is restarted by itself: {held}"
    left = left_alone(_policy(cluster))
    return "members are restarted one after the other" + (f"; {left}" if left else "")


def _held_back(cluster: TabletCluster) -> str:
    """Return what a user set that keeps members from being restarted; empty when nothing does."""
    from stele.core.control.restarts.rolling_update import held_back

    spec, paused = cluster.spec, cluster.metadata.annotations.get(PAUSED_ANNOTATION) == "true"
    return held_back(_policy(cluster), paused, spec.state, spec.migration.paused)


def _policy(cluster: TabletCluster) -> UpdatePolicy:
    update = cluster.spec.update_strategy
    return UpdatePolicy(update.type, update.paused, update.partition)


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
