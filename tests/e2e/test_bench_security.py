"""What the security bench changes can be used at each step, and a request that fails is counted."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest

from e2e.bench.secured import Secured
from e2e.bench.security import Client, _row, _steps
from stele.adapters.tls.identity import Contexts, TlsIdentity
from tests.fakes.pki import shake_hands

UID = "99999999-2222-3333-4444-555555555555"


@pytest.fixture
def secured(tmp_path: Path) -> Secured:
    made = Secured.of(tmp_path / "secured", UID)
    for index in range(2):
        made.member(f"m{index}", "127.0.0.1")
    return made


def test_at_each_step_members_take_each_other_s_certificates_and_those_of_before(secured: Secured) -> None:
    shown: list[bytes] = []
    before: ssl.SSLContext | None = None
    for _, change in _steps(secured):
        change()
        one, other = (contexts_of(secured, f"m{index}") for index in range(2))
        shake_hands(one.dialling, other.dialled, "m1")
        if before is not None:
            shake_hands(before, other.dialled, "m1")
        before = one.dialling
        shown.append((secured.folder / "m0" / "tls.crt").read_bytes())
    assert len(set(shown)) == len(shown), "each step but the first makes others"


def contexts_of(secured: Secured, name: str) -> Contexts:
    identity = TlsIdentity(secured.folder / name)
    identity.look()
    assert identity.contexts is not None, identity.problem
    return identity.contexts


async def test_a_request_that_fails_is_counted_and_the_next_one_is_sent(secured: Secured) -> None:
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                words = int((await reader.readuntil(b"\r\n"))[1:])
                for _ in range(2 * words):
                    await reader.readuntil(b"\r\n")
                asked += 1
                writer.write(b"-ERR no\r\n" if asked == 3 else b"+OK\r\n")
        writer.close()

    server = await asyncio.start_server(
        answer, "127.0.0.1", 0, ssl=contexts_of(secured, "m0").servers[ssl.CERT_NONE]
    )
    client = Client("127.0.0.1", server.sockets[0].getsockname()[1], secured, 0)
    running = asyncio.create_task(client.run())
    while len(client.waits) < 3:
        assert not running.done()
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    server.close()
    waits, failed = client.taken()
    assert (failed, client.taken()) == (1, ([], 0))
    row = _row("a change", waits, [(waits, failed)])
    assert (row["requests"], row["failed"], row["longest_seconds"]) == (len(waits), 1, max(waits))
