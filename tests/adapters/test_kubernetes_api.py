"""What the client of the API server leaves behind when it is closed."""

import asyncio
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

from stele.adapters.kubernetes.api import CONFIG_MAPS, Api
from stele.adapters.kubernetes.login import Login


def anonymous(side: int) -> ssl.SSLContext:
    """TLS without certificates: what is tested is how a session ends."""
    context = ssl.SSLContext(side)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES256-SHA:@SECLEVEL=0")
    return context


@contextmanager
def silent_server(asked: threading.Event) -> Iterator[int]:
    """A port behind which one request is read, and neither it nor the end of TLS is answered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take() -> None:
            taken, _ = listener.accept()
            with anonymous(ssl.PROTOCOL_TLS_SERVER).wrap_socket(taken, server_side=True) as connection:
                connection.recv(1 << 16)
                asked.set()
                ended.wait(10)

        ended = threading.Event()
        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            ended.set()
            thread.join()


async def give_up(port: int, asked: threading.Event) -> None:
    login = SimpleNamespace(
        server=f"https://127.0.0.1:{port}",
        token=lambda: None,
        ssl_context=lambda: anonymous(ssl.PROTOCOL_TLS_CLIENT),
    )
    async with Api(cast(Login, login)) as api:
        request = asyncio.ensure_future(api.get(CONFIG_MAPS, "default", "one"))
        await asyncio.to_thread(asked.wait, 10)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


def test_a_request_that_was_given_up_leaves_no_connection_behind_a_closed_client() -> None:
    asked = threading.Event()
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always")
        with silent_server(asked) as port:
            asyncio.run(give_up(port, asked))
            gc.collect()
    assert asked.is_set()
    assert [str(each.message) for each in left] == []
