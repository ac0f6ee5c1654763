"""What members are told to ask of clients, from the spec to the process."""

import msgspec
import pytest

from stele.core.control.member_settings import ClientAuth, LogLevel, MemberSettings
from stele.master.desired import desired_spec_of
from stele.member.live_settings import LiveSettings
from stele.member.settings import read_settings
from stele.model import TabletCluster
from tests.fakes.spec import MINIMAL, OPEN


class OldSettings(msgspec.Struct, frozen=True):
    """Settings as members knew them before clients could be asked for anything."""

    heartbeat_ms: int | None = None


def told(**clients: str) -> MemberSettings:
    spec = MINIMAL["spec"] | {"security": OPEN | {"clients": OPEN["clients"] | clients}}
    return desired_spec_of(TabletCluster.model_validate(MINIMAL | {"spec": spec})).member_settings


def live() -> LiveSettings:
    names = {"STELE_DATA_DIR": "/data", "STELE_CLUSTER_UID": "u", "STELE_MEMBER_NAME": "demo-0"}
    return LiveSettings(read_settings(names))


def asked(settings: MemberSettings) -> tuple[str | None, str | None, str | None]:
    return settings.client_tls, settings.client_certificates, settings.auth


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        ({}, ("Off", "Ignore", "Off")),
        ({"tls": "Optional"}, ("Optional", "Ignore", "Off")),
        (
            {"tls": "Required", "clientCertificates": "Require", "auth": "Required"},
            ("Required", "Require", "Required"),
        ),
    ],
)
def test_members_are_told_what_the_spec_asks_of_clients(
    clients: dict[str, str], expected: tuple[str, str, str]
) -> None:
    assert asked(msgspec.json.decode(msgspec.json.encode(told(**clients)), type=MemberSettings)) == expected


def test_a_member_keeps_what_it_was_told_until_a_master_says_otherwise() -> None:
    settings = live()
    assert settings.heartbeat_ms == 300
    settings.adopt(MemberSettings(heartbeat_ms=500))
    for silent in (None, MemberSettings(auth=ClientAuth.REQUIRED)):
        settings.adopt(silent)
        assert settings.heartbeat_ms == 500
    settings.adopt(told())
    assert settings.heartbeat_ms == 1000


def test_older_masters_and_members_leave_it_out() -> None:
    text = msgspec.json.encode(told(tls="Required", clientCertificates="Allow"))
    assert msgspec.json.decode(text, type=OldSettings).heartbeat_ms == 1000
    old = msgspec.json.decode(msgspec.json.encode(OldSettings(500)), type=MemberSettings)
    assert asked(old) == (None, None, None)


def test_the_level_of_the_log_changes_when_the_spec_does(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[str] = []
    monkeypatch.setattr("stele.adapters.logs.follow", followed.append)
    settings = live()
    for level in ("INFO", None, "DEBUG", "DEBUG", None, "INFO", "INFO"):
        settings.adopt(MemberSettings(log_level=level and LogLevel(level)))
    assert followed == ["DEBUG", "INFO"]
    assert settings.log_level is LogLevel.INFO
