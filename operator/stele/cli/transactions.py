"""`kubectl stele tx`: transactions across partitions that have locks, as reported by the owners."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from stele.cli import output as out
from stele.cli.options import OutputOption, Where, on_cluster
from stele.errors import BadInput, SteleError, Unavailable

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.wire.admin import TransactionFacts

ASKED_AT_ONCE_MAX = 16
"""Members that are queried concurrently."""
HEADERS = ["TRANSACTION", "PARTITION", "OWNER", "COORDINATOR", "KEYS", "AGE", "STATE"]

Held = tuple[str, "TransactionFacts"]
"""The member that owns the partition, and what it says."""

app = typer.Typer(
    help="""List transactions across partitions that have locks, or end one in doubt.

    \b
    Examples:
      kubectl stele tx list -n stele
      kubectl stele tx resolve 0b0c9f4e-6a52-4a43-b3e0-6f1f1a4a3a11.3.42 abort -n stele
    """,
    rich_markup_mode=None,
)

ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="Cluster whose transactions to list; all by default."),
]


class Verdict(StrEnum):
    COMMIT = "commit"
    ABORT = "abort"


@app.command("list")
@on_cluster
def list_transactions(where: Where, cluster: ClusterOption = None, *, output: OutputOption = None) -> None:
    """List the transactions that have locks, those in doubt first.

    \b
    Example:
      kubectl stele tx list --cluster demo -o json
    """
    import msgspec

    held, errors = where.ask(lambda console: _ask_all(console, cluster))
    for text in errors:
        out.say_error(f"the transactions of a member are not listed: {text}")
    listed = [{"owner": owner, **msgspec.to_builtins(each)} for owner, each in held]
    if not out.data({"transactions": listed, "silent": errors}, output):
        out.table(HEADERS, [_row(*each) for each in held])


@app.command()
@on_cluster
def resolve(
    where: Where,
    transaction: Annotated[str, typer.Argument(metavar="TRANSACTION", help="Name in the list.")],
    verdict: Annotated[Verdict, typer.Argument(help="What becomes of its changes.")],
    cluster: ClusterOption = None,
) -> None:
    """End a transaction that is in doubt, in all partitions; refused while it can end by itself.

    \b
    Example:
      kubectl stele tx resolve 0b0c9f4e-6a52-4a43-b3e0-6f1f1a4a3a11.3.42 abort -n stele
    """

    done = where.ask(lambda console: _end(console, cluster, transaction, verdict.value))
    print(f"{transaction} is ended by {verdict.value} in partitions {', '.join(map(str, done))}")


async def _end(console: "Console", cluster: str | None, transaction: str, verdict: str) -> list[int]:
    """Return the partitions in which it is ended. Nothing is done while it can end by itself in any.

    Raises Unavailable, naming what is done and what is left, unless it is ended in all of them.
    """
    from stele.wire.admin import Resolved

    held, errors = await _ask_all(console, cluster)
    mine = [(owner, each) for owner, each in held if each.transaction == transaction]
    if not mine and not errors:
        raise BadInput(f'TRANSACTION is "{transaction}"; it has no locks (any more)', "NOT_FOUND")
    certain = sorted(each.partition for _, each in mine if not each.in_doubt)
    if certain:
        text = f'TRANSACTION is "{transaction}"; it can end by itself in partitions {certain}'
        raise BadInput(f"{text}, so nothing is done: look again in some seconds", "NOT_IN_DOUBT")
    done, path = list[int](), f"/v1/transactions/{quote(transaction, safe='')}/resolve"
    for owner in sorted({owner for owner, _ in mine}):
        try:
            done += (await console.ask_member("POST", owner, path, Resolved, verdict=verdict)).partitions
        except SteleError as error:
            errors.append(str(error))
    if errors:
        left = sorted({each.partition for _, each in mine}.difference(done))
        text = f"ended in partitions {sorted(done)}, left in {left or 'those of members that did not answer'}"
        raise Unavailable(f"{text}; run it again with the same verdict: {'; '.join(errors)}")
    return sorted(done)


async def _ask_all(console: "Console", cluster: str | None) -> tuple[list[Held], list[str]]:
    """Return the transactions of all members that answer, and the errors of the others."""
    import asyncio

    from stele.wire.admin import TransactionList

    gate = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def ask(member: str) -> TransactionList:
        async with gate:
            return await console.ask_member("GET", member, "/v1/transactions", TransactionList)

    members = [each.metadata.name for each in await console.members(cluster)]
    answers = await asyncio.gather(*map(ask, members), return_exceptions=True)
    held: list[Held] = []
    errors: list[str] = []
    for member, answer in zip(members, answers, strict=True):
        if isinstance(answer, SteleError):
            errors.append(str(answer))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            held += [(member, each) for each in answer.transactions]
    return sorted(held, key=lambda each: not each[1].in_doubt), errors


def _row(owner: str, each: "TransactionFacts") -> list[str]:
    state = "in doubt" if each.in_doubt else "live" if each.live else "ending"
    return [
        each.transaction,
        str(each.partition),
        owner,
        str(each.coordinator),
        str(each.keys),
        f"{each.age_seconds:.0f}s",
        state,
    ]
