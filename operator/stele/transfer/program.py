"""Start-up of `stele-transfer` and `stele-copier`: arguments, logging, settings from the environment."""

import argparse
import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from aiohttp import web

from stele.adapters import environment, logs
from stele.adapters.listening import listen_hosts
from stele.adapters.logs import LogSettings
from stele.adapters.tls.acceptor import TlsAcceptor
from stele.adapters.tls.http_site import HttpSite
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
    """Start the log and read the settings; None when one is invalid (BadInput), after saying which."""
    parser.parse_args(arguments)
    try:
        logs.start(environment.read(LogSettings, os.environ))
        return read_settings(os.environ)
    except BadInput as wrong:
        logs.fail(parser.prog, wrong.text)
        return None


def serve(
    program: str,
    app: web.Application,
    host: str,
    port: int,
    *,
    make_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    acceptor: TlsAcceptor | None = None,
) -> int:
    """Serve until SIGTERM and return the exit code. An error of listening is logged.

    The port takes TLS connections by the `acceptor`; plain ones alone without it.
    """
    try:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(_until_stopped(app, host, port, acceptor))
    except OSError as error:
        text = f"cannot listen on {host or 'any address'} port {port}: {error}; set STELE_BIND or the port"
        logs.fail(program, f"{text}, see --help")
        return CANNOT_LISTEN
    return 0


async def _until_stopped(app: web.Application, host: str, port: int, acceptor: TlsAcceptor | None) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    try:
        await runner.setup()
        for each in listen_hosts(host):
            await HttpSite(runner, acceptor, each, port).start()
        await stopped.wait()
    finally:
        await runner.cleanup()
