"""Pydantic models of the custom resources; `crds/` is generated from them."""

from stele.model.cluster import TabletCluster
from stele.model.common import API_VERSION, GROUP, VERSION, FieldProblem, Unreadable
from stele.model.keyspace import Keyspace
from stele.model.member import TabletMember
from stele.model.rebalance import TabletRebalance
from stele.model.user import TabletUser

__all__ = [
    "API_VERSION",
    "GROUP",
    "VERSION",
    "FieldProblem",
    "Keyspace",
    "TabletCluster",
    "TabletMember",
    "TabletRebalance",
    "TabletUser",
    "Unreadable",
]
