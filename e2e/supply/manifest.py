"""The operator without Helm: one file of plain manifests, rendered from the chart with its defaults."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from e2e.cluster import cache, programs
from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import output

NAMESPACE = "stele"
KUBERNETES = "1.30"
"""The oldest Kubernetes that has every kind of what is rendered."""
SPARK_SECRET = "stele-spark-auth"
_HEAD = f"""\
# Stele {{version}}: its custom resources and its operator, for Kubernetes {KUBERNETES} or newer. To install:
#
#   kubectl apply --server-side -f install.yaml
#   kubectl -n {NAMESPACE} create secret generic {SPARK_SECRET} --from-literal=secret=$(openssl rand -hex 32)
#
# The operator watches the namespace {NAMESPACE}. The Secret is that of Spark's processes; each installation
# has its own. This file is what the chart of the same release renders; that one has settings.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
"""


def helm() -> Path:
    """The program helm: of STELE_PROGRAMS, of the test cluster, or the one of this machine."""
    given = os.environ.get("STELE_PROGRAMS")
    found = Path(given) / "helm" if given else cache.root() / "programs" / programs.key() / "bin" / "helm"
    if found.exists():
        return found
    elsewhere = shutil.which("helm")
    if elsewhere is None:
        raise ClusterError(
            "helm renders install.yaml, and it is not here: build it with `python -m e2e.cluster programs`, "
            "or install Helm 3."
        )
    return Path(elsewhere)


def rendered(chart: Path, version: str) -> str:
    """The text of install.yaml. The same chart and Helm give the same text."""
    words: list[str | Path] = [helm(), "template", "stele", chart, f"--namespace={NAMESPACE}", "--skip-tests"]
    words += [f"--kube-version=v{KUBERNETES}.0", f"--set=spark.existingSecret={SPARK_SECRET}"]
    with tempfile.TemporaryDirectory(prefix="stele-helm-") as home:
        # The user's own plugins and settings change nothing.
        own = {f"HELM_{name}_HOME": f"{home}/{name.lower()}" for name in ("CACHE", "CONFIG", "DATA")}
        text = output(words, env={**os.environ, **own})
    return f"{_HEAD.format(version=version)}{text}\n"
