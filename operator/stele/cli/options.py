"""Options shared by many commands, and the connection to the cluster that they select."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

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

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None

    def ask(self, question: Callable[["Console"], Awaitable[T]]) -> T:
        """Connect, run the query, and disconnect."""
        import asyncio

        from stele.adapters.kubernetes.console import connect

        async def connected() -> T:
            async with connect(self.namespace, self.context, self.kubeconfig) as console:
                return await question(console)

        return asyncio.run(connected())
