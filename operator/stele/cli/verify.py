"""`kubectl stele verify`: compares every replica with its owner while clients write."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from stele.cli import output as out
from stele.cli.comparison import Stretch, compare, name_of
from stele.cli.options import OutputOption, Where, on_cluster
from stele.cli.row_reader import PlacedRow, RowReader
from stele.cli.status import ClusterArgument
from stele.core.table.ids import PARTITIONS_MAX
from stele.errors import BadInput, Corrupt, Refused, SteleError

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.wire.admin import TabletChecksum

RATE = 20_000_000
"""Bytes of data that members read in a second, all together, unless --rate says another number."""
TRIES_MAX = 3
"""How often a partition is compared whose row changes meanwhile."""
TRY_SECONDS = 1.0
DIFFERENCES_MAX = 1_000
"""Entries that are named of one replica; the others are counted."""


@dataclass
class Difference:
    """One replica that is not as its owner is; `first` and `last` are entries as people read them."""

    partition: int
    owner: str
    replica: str
    entries: int
    first: str
    last: str


@dataclass
class Verdict:
    """What was compared. `skipped` says what could not be."""

    partitions: int = 0
    replicas: int = 0
    entries: int = 0
    bytes: int = 0
    busy: int = 0
    differences: list[Difference] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@on_cluster
def verify(
    where: Where,
    cluster: ClusterArgument,
    *,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "-p", "--partition", min=0, max=PARTITIONS_MAX - 1, help="Only this one; may be repeated."
        ),
    ] = None,
    rate: Annotated[
        int,
        typer.Option(
            "--rate", metavar="BYTES", min=100_000, help="Bytes that members read in a second, at most."
        ),
    ] = RATE,
    output: OutputOption = None,
) -> None:
    """Compare every replica with its owner by checksums, while clients write; changes nothing.

    Running writes are no difference. Exits with 1 when a replica differs, and with 3 when one could not be
    compared.

    \b
    Examples:
      kubectl stele verify demo -n stele
      kubectl stele verify demo -p 17 --rate 5000000 -n stele
    """
    verdict = where.ask(lambda console: _Run(console, cluster, rate).run(partition))
    import msgspec

    if not out.data(msgspec.to_builtins(verdict), output):
        _show(verdict)
    if verdict.differences:
        raise typer.Exit(out.EXIT_FAILURE)
    if verdict.skipped:
        raise typer.Exit(out.EXIT_UNREACHABLE)


def _show(verdict: Verdict) -> None:
    for each in verdict.differences:
        print(
            f"partition {each.partition}: {each.replica} differs from its owner {each.owner} in "
            f"{each.entries} entries, from {each.first} to {each.last}"
        )
    for text in verdict.skipped:
        out.say_error(f"not compared: {text}")
    busy = f"; {verdict.busy} entries were written all the time, and not compared" if verdict.busy else ""
    print(
        f"{verdict.partitions} partitions, {verdict.replicas} replicas besides their owners, "
        f"{verdict.entries} entries, {out.size(verdict.bytes)}: "
        f"{len(verdict.differences)} replicas differ{busy}"
    )


class _Run:
    """One comparison of a cluster."""

    def __init__(self, console: "Console", cluster: str, rate: int) -> None:
        self._console, self._cluster, self._rate = console, cluster, rate
        self._rows = RowReader(console, cluster)
        self._verdict = Verdict()
        self._without_time: set[str] = set()

    async def run(self, partitions: Sequence[int] | None) -> Verdict:
        """Compare these partitions, or all. Raises NotFound and BadInput for what is not there."""
        await self._console.cluster(self._cluster)
        number_of = await self._rows.count()
        for wrong in [each for each in partitions or () if each >= number_of]:
            raise BadInput(
                f"there is no partition {wrong} in {self._cluster}; the last one is {number_of - 1}"
            )
        chosen = sorted(set(partitions)) if partitions else range(number_of)
        for done, each in enumerate(chosen):
            await self._partition(each)
            text = f"{done + 1} of {len(chosen)} partitions, {out.size(self._verdict.bytes)}"
            out.progress(text, last=done + 1 == len(chosen))
        return self._verdict

    async def _partition(self, number: int) -> None:
        """Compare one, again when its row had changed: what was found then says nothing."""
        row = await self._rows.row(number)
        for left in reversed(range(TRIES_MAX)):
            found, problem = await self._compared(number, row)
            if not found and not problem:
                break
            before, row = row, await self._rows.row(number, fresh=True)
            if row == before:
                break
            if left:
                await asyncio.sleep(TRY_SECONDS)
        else:
            found, problem = [], f"partition {number}: its row changed {TRIES_MAX} times meanwhile"
        self._note(row, found, problem)

    async def _compared(self, number: int, row: PlacedRow) -> tuple[list[Difference], str]:
        """Return what differs in a partition with this row, and why it could not be compared, if so."""
        if not row.names:
            return [], f"partition {number} has no owner"
        try:
            return await self._replicas(number, row.names[0], row.names[1:]), ""
        except (Corrupt, Refused):
            raise
        except SteleError as error:
            return [], f"partition {number}: {error.text}"

    def _note(self, row: PlacedRow, found: list[Difference], problem: str) -> None:
        if problem:
            self._verdict.skipped.append(problem)
            return
        self._verdict.partitions += 1
        self._verdict.replicas += len(row.names) - 1
        self._verdict.differences += found

    async def _replicas(self, number: int, owner: str, others: Sequence[str]) -> list[Difference]:
        """Compare stretch by stretch, so that neither side keeps anything for it."""
        wrong: dict[str, list[str]] = {each: [] for each in others}
        counts = dict.fromkeys(others, 0)
        after: str | None = None
        while others:
            first = await self._ask(number, owner, {} if after is None else {"after": after})
            stretch = Stretch(after, first.end if first.more else None)
            self._verdict.entries += first.entries
            for each in others:
                found = await compare(
                    lambda member, query: self._ask(number, member, query), owner, each, stretch, first
                )
                self._verdict.busy += found.busy
                counts[each] += len(found.different)
                wrong[each] = (wrong[each] + found.different)[:DIFFERENCES_MAX]
            if not first.more:
                break
            if after is not None and name_of(first.end) <= name_of(after):
                raise Corrupt(f"{owner}: its checksums of partition {number} do not go on")
            after = first.end
        return [
            Difference(number, owner, each, counts[each], shown(names[0]), shown(names[-1]))
            for each, names in wrong.items()
            if names
        ]

    async def _ask(self, number: int, member: str, query: dict[str, str]) -> "TabletChecksum":
        """Ask, and wait for as long as the rate of bytes demands. The answer says for which time it is.

        A member of a release that does not say its time is asked for that of this machine.
        """
        import msgspec

        given = query | {"partition": str(number)}
        if "now_ms" not in given and member in self._without_time:
            given["now_ms"] = str(int(time.time() * 1000))
        answer = await self._asked(member, given)
        if "now_ms" in given:
            return msgspec.structs.replace(answer, now_ms=int(given["now_ms"]))
        if answer.now_ms:
            return answer
        self._without_time.add(member)
        return await self._ask(number, member, query)

    async def _asked(self, member: str, query: dict[str, str]) -> "TabletChecksum":
        from stele.wire.admin import TabletChecksum

        try:
            answer = await self._console.ask_member("GET", member, "/v1/checksum", TabletChecksum, **query)
        except SteleError as error:
            if "404: Not Found" in error.text:
                text = f"{member} runs a release without checksums: update the cluster first"
                raise Refused(text, "UNSUPPORTED") from error
            raise
        self._verdict.bytes += max(0, answer.bytes)
        await asyncio.sleep(max(0, answer.bytes) / self._rate)
        return answer


def shown(text: str) -> str:
    """Return the keyspace and key of an entry's name, for people."""
    name = name_of(text)
    length = name[0] if name else 0
    keyspace, key = (
        part.decode(errors="backslashreplace") for part in (name[1 : 1 + length], name[1 + length :])
    )
    return f"{keyspace}/{key}"
