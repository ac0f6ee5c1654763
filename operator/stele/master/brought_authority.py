"""The CA that a user brings for one cluster, as its Secret has it: cert-manager writes one of this form."""

from stele.adapters.kubernetes.secret_store import StoredSecret
from stele.adapters.pki.certificates import Pair, read_authority
from stele.errors import BadInput, Corrupt
from stele.master.authority import CERTIFICATE, KEY, TRUSTED, ca_name
from stele.master.kept_secrets import KeptSecrets
from stele.model import TabletCluster

LOOK_SECONDS = 10.0
"""Seconds until the Secret is read again, in case it was renewed."""

FIELD = "spec.security.ca.secretName"


class BroughtAuthority:
    """`problem` is why the one that is asked for cannot be used, as of the last `read`."""

    def __init__(self, secrets: KeptSecrets) -> None:
        self._secrets = secrets
        self.problem: BadInput | None = None
        self._name, self._read_at = "", float("-inf")
        self._pair: Pair | None = None

    async def read(self, cluster: TabletCluster, now: float) -> Pair | None:
        """Return the CA, or None when none is asked for or there is a `problem`.

        Raises Refused without the right to read it, and what the API server raises.
        """
        name = cluster.spec.security.ca.secret_name or ""
        if name == self._name and now - self._read_at < LOOK_SECONDS:
            return self._pair
        self._pair, self.problem = None, None
        if name:
            try:
                self._pair = await self._found(name, cluster, now)
            except (BadInput, Corrupt) as error:
                self.problem = BadInput(f"{FIELD}: {error.text}")
        self._name, self._read_at = name, now
        return self._pair

    async def _found(self, name: str, cluster: TabletCluster, now: float) -> Pair:
        if name == ca_name(cluster.metadata.name):
            raise BadInput(f"Secret {name} is where the operator keeps the CA; name one of your own")
        secret = await self._secrets.read_of_anybody(name)
        if secret is None:
            raise BadInput(f"there is no Secret {name}; it has to have {CERTIFICATE} and {KEY} of a CA")
        return _pair(secret, now)


def _pair(secret: StoredSecret, now: float) -> Pair:
    if lacking := [key for key in (CERTIFICATE, KEY) if not secret.data.get(key)]:
        raise BadInput(f"Secret {secret.name} has no {' and no '.join(lacking)}")
    try:
        return read_authority(secret.data[CERTIFICATE], secret.data[KEY], secret.data.get(TRUSTED, b""), now)
    except Corrupt as error:
        raise BadInput(f"Secret {secret.name} has no usable CA: {error.text}") from None
