"""What Spark needs in a namespace, made by the operator where it watches all namespaces.

Where namespaces are listed, the chart makes the same. The right to make it is given by each namespace's
admin, because it is a right on Secrets; without it members copy by themselves.
"""

import secrets
import time
from typing import Any

from stele.adapters.kubernetes.api import ROLE_BINDINGS, SECRETS, SERVICE_ACCOUNTS, AlreadyExists, Api, Kind
from stele.errors import Refused
from stele.master.settings import Settings
from stele.wire.pods import SPARK_SECRET_KEY

RETRY_SECONDS = 10.0
"""Seconds until rights that were missing are tried again."""

SECRET_BYTES = 48

Object = dict[str, Any]


class NamespaceSetup:
    """ServiceAccount, RoleBinding and Secret of the copier. `problem` says why they cannot be made."""

    def __init__(self, api: Api, settings: Settings, namespace: str) -> None:
        self._api, self._settings, self._namespace = api, settings, namespace
        self._tried_seconds = float("-inf")
        self._done = not settings.all_namespaces
        self.problem = ""

    async def ensure(self) -> bool:
        """Make what is missing; return whether all of it is there. What others made is left as it is."""
        if not self._done and time.monotonic() - self._tried_seconds >= RETRY_SECONDS:
            self._tried_seconds = time.monotonic()
            try:
                for kind, body in self._objects():
                    await self._make(kind, body)
                self._done, self.problem = True, ""
            except Refused as error:
                self.problem = self._missing_rights(str(error.args[0]))
        return self._done

    async def _make(self, kind: Kind, body: Object) -> None:
        try:
            await self._api.create(kind, self._namespace, body)
        except AlreadyExists:
            return

    def _objects(self) -> list[tuple[Kind, Object]]:
        settings, account = self._settings, self._settings.spark_account
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": settings.spark_role}
        subject = {"kind": "ServiceAccount", "name": account, "namespace": self._namespace}
        secret = {SPARK_SECRET_KEY: secrets.token_urlsafe(SECRET_BYTES)}
        return [
            (SERVICE_ACCOUNTS, _named(SERVICE_ACCOUNTS, account, automountServiceAccountToken=False)),
            (ROLE_BINDINGS, _named(ROLE_BINDINGS, account, roleRef=role, subjects=[subject])),
            (SECRETS, _named(SECRETS, settings.spark_secret, stringData=secret)),
        ]

    def _missing_rights(self, refusal: str) -> str:
        settings, namespace = self._settings, self._namespace
        operator = f"{settings.own_namespace}:{settings.own_account}"
        return (
            f"Spark is not used, because the operator may not make its Secret in namespace {namespace}; "
            f"an admin of the namespace gives the right by: kubectl -n {namespace} create rolebinding "
            f"stele-spark-setup --clusterrole={settings.setup_role} --serviceaccount={operator} ({refusal})"
        )


def _named(kind: Kind, name: str, **fields: Any) -> Object:
    labels = {"app.kubernetes.io/part-of": "stele", "app.kubernetes.io/managed-by": "stele-operator"}
    return {"apiVersion": kind.api, "kind": kind.kind, "metadata": {"name": name, "labels": labels}, **fields}
