"""Login as this pod's service account, without the `kubernetes` package."""

import ssl
from dataclasses import dataclass
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class PodLogin:
    """The API server, and the directory mounted by Kubernetes; missing files raise OSError."""

    server: str
    account: Path = ACCOUNT

    def token(self) -> str:
        """Return the current token: Kubernetes replaces the file before a token expires."""
        return (self.account / "token").read_text(encoding="utf-8").strip()

    def ssl_context(self) -> ssl.SSLContext:
        return trust(str(self.account / "ca.crt"))


def trust(ca_file: str | None) -> ssl.SSLContext:
    """Return a context that trusts the cluster's CA; many lack an extension that Python 3.13 requires."""
    context = ssl.create_default_context(cafile=ca_file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
