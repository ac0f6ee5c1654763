"""Settings of the operator, from the environment that the chart gives; a wrong one is named with what is
expected.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stele.errors import BadInput
from stele.master.manifests import CopierSetup, Setup

PULL_POLICIES = ("Always", "IfNotPresent", "Never")

EXPLAINED = """environment:
  STELE_MEMBER_IMAGE            image of the members, unless a TabletCluster names its own (required)
  STELE_SPARK_IMAGE             image of copier and Spark executors (required)
  STELE_IMAGE_PULL_POLICY       Always, IfNotPresent or Never (IfNotPresent)
  STELE_IMAGE_PULL_SECRETS      Secrets that the pods of clusters pull images with, comma separated (none)
  STELE_WATCH_NAMESPACES        namespaces to look after, comma separated (that of the operator)
  STELE_MEMBER_SERVICE_ACCOUNT  ServiceAccount of the members (stele-member)
  STELE_SPARK_SERVICE_ACCOUNT   ServiceAccount of the copier (stele-spark)
  STELE_EXECUTOR_SERVICE_ACCOUNT  ServiceAccount of Spark executors (stele-executor)
  STELE_SPARK_SECRET            Secret by which copier and Spark executors know each other (stele-spark-auth)
  STELE_LEASE_NAME              Lease that makes one process the master (stele-operator)
  STELE_HTTP_PORT               /healthz, /readyz, /metrics (8080)
  STELE_LOG_LEVEL               DEBUG, INFO, WARNING or ERROR (INFO)
  POD_NAME, POD_NAMESPACE, POD_UID  of the pod that it runs in; outside a cluster the lease is held by host
  and process
"""


@dataclass(frozen=True)
class Settings:
    """What holds for all clusters of one installation."""

    member_image: str
    spark_image: str
    namespaces: tuple[str, ...]
    own_namespace: str
    identity: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    member_account: str = "stele-member"
    spark_account: str = "stele-spark"
    executor_account: str = "stele-executor"
    spark_secret: str = "stele-spark-auth"
    lease_name: str = "stele-operator"
    http_port: int = 8080
    log_level: str = "INFO"

    @property
    def members(self) -> Setup:
        return Setup(self.member_image, self.pull_policy, self.member_account, self.pull_secrets)

    @property
    def copier(self) -> CopierSetup:
        return CopierSetup(
            self.spark_image,
            self.pull_policy,
            self.spark_account,
            self.pull_secrets,
            self.executor_account,
            self.spark_secret,
        )

    def in_namespace(self, namespace: str) -> "Settings":
        """With the namespace of the login where the environment names none."""
        own = self.own_namespace or namespace
        return replace(self, own_namespace=own, namespaces=self.namespaces or (own,))


def read(env: Mapping[str, str], process: str) -> Settings:
    """`process` identifies this process where there is no pod. `own_namespace` and `namespaces` are empty
    where the environment names none. Raises BadInput with the variable and what to do.
    """
    own = env.get("POD_NAMESPACE", "").strip()
    listed = _listed(env.get("STELE_WATCH_NAMESPACES", ""))
    policy = env.get("STELE_IMAGE_PULL_POLICY", "IfNotPresent")
    level = env.get("STELE_LOG_LEVEL", "INFO")
    if policy not in PULL_POLICIES:
        raise BadInput(f"STELE_IMAGE_PULL_POLICY is {policy!r}; it must be one of {', '.join(PULL_POLICIES)}")
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise BadInput(f"STELE_LOG_LEVEL is {level!r}; it must be DEBUG, INFO, WARNING or ERROR")
    return Settings(
        member_image=_required(env, "STELE_MEMBER_IMAGE"),
        spark_image=_required(env, "STELE_SPARK_IMAGE"),
        namespaces=listed or ((own,) if own else ()),
        own_namespace=own,
        identity=env.get("POD_UID", "").strip() or process,
        pull_policy=policy,
        pull_secrets=_listed(env.get("STELE_IMAGE_PULL_SECRETS", "")),
        member_account=env.get("STELE_MEMBER_SERVICE_ACCOUNT", "stele-member"),
        spark_account=env.get("STELE_SPARK_SERVICE_ACCOUNT", "stele-spark"),
        executor_account=env.get("STELE_EXECUTOR_SERVICE_ACCOUNT", "stele-executor"),
        spark_secret=env.get("STELE_SPARK_SECRET", "stele-spark-auth"),
        lease_name=env.get("STELE_LEASE_NAME", "stele-operator"),
        http_port=_port(env.get("STELE_HTTP_PORT", "8080")),
        log_level=level,
    )


def _listed(text: str) -> tuple[str, ...]:
    names = (each.strip() for each in text.split(","))
    return tuple(dict.fromkeys(each for each in names if each))


def _required(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "").strip()
    if not value or any(letter.isspace() for letter in value):
        raise BadInput(f"{name} is {value!r}; it must be the name of an image")
    return value


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 65_535:
        return int(text)
    raise BadInput(f"STELE_HTTP_PORT is {text!r}; it must be a port, 1 to 65535")
