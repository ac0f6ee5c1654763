"""Settings that the master changes while the member runs."""

from msgspec import structs

from stele.adapters import logs
from stele.core.control.member_settings import LogLevel, MemberSettings
from stele.core.kv.announce import POD_ADDRESSES, Announce
from stele.member import limits
from stele.member.settings import Settings


class LiveSettings:
    """The settings in effect: those of the last exchange, before it those of the process."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._sent = settings, MemberSettings()

    def adopt(self, sent: MemberSettings | None) -> None:
        """Adopt what a master sent; what it leaves out stays, as an older one does with newer settings."""
        before = self.log_level
        given = {} if sent is None else {name: v for name, v in structs.asdict(sent).items() if v is not None}
        self._sent = structs.replace(self._sent, **given)
        if self.log_level != before:
            logs.follow(self.log_level)

    @property
    def heartbeat_ms(self) -> int:
        sent = self._sent.heartbeat_ms
        return self._settings.heartbeat_ms if sent is None else sent

    @property
    def log_level(self) -> LogLevel:
        return self._sent.log_level or LogLevel.INFO

    @property
    def log_space_bytes(self) -> int:
        sent = self._sent.log_space_bytes
        return limits.LOG_SPACE_BYTES if sent is None else sent

    @property
    def snapshot_space_bytes(self) -> int:
        sent = self._sent.snapshot_space_bytes
        return limits.SNAPSHOT_SPACE_BYTES if sent is None else sent

    @property
    def announce(self) -> Announce:
        """What cluster clients are given as the members' addresses."""
        return self._sent.announce or POD_ADDRESSES

    @property
    def retention_seconds(self) -> int:
        """Seconds that deleted data stays in quarantine."""
        sent = self._sent.quarantine_retention_seconds
        return self._settings.retention_seconds if sent is None else sent
