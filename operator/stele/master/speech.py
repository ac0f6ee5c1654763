"""Between the core's values and the messages on the wire."""

from stele.core import orders
from stele.core.ids import MemberIndex
from stele.core.master import Publication
from stele.core.orders import Accept, FetchDirect, Order
from stele.core.reign import State
from stele.core.table import Partition
from stele.wire import messages as wire
from stele.wire.messages import ExchangeRequest, MemberInfo, OpId, Row

_PLAIN: dict[type, type] = {
    orders.StartTabletCopy: wire.StartTabletCopy,
    orders.AddLearner: wire.AddLearner,
    orders.OpenSession: wire.OpenSession,
    orders.CloseSession: wire.CloseSession,
    orders.Ingest: wire.Ingest,
    orders.HandOver: wire.HandOver,
    orders.Abort: wire.Abort,
    orders.Fence: wire.Fence,
    orders.DeleteTablet: wire.DeleteTablet,
    orders.LockState: wire.LockState,
    orders.UnlockState: wire.UnlockState,
    orders.CreateTablet: wire.CreateTablet,
}
"""Orders whose fields are those of the command."""


def command_of(order: Order) -> wire.Command:
    """The message for an order."""
    if isinstance(order, Accept):
        last = None if order.last is None else OpId(*order.last)
        return wire.Accept(order.id, Row(order.partition, order.version, order.replicas), last)
    if isinstance(order, FetchDirect):
        items = tuple(
            wire.CopyItem(each.partition, each.source_generation, each.generation, each.bytes)
            for each in order.items
        )
        return wire.FetchDirect(order.session, order.source, order.token, items)
    fields = {name: getattr(order, name) for name in order.__dataclass_fields__}
    made: wire.Command = _PLAIN[type(order)](**fields)
    return made


def row_of(number: int, partition: Partition) -> Row:
    return Row(number, partition.version, partition.replicas)


def request_of(
    state: State,
    index: MemberIndex,
    what: Publication,
    some: tuple[Order, ...],
    *,
    cluster: str,
    replicas: int,
) -> ExchangeRequest:
    """One exchange: what is published to this member, and its orders."""
    members: tuple[MemberInfo, ...] = ()
    if what.members:
        members = tuple(
            MemberInfo(each.index, each.name, each.uuid, each.address, each.lite)
            for each in state.table.members.values()
        )
    return ExchangeRequest(
        format=wire.EXCHANGE_FORMAT,
        cluster=cluster,
        epoch=state.epoch,
        recipient=what.recipient,
        self_index=index,
        partitions=len(state.table.partitions),
        replicas=replicas,
        state=state.change.state,
        member_list_version=state.member_list_version,
        members=members,
        rows=tuple(row_of(number, row) for number, row in what.rows),
        full=what.full,
        commands=tuple(command_of(order) for order in some),
        want_tablets=what.want_tablets,
        known=what.known,
    )
