"""`stele-member`: the tablet server process of one member."""

import argparse
import logging
import os
import sys
from pathlib import Path

import uvloop

from stele.adapters import environment, logs
from stele.adapters.environment import parser_of
from stele.adapters.logs import LogSettings
from stele.errors import SteleError
from stele.member import limits
from stele.member.settings import Settings, read_settings
from stele.member.storage import failpoints


def main(arguments: list[str] | None = None) -> int:
    """Run a command, or serve until SIGTERM. Return 0 for success, 1 for a failure, 2 for invalid input."""
    parser = parser_of("stele-member", "Tablet server of one Stele member.", Settings, LogSettings)
    commands = parser.add_subparsers(
        dest="command", title="commands (by default it serves)", metavar="COMMAND"
    )
    look = commands.add_parser("inspect", help="show the content of a volume that is not in use")
    look.add_argument(
        "folder", metavar="DIR", type=Path, help="directory of the volume, which is not changed"
    )
    look.add_argument("--verify", action="store_true", help="read all data and logs and check every checksum")
    look.add_argument("-o", "--output", choices=("text", "json"), default="text")
    go = commands.add_parser("leave", help="announce a planned stop, and wait until the member may stop")
    go.add_argument("--seconds", type=_seconds, default=60.0, help="for how long at most; 0 takes it back")
    wanted = parser.parse_args(arguments)
    if wanted.command == "inspect":
        return _inspect(wanted)
    return _leave(wanted.seconds) if wanted.command == "leave" else _serve()


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


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= limits.STOPPING_SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"is {text}; it must be 0 to {limits.STOPPING_SECONDS_MAX:g}")
    return seconds


def _leave(seconds: float) -> int:
    """Announce a planned stop. Return 0 also when there is nobody to wait for: the stop goes on."""
    from stele.member.leave import leave

    try:
        print(f"stele-member: {leave(read_settings(os.environ), seconds)}")
    except SteleError as error:
        print(f"stele-member: {error}", file=sys.stderr)
        return 2
    return 0


def _serve() -> int:
    try:
        logs.start(environment.read(LogSettings, os.environ), logging.StreamHandler(sys.stdout))
        settings = read_settings(os.environ)
        failpoints.arm(settings.crash_point)
    except SteleError as error:
        logs.fail("stele-member", error)
        return 2
    from stele.member.process import Process

    try:
        return uvloop.run(_run(Process, settings))
    except (SteleError, OSError) as error:
        logs.fail("stele-member", error)
        return 1


async def _run(process: type, settings: object) -> int:
    code: int = await process(settings).run()
    return code


if __name__ == "__main__":
    sys.exit(main())
