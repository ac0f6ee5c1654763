"""`kubectl stele why`: sentences that explain the state of a cluster, partition or member."""

from typing import TYPE_CHECKING, Annotated

import typer

from stele.cli import output as out
from stele.cli.options import OutputOption, Where, on_cluster

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console


@on_cluster
def why(
    where: Where,
    about: Annotated[
        str, typer.Argument(metavar="CLUSTER|CLUSTER/PARTITION|MEMBER", help="What to explain.")
    ],
    *,
    output: OutputOption = None,
) -> None:
    """Explain the state of a cluster, a partition or a member, and what is planned for it.

    \b
    Examples:
      kubectl stele why demo -n stele
      kubectl stele why demo/17 -n stele
      kubectl stele why demo-3 -n stele
    """
    facts = where.ask(lambda console: _explain(console, about))
    if out.data({"about": about, "facts": facts}, output):
        return
    console = out.console()
    for fact in facts:
        console.print(f"- {fact}")


async def _explain(console: "Console", about: str) -> list[str]:
    from stele.adapters.kubernetes.api import NotFound
    from stele.cli.cluster_view import read_cluster
    from stele.explain.why import View

    name, slash, number = about.partition("/")
    clusters = [each.metadata.name for each in await console.clusters()]
    if slash or name in clusters:
        view = View(await read_cluster(console, name), await console.rebalances(name))
        return list(view.of_partition(view.number(number)) if slash else view.of_cluster())
    for member in await console.members():
        if member.metadata.name == name:
            cluster_view = await read_cluster(console, member.spec.cluster)
            return list(View(cluster_view, []).of_member(member.spec.index))
    raise NotFound(
        f'"{name}" is neither a TabletCluster nor a TabletMember in namespace "{console.namespace}"; '
        f"the clusters are: {', '.join(clusters) or 'none'}"
    )
