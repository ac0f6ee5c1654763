"""Options shared by many commands, and the connection to the cluster that they select."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
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

FLAGS_ANYWHERE = frozenset({"-A", "--all-namespaces"})
PLACE_OPTIONS = FLAGS_ANYWHERE | {"-n", "--namespace", "--context", "--kubeconfig"}
"""Options that say where in which Kubernetes cluster."""
ANYWHERE = PLACE_OPTIONS | {"-o", "--output"}
"""Options that may stand before the command, as for kubectl."""
SHORT_WITH_VALUE = ("-n", "-o")


def split_option(word: str) -> tuple[str, str | None]:
    """Return an option's name, and the value attached to it: `-nNAME`, `-n=NAME` and `--namespace=NAME`."""
    name, equals, value = word.partition("=")
    if word[:2] in SHORT_WITH_VALUE and len(word) > len("-n"):
        return word[:2], word[2:].removeprefix("=")
    return name, value if equals else None


def words_of_option(words: Sequence[str]) -> int:
    """Return how many words the option takes that they begin with; 0 unless it may stand anywhere."""
    name, attached = split_option(words[0])
    if name not in ANYWHERE:
        return 0
    return 1 if attached is not None or name in FLAGS_ANYWHERE else 2


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
