"""What a member keeps between exchanges with masters, and says of its process."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stele.core.control import commands as m
from stele.core.control.member_settings import ClientAuth, MemberSettings
from stele.core.formats import KEYSPACES
from stele.core.kv.keyspaces import Catalog, Settings
from stele.core.table.table import Partition, stamp_of
from stele.member.control.state_lock import LOCK_SECONDS, StateLock
from stele.member.storage import failpoints
from tests.member.harness.single_member import SingleMember

LOCK = m.LockState("c1", "Passive", 7, 3)
BEGIN = m.StartTabletCopy("m1", 0, 1, 0)


@dataclass
class Node:
    """What a lock looks at: the table, the clock, and replicas without anything under way."""

    now: float = 100.0
    table: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(stamp=7, member_list_version=3, epoch=1)
    )
    replicas: dict[int, Any] = field(default_factory=dict)


async def test_a_lock_that_is_not_asked_for_again_expires() -> None:
    node = Node()
    lock = StateLock(cast("Any", node), lambda: node.now)
    assert (await lock.lock(LOCK)).code == "OK"
    assert lock.refuses(BEGIN)
    node.now += LOCK_SECONDS - 1
    assert (await lock.lock(LOCK)).code == "OK"
    node.now += LOCK_SECONDS - 1
    assert lock.refuses(BEGIN), "it was asked for again"
    node.now += 1
    assert not lock.refuses(BEGIN)


async def test_a_process_names_the_time_of_its_first_answer(made: SingleMember) -> None:
    """Not of its start, which the kubelet may note later; and it names that time in all answers."""
    now = [100.0]
    made.node.background.wall = lambda: now[0]
    made.exchange._reporter._first_reply_unix_seconds = None
    now[0] = 103.5
    assert (await made.ask()).started_seconds == 103.5
    now[0] = 90.0
    assert (await made.ask()).started_seconds == 103.5


async def test_rows_of_other_members_do_not_count_as_sent_by_a_master(made: SingleMember) -> None:
    """Nor is what a master has sent forgotten because of them: it would send the whole table again."""
    first = await made.ask()
    assert first.published_stamp == first.stamp
    row = Partition(5, (2, 1))
    made.node.roles.adopt(0, row)
    ahead = await made.ask()
    assert (ahead.published_stamp, ahead.stamp) == (first.stamp, stamp_of([5, 1]))
    sent = await made.ask(rows=(m.Row(0, row.version, row.replicas),))
    assert sent.published_stamp == sent.stamp == ahead.stamp
    made.node.roles.adopt(0, Partition(6, (1, 2)))
    assert (await made.ask()).published_stamp == sent.stamp
    await made.restart()
    restarted = await made.ask()
    assert restarted.published_stamp == restarted.stamp


async def test_a_catalog_is_on_the_volume_before_it_is_used(
    made: SingleMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a member that dies in between has it when it starts again, and says so."""
    catalog = Catalog(3, {"sessions": Settings(ttl_seconds=60)})
    made.format = KEYSPACES
    seen: list[tuple[int, int]] = []

    def hit(name: str) -> None:
        if name == "keyspaces.saved":
            seen.append((made.node.volume.load_table().catalog.version, used(made)))

    def used(made: SingleMember) -> int:
        return made.node.table.keyspaces.catalog.version

    monkeypatch.setattr(failpoints, "hit", hit)
    assert (await made.ask()).catalog_version == 0
    assert (await made.ask(catalog=catalog)).catalog_version == 3
    assert seen == [(3, 0)]
    assert made.node.router.settings_of(b"sessions") == catalog.keyspaces["sessions"]
    assert made.node.router.settings_of(b"default") == Settings()
    assert (await made.ask(catalog=Catalog(2))).catalog_version == 3
    await made.restart()
    assert (await made.ask()).catalog_version == 3
    assert made.node.router.settings_of(b"sessions") == catalog.keyspaces["sessions"]


async def test_an_impossible_catalog_is_refused_and_changes_nothing(made: SingleMember) -> None:
    made.format = KEYSPACES
    for catalog in (Catalog(1, {"A": Settings()}), Catalog(1, {"a": Settings(ttl_seconds=-1)})):
        with pytest.raises(AssertionError, match="BAD_REQUEST"):
            await made.ask(catalog=catalog)
    assert (await made.ask()).catalog_version == 0


async def test_clients_must_authenticate_before_the_table_of_the_same_message_is_adopted(
    made: SingleMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    required: list[bool] = []
    adopt = made.node.table.adopt

    def adopted(request: m.ExchangeRequest) -> None:
        required.append(made.node.access.required)
        adopt(request)

    monkeypatch.setattr(made.node.table, "adopt", adopted)
    catalog = Catalog(3, {"sessions": Settings(ttl_seconds=60)})
    made.format = KEYSPACES
    await made.ask(catalog=catalog, settings=MemberSettings(auth=ClientAuth.REQUIRED))
    assert required == [True]
