"""Credentials for the API server: a kubeconfig, or the service account of this pod."""

import os
import ssl
from dataclasses import dataclass, field
from typing import Any

import yaml
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

from stele.adapters.kubernetes.impersonation import Headers, impersonation
from stele.adapters.kubernetes.pod_login import ACCOUNT, trust
from stele.errors import BadInput

_UNREADABLE = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError)
"""Exceptions of the library for malformed kubeconfigs, which it does not validate."""


@dataclass
class Login:
    """Address and credentials. `token` rereads the file of a rotating token when necessary.

    `impersonation` are headers of each request, which say whom it acts as.
    """

    server: str
    ca_file: str | None
    certificate_file: str | None
    key_file: str | None
    verify: bool
    namespace: str
    configuration: Any = field(repr=False)
    impersonation: Headers = ()

    def token(self) -> str | None:
        """Return the current bearer token, without the word Bearer."""
        if self.configuration.refresh_api_key_hook is not None:
            self.configuration.refresh_api_key_hook(self.configuration)
        value = self.configuration.api_key.get("BearerToken")
        return None if not value else str(value).split(None, 1)[-1].strip()

    def ssl_context(self) -> ssl.SSLContext:
        context = trust(self.ca_file)
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


async def log_in(kubeconfig: str | None = None, context: str | None = None) -> Login:
    """Log in from the given kubeconfig, else as the pod, else from KUBECONFIG or ~/.kube/config.

    Raises BadInput.
    """
    configuration, acts_as = Configuration(), Headers()
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=kubeconfig, context=context, client_configuration=configuration
            )
            acts_as = impersonation(kubeconfig, loader.current_context["context"].get("user") or "")
    except (*_UNREADABLE, config.ConfigException, OSError) as error:
        where = kubeconfig or "KUBECONFIG or ~/.kube/config"
        raise BadInput(
            f"cannot log in to Kubernetes: {error}; run inside a pod, or provide a kubeconfig ({where})"
        ) from error
    return Login(
        server=str(configuration.host),
        ca_file=configuration.ssl_ca_cert,
        certificate_file=configuration.cert_file,
        key_file=configuration.key_file,
        verify=bool(configuration.verify_ssl),
        namespace=_namespace(),
        configuration=configuration,
        impersonation=acts_as,
    )


def _namespace() -> str:
    """Return the namespace of this process; `default` outside a cluster."""
    path = ACCOUNT / "namespace"
    from_environment = os.environ.get("POD_NAMESPACE")
    return from_environment or (path.read_text(encoding="utf-8").strip() if path.is_file() else "default")
