"""The member process: open the volume, listen, serve, stop."""

import asyncio
import logging
import os
import signal
import uuid
import zlib
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from stele.adapters import logs, pod_token
from stele.adapters.collector import tune_gc
from stele.adapters.listening import listen_hosts
from stele.adapters.rocksdb.engine import RocksEngine
from stele.adapters.tls.acceptor import TlsAcceptor
from stele.adapters.tls.http_site import HttpSite
from stele.core.formats import FIRST, LOG_SEGMENTS, SPOKEN
from stele.errors import Corrupt, SteleError, Unavailable
from stele.member import limits
from stele.member.admin.http import Admin
from stele.member.admin.observer import Observer
from stele.member.bulk.routes import BulkRoutes
from stele.member.copy.transfer_client import LocalTransfer
from stele.member.copy.transfer_log import keep_log_level
from stele.member.node import Node
from stele.member.resp.server import RespServer, start_resp_server
from stele.member.resp.users_file import UsersFile
from stele.member.services.loader import load_services
from stele.member.settings import Settings
from stele.member.storage import failpoints
from stele.member.storage.volume import DATA, WALS, Volume
from stele.member.storage.write_back import WriteBack
from stele.ports.engine import Engine
from stele.wire.storage.volume import Instance

log = logging.getLogger("stele.process")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def open_volume(settings: Settings) -> tuple[Volume, Instance, Engine]:
    """Lock and open the volume, its files and its database.

    A damaged volume is quarantined, and the member starts empty under a new identity. Raises Unavailable
    (LOCKED) while another process uses the volume, and SteleError, with what to do, when it cannot be used.
    """
    volume = Volume(settings.data_dir)
    try:
        # First: nothing may change on the volume while another process uses it.
        volume.lock()
        volume.check_features(SPOKEN)
        volume.create_folders()
        pod_token.write(volume.root, volume.pod_token)
        try:
            return _open(settings, volume)
        except Corrupt as error:
            log.error("the volume is damaged: %s", error)
            log.error(
                "its content is quarantined in %s; this member starts empty",
                volume.quarantine_volume(str(error)),
            )
            return _open(settings, volume)
    except OSError as error:
        raise SteleError(f"STELE_DATA_DIR {settings.data_dir} cannot be used: {error}", "VOLUME") from error


def _open(settings: Settings, volume: Volume) -> tuple[Volume, Instance, Engine]:
    instance = volume.load_instance(settings.cluster, str(uuid.uuid4()))
    engine = RocksEngine(volume.path(DATA), volume.path(WALS), volume.mark_damaged)
    try:
        volume.check_segments(engine.log_end())
        if _features(volume) >= LOG_SEGMENTS:
            _move_log(engine)
    except BaseException:
        with suppress(SteleError):
            engine.close()
        raise
    failpoints.hit("start.engine")
    return volume, instance, WriteBack(engine)


def _move_log(engine: RocksEngine) -> None:
    try:
        engine.move_log()
    except (Corrupt, Unavailable) as error:
        # Damage is one tablet's, as long as RocksDB has the log.
        log.warning("the log stays in RocksDB until a later start: %s", error)


def _features(volume: Volume) -> int:
    """Return the features that the volume has seen, FIRST when its table is damaged and will be set aside."""
    try:
        return volume.features()
    except Corrupt:
        return FIRST


def read_boot_id() -> str:
    """Return the ID of the kernel's boot; empty where it is not available."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def first_id(uuid: str) -> int:
    """Return from which number on a member counts its clients: two have no ids in common.

    It is below 2**53, which clients in JavaScript can tell from its neighbours.
    """
    return (zlib.crc32(uuid.encode()) << 20) + 1


class Process:
    """Everything that one member runs, from listening to stopping."""

    def __init__(self, settings: Settings) -> None:
        self._settings = replace(settings, boot_id=read_boot_id())
        self._hosts = listen_hosts(settings.bind)
        self._stop = asyncio.Event()
        self._failure = ""
        self._fail = self._failed

    async def _open(self) -> tuple[Volume, Instance, Engine] | None:
        """Like `open_volume`, after the previous process has ended; None if this one is stopped before."""
        loop = asyncio.get_running_loop()
        until, logged = loop.time() + limits.LOCK_SECONDS_MAX, False
        while not self._stop.is_set():
            try:
                return open_volume(self._settings)
            except Unavailable as error:
                if error.code != "LOCKED" or loop.time() > until:
                    raise
                if not logged:
                    log.warning("%s; waiting for at most %g s", error, limits.LOCK_SECONDS_MAX)
                logged = True
            await asyncio.sleep(limits.LOCK_ASK_SECONDS)
        return None

    def _failed(self, reason: str) -> None:
        """End the process, which restarts from its volume, after an error that cannot be repaired here."""
        if not self._failure:
            log.critical("ending: %s", reason)
            self._failure = reason
            self._stop.set()

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.set_exception_handler(self._on_loop_error)
        opened = await self._open()
        if opened is None:
            return 0
        volume, instance, engine = opened
        log.info("member %s, start %d, cluster %s", instance.uuid, instance.incarnation, instance.cluster)
        transfer = LocalTransfer(self._settings, volume.pod_token)
        node = Node(
            self._settings,
            (volume, instance),
            engine,
            transfer=transfer,
            failed=self._failed,
            services=load_services(),
        )
        logs.name_epoch(lambda: node.table.epoch)
        # An unexpected error also ends acknowledgements at once, even while the member drains.
        self._fail = node.failed
        async with AsyncExitStack() as stack:
            clients = await self._listen(node, stack)
            await node.load()
            node.loads.start()
            await node.services.start()
            node.start()
            await self._listen_to_members(node, stack)
            node.background.spawn(node.collect_garbage())
            node.background.spawn(keep_log_level(transfer, node.live_settings))
            node.exchange.start()
            tune_gc()
            log.info("started: %d tablets, %d rows", len(node.replicas), len(node.rows))
            await self._stop.wait()
            log.info("stopping")
            if not self._failure:
                clients.stop()
                await node.background.until(lambda: not clients.busy(), limits.DRAIN_SECONDS_MAX)
                await node.drain()
        await self._close(node)
        return 1 if self._failure else 0

    async def _listen(self, node: Node, stack: AsyncExitStack) -> RespServer:
        """Open the ports for master and clients; the stack closes the listeners."""
        settings = self._settings
        await asyncio.to_thread(node.tls.look)
        node.background.spawn(node.tls.watch(limits.CERTIFICATE_LOOK_SECONDS))
        admin = Admin(node).application()
        bulk = settings, node.tablets, node.delayed_replies, node.loads, node.sessions, node.member_tls
        BulkRoutes(*bulk).add_routes(admin)
        await self._serve(admin, settings.admin_port, stack, node.admin_tls)
        await self._serve(Observer(node).application(), settings.metrics_port, stack)
        users = UsersFile(node.access, settings.users_file, lambda: node.client_demands.auth)
        await users.look()
        node.background.spawn(users.watch())
        resp_server = await start_resp_server(
            node.router,
            self._hosts,
            settings.resp_port,
            turn_budget=node.command_executor.turn_budget,
            pubsub=node.broadcast.pubsub,
            access=node.access,
            tls=node.client_tls,
            first_id=first_id(node.uuid),
        )
        stack.push_async_callback(resp_server.close)
        await resp_server.listen_cluster(self._hosts, settings.cluster_port)
        await resp_server.listen_reads(self._hosts, settings.read_port)
        return resp_server

    async def _serve(
        self, app: web.Application, port: int, stack: AsyncExitStack, tls: TlsAcceptor | None = None
    ) -> None:
        """Serve at a port; without `tls` it takes plain connections only."""
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        for host in self._hosts:
            await HttpSite(runner, tls, host, port).start()

    async def _listen_to_members(self, node: Node, stack: AsyncExitStack) -> None:
        """Listen to members once the volume is read: unknown promises can neither be kept nor changed."""
        loop, port = asyncio.get_running_loop(), self._settings.peer_port
        acceptor, accept = node.member_tls.acceptor, node.peers.inbound.accept
        server = await loop.create_server(lambda: acceptor.accept(accept), self._hosts, port)
        stack.callback(acceptor.close)
        stack.callback(server.close)
        node.background.spawn(node.peers.renew_links())

    async def _close(self, node: Node) -> None:
        try:
            async with asyncio.timeout(limits.STOP_SECONDS_MAX):
                await node.stop()
        except (OSError, SteleError) as error:
            log.warning("flush incomplete: %s; the log has the rest", error)
        except TimeoutError:
            log.warning("flush incomplete after %g s; the log has the rest", limits.STOP_SECONDS_MAX)
            logging.shutdown()
            os._exit(1)
        log.info("stopped")

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Handle an error in a callback, which is a defect: memory may be wrong, so restart from the disk."""
        error = context.get("exception")
        forgotten = "never retrieved" in str(context.get("message")) and isinstance(error, SteleError)
        if forgotten or isinstance(error, ConnectionError | TimeoutError):
            return
        if isinstance(error, SteleError):
            self._fail(str(error))
            return
        log.error("%s", context.get("message"), exc_info=error if isinstance(error, Exception) else None)
        if isinstance(error, Exception):
            self._fail(f"defect: {error!r}")
