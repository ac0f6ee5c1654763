"""`stele-member`: the tablet server process of one member."""

import argparse
import logging
import os
import sys
from pathlib import Path

import uvloop

from stele.adapters.environment import parser_of
from stele.errors import SteleError
from stele.member.settings import Settings, read_settings
from stele.member.storage import failpoints


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM, or inspect. Return 0 when stopped, 1 for a failure, 2 for invalid settings."""
    parser = parser_of("stele-member", "Tablet server of one Stele member.", Settings)
    commands = parser.add_subparsers(
        dest="command", title="commands (by default it serves)", metavar="COMMAND"
    )
    look = commands.add_parser("inspect", help="show the content of a volume that is not in use")
    look.add_argument(
        "folder", metavar="DIR", type=Path, help="directory of the volume, which is not changed"
    )
    look.add_argument("--verify", action="store_true", help="read all data and logs and check every checksum")
    look.add_argument("-o", "--output", choices=("text", "json"), default="text")
    wanted = parser.parse_args(arguments)
    return _inspect(wanted) if wanted.command == "inspect" else _serve()


def _inspect(wanted: argparse.Namespace) -> int:
    """Inspect a volume. Return 0 if it is sound, 1 if it has problems, 2 if it is not a free volume."""
    import msgspec

    from stele.member.admin.inspect import inspect, text_of

    try:
        found = inspect(wanted.folder, verify=wanted.verify)
    except (SteleError, OSError) as error:
        print(f"stele-member: {error}", file=sys.stderr)
        return 2
    print(msgspec.json.encode(found).decode() if wanted.output == "json" else text_of(found))
    return 1 if found.problems else 0


def _serve() -> int:
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        settings = read_settings(os.environ)
        failpoints.arm(settings.crash_point)
    except SteleError as error:
        print(f"stele-member: {error}", file=sys.stderr)
        return 2
    from stele.member.process import Process

    try:
        return uvloop.run(_run(Process, settings))
    except (SteleError, OSError) as error:
        print(f"stele-member: {error}", file=sys.stderr)
        return 1


async def _run(process: type, settings: object) -> int:
    code: int = await process(settings).run()
    return code


if __name__ == "__main__":
    sys.exit(main())
