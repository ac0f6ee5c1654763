"""`playground up`: the master of the operator, members as processes, and a socket for other commands."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from stele.adapters import logs
from stele.adapters.kubernetes.api import Kind
from stele.adapters.logs import LogSettings
from stele.adapters.members.client import MemberClient
from stele.adapters.tls.http_site import HttpSite
from stele.master.page import SupervisorFacts
from stele.master.settings import Settings
from stele.master.supervisor import Supervisor
from stele.playground.api import FileApi
from stele.playground.cluster import NAME, Engine, Wanted, engine_of, ensure_cluster
from stele.playground.files import Object
from stele.playground.folder import DEFAULT, held, socket_of
from stele.playground.kubelet import Kubelet
from stele.playground.objects import NAMESPACE, ObjectFiles
from stele.playground.ports import Ports, check_addresses, choose_ports
from stele.playground.progress import Progress
from stele.playground.server import SHUTDOWN_SECONDS, Server
from stele.playground.spark import LocalCopier
from stele.web.server import Page

BUILD = "this-installation"
"""What stands for an image."""

PAGE_HOST = "127.0.0.1"

START_SECONDS_MAX = 30.0
"""Seconds that the master waits for members of before."""

SETTINGS = Settings(BUILD, BUILD, (NAMESPACE,), NAMESPACE, NAMESPACE)


def up(folder: Path, wanted: Wanted) -> int:
    """Run a playground until Ctrl-C, SIGTERM or `down`. Raises SteleError when it cannot begin."""
    socket = socket_of(folder)
    with held(folder):
        files = ObjectFiles(folder)
        cluster = ensure_cluster(files, wanted)
        check_addresses(cluster["spec"]["members"] + 1)
        ports = choose_ports(folder / "ports.json")
        logs.start(LogSettings(), logging.FileHandler(folder / "logs" / "master.log"))
        print(welcome(folder, ports, engine_of(cluster["spec"])), flush=True)
        return asyncio.run(Playground(folder, files, ports).run(socket))


COPIED_BY = {
    Engine.DIRECT: "from member to member",
    Engine.SPARK: "by Spark, in local mode; its first copy to a member waits for a JVM",
}


def welcome(folder: Path, ports: Ports, engine: Engine) -> str:
    """Return what a playground is and is not, and where to connect."""
    where = "" if folder == DEFAULT else f" --dir {folder}"
    return f"""\
Stele's playground in {folder}: the operator's own loop, and members as processes of this machine.
It is NOT for data that you need: no Kubernetes, one machine and one disk, with which all copies end, and
no TLS and no passwords: every user of this machine can read and write. It listens on loopback only.
Data is copied {COPIED_BY[engine]}.

  redis-cli -p {ports.resp}         any client of Redis
  redis-cli -c -p {ports.cluster}      clients of Redis Cluster
  http://127.0.0.1:{ports.page}/     the page: who has which partition, and what moves

In another terminal:
  kubectl stele playground load{where}            reads and writes, and checks what it reads
  kubectl stele playground scale 4{where}         a fourth member; watch the data move
  kubectl stele playground kill {NAME}-1{where}     kill -9
  kubectl stele playground status{where}          more: --help

Ctrl-C ends it and keeps the data: `up` goes on from there; `down` removes all.
"""


class Playground:
    """The parts of one run; when one of them ends, all do."""

    def __init__(self, folder: Path, files: ObjectFiles, ports: Ports) -> None:
        self._files, self._progress, self._ports = files, Progress(), ports
        self._stopping = asyncio.Event()
        self._supervisor = Supervisor(
            FileApi(files),
            lambda dialling: MemberClient(dialling, ports.admin),
            SETTINGS,
            lambda url, dialling: LocalCopier(ports),
        )
        self._kubelet = Kubelet(files, folder, ports, self._progress.say)
        self._server = Server(files, self._kubelet, ports, self._stopping.set)

    async def run(self, socket: Path) -> int:
        """Return 0 after a signal or `down`, 1 when a part failed."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stopping.set)
        self._files.changed.extend((self._fill_cache, self._progress.changed))
        await self._supervisor.list_all()
        stopping = asyncio.create_task(self._stopping.wait())
        parts = [asyncio.create_task(work) for work in (self._kubelet.run(), self._master())]
        try:
            async with self._server.listening(socket), self._page():
                await asyncio.wait({stopping, *parts}, return_when=asyncio.FIRST_COMPLETED)
                self._progress.say("ending: clients are cut off, and all that was acknowledged is on disk")
        finally:
            failed = await self._close([stopping, *parts])
        for error in failed:
            print(f"kubectl stele: the playground ends: {error!r}", file=sys.stderr)
        return 1 if failed else 0

    @asynccontextmanager
    async def _page(self) -> AsyncIterator[None]:
        app = Page(SupervisorFacts(self._supervisor)).application()
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            await HttpSite(runner, None, PAGE_HOST, self._ports.page).start()
            yield
        finally:
            await runner.cleanup()

    async def _master(self) -> None:
        await self._kubelet.until_listening(START_SECONDS_MAX)
        await self._supervisor.run()

    def _fill_cache(self, kind: Kind, stored: Object, gone: bool) -> None:
        take = self._supervisor.cache.remove if gone else self._supervisor.cache.put
        take(kind, stored)

    async def _close(self, tasks: list[asyncio.Task[object]]) -> list[BaseException]:
        """End the master, then members; return why parts ended, if they did by themselves."""
        await self._supervisor.finish_hand_overs()
        failed = [error for each in tasks if each.done() and (error := each.exception()) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._supervisor.close()
        await self._kubelet.close()
        return failed
