"""The TabletCluster of a playground: what it begins with, and what `up` changes."""

from dataclasses import dataclass

from stele.adapters.kubernetes.api import CLUSTERS
from stele.errors import BadInput
from stele.master.merge_patch import merged
from stele.playground.files import Object
from stele.playground.limits import MEMBERS_MAX
from stele.playground.objects import ObjectFiles

NAME = "demo"

OPEN: Object = {
    "clients": {"tls": "Off", "auth": "Off", "clientCertificates": "Ignore"},
    "members": {"tls": "Off"},
    "networkPolicy": {"enabled": False},
}
"""On loopback, with nothing that makes certificates: said in words by `up`."""


KEPT: Object = {"migration": {"engine": "Direct"}, "security": OPEN}
"""Fields of the spec without which a cluster would wait for what a playground does not have."""


@dataclass(frozen=True)
class Wanted:
    """What the user asks for; None of what stays as it is, or is as by default."""

    members: int | None = None
    replicas: int | None = None
    partitions: int | None = None

    @property
    def given(self) -> Object:
        fields = {"members": self.members, "replicas": self.replicas, "partitions": self.partitions}
        return {name: value for name, value in fields.items() if value is not None}


def ensure_cluster(files: ObjectFiles, wanted: Wanted) -> Object:
    """Make the cluster, or change it to what is given. Raises BadInput for what is not possible."""
    check_members(wanted.members, "--members")
    stored = files.find(CLUSTERS, NAME)
    if stored is not None:
        _check_kept(stored["spec"])
        return files.patch(CLUSTERS, NAME, {"spec": wanted.given}) if wanted.given else stored
    spec = {
        "members": 3,
        "storage": {"size": "10Gi"},
        **KEPT,
        **wanted.given,
    }
    return files.create(CLUSTERS, {"metadata": {"name": NAME}, "spec": spec})


def _check_kept(spec: Object) -> None:
    """Raise BadInput for a spec, changed by hand, that would wait for ever."""
    for name, value in KEPT.items():
        given = spec.get(name) or {}
        if merged(given, value) != given:
            raise BadInput(
                f"spec.{name} in cluster.yaml lacks {value}: a playground has no copier, and nobody "
                "makes certificates and users there; put it back"
            )


def check_members(number: int | None, what: str) -> None:
    """Raise BadInput for more members than a machine should run."""
    if number is not None and not 1 <= number <= MEMBERS_MAX:
        raise BadInput(f"{what} is {number}; expected 1 to {MEMBERS_MAX}: each member is two processes here")
