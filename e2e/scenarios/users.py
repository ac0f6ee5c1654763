"""A user is declared, logs in, and is deleted: how long until members know it, and until it is cut off.

As docs/operating/security.md says under "Users": the kubelet is part of that time.
"""

from __future__ import annotations

import time
from base64 import b64decode
from contextlib import suppress
from dataclasses import dataclass

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ConnectionError, RedisError
from redis.retry import Retry

from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import step
from e2e.demo.settings import Settings
from e2e.scenarios import reaching
from e2e.scenarios.reaching import kubectl

USER = "passing"
SECONDS_MAX = 120.0
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Outcome:
    """Seconds from `kubectl apply` until all members know a user, and from `kubectl delete` until a member
    ends its connection; `refusal` is what it is told when it logs in again."""

    known_seconds: float
    cut_seconds: float
    refusal: str


def run(settings: Settings) -> Outcome:
    """Declare a user of the cluster that runs, connect, delete it. Raises ClusterError when that takes longer
    than SECONDS_MAX."""
    try:
        with step("declare a user"):
            known_seconds = _declare(settings)
        with step("delete it while it is connected"), _client(settings, _password(settings)) as client:
            client.ping()
            return Outcome(known_seconds, _delete(settings, client), _refusal(client))
    finally:
        kubectl(settings, "delete", "tabletuser", "--ignore-not-found", USER)


def _declare(settings: Settings) -> float:
    spec = {"cluster": settings.cluster, "password": {"generated": True}, "acl": ["+@all", "~*"]}
    made = {
        "apiVersion": "stele.dev/v1alpha1",
        "kind": "TabletUser",
        "metadata": {"name": USER},
        "spec": spec,
    }
    begun = time.monotonic()
    reaching.apply(settings, made)
    words = ["wait", f"tabletuser/{USER}", "--for=condition=Ready", f"--timeout={SECONDS_MAX:.0f}s"]
    kubectl(settings, *words, seconds_max=SECONDS_MAX + 10)
    return time.monotonic() - begun


def _client(settings: Settings, password: str) -> Redis:
    """Return a client of one connection, which it does not open again by itself."""
    endpoint, options = reaching.login(settings)
    place = {"host": endpoint.host, "port": endpoint.port}
    login = {"username": USER, "password": password, "retry": Retry(NoBackoff(), 0)}
    return Redis(**options | place | login, single_connection_client=True)


def _password(settings: Settings) -> str:
    path = "--output=jsonpath={.data.password}"
    return b64decode(kubectl(settings, "get", "secret", f"{USER}-password", path)).decode()


def _delete(settings: Settings, client: Redis) -> float:
    begun = time.monotonic()
    kubectl(settings, "delete", "tabletuser", USER, "--wait=false")
    while time.monotonic() - begun < SECONDS_MAX:
        try:
            client.ping()
        except RedisError:
            return time.monotonic() - begun
        time.sleep(LOOK_SECONDS)
    raise ClusterError(f"User {USER} was deleted {SECONDS_MAX:.0f} s ago, and is connected still.")


def _refusal(client: Redis) -> str:
    """Return why it may not log in again: other members may let it in until they have the file, too."""
    end = time.monotonic() + SECONDS_MAX
    while time.monotonic() < end:
        with suppress(ConnectionError):
            try:
                client.ping()
            except AuthenticationError as error:
                return str(error)
        time.sleep(LOOK_SECONDS)
    raise ClusterError(f"User {USER} was deleted {SECONDS_MAX:.0f} s ago, and can log in still.")
