"""`stele-transfer`: the second container of a member's pod, on the same volume.

It serves checkpoints to processes that copy from this member, and copies tablets to this member (engine
Direct), so that clients are never delayed by copies.
"""

import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import uvloop
from aiohttp import web

from stele.adapters import environment, http
from stele.adapters.environment import parser_of, setting
from stele.errors import Corrupt, Unavailable
from stele.transfer.bulk.files import LoadFiles
from stele.transfer.bulk.routes import Bulk
from stele.transfer.client.malloc import tune_malloc
from stele.transfer.jobs.board import JobBoard
from stele.transfer.jobs.direct import DirectRunner
from stele.transfer.jobs.routes import JOB_BYTES_MAX, add_job_routes
from stele.transfer.program import SETTINGS_WRONG, begin, serve
from stele.transfer.server.open_checkpoints import OpenCheckpoints
from stele.transfer.server.stream_server import StreamServer
from stele.wire.copy.bulk import LOADS
from stele.wire.storage.volume import TABLE_FILE, decode_table

DIRECT_JOBS_PARALLEL = 2
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


def make_app(settings: Settings) -> web.Application:
    """Return the HTTP application of one member's transfer process."""
    app = http.application(body_bytes_max=JOB_BYTES_MAX)
    sessions = OpenCheckpoints(settings.data / "checkpoints")

    async def sent(request: web.Request) -> web.Response:
        """Report the bytes sent per session, to the member of this pod."""
        if not http.is_local(request):
            raise web.HTTPForbidden(text="sessions are only reported to the member in the same pod\n")
        return web.Response(body=msgspec.json.encode(sessions.sent()), content_type="application/json")

    StreamServer(sessions).add_routes(app)
    app.router.add_get("/v1/sessions", sent)
    sources = partial(transfer_place, settings.data, settings.port)
    Bulk(LoadFiles(settings.data / LOADS, sources), sessions).add_routes(app)
    runner = DirectRunner(settings.data / "staging")

    async def copying(app: web.Application) -> AsyncIterator[None]:
        yield
        await runner.close()

    # Contexts are cleaned up in reverse order: jobs are cancelled before the processes that wait for jobs
    # end.
    app.cleanup_ctx.append(copying)
    # Only the member of this pod may start copies.
    add_job_routes(app, "/v1/copies", lambda: JobBoard(runner, DIRECT_JOBS_PARALLEL), http.is_local)
    return app


def transfer_place(data: Path, port: int, member: int) -> tuple[str, int]:
    """Return where another member's transfer process listens, according to this pod's member's table.

    Raises Unavailable (SOURCE) when the table does not name the member, or cannot be read now.
    """
    try:
        table = decode_table((data / TABLE_FILE).read_bytes(), TABLE_FILE)
    except (OSError, Corrupt) as error:
        raise Unavailable(f"the table of this member cannot be read: {error}", "SOURCE") from error
    address = next((info.address for info in table.members if info.index == member), "")
    if not address:
        raise Unavailable(f"source is member {member}, which this member's table does not name", "SOURCE")
    return address, port


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM. Return 2 for an invalid setting or argument, 1 when it cannot listen."""
    parser = parser_of("stele-transfer", "Copy tablets from and to one Stele member.", Settings)
    settings = begin(parser, arguments, partial(environment.read, Settings))
    if settings is None:
        return SETTINGS_WRONG
    tune_malloc()
    app, loop = make_app(settings), uvloop.new_event_loop()
    return serve(parser.prog, app, settings.bind, settings.port, loop)


if __name__ == "__main__":
    sys.exit(main())
