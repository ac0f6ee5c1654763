"""How scenarios reach a cluster that runs: with kubectl, and as its user `default`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from e2e.cluster import kind
from e2e.cluster.steps import output
from e2e.demo import stage
from e2e.demo.resp import Endpoint, redis_options
from e2e.demo.settings import Settings

KUBECTL_SECONDS_MAX = 60.0


def kubectl(settings: Settings, *words: str, seconds_max: float = KUBECTL_SECONDS_MAX) -> str:
    """Return what kubectl says in the cluster's namespace. Raises ClusterError when it fails."""
    command = ["kubectl", "--namespace", settings.namespace, *words]
    return output(command, env=kind.env(), seconds_max=seconds_max)


def apply(settings: Settings, manifest: dict[str, Any]) -> None:
    """Apply an object, or a List of them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "manifest.json"
        file.write_text(json.dumps(manifest))
        kubectl(settings, "apply", f"--filename={file}")


def login(settings: Settings) -> tuple[Endpoint, dict[str, Any]]:
    """Return where clients connect, and what redis-py needs to log in there, with the CAs of this moment."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = stage.Stage(settings, Path(folder)).endpoint()
        options = redis_options(endpoint)
        authority = Path(options.pop("ssl_ca_certs")).read_text()
    return endpoint, {**options, "ssl_ca_data": authority}
