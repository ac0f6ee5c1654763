"""A bare control plane for tests and benchmarks: a real etcd and kube-apiserver on free loopback ports.

There is no controller manager (nobody collects orphans or deletes namespaces), no scheduler, no kubelet.
Programs come from `STELE_PROGRAMS` when it is set, else from the test cluster's cache, which builds them.
"""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.programs import ensure

REPOSITORY = Path(__file__).parents[2]
READY_SECONDS = 60.0
POLL_SECONDS = 0.1
COMMAND_SECONDS = 60.0
END_SECONDS = 3.0
LOG_TAIL_BYTES = 2_000
DOCUMENTATION_ADDRESS = "192.0.2.1"
"""An address that no machine has (RFC 5737)."""


class ControlPlaneError(Exception):
    """The control plane did not start; the text holds the end of the log of the program that failed."""


def programs() -> Path:
    """The directory with etcd, kube-apiserver, kubeadm, kubectl and helm."""
    given = os.environ.get("STELE_PROGRAMS")
    return Path(given) if given else ensure()


@dataclass(frozen=True)
class ControlPlane:
    """A running API server and the way to it; the user of `kubeconfig` may do everything."""

    url: str
    kubeconfig: Path
    directory: Path
    bin: Path

    def run(
        self, program: str, *arguments: str, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl or helm against this control plane; the caller looks at the return code."""
        return subprocess.run(
            [str(self.bin / program), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            env=self.environment,
            check=False,
        )

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to reach this control plane, and to leave the user's own settings alone."""
        home = str(self.directory)
        helm = {f"HELM_{name}_HOME": f"{home}/helm/{name.lower()}" for name in ("CACHE", "CONFIG", "DATA")}
        path = f"{self.bin}:{os.environ.get('PATH', '')}"
        return {"PATH": path, "HOME": home, "KUBECONFIG": str(self.kubeconfig), **helm}

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Standard output of a kubectl command that must succeed."""
        done = self.run("kubectl", *arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr or done.stdout}"
        return done.stdout

    def refused(self, *arguments: str, stdin: str | None = None) -> str:
        """Standard error of a kubectl command that must fail."""
        done = self.run("kubectl", *arguments, stdin=stdin)
        assert done.returncode != 0, f"kubectl {' '.join(arguments)} was not refused: {done.stdout}"
        return done.stderr

    def apply(self, namespace: str, *objects: Mapping[str, Any]) -> str:
        """Apply objects in a namespace."""
        return self.kubectl("apply", "-n", namespace, "-f", "-", stdin=documents(*objects))

    def get(self, namespace: str, kind: str, name: str) -> dict[str, Any]:
        """One object as it is stored."""
        found: dict[str, Any] = json.loads(self.kubectl("get", "-n", namespace, kind, name, "-o", "json"))
        return found

    def install_crds(self, folder: Path = REPOSITORY / "crds") -> None:
        """Install Stele's resources and wait until they are served."""
        self.kubectl("apply", "-f", str(folder))
        self.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(folder))


def documents(*objects: Mapping[str, Any]) -> str:
    """Objects as one file. Not a List: kubectl itself would validate that, with worse messages."""
    return "\n---\n".join(json.dumps(each) for each in objects)


@contextmanager
def running(directory: Path) -> Iterator[ControlPlane]:
    """A control plane that lives as long as the block; its files are in `directory`."""
    found = programs()
    etcd_port, peer_port, api_port = _free_ports(3)
    kubeconfig = _credentials(found, directory, api_port)
    plane = ControlPlane(f"https://127.0.0.1:{api_port}", kubeconfig, directory, found)
    with (
        _process(found / "etcd", _etcd(directory, etcd_port, peer_port), directory) as etcd,
        _process(found / "kube-apiserver", _apiserver(directory, etcd_port, api_port), directory) as server,
    ):
        _wait_until_ready(plane, (etcd, server))
        yield plane


def _free_ports(number: int) -> list[int]:
    """Ports that were free a moment ago; all are held until all are known, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def _credentials(found: Path, directory: Path, port: int) -> Path:
    """Own CA, certificates and an administrator's kubeconfig, made by kubeadm."""
    certs = f"--cert-dir={directory / 'pki'}"
    # Without a version kubeadm asks the Internet for one; it refuses a loopback address as its own.
    node = [certs, "--kubernetes-version=v1.34.0", f"--apiserver-advertise-address={DOCUMENTATION_ADDRESS}"]
    endpoint = [f"--control-plane-endpoint=127.0.0.1:{port}", f"--kubeconfig-dir={directory}"]
    _kubeadm(found, "certs", "ca", *node[:2])
    _kubeadm(found, "certs", "sa", certs)
    _kubeadm(found, "certs", "apiserver", *node, "--apiserver-cert-extra-sans=127.0.0.1")
    _kubeadm(found, "kubeconfig", "super-admin", *node, *endpoint)
    return directory / "super-admin.conf"


def _kubeadm(found: Path, *arguments: str) -> None:
    command = [str(found / "kubeadm"), "init", "phase", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    if done.returncode:
        raise ControlPlaneError(f"{' '.join(command)}: {done.stderr}")


def _etcd(directory: Path, port: int, peer_port: int) -> list[str]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return [
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _apiserver(directory: Path, etcd_port: int, port: int) -> list[str]:
    pki = directory / "pki"
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=RBAC",
        # No controller makes the ServiceAccount `default`, without which no pod would be admitted.
        "--disable-admission-plugins=ServiceAccount",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
    ]


@contextmanager
def _process(program: Path, arguments: list[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that lives as long as the block, and never longer than this process."""
    with (directory / f"{program.name}.log").open("wb") as log:
        # setpriv replaces itself by the program, so the id is the program's own; the kernel kills the program
        # when this process is killed before it can.
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", str(program), *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        # An API server waits up to a minute for open watches; nothing of it is needed any more.
        process.kill()
        process.wait(END_SECONDS)


def _wait_until_ready(plane: ControlPlane, processes: tuple[subprocess.Popen[bytes], ...]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while plane.run("kubectl", "get", "--raw", "/readyz").returncode != 0:
        ended = any(each.poll() is not None for each in processes)
        if ended or time.monotonic() > deadline:
            why = "a program ended" if ended else f"not ready within {READY_SECONDS:g} s"
            raise ControlPlaneError(f"control plane: {why}\n{_logs(plane.directory)}")
        time.sleep(POLL_SECONDS)


def _logs(directory: Path) -> str:
    ends = {path.name: path.read_bytes()[-LOG_TAIL_BYTES:] for path in sorted(directory.glob("*.log"))}
    return "\n".join(f"--- {name}\n{tail.decode(errors='replace')}" for name, tail in ends.items())
