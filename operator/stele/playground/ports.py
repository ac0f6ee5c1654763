"""Ports of a playground: the same at all members, each of which has a loopback address of its own."""

import random
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from ipaddress import ip_address
from pathlib import Path

import msgspec

from stele.errors import BadInput, Unavailable

FIRST, LAST = 20_000, 32_000
"""Where ports are chosen: below those that systems give to connections, which come and go."""

TRIES = 100


@dataclass(frozen=True)
class Ports:
    """By what they are for, as in the settings; those of page and copier are on 127.0.0.1 alone."""

    resp: int
    cluster: int
    read: int
    peer: int
    admin: int
    transfer: int
    metrics: int
    page: int
    copier: int

    def environment(self) -> dict[str, str]:
        """Return the settings of members and transfer processes."""
        of_members = {name: port for name, port in asdict(self).items() if name not in ("page", "copier")}
        return {f"STELE_{name.upper()}_PORT": str(port) for name, port in of_members.items()}


def address_of(index: int) -> str:
    """Return the address of a member: 127.0.0.1 of the first one."""
    number = index + 1
    address = f"127.0.{number >> 8 & 255}.{number & 255}"
    assert ip_address(address).is_loopback
    return address


def check_addresses(members: int) -> None:
    """Raise BadInput when this machine lacks a member's address."""
    for index in range(members):
        try:
            with socket.socket() as probe:
                probe.bind((address_of(index), 0))
        except OSError as error:
            address = address_of(index)
            raise BadInput(
                f"this machine cannot listen on {address} ({error.strerror}), and each member needs a "
                f"loopback address of its own; on macOS: sudo ifconfig lo0 alias {address}"
            ) from None


def choose_ports(file: Path) -> Ports:
    """Return those of before, if they are free, else others; the file is for the next time."""
    try:
        before = msgspec.json.decode(file.read_bytes(), type=Ports)
    except (OSError, msgspec.MsgspecError):
        before = None
    if before is not None and _free(tuple(asdict(before).values())):
        return before
    ports = Ports(*_fresh())
    file.write_bytes(msgspec.json.encode(ports))
    return ports


def _fresh() -> range:
    """Return ports in a row that are free now on all addresses."""
    number = len(fields(Ports))
    for _ in range(TRIES):
        first = random.randrange(FIRST, LAST, 10)
        if _free(range(first, first + number)):
            return range(first, first + number)
    raise Unavailable(f"no {number} free ports in a row from {FIRST} to {LAST}")


def _free(ports: Sequence[int]) -> bool:
    """Return whether somebody could listen on all of them."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
            except (OSError, OverflowError):
                return False
    return True
