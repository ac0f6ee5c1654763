"""What `--engine Spark` needs: the copier as a process of this machine, with Spark in local mode."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from stele.adapters.spark.client import CopierClient
from stele.errors import BadInput
from stele.playground.limits import SPARK_DRIVERS_MAX
from stele.playground.objects import NAMESPACE
from stele.playground.ports import Ports
from stele.wire.copy.jobs import CopyJob, CopyJobStatus
from stele.wire.urls import http_root

HOST = "127.0.0.1"
JAVA_VERSION_MIN = 17
ATTEMPTS_MAX = 3
"""Attempts of a task, as on Kubernetes; without the number local mode makes one."""

OR_ELSE = "or use --engine Direct"


def check_spark() -> None:
    """Raise BadInput, with what to install, when Spark cannot run here."""
    if importlib.util.find_spec("pyspark") is None:
        raise BadInput(
            "--engine Spark needs PySpark, which is not installed: pip install '.[playground,spark]' in a "
            f"clone of Stele (456 MB), {OR_ELSE}"
        )
    version = java_version()
    if version < JAVA_VERSION_MIN:
        found = f"java is version {version}" if version else "there is none on the PATH or in JAVA_HOME"
        raise BadInput(
            f"--engine Spark needs Java {JAVA_VERSION_MIN} or newer, and {found}: install one, such as "
            f"Debian's default-jre-headless, {OR_ELSE}"
        )


def java_version() -> int:
    """Return the version of the Java that Spark would start; 0 without one."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=f"{home}/bin" if home else None)
    if program is None:
        return 0
    shown = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', shown.stderr)
    return int(found[1]) if found else 0


def copier_environment(name: str, folder: Path, ports: Ports) -> dict[str, str]:
    """Return the settings of a copier that writes into the volumes of this folder; make what it needs."""
    scratch = folder / "spark"
    scratch.mkdir(exist_ok=True)
    return {
        "POD_NAME": name,
        "POD_NAMESPACE": NAMESPACE,
        "POD_IP": HOST,
        "STELE_BIND": HOST,
        "STELE_COPIER_PORT": str(ports.copier),
        "STELE_SPARK_MASTER": f"local[{os.cpu_count() or 1},{ATTEMPTS_MAX}]",
        "STELE_DRIVERS_MAX": str(SPARK_DRIVERS_MAX),
        "STELE_STAGING": str(folder / "volumes" / "{claim}" / "staging"),
        "STELE_SCRATCH": str(scratch),
        # Spark would look for an address that others reach.
        "SPARK_LOCAL_IP": HOST,
    }


class LocalCopier(CopierClient):
    """The client of that copier; members have other ports here than in Kubernetes."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(f"http://{HOST}:{ports.copier}")
        self._transfer_port = ports.transfer

    async def submit(self, job: CopyJob) -> CopyJobStatus:
        """Start the job, or return the status of the same job."""
        source = http_root(urlsplit(job.source_url).hostname or "", self._transfer_port)
        return await super().submit(msgspec.structs.replace(job, source_url=source))
