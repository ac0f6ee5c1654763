"""A cluster with an operator of its own, for runs that strike the operator too."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster import kind
from e2e.cluster.steps import run
from e2e.demo import stage
from e2e.demo.settings import Settings


def settings(name: str) -> Settings:
    """Return settings with this namespace and release, beside whatever a demo left."""
    return Settings(release=name, operator_namespace=name, watched=(name,), namespace=name, live=False)


def remove(wanted: Settings, log: Path) -> None:
    """Remove the cluster with its volumes, its operator, and their namespace."""
    stage.clear(wanted.namespace, wanted.cluster, log)
    uninstall = ["helm", "uninstall", wanted.release, "--namespace", wanted.operator_namespace]
    run([*uninstall, "--ignore-not-found", "--wait"], log, env=kind.env())
    run(["kubectl", "delete", "namespace", wanted.namespace, "--ignore-not-found"], log, env=kind.env())
