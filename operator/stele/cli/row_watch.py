"""Options `-A` and `-w` of commands that list objects, as `kubectl get` has them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, Protocol, TypeVar

import typer

from stele.cli import output as out
from stele.cli.options import Where
from stele.cli.output import Output
from stele.errors import BadInput

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.model.common import ObjectMeta

WATCH_SECONDS = 1.0
"""Seconds between two looks with -w."""

EverywhereOption = Annotated[
    bool, typer.Option("-A", "--all-namespaces", help="List those of all namespaces; -n has no effect then.")
]
WatchOption = Annotated[
    bool, typer.Option("-w", "--watch", help="After the list, print each row again that changed, to Ctrl-C.")
]


class Listed(Protocol):
    """An object that has a name."""

    @property
    def metadata(self) -> "ObjectMeta": ...


T = TypeVar("T", bound=Listed)


class View(NamedTuple, Generic[T]):
    """How objects are printed: their plural, the table's headers, an object's cells, its facts as data."""

    plural: str
    headers: Sequence[str]
    cells: Callable[[T], list[str]]
    facts: Callable[[T], dict[str, Any]]


def check_name(name: str | None, *, everywhere: bool) -> None:
    """Raise BadInput for a name together with -A: each namespace can have one of that name."""
    if everywhere and name is not None:
        raise BadInput(f"CLUSTER is {name} and -A is given; leave one of them out")


def print_rows(
    where: Where,
    look: Callable[["Console"], Awaitable[Sequence[T]]],
    view: View[T],
    output: Output | None,
    *,
    everywhere: bool,
    watch: bool,
) -> None:
    """Print what `look` finds; with `watch`, each row again that changes, until Ctrl-C."""
    if watch:
        where.ask(lambda console: _follow(lambda: look(console), view, output, everywhere=everywhere))
    _show(where.ask(look), view, output, everywhere=everywhere)


def _show(found: Sequence[T], view: View[T], output: Output | None, *, everywhere: bool) -> None:
    if not out.data({view.plural: [view.facts(each) for each in found]}, output):
        view = _with_namespace(view) if everywhere else view
        out.table(view.headers, [view.cells(each) for each in found])


async def _follow(
    look: Callable[[], Awaitable[Sequence[T]]], view: View[T], output: Output | None, *, everywhere: bool
) -> None:
    """Print the objects, and then each again that changed; as data, a document for each. Does not end."""
    import asyncio

    view = _with_namespace(view) if everywhere else view
    as_data = output in (Output.JSON, Output.YAML)
    table = out.Rows(view.headers)
    before: dict[tuple[str, str], Any] = {}
    while True:
        found = await look()
        now: dict[tuple[str, str], Any] = {
            (each.metadata.namespace, each.metadata.name): view.facts(each) if as_data else view.cells(each)
            for each in found
        }
        changed = [value for key, value in now.items() if before.get(key) != value]
        if as_data:
            _print_documents(changed, output)
        else:
            table.add(changed)
        before = now
        await asyncio.sleep(WATCH_SECONDS)


def _print_documents(documents: Sequence[dict[str, Any]], output: Output | None) -> None:
    import sys

    for document in documents:
        if output is Output.YAML:
            print("---")
        out.data(document, output)
    sys.stdout.flush()


def _with_namespace(view: View[T]) -> View[T]:
    def cells(each: T) -> list[str]:
        return [each.metadata.namespace, *view.cells(each)]

    return View(view.plural, ["NAMESPACE", *view.headers], cells, view.facts)
