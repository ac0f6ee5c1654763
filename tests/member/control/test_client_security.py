"""What is demanded of clients survives restarts, full volumes and masters that say nothing of it."""

import ssl
from pathlib import Path

import pytest

from stele.adapters.tls.acceptor import TlsAcceptor
from stele.adapters.tls.identity import TlsIdentity
from stele.core.control.member_settings import ClientAuth, ClientCertificates, ClientTls, MemberSettings
from stele.member.control.client_security import VERIFY, ClientDemands, stored_demands
from stele.member.resp.access import Access
from stele.member.storage.volume import CLIENT_SECURITY, Volume
from stele.wire.storage.volume import ClientSecurity, encode_file

REQUIRED = MemberSettings(client_tls=ClientTls.REQUIRED, client_certificates=ClientCertificates.ALLOW)


class Member:
    """The demands of one process on a volume; `full`: nothing can be written."""

    def __init__(self, folder: Path) -> None:
        self.volume, self.full = Volume(folder), False
        self.access = Access()
        self.acceptor = TlsAcceptor(TlsIdentity(None), lambda address, why: None)
        self.demands = ClientDemands(
            self.acceptor, stored_demands(self.volume), self.save, self.access.require
        )

    async def save(self, demands: ClientSecurity) -> None:
        if self.full:
            raise OSError(28, "no space left")
        written = (str(demands.tls), VERIFY[demands.certificates], demands.auth)
        assert (*self.in_force, self.demands.auth) != written, "not before it is written"
        self.volume.write({CLIENT_SECURITY: encode_file(demands)})

    @property
    def in_force(self) -> tuple[str, ssl.VerifyMode]:
        return str(self.acceptor.demand), self.acceptor.verify


async def test_a_process_starts_with_what_the_master_sent_last(tmp_path: Path) -> None:
    member = Member(tmp_path)
    assert member.in_force == ("Off", ssl.CERT_NONE)
    await member.demands.adopt(REQUIRED)
    assert Member(tmp_path).in_force == member.in_force == ("Required", ssl.CERT_OPTIONAL)
    for silent in (None, MemberSettings(heartbeat_ms=500)):
        await member.demands.adopt(silent)
        assert Member(tmp_path).in_force == member.in_force == ("Required", ssl.CERT_OPTIONAL)
    await member.demands.adopt(MemberSettings(client_tls=ClientTls.OFF))
    assert Member(tmp_path).in_force == member.in_force == ("Off", ssl.CERT_OPTIONAL)


async def test_clients_must_authenticate_from_the_moment_that_the_master_says_so(tmp_path: Path) -> None:
    member = Member(tmp_path)
    assert not member.access.required
    member.access.unreadable = True
    await member.demands.adopt(MemberSettings(auth=ClientAuth.REQUIRED))
    assert (member.access.required, member.access.unreadable) == (True, True)
    await member.demands.adopt(MemberSettings(auth=ClientAuth.OFF))
    assert not member.access.required


async def test_on_a_full_volume_nothing_changes_until_it_can_be_written(tmp_path: Path) -> None:
    member = Member(tmp_path)
    member.full = True
    await member.demands.adopt(REQUIRED)
    assert member.in_force == ("Off", ssl.CERT_NONE)
    member.full = False
    await member.demands.adopt(REQUIRED)
    assert member.in_force == ("Required", ssl.CERT_OPTIONAL)


async def test_another_error_of_the_disk_is_no_full_volume(tmp_path: Path) -> None:
    member = Member(tmp_path)

    async def fail(demands: ClientSecurity) -> None:
        raise OSError(5, "input/output error")

    member.demands = ClientDemands(member.acceptor, ClientSecurity(), fail, member.access.require)
    with pytest.raises(OSError, match="input/output"):
        await member.demands.adopt(REQUIRED)
    assert member.in_force == ("Off", ssl.CERT_NONE)


def test_with_a_damaged_file_tls_and_passwords_are_required(tmp_path: Path) -> None:
    (tmp_path / CLIENT_SECURITY).write_bytes(b"stele ClientSecurity 1\nxxxxyyyy")
    member = Member(tmp_path)
    assert (*member.in_force, member.demands.auth) == ("Required", ssl.CERT_NONE, ClientAuth.REQUIRED)


async def test_whether_clients_authenticate_survives_a_restart(tmp_path: Path) -> None:
    member = Member(tmp_path)
    assert member.demands.auth is None, "no master has said it"
    for said in (ClientAuth.REQUIRED, ClientAuth.OFF):
        await member.demands.adopt(MemberSettings(auth=said))
        await member.demands.adopt(MemberSettings())
        assert (member.demands.auth, Member(tmp_path).demands.auth) == (said, said)
