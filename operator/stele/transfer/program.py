"""Start-up of `stele-transfer` and `stele-copier`: arguments, logging, settings from the environment."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from aiohttp import web

from stele.adapters.listening import listen_hosts
from stele.errors import BadInput

SETTINGS_WRONG = 2
"""Exit code for an invalid setting; argparse uses the same for invalid arguments."""
CANNOT_LISTEN = 1
SHUTDOWN_SECONDS = 5.0
S = TypeVar("S")


def begin(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    read_settings: Callable[[Mapping[str, str]], S],
) -> S | None:
    """Read the settings; None when one is invalid (BadInput), after printing the error."""
    parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        return read_settings(os.environ)
    except BadInput as wrong:
        print(f"{parser.prog}: {wrong.text}", file=sys.stderr)
        return None


def serve(
    program: str, app: web.Application, host: str, port: int, loop: asyncio.AbstractEventLoop | None = None
) -> int:
    """Serve until SIGTERM and return the exit code. An error of listening is printed."""
    try:
        web.run_app(
            app,
            host=listen_hosts(host),
            port=port,
            print=None,
            access_log=None,
            shutdown_timeout=SHUTDOWN_SECONDS,
            loop=loop,
        )
    except OSError as error:
        text = f"cannot listen on {host or 'any address'} port {port}: {error}; set STELE_BIND or the port"
        print(f"{program}: {text}, see --help", file=sys.stderr)
        return CANNOT_LISTEN
    return 0
