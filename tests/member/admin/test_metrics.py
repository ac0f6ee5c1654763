"""What a member tells Prometheus, on the port that takes no commands."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stele import REVISION, __version__
from stele.core.control.member_settings import ClientAuth, ClientTls
from stele.core.security.level import InternalTls
from stele.member.admin.metrics import Metrics
from stele.member.replication.counters import Counters
from stele.member.replication.request import Request, RequestKind
from stele.member.resp.access import Access, FileState
from tests.member.harness.cluster import Client, Cluster, cluster, eventually, key_in

PARTITIONS = 2
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scraped(made: Cluster, member: int) -> Samples:
    place = made.members[member]
    async with made.http.get(f"http://{place.host}:{place.ports[4]}/metrics") as response:
        assert response.status == 200
        text = await response.text()
    families = text_string_to_metric_families(text)
    return {
        (each.name, frozenset(each.labels.items())): each.value for all in families for each in all.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


async def test_requests_are_counted_where_they_are_answered(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, partitions=PARTITIONS) as made:
        client = Client(made)
        key = key_in(0, PARTITIONS)
        owner = made.owner(0)
        for _ in range(3):
            assert await client.set(1 - owner, key, b"v")
        assert await client.call(owner, b"GET", key) == b"v"
        assert await client.call(1 - owner, b"GET", key) == b"v"
        at_owner, elsewhere = await scraped(made, owner), await scraped(made, 1 - owner)
        for operation, number in (("write", 3), ("read", 2)):
            labels = {"operation": operation}
            assert value(at_owner, "stele_requests_total", result="ok", **labels) == number
            assert value(at_owner, "stele_request_duration_seconds_count", **labels) == number
            assert value(elsewhere, "stele_requests_total", result="ok", **labels) == 0
            assert value(at_owner, "stele_requests_total", result="unavailable", **labels) == 0
        assert value(at_owner, "stele_requests_total", operation="write", result="uncertain") == 0
        assert value(elsewhere, "stele_requests_forwarded_total") == 4
        assert value(at_owner, "stele_log_sync_duration_seconds_count") > 0
        assert value(at_owner, "stele_volume_capacity_bytes") > value(at_owner, "stele_volume_free_bytes") > 0
        assert value(at_owner, "stele_tablets", state="ready") == PARTITIONS
        assert value(at_owner, "stele_tablets", state="broken") == 0
        assert value(at_owner, "process_open_fds") > 0


async def test_connections_of_clients_are_counted_as_info_does(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, partitions=1, replicas=1) as made:
        before = value(await scraped(made, 0), "stele_connected_clients")
        place = made.members[0]
        opened = [await asyncio.open_connection(place.host, place.ports[0]) for _ in range(3)]
        for reader, writer in opened:
            writer.write(b"PING\r\n")
            assert await reader.readline() == b"+PONG\r\n"
        assert value(await scraped(made, 0), "stele_connected_clients") == before + 3
        writer.write(b"INFO clients\r\n")
        assert f"connected_clients:{int(before) + 3}\r\n".encode() in await reader.readuntil(b"maxclients")
        for _, writer in opened:
            writer.close()
        samples = await eventually(
            lambda: scraped(made, 0), lambda seen: value(seen, "stele_connected_clients") == before
        )
    assert value(samples, "stele_build_info", version=__version__, revision=REVISION) == 1


async def test_lag_hand_overs_and_quarantine(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, partitions=PARTITIONS) as made:
        client = Client(made)
        owner = made.owner(0)
        backup = next(each for each in made.rows[0].replicas if each not in (owner, None))
        assert backup is not None
        before = await scraped(made, owner)
        assert value(before, "stele_replication_lag_operations", peer=f"m{backup}") == 0
        assert value(before, "stele_quarantine_bytes") == 0
        assert await client.set(owner, key_in(0, PARTITIONS), b"v" * 100)
        destination = next(each for each in range(3) if each not in made.rows[0].replicas)
        await made.move_owner(0, destination)

        async def after() -> Samples:
            return await scraped(made, owner)

        await eventually(after, lambda seen: value(seen, "stele_handover_duration_seconds_count") == 1)
        await eventually(after, lambda seen: value(seen, "stele_quarantine_bytes") >= 100)


def test_commands_without_an_answer_are_counted_by_what_they_are() -> None:
    counters = Counters()
    for commands in ([[b"GET", b"k"]] * 2, [[b"SET", b"k", b"v"], [b"GET", b"k"], [b"GET", b"k"]]):
        request = Request(RequestKind.EXECUTE, 0, b"", None)
        request.commands = commands
        counters.add_unavailable(request)
    counters.add_unavailable(Request(RequestKind.SCAN, 0, b"", None))
    assert (counters.unavailable_reads, counters.unavailable_writes, counters.errors) == (3, 3, 6)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/exchange"), ("POST", "/metrics"), ("GET", "/v1/tablets")]
)
async def test_the_port_of_metrics_takes_no_commands(tmp_path: Path, method: str, path: str) -> None:
    async with cluster(tmp_path, 1, partitions=1, replicas=1) as made:
        place = made.members[0]
        async with made.http.request(method, f"http://{place.host}:{place.ports[4]}{path}") as response:
            assert response.status in (404, 405)


@pytest.mark.parametrize("of", ["clients", "members"])
@pytest.mark.parametrize("level", ["Off", "Required"])
def test_secrets_of_others_raise_no_alert_while_nothing_is_asked_for(level: str, of: str) -> None:
    """Pods mount whatever has the names of their Secrets."""
    node: Any = SimpleNamespace(
        client_tls=SimpleNamespace(done=0, failed=0, refused=0),
        client_demands=SimpleNamespace(tls=ClientTls(level if of == "clients" else "Off")),
        member_tls=SimpleNamespace(level=InternalTls(level if of == "members" else "Off")),
        tls=SimpleNamespace(problem="not a certificate", days_left=lambda _now: None),
        settings=SimpleNamespace(tls_dir="/etc/stele/tls"),
        background=SimpleNamespace(wall=lambda: 0.0),
        access=Access(),
    )
    node.access.adopt(None, ClientAuth(level), FileState(problem="not JSON"))
    metrics = Metrics(node)
    found = {
        each.name: each.samples[0].value for each in (*metrics._tls(), *metrics._access()) if each.samples
    }
    expected = 1.0 if level == "Required" else 0.0
    assert found["stele_tls_certificate_unusable"] == found["stele_users_unreadable"] == expected


def test_connections_without_a_place_are_counted_by_why() -> None:
    access = Access()
    access.refused.update(full=2, evicted=3)
    families = Metrics(SimpleNamespace(access=access))._access()  # type: ignore[arg-type]
    (found,) = [each for each in families if each.name == "stele_client_connections_refused"]
    counts = {tuple(each.labels.values()): each.value for each in found.samples if each.labels}
    assert counts == {("full",): 2, ("evicted",): 3}
