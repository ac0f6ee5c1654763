"""Processes listen on IPv4 and IPv6, and on one of them where the other is not there."""

import asyncio
import socket
from typing import Any

import pytest

from stele.adapters.listening import listen_hosts


def test_one_address_is_taken_as_it_is() -> None:
    assert listen_hosts("10.0.0.1") == ("10.0.0.1",)


def test_without_ipv6_only_ipv4_is_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Off(socket.socket):
        def bind(self, address: Any) -> None:
            raise OSError("Cannot assign requested address")

    monkeypatch.setattr(socket, "socket", Off)
    assert listen_hosts("") == ("0.0.0.0",)


@pytest.mark.skipif(not socket.has_ipv6 or len(listen_hosts("")) < 2, reason="no IPv6 on this machine")
async def test_a_server_answers_on_both(unused_tcp_port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, listen_hosts(""), unused_tcp_port)
    async with server:
        for host in ("127.0.0.1", "::1"):
            _, writer = await asyncio.open_connection(host, unused_tcp_port)
            writer.close()
