"""The copier pod's environment, checked once at its start."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stele.errors import BadInput
from stele.transfer.program import read_number
from stele.wire.urls import http_root

PORT = 7010
DRIVERS_MAX = 4
PULL_POLICIES = ("IfNotPresent", "Always", "Never")
KUBERNETES = "k8s://https://kubernetes.default.svc"
VARIABLES = f"""\
STELE_SPARK_MASTER            k8s://https://HOST, or local[N] to run the tasks in this machine's drivers
                              ({KUBERNETES})
STELE_SPARK_IMAGE             image of the executors (required, but for local[N])
STELE_EXECUTOR_SERVICE_ACCOUNT  service account of the executors (stele-executor)
STELE_SPARK_SECRET            Secret by which drivers and executors know each other (stele-spark-auth)
STELE_IMAGE_PULL_POLICY       of the executors: {", ".join(PULL_POLICIES)} ({PULL_POLICIES[0]})
STELE_IMAGE_PULL_SECRETS      Secrets that executors' images are pulled with, comma separated (none)
STELE_BIND                    address to listen on (0.0.0.0)
STELE_COPIER_PORT             jobs of the operator, progress of tasks ({PORT})
STELE_DRIVERS_MAX             Spark drivers that live at once, 1 to 64 ({DRIVERS_MAX})
STELE_STAGING                 where executors find the destination's staging folder (/staging)
STELE_SCRATCH                 folder for files that Spark needs while it runs (/tmp)
POD_NAME, POD_NAMESPACE       of this pod (required, but for local[N])
POD_IP                        where tasks report their progress (required; 127.0.0.1 for local[N])
"""
_LOCAL = re.compile(r"local\[[0-9]{1,3}(,[0-9]{1,2})?\]")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where this pod is, and what its drivers start.

    `master` is Spark's master URL: the cluster that the pod runs in, or `local[n]`, where the driver runs the
    tasks and `staging` is a folder of this machine. `start` tells this life of the container from others.
    """

    bind: str
    port: int
    master: str
    image: str
    namespace: str
    pod_name: str
    pod_ip: str
    staging: Path
    scratch: Path
    executor_account: str
    spark_secret: str
    pull_policy: str
    pull_secrets: str
    drivers_max: int
    start: str = "none"

    @property
    def is_local(self) -> bool:
        """Whether Spark runs inside the driver, without Kubernetes."""
        return not self.master.startswith("k8s://")

    @property
    def callback(self) -> str:
        """Where tasks report their progress."""
        return http_root(self.pod_ip, self.port)


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Raise BadInput that names the variable, its value and what is expected."""
    master = environment.get("STELE_SPARK_MASTER", KUBERNETES)
    local = _LOCAL.fullmatch(master) is not None
    if not (local or master.startswith("k8s://http")):
        raise BadInput(f"STELE_SPARK_MASTER is '{master}', expected k8s://https://HOST or local[N]")
    here = "127.0.0.1" if local else None
    return Settings(
        bind=environment.get("STELE_BIND", "0.0.0.0"),
        port=read_number(environment, "STELE_COPIER_PORT", PORT, 1, 65_535),
        master=master,
        image=_text(environment, "STELE_SPARK_IMAGE", "none" if local else None),
        namespace=_text(environment, "POD_NAMESPACE", "none" if local else None),
        pod_name=_text(environment, "POD_NAME", "none" if local else None),
        pod_ip=_text(environment, "POD_IP", here),
        staging=Path(environment.get("STELE_STAGING", "/staging")),
        scratch=_folder(environment, "STELE_SCRATCH", "/tmp"),
        executor_account=environment.get("STELE_EXECUTOR_SERVICE_ACCOUNT", "stele-executor"),
        spark_secret=environment.get("STELE_SPARK_SECRET", "stele-spark-auth"),
        pull_policy=_pull_policy(environment),
        pull_secrets=environment.get("STELE_IMAGE_PULL_SECRETS", ""),
        drivers_max=read_number(environment, "STELE_DRIVERS_MAX", DRIVERS_MAX, 1, 64),
    )


def _text(environment: Mapping[str, str], name: str, default: str | None) -> str:
    value = environment.get(name) or default
    if value is None:
        raise BadInput(f"{name} is not set: the manifest of the copier pod sets it from the pod's own fields")
    return value


def _folder(environment: Mapping[str, str], name: str, default: str) -> Path:
    value = environment.get(name, default)
    if not value or not Path(value).is_dir():
        raise BadInput(f"{name} is '{value}', expected a folder that is there")
    return Path(value)


def _pull_policy(environment: Mapping[str, str]) -> str:
    value = environment.get("STELE_IMAGE_PULL_POLICY", PULL_POLICIES[0])
    if value not in PULL_POLICIES:
        raise BadInput(f"STELE_IMAGE_PULL_POLICY is '{value}', expected one of {', '.join(PULL_POLICIES)}")
    return value
