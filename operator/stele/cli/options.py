"""Options that many commands have, and the way to the cluster that they name."""

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
    typer.Option("-o", "--output", help="Print JSON, YAML, or the table with nothing left out."),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option("-n", "--namespace", metavar="NAME", help="Namespace; that of the context when left out."),
]
ContextOption = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="Context of the kubeconfig.")
]
KubeconfigOption = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig", metavar="FILE", help="Kubeconfig; KUBECONFIG or ~/.kube/config when left out."
    ),
]


@dataclass(frozen=True)
class Where:
    """Which cluster and namespace is asked."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None

    def ask(self, question: Callable[["Console"], Awaitable[T]]) -> T:
        """Log in, ask, log out."""
        import asyncio

        from stele.adapters.kubernetes.console import connect

        async def asked() -> T:
            async with connect(self.namespace, self.context, self.kubeconfig) as console:
                return await question(console)

        return asyncio.run(asked())
