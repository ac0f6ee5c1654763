"""The TabletCluster of a playground: what it begins with, and what `up` changes."""

from dataclasses import dataclass
from enum import StrEnum

from stele.adapters.kubernetes.api import CLUSTERS
from stele.errors import BadInput
from stele.master.merge_patch import merged
from stele.playground.files import Object
from stele.playground.limits import MEMBERS_MAX
from stele.playground.objects import ObjectFiles
from stele.playground.spark import check_spark

NAME = "demo"

OPEN: Object = {
    "clients": {"tls": "Off", "auth": "Off", "clientCertificates": "Ignore"},
    "members": {"tls": "Off"},
    "networkPolicy": {"enabled": False},
}
"""On loopback, with nothing that makes certificates: said in words by `up`."""

_FIRST: Object = {
    "members": 3,
    "storage": {"size": "10Gi"},
    "migration": {"engine": "Direct"},
    "security": OPEN,
}


class Engine(StrEnum):
    """What copies tablets: the members themselves, or Spark."""

    DIRECT = "Direct"
    SPARK = "Spark"


@dataclass(frozen=True)
class Wanted:
    """What the user asks for; None of what stays as it is, or is as by default."""

    members: int | None = None
    replicas: int | None = None
    partitions: int | None = None
    engine: Engine | None = None

    @property
    def given(self) -> Object:
        fields = {"members": self.members, "replicas": self.replicas, "partitions": self.partitions}
        migration = {} if self.engine is None else {"migration": {"engine": self.engine.value}}
        return {name: value for name, value in fields.items() if value is not None} | migration


def ensure_cluster(files: ObjectFiles, wanted: Wanted) -> Object:
    """Make the cluster, or change it to what is given. Raises BadInput for what is not possible."""
    check_members(wanted.members, "--members")
    stored = files.find(CLUSTERS, NAME)
    spec = merged(_FIRST if stored is None else stored["spec"], wanted.given)
    _check_open(spec)
    if engine_of(spec) is Engine.SPARK:
        check_spark()
    if stored is None:
        return files.create(CLUSTERS, {"metadata": {"name": NAME}, "spec": spec})
    return files.patch(CLUSTERS, NAME, {"spec": wanted.given}) if wanted.given else stored


def engine_of(spec: Object) -> Engine:
    """Return what copies. Raises BadInput for a spec, changed by hand, that names something else."""
    given = (spec.get("migration") or {}).get("engine")
    if given not in list(Engine):
        raise BadInput(f"spec.migration.engine in cluster.yaml is {given}; expected {' or '.join(Engine)}")
    return Engine(given)


def _check_open(spec: Object) -> None:
    """Raise BadInput for a spec, changed by hand, that would wait for ever."""
    given = spec.get("security") or {}
    if merged(given, OPEN) != given:
        raise BadInput(
            f"spec.security in cluster.yaml lacks {OPEN}: nobody makes certificates and users in a "
            "playground; put it back"
        )


def check_members(number: int | None, what: str) -> None:
    """Raise BadInput for more members than a machine should run."""
    if number is not None and not 1 <= number <= MEMBERS_MAX:
        raise BadInput(f"{what} is {number}; expected 1 to {MEMBERS_MAX}: each member is two processes here")
