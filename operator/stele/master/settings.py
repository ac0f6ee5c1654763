"""Settings of the operator, from the environment that the chart sets."""

from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from stele.adapters.environment import Port, PullPolicy, Word, setting
from stele.adapters.logs import LogFormat
from stele.master.manifests import CopierSetup, Setup

IMAGE = "the name of an image"
ALL_NAMESPACES = "*"
PagePort = Annotated[int, Meta(ge=0, le=65_535)]


@dataclass(frozen=True)
class Settings:
    """Settings for all clusters of one installation. `log_format` is that of the pods of clusters."""

    member_image: Word = setting(
        "STELE_MEMBER_IMAGE", "of members, unless a TabletCluster names its own", expected=IMAGE
    )
    spark_image: Word = setting("STELE_SPARK_IMAGE", "of the copier and Spark executors", expected=IMAGE)
    namespaces: tuple[str, ...] = setting(
        "STELE_WATCH_NAMESPACES", "comma separated, or *; without it that of the operator", default=()
    )
    own_namespace: str = setting("POD_NAMESPACE", "of the pod that it runs in", default="")
    identity: str = setting(
        "POD_UID", "of that pod; without it the lease is held by host and process", default=""
    )
    pull_policy: PullPolicy = setting("STELE_IMAGE_PULL_POLICY", "of clusters' pods", default="IfNotPresent")
    pull_secrets: tuple[str, ...] = setting(
        "STELE_IMAGE_PULL_SECRETS", "Secrets that images are pulled with, comma separated", default=()
    )
    member_account: str = setting(
        "STELE_MEMBER_SERVICE_ACCOUNT", "ServiceAccount of members", default="stele-member"
    )
    spark_account: str = setting(
        "STELE_SPARK_SERVICE_ACCOUNT", "ServiceAccount of the copier", default="stele-spark"
    )
    executor_account: str = setting(
        "STELE_EXECUTOR_SERVICE_ACCOUNT", "ServiceAccount of Spark executors", default="stele-executor"
    )
    spark_secret: str = setting(
        "STELE_SPARK_SECRET", "Secret of copier and Spark executors", default="stele-spark-auth"
    )
    own_account: str = setting(
        "STELE_OPERATOR_SERVICE_ACCOUNT",
        "ServiceAccount of the operator, for messages",
        default="stele-operator",
    )
    spark_role: str = setting(
        "STELE_SPARK_CLUSTER_ROLE",
        "ClusterRole of copiers, where all namespaces are watched",
        default="stele-spark",
    )
    setup_role: str = setting(
        "STELE_SETUP_CLUSTER_ROLE",
        "ClusterRole that lets the operator set Spark up in a namespace, for messages",
        default="stele-spark-setup",
    )
    secrets_role: str = setting(
        "STELE_SECRETS_CLUSTER_ROLE",
        "ClusterRole that lets the operator make certificates in a namespace, for messages",
        default="stele-secrets",
    )
    lease_name: str = setting(
        "STELE_LEASE_NAME", "Lease that makes one process the master", default="stele-operator"
    )
    http_port: Port = setting("STELE_HTTP_PORT", "/healthz, /readyz, /metrics", default=8080)
    page_port: PagePort = setting(
        "STELE_PAGE_PORT", "the page, on 127.0.0.1 of the pod alone; 0: none", default=8081
    )
    log_format: LogFormat = LogFormat.TEXT

    @property
    def all_namespaces(self) -> bool:
        return ALL_NAMESPACES in self.namespaces

    @property
    def members(self) -> Setup:
        return Setup(
            self.member_image,
            self.pull_policy,
            self.member_account,
            self.pull_secrets,
            log_format=self.log_format,
        )

    @property
    def copier(self) -> CopierSetup:
        return CopierSetup(
            self.spark_image,
            self.pull_policy,
            self.spark_account,
            self.pull_secrets,
            self.executor_account,
            self.spark_secret,
            log_format=self.log_format,
        )

    def completed(self, namespace: str, process: str) -> "Settings":
        """Fill in the login's namespace, and `process` as identity, where the environment has none."""
        own = self.own_namespace or namespace
        return replace(
            self,
            own_namespace=own,
            namespaces=self.namespaces or (own,),
            identity=self.identity or process,
        )
