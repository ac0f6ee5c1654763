"""Transactions across partitions that have locks here (`wire.admin`); what a user says of one in doubt."""

from stele.core.kv.two_phase import Verdict
from stele.errors import BadInput
from stele.member.node import Node
from stele.wire.admin import TRANSACTIONS_LIMIT_MAX, TransactionFacts, TransactionList
from stele.wire.two_phase import parse_id, text_of_id

VERDICTS = {"commit": Verdict.COMMIT, "abort": Verdict.ABORT}


def transaction_list(node: Node) -> TransactionList:
    """Return those in doubt, then the others, oldest first."""
    recovery = node.transaction_recovery
    doubtful, names = set(recovery.in_doubt), {each.uuid: each.name for each in node.table.members.values()}
    facts = [
        TransactionFacts(
            transaction=text_of_id(id),
            partition=partition,
            coordinator=intent.coordinator,
            participants=intent.participants,
            keys=len(intent.keys),
            originator=names.get(id.member, id.member),
            age_seconds=round(age, 1),
            live=recovery.is_live(id),
            in_doubt=(partition, id) in doubtful,
        )
        for partition, id, intent, age in recovery.held()
    ]
    facts.sort(key=lambda each: (not each.in_doubt, -each.age_seconds, each.transaction, each.partition))
    return TransactionList(tuple(facts[:TRANSACTIONS_LIMIT_MAX]))


async def resolve(node: Node, transaction: str, verdict: str) -> list[int]:
    """End a transaction that is in doubt, and return the partitions. Raises BadInput, Refused or NotFound."""
    if verdict not in VERDICTS:
        raise BadInput(f"verdict is {verdict[:20]!r}; it must be commit or abort")
    return await node.transaction_recovery.resolve(parse_id(transaction), VERDICTS[verdict])
