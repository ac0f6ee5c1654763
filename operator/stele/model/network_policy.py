"""spec.security.networkPolicy of a TabletCluster: who may open connections to its pods.

Peers are those of Kubernetes' NetworkPolicy. What CEL cannot tell of blocks of addresses, `problems` does.
"""

from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from stele.model.common import Model, cel, matching
from stele.model.pod_template import LABEL_NAME, LABEL_NAME_LENGTH, LabelValue, checked_label_name

Network = IPv4Network | IPv6Network

PEERS_MAX = 32
"""Most peers of one list."""
SELECTOR_ENTRIES_MAX = 16
"""Most labels, and most conditions, of one selector."""
EXCEPT_MAX = 16
"""Most blocks that are left out of one."""
_CIDR_LENGTH = 43

OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_CIDR = (
    f"^({OCTET}[.]){{3}}{OCTET}/(3[0-2]|[12]?[0-9])$"
    "|^[0-9a-fA-F:.]*:[0-9a-fA-F:.]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9])$"
)
_AT = "spec.security.networkPolicy"
_ONE_SORT = "needs ipBlock alone, or podSelector, namespaceSelector or both"
_VALUES = "needs values with In and NotIn, and none with Exists and DoesNotExist"


def block_of_addresses(at: str, examples: str) -> Any:
    """Return the field of a block of addresses, as far as a pattern tells; see `network_of`."""
    return matching(_CIDR, _CIDR_LENGTH, f"{at}: a block of addresses is written as {examples}")


Cidr = Annotated[str, block_of_addresses(_AT, "10.0.0.0/24 or fd00::/64")]
LabelName = Annotated[str, AfterValidator(checked_label_name)]


class LabelCondition(Model):
    """Condition on one label."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
                f"{_AT}: a condition on a label {_VALUES}",
            )
        )
    )

    key: str = Field(max_length=LABEL_NAME_LENGTH, pattern=LABEL_NAME)
    """Name of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label is compared with `values`."""
    values: tuple[LabelValue, ...] = Field(default_factory=tuple, max_length=SELECTOR_ENTRIES_MAX)
    """Values to compare with; none with Exists and DoesNotExist."""

    @model_validator(mode="after")
    def _has_values_as_needed(self) -> Self:
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            raise ValueError(f"{self.operator} with {len(self.values)} values: a condition {_VALUES}")
        return self


class PeerSelector(Model):
    """Selects pods or namespaces by their labels; all of them when empty."""

    match_labels: dict[LabelName, LabelValue] = Field(
        default_factory=dict,
        max_length=SELECTOR_ENTRIES_MAX,
        json_schema_extra=cel(
            (
                f"self.all(key, key.size() <= {LABEL_NAME_LENGTH} && key.matches('{LABEL_NAME}'))",
                f"{_AT}: each of matchLabels needs the name of a label, such as app.kubernetes.io/name",
            )
        ),
    )
    """Labels and their values, all of which it must have."""
    match_expressions: tuple[LabelCondition, ...] = Field(
        default_factory=tuple, max_length=SELECTOR_ENTRIES_MAX
    )
    """Conditions, all of which it must meet."""


class IpBlock(Model):
    """Addresses outside of the pod network."""

    cidr: Cidr
    """The block, such as 10.0.0.0/24."""
    except_: tuple[Cidr, ...] = Field(default_factory=tuple, alias="except", max_length=EXCEPT_MAX)
    """Blocks inside of it that are left out."""


class Peer(Model):
    """Who may connect: pods, namespaces, or a block of addresses."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
                f"{_AT}: a peer {_ONE_SORT}",
            )
        )
    )

    pod_selector: PeerSelector | None = None
    """Pods; of the cluster's namespace, unless namespaceSelector is given."""
    namespace_selector: PeerSelector | None = None
    """Namespaces; all of their pods, unless podSelector is given."""
    ip_block: IpBlock | None = None
    """Addresses."""

    @model_validator(mode="after")
    def _is_of_one_sort(self) -> Self:
        selects = self.pod_selector is not None or self.namespace_selector is not None
        if selects == (self.ip_block is not None):
            raise ValueError(f"a peer {_ONE_SORT}")
        return self


Peers = Annotated[tuple[Peer, ...], Field(min_length=1, max_length=PEERS_MAX)]


class NetworkPolicy(Model):
    """Who may reach the pods of this cluster."""

    enabled: bool | None = None
    """Whether the operator makes NetworkPolicies of it; when omitted, true in a cluster that began closed."""
    clients: Peers | None = None
    """Who may connect to ports 6379 to 6381; everyone when omitted."""
    metrics: Peers | None = None
    """Who may connect to port 7004; everyone when omitted."""
    admins: Peers | None = None
    """Who may connect to ports 7001 to 7003, besides Stele's own pods; nobody when omitted."""

    def problems(self) -> Iterator[str]:
        """Describe blocks of addresses that Kubernetes refuses."""
        for name, peers in (("clients", self.clients), ("metrics", self.metrics), ("admins", self.admins)):
            for number, peer in enumerate(peers or ()):
                if peer.ip_block is not None:
                    yield from _problems_of(peer.ip_block, f"{_AT}.{name}[{number}].ipBlock")


def _problems_of(block: IpBlock, path: str) -> Iterator[str]:
    whole = network_of(block.cidr)
    if whole is None:
        yield f"{path}.cidr is {block.cidr}, which is no block of addresses; write one such as fd00::/64"
        return
    for number, text in enumerate(block.except_):
        if not _is_inside(network_of(text), whole):
            yield f"{path}.except[{number}] is {text}, which must be a smaller block inside of {block.cidr}"


def _is_inside(part: Network | None, whole: Network) -> bool:
    """Return whether it is a smaller block inside of the other."""
    if isinstance(part, IPv4Network) and isinstance(whole, IPv4Network):
        return part != whole and part.subnet_of(whole)
    if isinstance(part, IPv6Network) and isinstance(whole, IPv6Network):
        return part != whole and part.subnet_of(whole)
    return False


def network_of(text: str) -> Network | None:
    """Return the block of addresses, None for a text that is none."""
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None
