"""Generates the CustomResourceDefinitions in `crds/` from the models: JSON schema, structural schema, YAML.

`python -m stele.model.crd DIR` writes the files; `--check` reports which differ (exit code 1).
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stele.model.cluster import TabletCluster
from stele.model.common import CATEGORY, GROUP, VERSION, Resource
from stele.model.keyspace import Keyspace
from stele.model.member import TabletMember
from stele.model.rebalance import TabletRebalance
from stele.model.user import TabletUser

HEADER = (
    "# Generated from the models by `python -m stele.model.crd crds`; change operator/stele/model instead.\n"
)
LINE_LENGTH = 110

UNOBSERVED = -1
"""The generation that no object has: its status was not written yet."""

Schema = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A printer column of `kubectl get`; priority 1 is shown with `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0


@dataclass(frozen=True)
class Definition:
    """A CustomResourceDefinition apart from its model."""

    model: type[Resource]
    short: str
    columns: tuple[Column, ...]
    scale: Mapping[str, str] | None = None

    @property
    def file_name(self) -> str:
        """File name in `crds/`."""
        return f"{self.model.PLURAL}.yaml"


AGE = Column("Age", ".metadata.creationTimestamp", "date")

DEFINITIONS = (
    Definition(
        TabletCluster,
        "stc",
        (
            Column("Desired", ".spec.members", "integer"),
            Column("Ready", ".status.members.ready", "integer"),
            Column("Updated", ".status.members.updated", "integer"),
            Column("Available", '.status.conditions[?(@.type=="Available")].status'),
            Column("Partitions", ".status.partitions.total", "integer"),
            Column("Safe", ".status.partitions.safe", "integer"),
            Column("Under-Replicated", ".status.partitions.underReplicated", "integer"),
            Column("Migrating", ".status.migrations.active", "integer"),
            Column("Phase", ".status.phase"),
            AGE,
            Column("Replicas", ".spec.replicas", "integer", 1),
            Column("Waiting", ".status.migrations.waiting", "integer", 1),
            Column("Lost", ".status.partitions.lost", "integer", 1),
            Column("Epoch", ".status.epoch", "integer", 1),
            Column("Stamp", ".status.stamp", "string", 1),
            Column("Image", ".status.memberImage", "string", 1),
            Column("Message", ".status.message", "string", 1),
        ),
        {
            "specReplicasPath": ".spec.members",
            "statusReplicasPath": ".status.members.current",
            "labelSelectorPath": ".status.selector",
        },
    ),
    Definition(
        TabletMember,
        "stm",
        (
            Column("Cluster", ".spec.cluster"),
            Column("State", ".status.state"),
            Column("Owned", ".status.owned", "integer"),
            Column("Backups", ".status.backups", "integer"),
            Column("Bytes", ".status.bytes", "integer"),
            Column("Free", ".status.volume.free"),
            Column("Drain", ".spec.drain", "boolean"),
            Column("Safe-To-Evict", ".status.safeToEvict", "boolean"),
            Column("Restarts", ".status.restarts", "integer"),
            AGE,
            Column("Index", ".spec.index", "integer", 1),
            Column("Lite", ".status.lite", "boolean", 1),
            Column("Node", ".status.node", "string", 1),
            Column("Address", ".status.address", "string", 1),
            Column("UUID", ".status.uuid", "string", 1),
            Column("Stamp", ".status.stamp", "string", 1),
        ),
    ),
    Definition(
        TabletRebalance,
        "str",
        (
            Column("Cluster", ".spec.cluster"),
            Column("Phase", ".status.phase"),
            Column("Done", ".status.done.total", "integer"),
            Column("Total", ".status.planned.total", "integer"),
            Column("Bytes", ".status.bytesCopied", "integer"),
            Column("MB/s", ".status.megabytesPerSecond"),
            Column("ETA", ".status.etaSeconds", "integer"),
            Column("Engine", ".status.engine"),
            AGE,
            Column("Mode", ".spec.mode", "string", 1),
            Column("Reason", ".status.reason", "string", 1),
        ),
    ),
    Definition(
        Keyspace,
        "ks",
        (
            Column("Cluster", ".spec.cluster"),
            Column("Keyspace", ".status.keyspace"),
            Column("Mode", ".spec.mode"),
            Column("Replication", ".spec.replication"),
            Column("Entries", ".status.entries", "integer"),
            Column("Bytes", ".status.bytes", "integer"),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            AGE,
            Column("TTL", ".spec.ttl", "integer", 1),
            Column("Reads", ".spec.reads", "string", 1),
            Column("Notify", ".spec.notify", "string", 1),
            Column("Near-Cache", ".spec.nearCache.bytes", "string", 1),
            Column("On-Delete", ".spec.onDelete", "string", 1),
            Column("Partitions", ".status.placement.partitions", "integer", 1),
            Column("Replicas", ".status.placement.replicas", "integer", 1),
            Column("Version", ".status.catalogVersion", "integer", 1),
            Column("Message", '.status.conditions[?(@.type=="Ready")].message', "string", 1),
        ),
    ),
    Definition(
        TabletUser,
        "stu",
        (
            Column("Cluster", ".spec.cluster"),
            Column("User", ".status.user"),
            Column("Enabled", ".spec.enabled", "boolean"),
            Column("Secret", ".status.secret"),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            AGE,
            Column("Keyspaces", ".spec.keyspaces", "string", 1),
            Column("ACL", ".spec.acl", "string", 1),
            Column("Connections", ".spec.limits.connections", "integer", 1),
            Column("Members", ".status.members.current", "integer", 1),
            Column("Message", '.status.conditions[?(@.type=="Ready")].message', "string", 1),
        ),
    ),
)


def structural(node: Any, shared: Mapping[str, Schema], *, defaults: bool) -> Schema:
    """Convert a JSON schema node to a structural schema: no `$ref`, no titles, no nulls.

    With `defaults`, an object whose fields all have defaults gets them as its own default. Otherwise the API
    server would not fill in an omitted object: it checks rules against the default as written.
    """
    flat = _resolved(dict(node), shared)
    flat.pop("title", None)
    if "description" in flat:
        flat["description"] = " ".join(flat["description"].split())
    if not defaults or flat.get("default", ...) is None:
        flat.pop("default", None)

    def inner(child: Any) -> Schema:
        return structural(child, shared, defaults=defaults)

    if "properties" in flat:
        flat["properties"] = {name: inner(child) for name, child in flat["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(flat.get(key), dict):
            flat[key] = inner(flat[key])
    if flat.get("x-kubernetes-int-or-string"):
        flat.pop("type", None)
    if defaults and (filled := _own_defaults(flat)):
        flat["default"] = filled
    return _ordered(flat)


def _resolved(node: Schema, shared: Mapping[str, Schema]) -> Schema:
    """Resolve the node's reference, or its non-null choice; keys of the node itself take precedence."""
    choices = [each for each in node.pop("anyOf", []) if each.get("type") != "null"]
    if choices:
        return _resolved({**choices[0], **node}, shared)
    if "$ref" in node:
        name = node.pop("$ref").rsplit("/", 1)[-1]
        return _resolved({**shared[name], **node}, shared)
    return node


def _own_defaults(node: Schema) -> Schema:
    fields: Mapping[str, Schema] = {} if node.get("required") else node.get("properties", {})
    return {name: field["default"] for name, field in fields.items() if "default" in field}


def _ordered(node: Schema) -> Schema:
    """Sort keys for reading; unlisted keys keep their order in the middle."""
    first = ("type", "format", "description", "default", "enum")
    last = ("required", "properties", "items", "x-kubernetes-validations")
    middle = [key for key in node if key not in (*first, *last)]
    return {key: node[key] for key in (*first, *middle, *last) if key in node}


def schema_of(model: type[Resource]) -> Schema:
    """Return the structural schema of a resource. Metadata is left to Kubernetes; only spec has defaults."""
    whole = model.model_json_schema(by_alias=True)
    shared = whole.get("$defs", {})

    def part(name: str) -> Schema:
        return structural(whole["properties"][name], shared, defaults=name == "spec")

    spec = part("spec")
    spec.pop("default", None)
    schema: Schema = {
        "type": "object",
        "description": " ".join(whole["description"].split()),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            # Tools would take an object without a status for one that is as its spec says.
            "status": part("status") | {"default": {"observedGeneration": UNOBSERVED}},
        },
    }
    if rules := whole.get("x-kubernetes-validations"):
        schema["x-kubernetes-validations"] = rules
    return schema


def crd_of(definition: Definition) -> Schema:
    """Return the CustomResourceDefinition as plain values."""
    model = definition.model
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{model.PLURAL}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "stele"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": model.KIND,
                "listKind": f"{model.KIND}List",
                "plural": model.PLURAL,
                "singular": model.KIND.lower(),
                "shortNames": [definition.short],
                "categories": [CATEGORY],
            },
            "versions": [_version_of(definition)],
        },
    }


def _version_of(definition: Definition) -> Schema:
    subresources: Schema = {"status": {}}
    if definition.scale:
        subresources["scale"] = dict(definition.scale)
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": subresources,
        "additionalPrinterColumns": [_column(each) for each in definition.columns],
        "schema": {"openAPIV3Schema": schema_of(definition.model)},
    }


def _column(column: Column) -> Schema:
    rest = {"priority": column.priority} if column.priority else {}
    return {"name": column.name, "type": column.type, "jsonPath": column.path, **rest}


class _Dumper(yaml.SafeDumper):
    """Dumps repeated values in full (no anchors) and indents lists."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def crd_yaml(definition: Definition) -> str:
    """Return the text of a file in `crds/`."""
    body = yaml.dump(
        crd_of(definition), Dumper=_Dumper, sort_keys=False, width=LINE_LENGTH, allow_unicode=True
    )
    return HEADER + body


def drifted(directory: Path) -> list[str]:
    """Return the names of files that are missing or differ from the models."""

    def differs(definition: Definition) -> bool:
        path = directory / definition.file_name
        return not path.is_file() or path.read_text(encoding="utf-8") != crd_yaml(definition)

    return [each.file_name for each in DEFINITIONS if differs(each)]


def write(directory: Path) -> None:
    """Write every file."""
    directory.mkdir(parents=True, exist_ok=True)
    for each in DEFINITIONS:
        (directory / each.file_name).write_text(crd_yaml(each), encoding="utf-8")


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m stele.model.crd", description="Write the CRDs that the models define."
    )
    parser.add_argument(
        "directories", metavar="DIR", nargs="+", type=Path, help="directory of the YAML files"
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with code 1 when a file differs"
    )
    options = parser.parse_args(arguments)
    if not options.check:
        for directory in options.directories:
            write(directory)
        return 0
    stale = [str(directory / name) for directory in options.directories for name in drifted(directory)]
    if stale:
        again = " ".join(str(directory) for directory in options.directories)
        say(f"{', '.join(stale)}: out of date; run python -m stele.model.crd {again}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
