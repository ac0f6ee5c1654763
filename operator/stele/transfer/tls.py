"""TLS of a transfer process: the level and the certificate of the member in its pod.

Off, Accept, Dial, Required are those of the peer port (`core.security.level`). The member writes the level to
the volume before it uses it, and here the file is looked at for each request: so neither process is behind.
"""

import logging
from pathlib import Path

from stele.adapters.tls.caller import Caller, caller_refusal, own_cluster
from stele.adapters.tls.dialled import Secured
from stele.adapters.tls.identity import TlsIdentity
from stele.adapters.tls.peer import Expected
from stele.core.security.identity import Role
from stele.core.security.level import InternalTls
from stele.core.security.rotation import GRACE_SECONDS, grace_seconds
from stele.errors import BadInput, Corrupt, Unavailable
from stele.wire.storage.volume import MEMBER_SECURITY, MemberSecurity, decode_file

log = logging.getLogger("stele.tls")

_Stamp = tuple[int, int, int]


class VolumeTls:
    """What the member keeps on the volume, and the certificate in `tls_dir`, empty for none.

    Without the file it is the pod's `first` level, and where it is damaged Required, as at the member.
    """

    def __init__(self, data: Path, tls_dir: str, first: InternalTls = InternalTls.OFF) -> None:
        self._first = MemberSecurity(first)
        self._path = data / MEMBER_SECURITY
        self._stamp: _Stamp | None = None
        self._security, self._problem = self._first, ""
        self.identity = TlsIdentity(Path(tls_dir) if tls_dir else None, GRACE_SECONDS)

    @property
    def level(self) -> InternalTls:
        """What is in force for new connections."""
        return self._in_force().tls

    def _in_force(self) -> MemberSecurity:
        try:
            stat = self._path.stat()
            stamp = stat.st_ino, stat.st_mtime_ns, stat.st_size
            if stamp != self._stamp:
                stored = decode_file(MemberSecurity, self._path.read_bytes(), str(self._path))
                self._security, self._stamp, self._problem = stored, stamp, ""
        except FileNotFoundError:
            self._security, self._stamp = self._first, None
        except (OSError, Corrupt) as error:
            self._security, self._stamp = MemberSecurity(InternalTls.REQUIRED), None
            if self._problem != str(error):
                log.error("the level of TLS between members is unknown, so it is Required: %s", error)
            self._problem = str(error)
        return self._security

    @property
    def _grace_seconds(self) -> float:
        return grace_seconds(takes_expired=self._in_force().grace_expired)

    def dialling(self, member: str) -> Secured | None:
        """Return how to dial the transfer process of another member; None without TLS.

        Raises BadInput (SOURCE) without its name, by which it is known, and Unavailable (SOURCE) without a
        usable certificate. This blocks for milliseconds.
        """
        if not self.level.dials_tls:
            return None
        if not member:
            raise BadInput("source is empty; expected the name of the member to copy from", "SOURCE")
        self.identity.look()
        if (contexts := self.identity.contexts) is None:
            raise Unavailable(f"this member has no usable certificate: {self.identity.problem}", "SOURCE")
        source = Expected(own_cluster(contexts), (Role.MEMBER,), member)
        return Secured(contexts.dialling, source, self._grace_seconds)

    def refusal(self, found: Caller) -> str:
        """Return why who sends a request is not taken, or nothing."""
        return caller_refusal(self.identity.contexts, found, (Role.MEMBER,), self._grace_seconds)
