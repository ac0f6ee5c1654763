"""What the socket of a playground answers to bodies that it cannot read."""

from typing import Any, cast

import aiohttp
import pytest

from stele.playground.api import OWN
from stele.playground.folder import held, socket_of
from stele.playground.objects import ObjectFiles
from stele.playground.server import Server
from tests.playground.harness import Ground

UNUSED = cast("Any", None)
JSON = "application/json"


@pytest.mark.parametrize(
    ("content_type", "body", "status", "says"),
    [
        (f"{JSON}; charset=none", b"{}", 422, "member is missing"),
        (JSON, b'{"member": "\xff"}', 422, "the body is not JSON"),
        (JSON, b"[" * 100_000, 422, "the body is not JSON"),
    ],
)
async def test_a_body_that_cannot_be_read_is_a_request_error(
    ground: Ground, content_type: str, body: bytes, status: int, says: str
) -> None:
    with held(ground.folder):
        socket = socket_of(ground.folder)
        async with Server(ObjectFiles(ground.folder), UNUSED, UNUSED, UNUSED).listening(socket):
            connector = aiohttp.UnixConnector(str(socket))
            headers = {"Content-Type": content_type}
            async with (
                aiohttp.ClientSession(connector=connector) as session,
                session.post(f"http://playground{OWN}/kill", data=body, headers=headers) as answer,
            ):
                assert answer.status == status
                assert says in await answer.text()
