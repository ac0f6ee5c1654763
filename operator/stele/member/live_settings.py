"""Settings that the master changes while the member runs."""

from stele.core.control.commands import MemberSettings
from stele.member import limits


class LiveSettings:
    """The settings in effect: those of the last exchange, before it those of `limits`."""

    def __init__(self) -> None:
        self._sent = MemberSettings()

    def adopt(self, sent: MemberSettings | None) -> None:
        """Adopt what a master sent; one that sends none changes nothing."""
        self._sent = sent or self._sent

    @property
    def log_space_bytes(self) -> int:
        sent = self._sent.log_space_bytes
        return limits.LOG_SPACE_BYTES if sent is None else sent

    @property
    def snapshot_space_bytes(self) -> int:
        sent = self._sent.snapshot_space_bytes
        return limits.SNAPSHOT_SPACE_BYTES if sent is None else sent
