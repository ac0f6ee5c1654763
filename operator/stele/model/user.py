"""TabletUser: one user of a cluster, with what it logs in by and its rights."""

from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from stele.core.kv.acl import RULE_BYTES_MAX, RULES_MAX
from stele.core.kv.keyspaces import NAME_CHARACTERS_MAX as KEYSPACE_CHARACTERS_MAX
from stele.core.kv.user_limits import (
    CONNECTIONS_MAX,
    KEYSPACES_MAX,
    NAME,
    NAME_CHARACTERS_MAX,
)
from stele.core.security.user_certificates import (
    COMMON_NAME,
    COMMON_NAME_CHARACTERS_MAX,
    OWN_SCHEME,
    URI,
    URI_CHARACTERS_MAX,
    certificate_of,
)
from stele.model.common import (
    CLUSTER_NAME_LENGTH,
    Model,
    Quantity,
    Resource,
    cel,
    count,
    quantity,
    quantity_bytes,
    whole,
)
from stele.model.conditions import Conditions, conditions_field

_NAME = f"^{NAME.pattern}$"
_EXPECTED = f"1 to {NAME_CHARACTERS_MAX} letters, digits, '.', '_' and '-', beginning with a letter or digit"
SECRET_NAME_LENGTH = 253
DEFAULT_USER = "default"

Rule = Annotated[str, Field(min_length=1, max_length=RULE_BYTES_MAX)]
KeyspaceName = Annotated[str, Field(min_length=1, max_length=KEYSPACE_CHARACTERS_MAX)]


def default_user_name(cluster: str) -> str:
    """Return the name of the Secret with the password of user `default` that the operator generates."""
    return f"{cluster}-default-user"


class SecretReference(Model):
    """A Secret of the same namespace."""

    name: str = Field(min_length=1, max_length=SECRET_NAME_LENGTH)
    """Name of the Secret. Its key `password` is the password; the one in `previousPassword`, if there is one,
    is valid besides."""


class UserPassword(Model):
    """Where the password is from."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "(has(self.generated) && self.generated) != has(self.secretRef)",
                "spec.password needs either generated: true, for a password that the operator makes, or"
                " secretRef.name, the Secret that has one; not both",
            ),
        )
    )

    generated: bool | None = None
    """Whether the operator makes one, in the Secret that is named NAME-password after this object."""
    secret_ref: SecretReference | None = None
    """A Secret that has the password."""


class UserCertificate(Model):
    """The certificate of a client that is this user without a password."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.uri) != has(self.commonName)",
                "spec.certificate needs either uri, one of the URIs in the certificate, or commonName, the CN"
                " of its subject; not both",
            ),
            (
                "!has(self.uri) || (self.uri.matches('^[A-Za-z][A-Za-z0-9+.-]*:[!-~]+$')"
                f" && !self.uri.lowerAscii().startsWith('{OWN_SCHEME}'))",
                "spec.certificate.uri must be a URI with its scheme, such as spiffe://example.com/shop,"
                f" without spaces; {OWN_SCHEME} is for parts of clusters",
            ),
        )
    )

    uri: str | None = Field(default=None, min_length=1, max_length=URI_CHARACTERS_MAX)
    """One of the URIs among its subject alternative names."""
    common_name: str | None = Field(default=None, min_length=1, max_length=COMMON_NAME_CHARACTERS_MAX)
    """The common name (CN) of its subject."""

    @property
    def text(self) -> str:
        """The text that stands for it, as in `core.security.user_certificates`."""
        return (
            certificate_of(URI, self.uri) if self.uri else certificate_of(COMMON_NAME, self.common_name or "")
        )


class UserLimits(Model):
    """What the user may use."""

    connections: int | None = whole(
        "spec.limits.connections", 1, CONNECTIONS_MAX, None, "leave it out for any number"
    )
    """Connections to each member; any number when omitted."""
    bytes_per_second: Quantity | None = quantity(
        "spec.limits.bytesPerSecond",
        None,
        (
            "!isQuantity(self) || (quantity(self).compareTo(quantity('1Ki')) >= 0"
            " && quantity(self).compareTo(quantity('1Ti')) <= 0)",
            "spec.limits.bytesPerSecond must be from 1Ki to 1Ti; leave it out for any number",
        ),
    )
    """Bytes that all connections to one member send and receive in a second; any number when omitted."""


class TabletUserSpec(Model):
    """Desired user."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("self.cluster == oldSelf.cluster", "spec.cluster cannot change: create another TabletUser"),
            (
                "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
                "spec.name cannot change: create another TabletUser",
            ),
            (f"!has(self.name) || self.name.matches('{_NAME}')", f"spec.name must be {_EXPECTED}"),
            (
                "has(self.password) || has(self.certificate)",
                "spec needs password, certificate or both: what clients log in by",
            ),
        )
    )

    cluster: str = Field(min_length=1, max_length=CLUSTER_NAME_LENGTH)
    """Name of the TabletCluster. Cannot change."""
    name: str | None = Field(default=None, min_length=1, max_length=NAME_CHARACTERS_MAX)
    """Name of the user, as in AUTH; the name of this object when omitted. Cannot change."""
    enabled: bool = True
    """Whether the user may log in. Connections of one that may not are closed."""
    password: UserPassword | None = None
    """Where the password is from; none when omitted."""
    certificate: UserCertificate | None = None
    """Certificate of clients that are this user without a password; none when omitted."""
    acl: tuple[Rule, ...] = Field(default=(), max_length=RULES_MAX)
    """Rights, as rules of Redis' ACL SETUSER in their order; without any the user may do nothing."""
    keyspaces: tuple[KeyspaceName, ...] = Field(default=(), max_length=KEYSPACES_MAX)
    """Keyspaces that the user may select; a connection begins in the first one. All when empty."""
    limits: UserLimits = Field(default_factory=UserLimits)
    """What the user may use."""


class UserMembers(Model):
    """Members of the cluster, as far as this user is concerned."""

    total: int = count()
    """Number of members."""
    current: int = count()
    """Number of members that know the user as it is now."""


class TabletUserStatus(Model):
    """Observed state of the user. Written by the operator only."""

    observed_generation: int = count()
    """metadata.generation that this status describes."""
    user: str = ""
    """Name of the user, as in AUTH."""
    secret: str = ""
    """Name of the Secret with the password; empty for a user without one."""
    members: UserMembers = Field(default_factory=UserMembers)
    conditions: Conditions = conditions_field()


class TabletUser(Resource):
    """A user of a cluster: what a client may do that logs in as this one."""

    KIND: ClassVar[str] = "TabletUser"
    PLURAL: ClassVar[str] = "tabletusers"
    PRIVATE: ClassVar[str] = "spec.acl"

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                f"self.metadata.name.size() <= {NAME_CHARACTERS_MAX}",
                f"metadata.name must have at most {NAME_CHARACTERS_MAX} characters: it names a Secret",
            ),
        )
    )

    kind: str = "TabletUser"
    spec: TabletUserSpec
    status: TabletUserStatus = Field(default_factory=TabletUserStatus)

    @property
    def user(self) -> str:
        """Return the name of the user."""
        return self.spec.name or self.metadata.name

    @property
    def bytes_per_second(self) -> int:
        """Return its limit, 0 for any number."""
        given = self.spec.limits.bytes_per_second
        return 0 if given is None else quantity_bytes(given)

    @property
    def secret(self) -> str:
        """Return the name of the Secret with its password, nothing for a user without one."""
        if self.spec.password is None:
            return ""
        reference = self.spec.password.secret_ref
        return f"{self.metadata.name}-password" if reference is None else reference.name
