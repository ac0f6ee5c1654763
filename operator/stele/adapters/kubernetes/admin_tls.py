"""Requests with the certificate of administrators, the Secret `CLUSTER-admin-tls`, to ports of pods.

They go through `pods/portforward`: the API server sees neither request nor answer.
"""

import base64
import binascii
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp

from stele.adapters.kubernetes.api import REQUEST_SECONDS, SECRETS, SILENCE_SECONDS, Api, NotFound
from stele.adapters.kubernetes.port_forward import forwarded
from stele.adapters.tls.http_client import CheckedConnector
from stele.adapters.tls.identity import read_dialling
from stele.adapters.tls.peer import Certificate, Expected, peer_refusal
from stele.core.security.identity import Role
from stele.core.security.level import InternalTls
from stele.core.security.rotation import GRACE_SECONDS
from stele.errors import BadInput, Refused, Unavailable
from stele.model import TabletCluster
from stele.wire.pods import admin_secret_name

NO_RIGHT = (
    "you may not read Secret {secret}, which is the right to administer members of {cluster}: someone "
    "who may grant rights in namespace {namespace} can give it to you: kubectl -n {namespace} create role "
    "{cluster}-data-admin --verb=get --resource=secrets --resource-name={secret}; kubectl -n {namespace} "
    "create role {cluster}-port-forward --verb=get,create --resource=pods/portforward; and a "
    "rolebinding of each for you"
)
NO_SECRET = (
    "Secret {secret} has no usable certificate ({error}): the operator makes it; the condition "
    "CertificatesHealthy of {cluster} says why there is none"
)
NO_FORWARD = (
    "to ask with TLS takes the right to get and create pods/portforward, which you do not have in namespace "
    "{namespace}"
)
LONG = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS, sock_read=SILENCE_SECONDS)
"""For bodies of any length."""


class NotForwardedError(Refused):
    """The API server forwards no ports for this user; nothing was sent."""


@dataclass(frozen=True)
class Admin:
    """What pods of one cluster, which has this UID, are asked with."""

    cluster: str
    context: ssl.SSLContext


class Asked(NamedTuple):
    """A port of a pod, and the role and the name that the certificate has which answers there."""

    namespace: str
    pod: str
    port: int
    role: Role
    name: str


async def admin_of(api: Api, namespace: str, cluster: TabletCluster) -> Admin | None:
    """Return what the pods of a cluster are asked with; None where members are dialled without TLS.

    Raises Refused with what to do, where there is no certificate, and as the API server does.
    """
    level, name = cluster.status.security.members or InternalTls.OFF, cluster.metadata.name
    if not level.dials_tls:
        return None
    secret = admin_secret_name(name)
    try:
        stored = await api.get(SECRETS, namespace, secret)
        parts = [base64.b64decode(stored["data"][key]) for key in ("tls.crt", "tls.key", "ca.crt")]
        return Admin(cluster.volumes_uid, read_dialling(*parts))
    except Refused:
        text = NO_RIGHT.format(secret=secret, cluster=name, namespace=namespace)
    except (NotFound, BadInput, KeyError, TypeError, binascii.Error) as error:
        text = NO_SECRET.format(secret=secret, cluster=name, error=error)
    raise Refused(text, "FORBIDDEN")


@asynccontextmanager
async def request(
    api: Api, admin: Admin, asked: Asked, method: str, path: str, **given: Any
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Yield the answer, whatever its status; `given` is for aiohttp.

    Raises Unavailable without one, NotForwardedError, and as the API server does.
    """

    def refusal(name: str, certificate: Certificate) -> str:
        expected = Expected(admin.cluster, (asked.role,), name)
        return peer_refusal(certificate, expected, time.time(), GRACE_SECONDS)

    async with AsyncExitStack() as stack:
        try:
            socket = await stack.enter_async_context(api.forward(asked.namespace, asked.pod, asked.port))
        except Refused as error:
            text = NO_FORWARD.format(namespace=asked.namespace)
            raise NotForwardedError(text, "FORBIDDEN") from error
        port, forward, make_socket = await stack.enter_async_context(forwarded(socket))
        url, connector = f"https://127.0.0.1:{port}{path}", CheckedConnector(refusal, make_socket)
        given |= {"ssl": admin.context, "server_hostname": asked.name, "allow_redirects": False}
        try:
            async with (
                aiohttp.ClientSession(connector=connector) as http,
                http.request(method, url, **given) as answer,
            ):
                yield answer
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            text = forward.problem or f"{type(error).__name__}: {error}"
            raise Unavailable(f"pod {asked.pod}: {path}: {text}") from error
