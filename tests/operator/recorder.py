"""Recording relays in front of members: all that enters or leaves a pod, as it is on the network.

What processes of one pod say to each other does not go through them, and neither does what the API server and
its database say.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stele.adapters.kubernetes.api import Api
from tests.fakes.recorder import Recorder
from tests.operator.test_client_security import MountingKubelet
from tests.worker import networks

CLIENTS, MEMBERS, MASTER, COPIES = 6379, 7000, 7001, 7002
PORTS = (CLIENTS, 6380, 6381, MEMBERS, MASTER, COPIES, 7004)

_inner_networks = networks(76)


class RecordedKubelet(MountingKubelet):
    """Members whose pods have a relay at each port; they listen at another address than the pod's."""

    def __init__(self, api: Api, namespace: str, directory: Path, ports: Iterable[int] = PORTS) -> None:
        super().__init__(api, namespace, directory)
        self.recorder, self._ports = Recorder(), tuple(ports)
        self._inner_network = next(_inner_networks)

    async def __aexit__(self, *what: object) -> None:
        await super().__aexit__(*what)
        await self.recorder.close()

    async def _start(self, name: str, container: dict[str, Any]) -> None:
        if container["name"] == "member":
            for port in self._ports:
                await self.recorder.relay(self.addresses[name], self._inner(name), port)
        await super()._start(name, container)

    def _environment(self, name: str, container: dict[str, Any]) -> dict[str, str]:
        return super()._environment(name, container) | {"STELE_BIND": self._inner(name)}

    def _inner(self, name: str) -> str:
        return self.addresses[name].replace(self._network, self._inner_network)
