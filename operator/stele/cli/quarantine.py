"""`kubectl stele quarantine`: data that a member set aside instead of deleting."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from stele.cli import output as out
from stele.cli.accept_copy import accept
from stele.cli.options import OutputOption, Where, on_cluster
from stele.cli.quarantine_dump import STDOUT, dump_entries
from stele.cli.tablets import MemberArgument, op_text
from stele.errors import BadInput

app = typer.Typer(
    help="""List, dump, restore or purge data that a member has set aside.

    \b
    Examples:
      kubectl stele quarantine list demo-0 -n stele
      kubectl stele quarantine dump demo-0 3/1 entries.ndjson -n stele
      kubectl stele quarantine restore demo-0 3/1 -n stele
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)

ItemArgument = Annotated[
    str, typer.Argument(metavar="ITEM", help="PARTITION/GENERATION of a tablet, or the name of a volume.")
]


@app.command("list")
@on_cluster
def list_(where: Where, member: MemberArgument, *, output: OutputOption = None) -> None:
    """List the tablets and volumes in a member's quarantine.

    \b
    Example:
      kubectl stele quarantine list demo-0 -n stele
    """
    import msgspec

    from stele.wire.admin import QuarantineList

    path = "/v1/quarantine"
    quarantine = where.ask(lambda console: console.ask_member("GET", member, path, QuarantineList))
    if out.data(msgspec.to_builtins(quarantine), output):
        return
    rows = [
        [
            f"{t.partition}/{t.generation}",
            "tablet",
            out.size(t.bytes),
            str(t.entries),
            op_text(t.last),
            _time(t.until_s),
            "-",
        ]
        for t in quarantine.tablets
    ]
    rows += [[v.name, "volume", out.size(v.bytes), "-", "-", "never", v.reason] for v in quarantine.volumes]
    out.table(["ITEM", "KIND", "SIZE", "ENTRIES", "LAST", "EXPIRES", "REASON"], rows)


@app.command()
@on_cluster
def dump(
    where: Where,
    member: MemberArgument,
    item: ItemArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to create; - writes to standard output.")
    ] = STDOUT,
) -> None:
    """Write the entries of a tablet to a file, and change nothing.

    One line of JSON for each entry: [keyspace, key, value, expire_at_ms], with key and value in base64, and
    0 for an entry that never expires. Operations that the tablet had only in its log are not included.

    \b
    Examples:
      kubectl stele quarantine dump demo-0 3/1 entries.ndjson -n stele
      kubectl stele quarantine dump demo-0 3/1 -n stele | wc -l
    """
    path = _path(item)
    if path.startswith(_VOLUMES):
        raise BadInput(
            f"{item} is a volume, whose tablets are not open: put it back by hand "
            "(docs/internals/member.md, Quarantine), then dump a keyspace"
        )
    dump_entries(where, member, item, path, file)


@app.command()
@on_cluster
def restore(
    where: Where,
    member: MemberArgument,
    item: ItemArgument,
    *,
    as_owner: Annotated[
        bool,
        typer.Option(
            "--as-owner",
            help="Make the copy the owner of its lost partition, though newer data may be lost by that.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --as-owner: do not ask for confirmation.")] = False,
) -> None:
    """Restore a deleted tablet to READY, though the table does not name it.

    The operator decides what happens next: the tablet rejoins its row, is kept while the partition has
    no live copy, or is deleted again. With --as-owner it becomes the owner of a partition that has no live
    copy: what was written after it was set aside is lost. Volumes are restored by hand: see
    docs/internals/member.md.

    \b
    Examples:
      kubectl stele quarantine restore demo-0 3/1 -n stele
      kubectl stele quarantine restore demo-0 3/1 --as-owner -n stele
    """
    path = _path(item)
    if path.startswith(_VOLUMES):
        raise BadInput(
            f"{item} is a volume: stop the member and move it back by hand "
            "(docs/internals/member.md, Quarantine)"
        )
    if as_owner:
        accept(where, member, item, f"{path}/restore", yes=yes)
        return
    from stele.wire.admin import Done

    where.ask(lambda console: console.ask_member("POST", member, f"{path}/restore", Done))
    print(f"{item} of {member} is restored")


@app.command()
@on_cluster
def purge(
    where: Where,
    member: MemberArgument,
    item: ItemArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete an item of a member's quarantine permanently.

    \b
    Example:
      kubectl stele quarantine purge demo-0 3/1 -n stele
    """
    path = _path(item)
    if not yes and not typer.confirm(f"Delete {item} of {member}? This cannot be undone."):
        raise typer.Exit(out.EXIT_FAILURE)
    from stele.wire.admin import Purged

    answer = where.ask(lambda console: console.ask_member("DELETE", member, path, Purged))
    print(f"{item} of {member} is {'deleted' if answer.purged else 'already gone'}")


_TABLETS, _VOLUMES = "/v1/quarantine/tablets/", "/v1/quarantine/volumes/"


def _path(item: str) -> str:
    """Return the path of an item. Raises BadInput when it is malformed."""
    partition, slash, generation = item.partition("/")
    if not slash and item not in ("", ".", ".."):
        return _VOLUMES + quote(item, safe="")
    if all(number.isascii() and number.isdigit() for number in (partition, generation)):
        return f"{_TABLETS}{partition}/{generation}"
    raise BadInput(
        f'ITEM is "{item}"; expected PARTITION/GENERATION of a tablet (3/1), or the name of a volume'
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
