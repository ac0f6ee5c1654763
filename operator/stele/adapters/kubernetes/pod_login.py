"""The service account of the pod that we run in, without the `kubernetes` package."""

import ssl
from dataclasses import dataclass
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class PodLogin:
    """The API server, and the folder that Kubernetes mounts; what is not there raises OSError."""

    server: str
    account: Path = ACCOUNT

    def token(self) -> str:
        """That of this moment: Kubernetes replaces the file before a token ends."""
        return (self.account / "token").read_text(encoding="utf-8").strip()

    def ssl_context(self) -> ssl.SSLContext:
        return trust(str(self.account / "ca.crt"))


def trust(ca_file: str | None) -> ssl.SSLContext:
    """Of a cluster's CA; many lack an extension that Python 3.13 began to ask for."""
    context = ssl.create_default_context(cafile=ca_file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
