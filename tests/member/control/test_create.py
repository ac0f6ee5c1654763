"""A partition that nobody has any more begins anew, empty, on a member that is told to."""

from stele.core.control import commands as m
from tests.member.harness.cluster import Client, Cluster, key_in
from tests.member.harness.single_member import OTHER, THIRD, P, SingleMember
from tests.member.replication.test_messages import backup

PARTITION = 3


async def test_an_empty_beginning_serves_and_survives_a_restart(three: Cluster) -> None:
    client = Client(three)
    row = three.rows[PARTITION]
    await three.publish()
    spare = next(index for index in range(3) if index not in row.replicas)
    key = key_in(PARTITION, three.partitions)
    assert await client.set(0, key, b"gone")
    order = m.CreateTablet(PARTITION, three.version(PARTITION))
    assert (await three.command(spare, m.CreateTablet(PARTITION, order.base + 1))).code == "STALE_VERSION"
    holder = next(index for index in row.replicas if index is not None)
    assert (await three.command(holder, order)).code == "ILLEGAL_STATE"
    for _ in range(2):
        await three.order(spare, order)
    await three.restart(spare)
    await three.order(spare, order)
    three.store(PARTITION, (spare,), 2)
    await three.publish()
    await three.served()
    other = Client(three)
    assert await other.call(spare, b"GET", key) is None
    assert await other.set(0, key, b"new")
    await other.check(spare)


async def test_an_old_log_does_not_come_back_after_a_loss_of_power(made: SingleMember) -> None:
    await backup(made, 2, 2)
    await made.store((OTHER, THIRD))
    base = made.node.rows[P].version
    assert await made.code(m.DeleteTablet(P, base)) == "OK"
    assert await made.code(m.CreateTablet(P, base)) == "OK"
    await made.restart(power_lost=True)
    assert (made.replica.state.value, made.replica.broken) == ("READY", "")
    assert (made.replica.last, len(made.replica.tablet.log)) == (m.OpId(), 0)
