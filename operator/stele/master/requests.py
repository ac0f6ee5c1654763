"""Between the core's values and the messages on the wire."""

from stele.core.control import commands
from stele.core.control.commands import Accept, FetchDirect, Order
from stele.core.control.decide import Publication
from stele.core.control.state import State
from stele.core.table.ids import MemberIndex
from stele.core.table.table import Partition
from stele.wire import control as wire
from stele.wire.control import ExchangeRequest, MemberInfo, OpId, Row

_PLAIN: dict[type, type] = {
    commands.StartTabletCopy: wire.StartTabletCopy,
    commands.AddLearner: wire.AddLearner,
    commands.OpenSession: wire.OpenSession,
    commands.CloseSession: wire.CloseSession,
    commands.Ingest: wire.Ingest,
    commands.HandOver: wire.HandOver,
    commands.Abort: wire.Abort,
    commands.Fence: wire.Fence,
    commands.DeleteTablet: wire.DeleteTablet,
    commands.LockState: wire.LockState,
    commands.UnlockState: wire.UnlockState,
    commands.CreateTablet: wire.CreateTablet,
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
