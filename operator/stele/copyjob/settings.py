"""Settings of the copier pod, from its environment."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from stele.adapters import environment
from stele.adapters.environment import Port, PullPolicy, setting
from stele.wire.urls import root

KUBERNETES = "k8s://https://kubernetes.default.svc"
LOCAL = {"STELE_SPARK_IMAGE": "none", "POD_NAMESPACE": "none", "POD_NAME": "none", "POD_IP": "127.0.0.1"}
"""Placeholders for variables that local drivers do not need."""
FIELD = "; the pod's manifest sets it from the pod's own fields"
_LOCAL = re.compile(r"local\[[0-9]{1,3}(,[0-9]{1,2})?\]")

Drivers = Annotated[int, Meta(ge=1, le=64)]
SparkMaster = Annotated[str, Meta(pattern=rf"^(k8s://http.*|{_LOCAL.pattern})$")]


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Settings:
    """Location of this pod, and settings of its drivers.

    `master` is Spark's master URL: the Kubernetes cluster of the pod, or `local[n]`, where the driver runs
    the tasks and `staging` is a local directory, or one for each claim. `start` identifies this start of the
    container.
    """

    image: str = setting("STELE_SPARK_IMAGE", "the image of the executors; local[N] needs none")
    namespace: str = setting("POD_NAMESPACE", f"that of this pod{FIELD}")
    pod_name: str = setting("POD_NAME", f"that of this pod{FIELD}")
    pod_ip: str = setting("POD_IP", f"where tasks report their progress{FIELD}")
    master: SparkMaster = setting(
        "STELE_SPARK_MASTER",
        "local[N] runs the tasks in this machine's drivers",
        default=KUBERNETES,
        expected="k8s://https://HOST or local[N]",
    )
    executor_account: str = setting(
        "STELE_EXECUTOR_SERVICE_ACCOUNT", "ServiceAccount of the executors", default="stele-executor"
    )
    spark_secret: str = setting(
        "STELE_SPARK_SECRET", "Secret of drivers and executors", default="stele-spark-auth"
    )
    pull_policy: PullPolicy = setting("STELE_IMAGE_PULL_POLICY", "of the executors", default="IfNotPresent")
    pull_secrets: str = setting(
        "STELE_IMAGE_PULL_SECRETS", "Secrets that executors are pulled with, comma separated", default=""
    )
    executor_pod: str = setting(
        "STELE_EXECUTOR_POD",
        "fields of the executors' pod specs",
        default="{}",
        expected="a JSON object",
        accepts=_is_json_object,
    )
    bind: str = setting("STELE_BIND", "address to listen on; every one of the pod by default", default="")
    port: Port = setting("STELE_COPIER_PORT", "jobs of the operator, progress of tasks", default=7010)
    drivers_max: Drivers = setting("STELE_DRIVERS_MAX", "Spark drivers that live at once", default=4)
    staging: Path = setting(
        "STELE_STAGING",
        "where executors find the destination's staging folder; {claim} in it is that of the job",
        default=Path("/staging"),
    )
    scratch: Path = setting(
        "STELE_SCRATCH",
        "for files that Spark needs while it runs",
        default=Path("/tmp"),
        expected="a folder that is there",
        accepts=Path.is_dir,
    )
    tls_dir: str = setting(
        "STELE_TLS_DIR",
        "folder with tls.crt, tls.key and ca.crt; with it, nothing but TLS is taken",
        default="",
    )
    start: str = "none"

    @property
    def is_local(self) -> bool:
        """Whether Spark runs inside the driver, without Kubernetes."""
        return not self.master.startswith("k8s://")

    def staging_of(self, claim: str) -> str:
        """Return where tasks write what is for the member with this claim."""
        return str(self.staging).replace("{claim}", claim)

    @property
    def callback(self) -> str:
        """URL to which tasks report their progress."""
        return root(self.pod_ip, self.port, with_tls=bool(self.tls_dir))


def read_settings(env: Mapping[str, str]) -> Settings:
    """Read the settings. Raises BadInput with the variable, its value and what it must be."""
    is_local = _LOCAL.fullmatch(env.get("STELE_SPARK_MASTER", "")) is not None
    return environment.read(Settings, {**LOCAL, **env} if is_local else env)
