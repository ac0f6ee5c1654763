"""`stele-member`: the tablet server process of one member."""

import argparse
import logging
import os
import sys

import uvloop

from stele.core.errors import SteleError
from stele.member import crash
from stele.member.settings import VARIABLES, read_settings


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM. 0: stopped; 1: a failure; 2: wrong settings, named on standard error."""
    parser = argparse.ArgumentParser(
        prog="stele-member",
        description="Tablet server of one Stele member. It is set up by environment variables:",
        epilog=VARIABLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        settings = read_settings(os.environ)
        crash.arm(os.environ.get(crash.VARIABLE, ""))
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
