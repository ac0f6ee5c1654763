"""The dashboard of members, asked from a real Prometheus that scrapes real members.

Those of clusters and migrations are in tests/operator: they need an operator.
"""

from functools import partial
from pathlib import Path

from e2e.supply.dashboards import MEMBERS
from tests.member.harness.cluster import Client, cluster, eventually, key_in
from tests.monitoring.harness import panels, prometheus, targets

LABELS = {"namespace": "shop", "cluster": "demo"}
VALUES = {"$__rate_interval": "5s", "$namespace": "shop", "$cluster": "demo", "$member": "demo-.*"}
EMPTY = {"Days of certificates"}
"""These members have no certificates."""


async def test_panels_of_members_show_something(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, partitions=2) as made:
        addresses = {
            f"{each.host}:{each.ports[4]}": {**LABELS, "pod": f"demo-{index}"}
            for index, each in made.members.items()
        }
        async with prometheus(made.http, tmp_path, [targets("members", addresses)]) as asked:
            client = Client(made)

            async def shown(query: str) -> str:
                """What the query answers while clients write and read; empty without a number."""
                await client.set(made.owner(0), key_in(0, 2), b"v")
                await client.call(made.owner(0), b"GET", key_in(0, 2))
                return f"{query}: {found}" if (found := await asked.numbers(query)) else ""

            for title, queries in panels(MEMBERS, VALUES).items():
                for query in queries:
                    if title in EMPTY:
                        assert await asked.ask(query) == []
                    else:
                        await eventually(partial(shown, query), bool)
