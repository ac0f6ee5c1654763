"""`kubectl stele page`: forwards a port of this machine to the page of the operator that leads."""

import asyncio
import signal
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from stele.cli import output as out
from stele.cli.options import Where, on_cluster
from stele.errors import BadInput, SteleError

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console

LOCAL = "127.0.0.1"
PAGE_PORT = 8081
LEASE = "stele-operator"

CONNECTIONS_MAX = 32
"""Connections of browsers at a time; a further one is closed. A browser makes six."""


@on_cluster
def page(
    where: Where,
    *,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help="Of this machine; 0: a free one.")
    ] = 0,
    opens: Annotated[bool, typer.Option("--open", help="Open it in a browser, too.")] = False,
    page_port: Annotated[
        int, typer.Option("--page-port", metavar="PORT", min=1, max=65_535, help="Of the operator's pod.")
    ] = PAGE_PORT,
    lease: Annotated[str, typer.Option("--lease", metavar="NAME", help="Lease of the operator.")] = LEASE,
) -> None:
    """Show the page of the operator in this namespace, until Ctrl-C.

    \b
    Examples:
      kubectl stele page -n stele
      kubectl stele page -n stele --open
    """
    where.ask(lambda console: Way(console, lease, page_port).serve(port, opens=opens))


class Way:
    """From a port of this machine to the page. Each connection goes to the pod that leads then."""

    def __init__(self, console: "Console", lease: str, page_port: int) -> None:
        self._console, self._lease, self._page_port = console, lease, page_port
        self._connections = 0
        self._said = ""

    async def serve(self, port: int, *, opens: bool) -> None:
        """Serve until Ctrl-C. Raises SteleError when no operator leads at the beginning."""
        await self._console.leader(self._lease)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, ended.set)
        try:
            server = await asyncio.start_server(self._take, LOCAL, port)
        except OSError as error:
            raise BadInput(f"--port is {port}, which cannot be used: {error.strerror}") from None
        async with server:
            url = f"http://{LOCAL}:{server.sockets[0].getsockname()[1]}/"
            print(f"{url}  (Ctrl-C ends it)", flush=True)
            if opens:
                webbrowser.open(url)
            await ended.wait()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= CONNECTIONS_MAX:
            writer.close()
            return
        self._connections += 1
        try:
            await self._carry(reader, writer)
        except (SteleError, OSError) as error:
            self._say(str(error))
        finally:
            self._connections -= 1
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from stele.adapters.kubernetes.port_forward import Forward

        pod = await self._console.leader(self._lease)
        async with self._console.forward(pod, self._page_port) as socket:
            forward = Forward(socket)
            await forward.carry(reader, writer)
        if forward.problem:
            self._say(f"pod {pod}: {forward.problem}; is STELE_PAGE_PORT of the operator {self._page_port}?")
        else:
            self._said = ""

    def _say(self, text: str) -> None:
        """Print what went wrong, once as long as it is the same: a browser asks each second."""
        if text != self._said:
            self._said = text
            out.say_error(text)
