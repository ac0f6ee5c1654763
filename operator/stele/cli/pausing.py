"""`kubectl stele pause` and `resume`: whether further migrations may start (spec.migration.paused)."""

from typing import TYPE_CHECKING

from stele.cli.options import Where, on_cluster
from stele.cli.status import ClusterArgument

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.model import TabletCluster


@on_cluster
def pause(where: Where, cluster: ClusterArgument) -> None:
    """Start no further migration of a cluster, nor a restart for an update, until it is resumed.

    Migrations under way are completed, and owners that are lost are still replaced by backups; missing
    copies are not made meanwhile.

    \b
    Example:
      kubectl stele pause demo -n stele
    """
    print(where.ask(lambda console: _set(console, cluster, paused=True)))


@on_cluster
def resume(where: Where, cluster: ClusterArgument) -> None:
    """Let migrations of a cluster start again; says what else holds them back.

    \b
    Example:
      kubectl stele resume demo -n stele
    """
    print(where.ask(lambda console: _set(console, cluster, paused=False)))


async def _set(console: "Console", name: str, *, paused: bool) -> str:
    """Change it unless it is so already; return what that means now."""
    before = await console.cluster(name)
    is_so = before.spec.migration.paused is paused
    if not is_so:
        await console.change_cluster(name, {"migration": {"paused": paused}})
    text = f"{name} is {'' if paused else 'not '}paused{' already' if paused and is_so else ''}"
    return f"{text}: {_held(before) if paused else _free(before)}"


def _held(cluster: "TabletCluster") -> str:
    migrations, plan = cluster.status.migrations, cluster.status.rebalance
    if not migrations.active + migrations.waiting:
        return "no further migration is started, and there was none to do"
    of_plan = f" of {plan}" if plan else ""
    return (
        f"{migrations.active} migrations under way are completed, {migrations.waiting}{of_plan} wait; "
        "nothing is restarted for an update"
    )


def _free(cluster: "TabletCluster") -> str:
    from stele.explain.cluster_view import PAUSED, obstacles_of

    others = [each for each in obstacles_of(cluster) if each != PAUSED]
    return f"but {'; '.join(others)}" if others else "migrations may start"
