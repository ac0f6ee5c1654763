"""The operator's process: acquire the Lease, watch the API server, and control every TabletCluster."""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import partial

from aiohttp import web

from stele.adapters import environment, logs
from stele.adapters.collector import tune_gc
from stele.adapters.kubernetes.api import Api
from stele.adapters.kubernetes.lease import Election
from stele.adapters.kubernetes.login import Login, log_in
from stele.adapters.listening import listen_hosts
from stele.adapters.logs import LogFormat, LogSettings
from stele.adapters.members.client import MemberClient
from stele.adapters.members.room import Room
from stele.adapters.tls.http_site import HttpSite
from stele.errors import BadInput, SteleError
from stele.master import health, watch
from stele.master.page import SupervisorFacts
from stele.master.settings import Settings
from stele.master.supervisor import Supervisor
from stele.web.server import Page

log = logging.getLogger("stele.master")

EXIT_BAD_INPUT = 2
EXIT_DEPOSED = 3

PAGE_HOST = "127.0.0.1"
"""Only who may forward ports of the pod reaches the page."""


def main(arguments: Sequence[str] | None = None) -> int:
    purpose = "Controls TabletClusters, as the only writer of their partition tables."
    parser = environment.parser_of("stele-operator", purpose, Settings, LogSettings)
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="log in with this file instead of the pod's account"
    )
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    options = parser.parse_args(arguments)
    try:
        logging_as = environment.read(LogSettings, os.environ)
        logs.start(logging_as)
        return asyncio.run(_run(options.kubeconfig, options.context, logging_as.format))
    except SteleError as error:
        logs.fail("stele-operator", error)
        return EXIT_BAD_INPUT


async def _run(kubeconfig: str | None, context: str | None, log_format: LogFormat) -> int:
    # Before the login, so that an invalid variable is reported even without a cluster.
    given = replace(environment.read(Settings, os.environ), log_format=log_format)
    login = await log_in(kubeconfig, context)
    if login.impersonation:
        raise BadInput("the kubeconfig's user acts as another (as), which the operator cannot: remove it")
    settings = given.completed(login.namespace, f"{socket.gethostname()}-{os.getpid()}")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    async with Api(login) as api:
        process = Process(api, login, settings)
        tune_gc()
        try:
            return await process.run()
        finally:
            await process.close()


def _on_signals(stopping: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)


class Process:
    """The concurrent parts of the process; when one ends, the process ends."""

    def __init__(self, api: Api, login: Login, settings: Settings) -> None:
        self._login, self._settings, self._api = login, settings, api
        self._supervisor = Supervisor(api, partial(MemberClient, room=Room()), settings)
        self._election = Election(
            api,
            settings.own_namespace,
            settings.lease_name,
            settings.identity,
            monotonic=time.monotonic,
        )
        self._standing_by = False
        self._servers: list[web.AppRunner] = []
        self._tasks: list[asyncio.Task[object]] = []
        self._leads = False

    async def run(self) -> int:
        """Run until a signal (returns 0) or until the leadership is lost (returns 3)."""
        stopping = asyncio.Event()
        _on_signals(stopping)
        await self._serve()
        self._standing_by = True
        end = self._task(stopping.wait())
        acquired = self._task(self._election.acquire())
        await asyncio.wait({end, acquired}, return_when=asyncio.FIRST_COMPLETED)
        if end.done():
            return 0
        await acquired
        self._leads = True
        lost = self._task(self._election.hold())
        await self._supervisor.list_all()
        ready = asyncio.Event()
        cache, namespaces = self._supervisor.cache, self._settings.namespaces
        watching = self._task(watch.run(cache, self._login, namespaces, ready))
        work = self._task(self._supervisor.run())
        self._task(self._restore_signal_handlers(ready, stopping))
        parts = {lost, watching, work}
        await asyncio.wait({end, *parts}, return_when=asyncio.FIRST_COMPLETED)
        finished = self._task(self._supervisor.finish_hand_overs())
        await asyncio.wait({finished, *parts}, return_when=asyncio.FIRST_COMPLETED)
        return self._reason(end, lost)

    def _reason(self, end: asyncio.Task[object], lost: asyncio.Task[object]) -> int:
        if lost.done():
            log.error("lost the Lease: the process exits")
        elif end.done():
            log.info("the process exits after a signal")
            return 0
        else:
            log.error("a part of the process ended unexpectedly: the process exits")
        return EXIT_DEPOSED

    @staticmethod
    async def _restore_signal_handlers(ready: asyncio.Event, stopping: asyncio.Event) -> None:
        """Install the signal handlers again: Kopf replaces them when it starts."""
        await ready.wait()
        _on_signals(stopping)

    def _task(self, work: Awaitable[object]) -> asyncio.Task[object]:
        task: asyncio.Task[object] = asyncio.ensure_future(work)
        self._tasks.append(task)
        return task

    async def _serve(self) -> None:
        app = health.application(self._supervisor, lambda: self._standing_by, lambda: self._leads)
        await self._listen(app, self._settings.http_port, listen_hosts(""))
        if self._settings.page_port:
            page = Page(SupervisorFacts(self._supervisor, self._page_refusal)).application()
            await self._listen(page, self._settings.page_port, (PAGE_HOST,))

    async def _listen(self, app: web.Application, port: int, hosts: Sequence[str]) -> None:
        server = web.AppRunner(app, access_log=None)
        self._servers.append(server)
        await server.setup()
        for host in hosts:
            await HttpSite(server, None, host, port).start()

    def _page_refusal(self) -> str:
        lease = f"{self._settings.own_namespace}/{self._settings.lease_name}"
        return "" if self._leads else f"this process stands by; the holder of Lease {lease} leads"

    async def close(self) -> None:
        await self._supervisor.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._leads:
            await self._election.release()
        for server in self._servers:
            await server.cleanup()


if __name__ == "__main__":
    sys.exit(main())
