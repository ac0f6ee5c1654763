"""Settings of the Spark application that copies to one destination, as pure values.

Volumes are the same for all executors of an application, hence one application per destination.
docs/design/copies.md, "What Spark needs on Kubernetes", explains the settings.
"""

import json
import re
from typing import Any

from stele.copyjob.settings import Settings
from stele.wire.copy.jobs import CopyJob
from stele.wire.pods import (
    COPIER_LABEL,
    DRIVER_BLOCK_PORT,
    DRIVER_PORT,
    DRIVER_PORTS_MAX,
    EXECUTOR_BLOCK_PORT,
    SPARK_SECRET_FILE,
    SPARK_SECRET_MOUNT,
    container_security,
    pod_security,
    spark_secret_volume,
)

HEAP_MIB = 512
OVERHEAD_MIB_MIN = 256
EXECUTOR_IDLE_SECONDS = 60
TASK_FAILURES_MAX = 3
MEMBER_LABEL = "stele.dev/member"
START_LABEL = "stele.dev/copier-start"
MOUNT = "/staging"
CONTAINER = "spark-kubernetes-executor"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_UNITS_KIB = {"k": 1, "m": 1024, "g": 1024 * 1024}


def spark_conf(settings: Settings, job: CopyJob, template: str) -> dict[str, str]:
    """Return all properties of the application; `template` is the path of the executors' pod template."""
    common = {
        "spark.master": settings.master,
        "spark.app.name": f"stele-copy-{job.destination}"[:63],
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark's smallest heap is 472 MiB.
        "spark.driver.memory": f"{HEAP_MIB}m",
        "spark.driver.host": settings.pod_ip,
        # Bound to the pod's IP, which is the address that executors connect to.
        "spark.driver.bindAddress": settings.pod_ip,
        "spark.local.dir": str(settings.scratch),
        "spark.task.maxFailures": str(TASK_FAILURES_MAX),
        "spark.python.worker.reuse": "true",
        "spark.speculation": "false",
    } | _authenticated()
    return common if settings.is_local else common | _kubernetes(settings, job, template)


def _authenticated() -> dict[str, str]:
    """Return the properties that authenticate and encrypt Spark's ports.

    On Kubernetes the secret is that of a file; a driver in local mode makes one of its own.
    """
    crypto = "spark.network.crypto"
    return {
        "spark.authenticate": "true",
        f"{crypto}.enabled": "true",
        f"{crypto}.authEngineVersion": "2",
        # The default, CTR, does not detect bytes modified in transit.
        f"{crypto}.cipher": "AES/GCM/NoPadding",
        # Otherwise a holder of the secret could request an unencrypted connection.
        f"{crypto}.saslFallback": "false",
    }


def _secret_and_ports() -> dict[str, str]:
    return {
        # Not the variants `.driver.file` and `.executor.file`: before an executor has connected to the
        # driver, it only reads this one.
        "spark.authenticate.secret.file": SPARK_SECRET_FILE,
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(DRIVER_BLOCK_PORT),
        "spark.blockManager.port": str(EXECUTOR_BLOCK_PORT),
        "spark.port.maxRetries": str(DRIVER_PORTS_MAX - 1),
    }


def _pull_secrets(settings: Settings) -> dict[str, str]:
    """Return the pull secrets; Spark would take an empty list for a Secret without a name."""
    name = "spark.kubernetes.container.image.pullSecrets"
    return {name: settings.pull_secrets} if settings.pull_secrets else {}


def _kubernetes(settings: Settings, job: CopyJob, template: str) -> dict[str, str]:
    k8s, volume = "spark.kubernetes", "spark.kubernetes.executor.volumes.persistentVolumeClaim.staging"
    overhead_mib = max(OVERHEAD_MIB_MIN, _mebibytes(job.memory) - HEAP_MIB)
    return _secret_and_ports() | {
        "spark.submit.deployMode": "client",
        # Otherwise the application waits up to 30 s for executors before it accepts a job.
        "spark.scheduler.minRegisteredResourcesRatio": "0",
        "spark.executor.cores": str(job.cores),
        "spark.executor.memory": f"{HEAP_MIB}m",
        "spark.executor.memoryOverhead": f"{overhead_mib}m",
        "spark.executor.heartbeatInterval": "5s",
        "spark.network.timeout": "60s",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.initialExecutors": str(job.executors),
        "spark.dynamicAllocation.maxExecutors": str(job.executors),
        "spark.dynamicAllocation.executorIdleTimeout": f"{EXECUTOR_IDLE_SECONDS}s",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        f"{k8s}.namespace": settings.namespace,
        f"{k8s}.container.image": settings.image,
        f"{k8s}.container.image.pullPolicy": settings.pull_policy,
        **_pull_secrets(settings),
        # Executors are owned by this pod, and deleted with it.
        f"{k8s}.driver.pod.name": settings.pod_name,
        f"{k8s}.authenticate.caCertFile": f"{_ACCOUNT}/ca.crt",
        f"{k8s}.authenticate.oauthTokenFile": f"{_ACCOUNT}/token",
        f"{k8s}.authenticate.executor.serviceAccountName": settings.executor_account,
        f"{k8s}.executor.useDriverPodIP": "false",
        # Spark would create or delete these three, which would need more permissions.
        f"{k8s}.executor.disableConfigMap": "true",
        f"{k8s}.driver.service.deleteOnTermination": "false",
        f"{k8s}.driver.ownPersistentVolumeClaim": "false",
        f"{k8s}.executor.request.cores": "100m",
        f"{k8s}.executor.podNamePrefix": _pod_prefix(job.destination),
        f"{k8s}.executor.label.{COPIER_LABEL}": settings.pod_name,
        f"{k8s}.executor.label.{START_LABEL}": settings.start,
        f"{k8s}.executor.podTemplateFile": template,
        f"{k8s}.executor.podTemplateContainerName": CONTAINER,
        # Must be above 100ms, or Spark refuses to start; the default is a second.
        f"{k8s}.allocation.batch.delay": "200ms",
        # Replace an executor soon that disappeared without notice (lost node, forced deletion).
        f"{k8s}.executor.missingPodDetectDelta": "5s",
        f"{k8s}.executor.apiPollingInterval": "5s",
        f"{volume}.options.claimName": job.claim,
        f"{volume}.mount.path": MOUNT,
        f"{volume}.mount.subPath": "staging",
        f"{volume}.mount.readOnly": "false",
    }


def pod_template(job: CopyJob, settings: Settings) -> str:
    """Return the executors' pod as JSON: on the destination's node, with minimal privileges."""
    terms = [
        {
            "labelSelector": {"matchLabels": {MEMBER_LABEL: job.destination}},
            "topologyKey": "kubernetes.io/hostname",
        }
    ]
    # Writes to /tmp too: Spark mounts a volume at each folder that the driver's SPARK_LOCAL_DIRS names.
    container: dict[str, Any] = {
        "name": CONTAINER,
        "securityContext": container_security(),
        "volumeMounts": [SPARK_SECRET_MOUNT],
    }
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        # Required: a ReadWriteOnce volume can only be mounted on the node of its member.
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": [spark_secret_volume(settings.spark_secret)],
        **json.loads(settings.executor_pod),
    }
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": spec}, indent=1)


def _mebibytes(memory: str) -> int:
    return int(memory[:-1]) * _UNITS_KIB[memory[-1].lower()] // 1024


def _pod_prefix(destination: str) -> str:
    """Return a name of at most 47 characters: Spark appends `-exec-<number>` and allows 63."""
    return "copy-" + re.sub(r"[^a-z0-9-]", "-", destination)[:40].strip("-")
