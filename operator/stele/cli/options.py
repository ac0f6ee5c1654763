"""Options shared by many commands, and the connection to the cluster that they select."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from stele.cli.output import Output

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console

T = TypeVar("T")

OutputOption = Annotated[
    Output | None,
    typer.Option("-o", "--output", help="Print JSON, YAML, or a table with all columns and rows."),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option("-n", "--namespace", metavar="NAME", help="Namespace; by default that of the context."),
]
ContextOption = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="Context in the kubeconfig.")
]
KubeconfigOption = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig", metavar="FILE", help="Kubeconfig file; by default KUBECONFIG or ~/.kube/config."
    ),
]


@dataclass(frozen=True)
class Where:
    """The selected cluster and namespace."""

    namespace: NamespaceOption = None
    context: ContextOption = None
    kubeconfig: KubeconfigOption = None

    def ask(self, question: Callable[["Console"], Awaitable[T]]) -> T:
        """Connect, run the query, and disconnect."""
        import asyncio

        from stele.adapters.kubernetes.console import connect

        async def connected() -> T:
            async with connect(self.namespace, self.context, self.kubeconfig) as console:
                return await question(console)

        return asyncio.run(connected())


def on_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that select a cluster, in place of its parameter `where`."""
    options = inspect.signature(Where).parameters

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        where = Where(**{name: arguments.pop(name) for name in options})
        command(where=where, **arguments)

    own = [each for each in inspect.signature(command).parameters.values() if each.name != "where"]
    selected = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in options.values()]
    run.__signature__ = inspect.Signature([*own, *selected])  # type: ignore[attr-defined]
    return run
