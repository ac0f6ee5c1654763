"""Recording relays in front of members: all that enters or leaves a pod, as it is on the network.

What processes of one pod say to each other does not go through them, and neither does what the API server and
its database say.
"""

from typing import Any

from tests.fakes.recorder import Recorder
from tests.operator.test_client_security import MountingKubelet
from tests.worker import networks

CLIENTS, MEMBERS, MASTER, COPIES = 6379, 7000, 7001, 7002
PORTS = (CLIENTS, 6380, 6381, MEMBERS, MASTER, COPIES, 7004)

_inner_networks = networks(76)


class RecordedKubelet(MountingKubelet):
    """Members whose pods have a relay at each port; they listen at another address than the pod's."""

    def __init__(self, *where: Any) -> None:
        super().__init__(*where)
        self.recorder, self._relayed = Recorder(), set[str]()
        self._inner_network = next(_inner_networks)

    async def __aexit__(self, *what: object) -> None:
        await super().__aexit__(*what)
        await self.recorder.close()

    async def _start(self, name: str, container: dict[str, Any]) -> None:
        await self._relay(name, container)
        await super()._start(name, container)

    async def _relay(self, name: str, container: dict[str, Any]) -> None:
        outer = self.addresses[name]
        if container["name"] != "member" or outer in self._relayed:
            return
        self._relayed.add(outer)
        for port in PORTS:
            await self.recorder.relay(outer, self._inner(name), port)

    def _environment(self, name: str, container: dict[str, Any]) -> dict[str, str]:
        return super()._environment(name, container) | {"STELE_BIND": self._inner(name)}

    def _inner(self, name: str) -> str:
        return self.addresses[name].replace(self._network, self._inner_network)
