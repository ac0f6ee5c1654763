"""Options `-A` and `-w` of commands that list objects, as `kubectl get` has them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, Protocol, TypeVar

import typer

from stele.cli import output as out
from stele.cli.options import Where
from stele.cli.output import Output
from stele.errors import BadInput, Unavailable

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.model.common import ObjectMeta

WATCH_SECONDS = 1.0
"""Seconds between two looks with -w."""
DELETED = "(deleted)"
"""State of a row whose object is gone."""

Key = tuple[str, str]
"""Namespace and name of an object."""

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
    """How objects are printed: their plural, the table's headers, an object's cells, its facts as data.

    `state` is the column that says what has become of an object; those before it name the object.
    """

    plural: str
    headers: Sequence[str]
    cells: Callable[[T], list[str]]
    facts: Callable[[T], dict[str, Any]]
    state: int


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
    """Print what `look` finds; with `watch`, each row again that changes or is deleted, until Ctrl-C."""
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
    """Print objects, then each that changed or was deleted; as data, a document for each. Does not end."""
    view = _with_namespace(view) if everywhere else view
    as_data = output in (Output.JSON, Output.YAML)
    table = out.Rows(view.headers)
    before: dict[Key, Any] = {}
    async for found in _looks(look):
        now: dict[Key, Any] = {
            (each.metadata.namespace, each.metadata.name): view.facts(each) if as_data else view.cells(each)
            for each in found
        }
        rows = [_deleted(key, row, view.state) for key, row in before.items() if key not in now]
        rows += [row for key, row in now.items() if before.get(key) != row]
        if as_data:
            _print_documents(rows, output)
        else:
            table.add(rows)
        before = now


def _deleted(key: Key, row: Any, state: int) -> Any:
    """Return what is printed of a deleted object: its names and no figures."""
    if isinstance(row, dict):
        return {"name": key[1], "namespace": key[0], "deleted": True}
    return [*row[:state], DELETED, *["-"] * (len(row) - state - 1)]


async def _looks(look: Callable[[], Awaitable[Sequence[T]]]) -> AsyncIterator[Sequence[T]]:
    """Iterate what is found, without an end. Once something was, an API server that is silent for a while is
    said, and when it answers again."""
    import asyncio

    answered: bool | None = None
    while True:
        try:
            found = await look()
        except Unavailable as error:
            if answered is None:
                raise
            if answered:
                out.say_error(f"no newer rows: {error.text}")
            answered = False
        else:
            if answered is False:
                out.say_error("the API server answers again")
            answered = True
            yield found
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

    return View(view.plural, ["NAMESPACE", *view.headers], cells, view.facts, view.state + 1)
