"""spec.podTemplate: what users add to the pods of a cluster. Fields are named as in Kubernetes' PodSpec.

What the operator sets itself is refused: labels by which pods are found, variables of the member, volumes.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from stele.model.common import Model, cel, shown

ENTRIES_LIMIT = 64
"""Most entries of one list or map."""
NAME_LENGTH = 253
LABEL_LENGTH = 63
VALUE_LENGTH = 32_768
TEXT_LENGTH = 1_024

OWN_PREFIX = "stele.dev/"
OWN_LABELS = tuple(
    f"app.kubernetes.io/{name}" for name in ("name", "instance", "component", "part-of", "managed-by")
)
OWN_VARIABLES = "STELE_"

LABEL_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LABEL_NAME_LENGTH = NAME_LENGTH + 1 + LABEL_LENGTH
_KEY = re.compile(LABEL_NAME)
_LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

_SET_BY_OPERATOR = "is set by the operator; leave it out"

Name = Annotated[str, Field(min_length=1, max_length=NAME_LENGTH)]
Text = Annotated[str, Field(max_length=TEXT_LENGTH)]
LabelValue = Annotated[str, Field(max_length=LABEL_LENGTH, pattern=_LABEL_VALUE)]
AnnotationValue = Annotated[str, Field(max_length=VALUE_LENGTH)]
Seconds = Annotated[int, Field(json_schema_extra={"format": "int64"})]
Id = Annotated[int, Field(ge=0, le=2**31 - 1, json_schema_extra={"format": "int64"})]
"""Number of a user or a group."""
Weight = Annotated[int, Field(ge=1, le=100, json_schema_extra={"format": "int32"})]


def checked_label_name(key: str) -> str:
    """Return the name of a label or an annotation. Raises ValueError."""
    if not _KEY.fullmatch(key) or len(key) > LABEL_NAME_LENGTH:
        raise ValueError(f"{shown(key)} is no name of a label or an annotation; write one such as team")
    return key


def _checked_key(key: str) -> str:
    checked_label_name(key)
    if key.startswith(OWN_PREFIX):
        raise ValueError(f"{key} {_SET_BY_OPERATOR}")
    return key


def _checked_label(key: str) -> str:
    if key in OWN_LABELS:
        raise ValueError(f"{key} {_SET_BY_OPERATOR}")
    return key


def _checked_variable(name: str) -> str:
    if name.startswith(OWN_VARIABLES):
        raise ValueError(f"{name} {_SET_BY_OPERATOR}")
    return name


Key = Annotated[str, AfterValidator(_checked_key)]
LabelKey = Annotated[Key, AfterValidator(_checked_label)]


def _many(**extra: Any) -> Any:
    """Return the field of a list or map, empty by default."""
    return Field(default_factory=tuple, max_length=ENTRIES_LIMIT, json_schema_extra=extra or None)


def _map(*rules: tuple[str, str]) -> Any:
    return Field(default_factory=dict, max_length=ENTRIES_LIMIT, json_schema_extra=cel(*rules))


def _by_name() -> Any:
    """Return the field of a list in which no name may occur twice."""
    return _many(**{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]})


class Toleration(Model):
    """Taint of nodes that the pods accept."""

    key: Text | None = None
    """Key of the taint; every taint when omitted, with operator Exists."""
    operator: Literal["Exists", "Equal"] | None = None
    """Exists accepts every value of the taint; Equal, the default, only `value`."""
    value: Text | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; every effect when omitted."""
    toleration_seconds: Seconds | None = None
    """With effect NoExecute: seconds until the pod is evicted; never when omitted."""


class Requirement(Model):
    """Condition on one label."""

    key: Text
    """Name of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How the label is compared with `values`."""
    values: tuple[Text, ...] = _many()
    """Values to compare with; none with Exists and DoesNotExist."""


class LabelSelector(Model):
    """Selects objects by their labels."""

    match_labels: dict[str, Text] = Field(default_factory=dict, max_length=ENTRIES_LIMIT)
    """Labels and their values, all of which an object must have."""
    match_expressions: tuple[Requirement, ...] = _many()
    """Conditions, all of which an object must meet."""


class NodeTerm(Model):
    """Nodes that meet all of these conditions."""

    match_expressions: tuple[Requirement, ...] = _many()
    """Conditions on labels."""
    match_fields: tuple[Requirement, ...] = _many()
    """Conditions on fields, such as metadata.name."""


class NodeSelector(Model):
    """Nodes that meet one of these terms."""

    node_selector_terms: tuple[NodeTerm, ...] = Field(min_length=1, max_length=ENTRIES_LIMIT)
    """The terms."""


class PreferredNodes(Model):
    """Nodes that are preferred, and how much."""

    weight: Weight
    """Weight, from 1 to 100."""
    preference: NodeTerm
    """The preferred nodes."""


class NodeAffinity(Model):
    """Nodes that pods run on."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    """Nodes that are allowed."""
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredNodes, ...] = _many()
    """Nodes that are preferred."""


class PodTerm(Model):
    """Pods beside which, or apart from which, a pod runs."""

    topology_key: Name
    """Label of nodes; nodes with the same value are one place."""
    label_selector: LabelSelector | None = None
    """The other pods."""
    namespaces: tuple[Name, ...] = _many()
    """Namespaces of the other pods; that of the cluster when omitted."""
    namespace_selector: LabelSelector | None = None
    """Further namespaces of the other pods, by their labels."""
    match_label_keys: tuple[Name, ...] = _many()
    """Labels that the other pods have in common with this one."""
    mismatch_label_keys: tuple[Name, ...] = _many()
    """Labels that the other pods do not have in common with this one."""


class PreferredPods(Model):
    """Places that are preferred, and how much."""

    weight: Weight
    """Weight, from 1 to 100."""
    pod_affinity_term: PodTerm
    """The preferred place."""


class PodAffinity(Model):
    """Places relative to other pods."""

    required_during_scheduling_ignored_during_execution: tuple[PodTerm, ...] = _many()
    """Places that are allowed."""
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredPods, ...] = _many()
    """Places that are preferred."""


class Affinity(Model):
    """Nodes and places of the pods. What is omitted stays as the operator sets it."""

    node_affinity: NodeAffinity | None = None
    """Nodes that members run on."""
    pod_affinity: PodAffinity | None = None
    """Pods that members run beside."""
    pod_anti_affinity: PodAffinity | None = None
    """Pods that members run apart from; by default members prefer different nodes."""


class TopologySpreadConstraint(Model):
    """How evenly members are spread over places."""

    max_skew: int = Field(ge=1, json_schema_extra={"format": "int32"})
    """Largest difference between the numbers of members in two places."""
    topology_key: Name
    """Label of nodes; nodes with the same value are one place."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """Whether a member waits or is placed anyway."""
    label_selector: LabelSelector | None = None
    """Pods that are counted; the members of this cluster when omitted."""
    min_domains: int | None = Field(default=None, ge=1, json_schema_extra={"format": "int32"})
    """Number of places that must exist, with DoNotSchedule."""
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    """Whether only nodes that members may run on count."""
    node_taints_policy: Literal["Honor", "Ignore"] | None = None
    """Whether nodes with taints that members do not tolerate are left out."""
    match_label_keys: tuple[Name, ...] = _many()
    """Labels that counted pods have in common."""


class SELinuxOptions(Model):
    """SELinux context."""

    user: Text | None = None
    """User of the context."""
    role: Text | None = None
    """Role of the context."""
    type: Text | None = None
    """Type of the context."""
    level: Text | None = None
    """Level of the context."""


class Profile(Model):
    """Profile of seccomp or AppArmor."""

    type: Literal["RuntimeDefault", "Unconfined", "Localhost"]
    """Which profile applies."""
    localhost_profile: Text | None = None
    """Name of the profile on the node, with Localhost."""


class SecurityContext(Model):
    """Security context of the pods; replaces all that the operator would set.

    An empty one leaves everything to the namespace, as OpenShift's restricted-v2 needs.
    """

    run_as_user: Id | None = None
    """User of the processes."""
    run_as_group: Id | None = None
    """Group of the processes."""
    run_as_non_root: bool | None = None
    """Whether the kubelet refuses to run a process as root."""
    fs_group: Id | None = None
    """Group of the volumes."""
    fs_group_change_policy: Literal["OnRootMismatch", "Always"] | None = None
    """When the kubelet changes the group of a volume's files."""
    supplemental_groups: tuple[Id, ...] = _many()
    """Further groups of the processes."""
    seccomp_profile: Profile | None = None
    """Filter of system calls."""
    app_armor_profile: Profile | None = None
    """AppArmor profile."""
    se_linux_options: SELinuxOptions | None = None
    """SELinux context."""


class LocalReference(Model):
    """An object of the cluster's namespace."""

    name: Name
    """Name of the object."""


class KeyReference(Model):
    """One key of a Secret or ConfigMap of the cluster's namespace."""

    name: Name
    """Name of the object."""
    key: Name
    """Key in the object."""
    optional: bool | None = None
    """Whether pods start without the object or key."""


class FieldReference(Model):
    """A field of the pod."""

    field_path: Name
    """Path of the field, such as spec.nodeName."""


class ValueSource(Model):
    """Where the value of a variable comes from."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef)]"
                ".filter(given, given).size() == 1",
                "spec.podTemplate.env.valueFrom needs one of secretKeyRef, configMapKeyRef and fieldRef",
            )
        )
    )

    secret_key_ref: KeyReference | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyReference | None = None
    """A key of a ConfigMap."""
    field_ref: FieldReference | None = None
    """A field of the pod."""


class Variable(Model):
    """Environment variable."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                f"!self.name.startsWith('{OWN_VARIABLES}')",
                f"spec.podTemplate.env: variables that begin with {OWN_VARIABLES} are set by the operator; "
                "leave them out",
            ),
            (
                "!has(self.value) || !has(self.valueFrom)",
                "spec.podTemplate.env: give value or valueFrom, not both",
            ),
        )
    )

    name: Annotated[Name, AfterValidator(_checked_variable)]
    """Name of the variable; those that begin with STELE_ are the operator's."""
    value: AnnotationValue | None = None
    """Value of the variable."""
    value_from: ValueSource | None = None
    """Source of the value."""


_OWN = ", ".join(f"'{label}'" for label in OWN_LABELS)


class PodTemplate(Model):
    """What is added to the pods of the members, and where said to those of Spark."""

    labels: dict[LabelKey, LabelValue] = _map(
        (
            f"self.all(key, !key.startsWith('{OWN_PREFIX}') && !(key in [{_OWN}]))",
            f"spec.podTemplate.labels: {OWN_PREFIX}* and {', '.join(OWN_LABELS)} are set by the operator; "
            "leave them out",
        )
    )
    """Further labels."""
    annotations: dict[Key, AnnotationValue] = _map(
        (
            f"self.all(key, !key.startsWith('{OWN_PREFIX}'))",
            f"spec.podTemplate.annotations: {OWN_PREFIX}* are set by the operator; leave them out",
        )
    )
    """Annotations."""
    node_selector: dict[str, Text] = Field(default_factory=dict, max_length=ENTRIES_LIMIT)
    """Labels of the nodes that members run on."""
    tolerations: tuple[Toleration, ...] = _many()
    """Taints of nodes that members, and Spark's pods, accept."""
    affinity: Affinity | None = None
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = _many()
    """How evenly members are spread over zones or nodes."""
    priority_class_name: Name | None = None
    """PriorityClass of members and Spark's pods."""
    image_pull_secrets: tuple[LocalReference, ...] = _by_name()
    """Further Secrets that images of members and Spark's pods are pulled with."""
    security_context: SecurityContext | None = None
    env: tuple[Variable, ...] = _by_name()
    """Further environment variables of the members' containers."""
