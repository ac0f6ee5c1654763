"""The addresses of members that clients of the Redis Cluster protocol are given."""

import re
from typing import NamedTuple

HOST_CHARACTERS_MAX = 253
_ORDINAL = re.compile(r"[0-9]+\Z")


class Announce(NamedTuple):
    """What cluster clients connect to instead of a pod's own address and ports; nothing without a `host`.

    In `host`, `{member}` is the name of the member and `{ordinal}` the number at its end. `step` times that
    number is added to `port` and `read_port`.
    """

    host: str = ""
    port: int = 0
    read_port: int = 0
    step: int = 0

    def of(self, member: str, address: str) -> tuple[str, int, int]:
        """Return host, port and read port of a member; the ports are 0 where they are the members' own."""
        if not self.host:
            return address, 0, 0
        found = _ORDINAL.search(member)
        ordinal = found.group() if found else "0"
        host = self.host.replace("{member}", member).replace("{ordinal}", ordinal)
        more = int(ordinal) * self.step
        return host, self.port + more, self.read_port + more


POD_ADDRESSES = Announce()
"""The pods' own addresses."""
