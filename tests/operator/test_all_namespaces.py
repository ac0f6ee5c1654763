"""One operator for all namespaces, with the rights of the chart and no other, on a real API server."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import CLUSTERS, PODS, SECRETS, Api, NotFound
from stele.model.conditions import Reason
from tests.operator.rights import CLUSTER, NAMESPACED, OF_SECRETS, SPARK
from tests.operator.test_chart import Installed, by_kind, render
from tests.operator.test_operator import Operator, Stage, cluster

pytestmark = pytest.mark.control_plane

ACCOUNT = "stele-operator"
RIGHTS = NAMESPACED | CLUSTER | {"pods": NAMESPACED["pods"] | SPARK["pods"]}
"""Of the operator in any namespace."""

SETUP = {kind: {"create"} for kind in ("secrets", "rolebindings.rbac.authorization.k8s.io")}
"""What an admin of a namespace gives it besides; and to create ServiceAccounts."""


@pytest.fixture
def installed(control_plane: ControlPlane, namespace: str) -> Any:
    """The chart's rules of access, with `watchNamespaces: ["*"]`."""
    rendered = by_kind(render(control_plane, namespace, "watchNamespaces={*}"))
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    objects = [each for kind in kinds for each in rendered[kind]]
    control_plane.apply(namespace, *objects)
    yield Installed(control_plane, namespace)
    for each in objects:
        if each["kind"].startswith("Cluster"):
            control_plane.kubectl("delete", each["kind"], each["metadata"]["name"])


def login(plane: ControlPlane, namespace: str, folder: Path) -> Path:
    """A kubeconfig of the operator's ServiceAccount."""
    config = yaml.safe_load(plane.kubeconfig.read_text())
    token = plane.kubectl("create", "token", ACCOUNT, "-n", namespace).strip()
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = folder / "operator.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


async def exists(api: Api, namespace: str, secret: str) -> bool:
    return await api.find(SECRETS, namespace, secret) is not None


async def test_clusters_in_any_namespace_and_spark_where_an_admin_allows_it(
    control_plane: ControlPlane,
    installed: Installed,
    api: Api,
    operator: Operator,
    tmp_path: Path,
) -> None:
    namespace = installed.namespace
    tenant = f"{namespace}-tenant"
    control_plane.kubectl("create", "namespace", tenant)
    assert installed.rights(ACCOUNT, tenant) == RIGHTS
    operator.kubeconfig = login(control_plane, namespace, tmp_path)
    operator.env |= {
        "STELE_WATCH_NAMESPACES": "*",
        "STELE_MEMBER_SERVICE_ACCOUNT": "default",
        "STELE_SPARK_CLUSTER_ROLE": f"{namespace}-stele-spark",
        "STELE_SETUP_CLUSTER_ROLE": f"{namespace}-stele-spark-setup",
        "STELE_SECRETS_CLUSTER_ROLE": f"{namespace}-stele-secrets",
        "STELE_LEASE_NAME": "stele-operator",
    }
    stage = Stage(api, tenant, None, operator)  # type: ignore[arg-type]
    spec = {"migration": {"engine": "Auto"}, "security": {"clients": {"tls": "Optional"}}}
    await api.create(CLUSTERS, tenant, cluster("demo", 1, replicas=1, **spec))
    await operator.start()
    try:

        async def said(type_: str = "SparkReady") -> dict[str, Any]:
            conditions = ((await stage.cluster()).get("status") or {}).get("conditions", [])
            return next((each for each in conditions if each["type"] == type_), {})

        async def lacks_rights() -> bool:
            reasons = {(await said(type_)).get("reason") for type_ in ("SparkReady", "CertificatesHealthy")}
            return reasons == {Reason.NO_SECRET_RIGHTS}

        await stage.until("neither Spark nor certificates", lacks_rights)
        pod = await api.get(PODS, tenant, "demo-0")
        assert pod["spec"]["serviceAccountName"] == "default"
        with pytest.raises(NotFound):
            await api.get(PODS, tenant, "demo-copier")

        # The parts of the built-in role `admin`: nothing here aggregates them.
        for role in ("system:aggregate-to-admin", "system:aggregate-to-edit"):
            name = role.rpartition(":")[2]
            control_plane.kubectl(
                "create", "rolebinding", name, "-n", tenant, f"--clusterrole={role}", "--user=alice"
            )
        for type_ in ("SparkReady", "CertificatesHealthy"):
            command = re.search(r"kubectl (-n \S+ create rolebinding .*?) \(", (await said(type_))["message"])
            assert command is not None
            control_plane.kubectl(*command[1].split(), "--as=alice")

        async def has_copier() -> bool:
            try:
                await api.get(PODS, tenant, "demo-copier")
            except NotFound:
                return False
            return (await said())["status"] == "True"

        await stage.until("a copier", has_copier)
        await stage.until("a certificate", partial(exists, api, tenant, "demo-0-tls"))
        secret = await api.get(SECRETS, tenant, "stele-spark-auth")
        assert len(secret["data"]["secret"]) > 64
        spark = Installed(control_plane, tenant)
        assert spark.rights("stele-spark") == SPARK
        accounts = {"serviceaccounts": {"get", "create"}}
        assert installed.rights(ACCOUNT, tenant) == RIGHTS | SETUP | accounts | OF_SECRETS
        assert "secrets" not in installed.rights(ACCOUNT, "default")
    finally:
        await operator.end()
