"""The CA of a cluster is changed while clients write, as docs/operating/security.md says.

Clients trust what the Secret with the CAs says, and connect again every few requests.
"""

from __future__ import annotations

import json
import threading
import time
from base64 import b64decode
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import step
from e2e.demo import stage
from e2e.demo.settings import Settings
from e2e.scenarios import reaching
from e2e.scenarios.reaching import kubectl

CLIENTS, REQUESTS_PER_CONNECTION, PAUSE_SECONDS = 4, 10, 0.02
UNDISTURBED_SECONDS, SECONDS_MAX, LOOK_SECONDS = 2.0, 300.0, 1.0
HEALTHY = '{.status.conditions[?(@.type=="CertificatesHealthy")]}'
EACH = "{.metadata.name} {.metadata.uid} {.status.containerStatuses[*].restartCount};"
PODS = "{range .items[*]}" + EACH + "{end}"


@dataclass
class Outcome:
    """`seconds` from the annotation until members trust the new CA alone; `refusal` is what a client says
    that trusts only the old one. `pods` are members' pods before and after, with UIDs and restarts."""

    seconds: float = 0.0
    requests: int = 0
    errors: list[str] = field(default_factory=list)
    refusal: str = ""
    pods: list[str] = field(default_factory=list)


def run(settings: Settings) -> Outcome:
    """Change the CA of the cluster that runs. Raises ClusterError when that takes longer than SECONDS_MAX."""
    return _Case(settings).run()


class _Case:
    def __init__(self, settings: Settings) -> None:
        self._settings, self._outcome = settings, Outcome()
        self._lock, self._ended = threading.Lock(), threading.Event()
        endpoint, options = reaching.login(settings)
        place = {"host": endpoint.host, "port": endpoint.port, "retry": Retry(NoBackoff(), 0)}
        self._options: dict[str, Any] = options | place
        self._trusted = self._bundle()

    def run(self) -> Outcome:
        first, pods = self._trusted, self._pods()
        clients = [threading.Thread(target=self._client, args=(number,)) for number in range(CLIENTS)]
        for each in clients:
            each.start()
        try:
            time.sleep(UNDISTURBED_SECONDS)
            with step("change the CA"):
                self._change(first)
            time.sleep(UNDISTURBED_SECONDS)
        finally:
            self._ended.set()
            for each in clients:
                each.join()
        self._outcome.pods = [pods, self._pods()]
        self._outcome.refusal = self._ping(first)
        return self._outcome

    def _change(self, first: str) -> None:
        begun = time.monotonic()
        self._kubectl(
            "annotate", "--overwrite", self._settings.resource, f"stele.dev/renew-ca={time.time():.0f}"
        )
        while not self._is_over(first):
            if time.monotonic() - begun > SECONDS_MAX:
                raise ClusterError(f"The CA is not changed after {SECONDS_MAX:.0f} s: {self._condition()}")
            time.sleep(LOOK_SECONDS)
        self._outcome.seconds = time.monotonic() - begun

    def _is_over(self, first: str) -> bool:
        """Return whether one CA is left, which is another one; clients trust what is there meanwhile."""
        self._trusted = self._bundle()
        alone = self._trusted.count("BEGIN CERTIFICATE") == 1 and self._trusted != first
        condition = self._condition()
        return alone and condition["status"] == "True" and "changes" not in condition["message"]

    def _pods(self) -> str:
        selector = f"--selector={stage.CLUSTER_LABEL}={self._settings.cluster},stele.dev/component=member"
        return self._kubectl("get", "pods", selector, f"--output=jsonpath={PODS}")

    def _condition(self) -> dict[str, Any]:
        found = self._kubectl("get", self._settings.resource, f"--output=jsonpath={HEALTHY}")
        return dict(json.loads(found))

    def _bundle(self) -> str:
        path = r"--output=jsonpath={.data.ca\.crt}"
        return b64decode(self._kubectl("get", "secret", f"{self._settings.cluster}-ca-cert", path)).decode()

    def _client(self, number: int) -> None:
        """Write and read until the end, each connection with what is trusted when it begins."""
        key, turns = f"rotation-{number}", count()
        while not self._ended.is_set():
            try:
                with self._redis(self._trusted) as client:
                    for turn in islice(turns, REQUESTS_PER_CONNECTION):
                        client.set(key, turn)
                        assert client.get(key) == b"%d" % turn
                        self._count(2)
                        time.sleep(PAUSE_SECONDS)
            except (RedisError, AssertionError) as error:
                self._count(1, f"{type(error).__name__}: {error}")

    def _count(self, requests: int, *errors: str) -> None:
        with self._lock:
            self._outcome.requests += requests
            self._outcome.errors += errors

    def _ping(self, trusted: str) -> str:
        try:
            with self._redis(trusted) as client:
                client.ping()
        except RedisError as error:
            return str(error)
        return ""

    def _redis(self, trusted: str) -> Redis:
        return Redis(**self._options | {"ssl_ca_data": trusted})

    def _kubectl(self, *words: str) -> str:
        return kubectl(self._settings, *words)
