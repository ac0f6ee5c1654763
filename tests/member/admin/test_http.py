"""Requests of the HTTP ports that are wrong, packed, or by somebody unknown."""

import asyncio
import gzip
from pathlib import Path

import pytest

from stele.core.control import commands as m
from tests.member.harness.cluster import CLUSTER, Cluster, MemberProcess, eventually
from tests.member.harness.memory import forget_peak, peak_bytes

MIB = 1024 * 1024


async def answer_of(host: str, port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("which", "request_line"),
    [(2, b"POST /v1/exchange"), (3, b"PUT /v1/bulk/loads/l/pieces/p"), (3, b"POST /v1/copies")],
    ids=["admin", "pieces", "copies"],
)
async def test_a_packed_body_is_not_unpacked(
    one: Cluster, tmp_path: Path, which: int, request_line: bytes
) -> None:
    member = one.members[0]
    await member.start_transfer()
    await eventually(lambda: answers(member), bool)
    packed = gzip.compress(bytes(200 * MIB), 9)
    head = b"Host: x\r\nConnection: close\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    request = request_line + b" HTTP/1.1\r\n" + head % len(packed) + packed
    process = member.process if which == 2 else member.transfer
    before = forget_peak(process)
    answer = await answer_of(member.host, member.ports[which], request)
    assert answer.startswith(b"HTTP/1.1 415 ")
    assert peak_bytes(process) - before < 4 * MIB
    assert not list((tmp_path / "m0" / "loads").rglob("*"))


async def answers(member: MemberProcess) -> bytes:
    try:
        request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        return await answer_of(member.host, member.ports[3], request)
    except OSError:
        return b""


async def test_a_connection_that_does_not_end_its_headers_is_closed_at_each_port(one: Cluster) -> None:
    member = one.members[0]
    await member.start_transfer()
    await eventually(lambda: answers(member), bool)
    begun = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
    found = await asyncio.gather(*(answer_of(member.host, port, begun) for port in member.ports[2:5]))
    assert found == [b""] * 3
    for port in member.ports[2:5]:
        assert b"HTTP/1.1 " in await answer_of(member.host, port, begun + b"Connection: close\r\n\r\n")


async def test_a_header_of_other_bytes_is_401_without_a_traceback(one: Cluster, tmp_path: Path) -> None:
    member = one.members[0]
    await member.start_transfer()
    await eventually(lambda: answers(member), bool)
    name = "export-1"
    url = f"http://{member.host}:{member.ports[2]}/v1/bulk/snapshots/{name}"
    order = b'{"partitions": [0], "lease_seconds": 30}'

    async def opened() -> bool:
        async with one.http.post(url, data=order) as response:
            return response.status == 200

    await eventually(opened, bool)
    for path in (
        f"/v1/sessions/{name}/partitions/0?generation=1",
        f"/v1/bulk/sessions/{name}/partitions/0?keyspace=d",
    ):
        for header in (b"", b"Authorization: Bearer \xff\xfe\r\n", b"Authorization: Bearer x\r\n"):
            request = b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" % path.encode()
            answer = await answer_of(member.host, member.ports[3], request + header + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 401 "), answer
    assert "Traceback" not in (tmp_path / "t0.log").read_text()


async def test_an_exchange_that_cannot_be_read_is_refused_with_the_reason(one: Cluster) -> None:
    member = one.members[0]
    request = m.ExchangeRequest(format=7, cluster=CLUSTER, epoch=9, recipient=member.uuid)
    assert (await one.post(member, request)).code == "UNKNOWN_FORMAT"
    await answer_of(member.host, member.ports[2], b"\x00\xff garbage\r\n\r\n")
    url = f"http://{member.host}:{member.ports[2]}/v1/exchange"
    for body, text in ((b"{", "truncated"), (b'{"format":1}', "cluster"), (b"\xff\xfe", "exchange")):
        async with one.http.post(url, data=body) as response:
            assert response.status == 400
            assert text in await response.text()
    unknown = b'{"format":1,"cluster":"c","epoch":1,"recipient":"","commands":[{"type":"Explode"}]}'
    async with one.http.post(url, data=unknown) as response:
        assert (response.status, "Explode" in await response.text()) == (400, True)
    assert "Traceback" not in member.log()
