"""A cluster that the user already has: given by a kubeconfig, never created or deleted by this program."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import cache
from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import output

ANSWER_SECONDS_MAX = 30.0
KUBECONFIG_VARIABLE = "STELE_KUBECONFIG"
CONTEXT_VARIABLE = "STELE_CONTEXT"


@dataclass(frozen=True)
class External:
    """A kubeconfig file and, when not its current one, the context to use."""

    kubeconfig: Path
    context: str


def given() -> External | None:
    """The user's cluster as `STELE_KUBECONFIG` (and `STELE_CONTEXT`) name it, or None."""
    path = os.environ.get(KUBECONFIG_VARIABLE, "")
    context = os.environ.get(CONTEXT_VARIABLE, "")
    if not path:
        if context:
            raise ClusterError(
                f"The context {context!r} was given without a kubeconfig; give --kubeconfig too."
            )
        return None
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        raise ClusterError(f"The kubeconfig {file} does not exist; give the path of a kubeconfig file.")
    return External(file, context)


def kubeconfig(cluster: External) -> Path:
    """A kubeconfig whose current context is the wanted one: the user's own file, or a private copy of it."""
    if not cluster.context:
        return cluster.kubeconfig
    words = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), "--context", cluster.context]
    text = output(
        [*words, "config", "view", "--raw", "--flatten", "--minify"], seconds_max=ANSWER_SECONDS_MAX
    )
    path = cache.root() / "external" / "kubeconfig"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(f"{text}\n", encoding="utf-8")
    return path
