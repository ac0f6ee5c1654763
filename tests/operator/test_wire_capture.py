"""What is on the network: keys, values and passwords where TLS is off, none of them where it is required.

Every connection to a pod is recorded: of clients, of members, of the operator, and of copies.
"""

import secrets
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from stele.adapters.kubernetes.api import Api
from tests.operator.recorder import CLIENTS, COPIES, MASTER, MEMBERS, RecordedKubelet
from tests.operator.test_client_security import client_of, is_closed, secret
from tests.operator.test_operator import Operator, with_processes
from tests.sampled import sampled

pytestmark = pytest.mark.control_plane

MARKER_BYTES = 48
VALUE_BYTES = 16_384
"""Random as a whole, so that no compression changes the marker at its beginning."""
KEYS = 300


def asking(tls: str) -> dict[str, Any]:
    return {"clients": {"tls": tls, "auth": "Required"}, "members": {"tls": tls}}


@pytest.mark.parametrize("tls", [sampled("Required", kept=True), sampled("Off", kept=False)])
async def test_keys_values_and_passwords_are_not_on_the_network(
    api: Api, namespace: str, operator: Operator, tmp_path: Path, tls: str
) -> None:
    value, prefix = secrets.token_bytes(VALUE_BYTES), secrets.token_bytes(MARKER_BYTES)
    keys = [prefix + b"%d" % number for number in range(KEYS)]
    kubelet = RecordedKubelet(api, namespace, tmp_path)
    recorder, ca = kubelet.recorder, tmp_path / "ca.pem"
    async with with_processes(api, namespace, operator, kubelet, 2, security=asking(tls)) as stage:
        if tls == "Required":
            await stage.until("a closed cluster", lambda: is_closed(stage))
            ca.write_bytes((await secret(stage, "demo-ca-cert"))["ca.crt"])
        password = (await secret(stage, "demo-default-user"))["password"]

        def client(host: str) -> redis.asyncio.Redis:
            return client_of(host, ca if tls == "Required" else None, password.decode())

        async with client(next(iter(kubelet.addresses.values()))) as writer:
            for key in keys:
                await writer.set(key, value)
        await stage.scale(3)
        await stage.until_converged(3)
        assert len(kubelet.addresses) == 3
        for host in kubelet.addresses.values():  # Most keys have another owner.
            async with client(host) as reader:
                assert [await reader.get(key) for key in keys] == [value] * KEYS
    assert recorder.busy_ports() >= {CLIENTS, MEMBERS, MASTER, COPIES}
    data = {CLIENTS, MEMBERS, COPIES}
    shown = [recorder.ports_with(text) for text in (value[:MARKER_BYTES], prefix, password)]
    assert shown == ([set()] * 3 if tls == "Required" else [data, data, {CLIENTS}])
