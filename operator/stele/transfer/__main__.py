"""`stele-transfer`: the second container of a member's pod, on the same volume.

It serves checkpoints to processes that copy from this member, and copies tablets to this member (engine
Direct), so that clients are never delayed by copies.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated

import msgspec
import uvloop
from aiohttp import web

from stele.adapters import environment, http
from stele.adapters.environment import parser_of, setting
from stele.adapters.logs import LogSettings
from stele.adapters.tls.acceptor import TlsAcceptor
from stele.adapters.tls.dialled import connect
from stele.core.control.commands import MemberInfo
from stele.core.security.level import InternalTls
from stele.errors import Corrupt, Unavailable
from stele.transfer.bulk.files import FETCH_SECONDS_MAX, LoadFiles
from stele.transfer.bulk.routes import Bulk
from stele.transfer.client.malloc import tune_malloc
from stele.transfer.jobs.board import JobBoard
from stele.transfer.jobs.direct import DirectRunner
from stele.transfer.jobs.routes import JOB_BYTES_MAX, add_job_routes
from stele.transfer.log_level import add_log_route
from stele.transfer.program import SETTINGS_WRONG, begin, serve
from stele.transfer.server.callers import Callers
from stele.transfer.server.open_checkpoints import OpenCheckpoints
from stele.transfer.server.stream_server import StreamServer
from stele.transfer.tls import VolumeTls
from stele.wire.copy.bulk import LOADS
from stele.wire.storage.volume import TABLE_FILE, decode_table

DIRECT_JOBS_PARALLEL = 2
CERTIFICATE_LOOK_SECONDS = 10.0
"""Interval of looks at the certificate."""
AnyPort = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


@dataclass(frozen=True, slots=True)
class Settings:
    """Directory of the volume, and address to listen on."""

    data: Path = setting(
        "STELE_DATA_DIR",
        "the same as the member's",
        expected="the directory of the member's volume",
        accepts=Path.is_dir,
    )
    bind: str = setting("STELE_BIND", "address to listen on; every one of the pod by default", default="")
    port: AnyPort = setting("STELE_TRANSFER_PORT", "copies; 0 picks a free one", default=7002)
    tls_dir: str = setting(
        "STELE_TLS_DIR", "folder with tls.crt, tls.key and ca.crt; without it no TLS", default=""
    )
    first_member_tls: InternalTls = setting(
        "STELE_FIRST_MEMBER_TLS",
        "level of TLS between members while the volume has none",
        default=InternalTls.OFF,
    )


def make_app(settings: Settings) -> tuple[web.Application, TlsAcceptor]:
    """Return the HTTP application of one member's transfer process, and what takes its connections."""
    tls = VolumeTls(settings.data, settings.tls_dir, settings.first_member_tls)
    callers = Callers(tls, settings.data)
    app = http.application(body_bytes_max=JOB_BYTES_MAX, middlewares=[callers.check])
    sessions = OpenCheckpoints(settings.data / "checkpoints")

    async def sent(request: web.Request) -> web.Response:
        """Report the bytes sent per session, to the member of this pod."""
        return web.Response(body=msgspec.json.encode(sessions.sent()), content_type="application/json")

    StreamServer(sessions).add_routes(app)
    app.router.add_get("/v1/sessions", sent)
    add_log_route(app)
    sources = Sources(settings.data, settings.port, tls)
    Bulk(LoadFiles(settings.data / LOADS, sources.dial), sessions).add_routes(app)
    runner = DirectRunner(settings.data, settings.tls_dir)

    async def copying(app: web.Application) -> AsyncIterator[None]:
        yield
        await runner.close()

    async def watching(app: web.Application) -> AsyncIterator[None]:
        await asyncio.to_thread(tls.identity.look)
        watch = asyncio.create_task(tls.identity.watch(CERTIFICATE_LOOK_SECONDS))
        yield
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)

    app.cleanup_ctx.append(watching)

    # Contexts are cleaned up in reverse order: jobs are cancelled before the processes that wait for jobs
    # end.
    app.cleanup_ctx.append(copying)
    add_job_routes(app, "/v1/copies", lambda: JobBoard(runner, DIRECT_JOBS_PARALLEL))
    return app, callers.acceptor


class Sources:
    """Other members' transfer processes, which listen on `port`, by the table of this pod's member."""

    def __init__(self, data: Path, port: int, tls: VolumeTls) -> None:
        self._data, self._port, self._tls = data, port, tls

    def dial(self, member: int) -> HTTPConnection:
        """Connect, with TLS where the level says so.

        Raises OSError, and Unavailable (SOURCE) when the table does not name the member, or cannot be read
        now.
        """
        info = self._find(member)
        secured = self._tls.dialling(info.name)
        return connect((info.address, self._port), secured, FETCH_SECONDS_MAX)

    def _find(self, member: int) -> MemberInfo:
        try:
            table = decode_table((self._data / TABLE_FILE).read_bytes(), TABLE_FILE)
        except (OSError, Corrupt) as error:
            raise Unavailable(f"the table of this member cannot be read: {error}", "SOURCE") from error
        found = next((info for info in table.members if info.index == member and info.address), None)
        if found is None:
            text = f"source is member {member}, which this member's table does not name"
            raise Unavailable(text, "SOURCE")
        return found


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM. Return 2 for an invalid setting or argument, 1 when it cannot listen."""
    parser = parser_of("stele-transfer", "Copy tablets from and to one Stele member.", Settings, LogSettings)
    settings = begin(parser, arguments, partial(environment.read, Settings))
    if settings is None:
        return SETTINGS_WRONG
    tune_malloc()
    app, acceptor = make_app(settings)
    place = settings.bind, settings.port
    return serve(parser.prog, app, *place, make_loop=uvloop.new_event_loop, acceptor=acceptor)


if __name__ == "__main__":
    sys.exit(main())
