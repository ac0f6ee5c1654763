"""What members need for TLS among themselves and to clients, and for users, as the operator mounts it."""

from __future__ import annotations

import secrets
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path

from stele.adapters.pki.certificates import Names, Pair, make_authority, sign_leaf
from stele.core.control.member_settings import ClientAuth, ClientCertificates, ClientTls, MemberSettings
from stele.core.security.identity import Holder, Role
from stele.core.security.level import InternalTls
from stele.wire.users import UserEntry, encode_users, generated_hash

DAYS = 30
SETTINGS = MemberSettings(
    client_tls=ClientTls.REQUIRED,
    client_certificates=ClientCertificates.IGNORE,
    auth=ClientAuth.REQUIRED,
    member_tls=InternalTls.REQUIRED,
)
"""What a new cluster with everything switched on is told."""


@dataclass
class Secured:
    """A CA of the cluster `uid`, whose files are in `folder`, and the password of the user `default`.

    `hosts` has the address of each member that was told about.
    """

    folder: Path
    uid: str
    ca: Pair
    password: str
    hosts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, uid: str) -> Secured:
        """Make the CA, a certificate for the master, and the file of users."""
        folder.mkdir(parents=True)
        made = cls(folder, uid, make_authority("bench", time.time(), DAYS), secrets.token_hex(32))
        made.trusted.write_bytes(made.ca.certificate)
        made._write(Role.MASTER, "operator", "localhost")
        hashed = generated_hash(made.password.encode())
        made.users.write_bytes(encode_users([UserEntry("default", (hashed,), ("+@all", "~*", "&*"))]))
        return made

    @property
    def trusted(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def users(self) -> Path:
        return self.folder / "users"

    def member(self, name: str, host: str) -> dict[str, str]:
        """Write a member's files; the environment that names them."""
        self.hosts[name] = host
        folder = self._write(Role.MEMBER, name, host)
        return {"STELE_TLS_DIR": str(folder), "STELE_USERS_FILE": str(self.users)}

    def renew(self, ca: Pair, trusted: bytes) -> None:
        """Replace all certificates by such of a CA, and what all trust."""
        self.ca = ca
        self.trusted.write_bytes(trusted)
        self._write(Role.MASTER, "operator", "localhost")
        for name, host in self.hosts.items():
            self._write(Role.MEMBER, name, host)

    def dialling(self) -> ssl.SSLContext:
        """The context of the master. Whom it reaches here is known by the port."""
        context = ssl.create_default_context(cafile=self.trusted)
        context.check_hostname = False
        folder = self.folder / Role.MASTER
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        return context

    def _write(self, role: Role, name: str, host: str) -> Path:
        leaf = sign_leaf(
            self.ca, Names(name, (Holder(self.uid, role, name).uri,), (host,)), time.time(), DAYS
        )
        folder = self.folder / (role if role is Role.MASTER else name)
        # As the kubelet does it: a link to a folder with all files is replaced.
        made = folder.with_name(f"{folder.name}-{secrets.token_hex(4)}")
        made.mkdir()
        files = {"tls.crt": leaf.certificate, "tls.key": leaf.key, "ca.crt": self.trusted.read_bytes()}
        for file, content in files.items():
            (made / file).write_bytes(content)
        link = made.with_suffix(".link")
        link.symlink_to(made)
        link.replace(folder)
        return folder
