"""Certificate authorities and leaves for tests, as folders like those that the kubelet mounts."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from stele.adapters.pki.certificates import Names, make_authority, sign_leaf

LEAF_DAYS = 30
CA_DAYS = 5 * 365
DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Leaf:
    """A certificate with its key, both PEM, and the trusted CAs that are mounted with it."""

    certificate: bytes
    key: bytes
    trusted: bytes

    def write(self, folder: Path) -> Path:
        """Write the files of a Secret of type kubernetes.io/tls."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in (("tls.crt", self.certificate), ("tls.key", self.key), ("ca.crt", self.trusted)):
            (folder / name).write_bytes(content)
        return folder


class FakeCa:
    """A CA, which has been there for a year."""

    def __init__(self, name: str = "stele test CA") -> None:
        self._pair = make_authority(name, time.time() - 365 * DAY_SECONDS, CA_DAYS)
        self.certificate = self._pair.certificate

    def leaf(self, name: str = "demo-0", *, uris: Iterable[str] = (), days: int = LEAF_DAYS) -> Leaf:
        """Sign a leaf that ends in so many days, negative ones for one that has ended."""
        names = Names(name, tuple(uris), ("localhost", "127.0.0.1"))
        begin = time.time() + (days - LEAF_DAYS) * DAY_SECONDS
        pair = sign_leaf(self._pair, names, begin, LEAF_DAYS)
        return Leaf(pair.certificate, pair.key, self.certificate)


@cache
def shared_ca() -> FakeCa:
    """The CA that tests share unless they need two."""
    return FakeCa()
