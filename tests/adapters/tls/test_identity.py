"""A process' certificate: what is used, what is not and why, and when files are replaced."""

import asyncio
import os
import ssl
import time
from pathlib import Path

import pytest

from stele.adapters.tls import identity as identities
from stele.adapters.tls.identity import FILE_BYTES_MAX, TlsIdentity
from stele.wire.identity import identity_digest
from tests.adapters.tls.conftest import until
from tests.fakes.pki import FakeCa, Leaf, shared_ca


def identity_of(folder: Path) -> TlsIdentity:
    identity = TlsIdentity(folder)
    identity.look()
    return identity


def mount(folder: Path, leaf: Leaf, version: str) -> Path:
    """Put files there as the kubelet does: links into a folder that is itself a link, which is replaced."""
    leaf.write(folder / version)
    link = folder / "next"
    link.symlink_to(version)
    os.replace(link, folder / "..data")
    for name in ("tls.crt", "tls.key", "ca.crt"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    return folder


def test_without_a_folder_there_is_no_certificate() -> None:
    identity = TlsIdentity(None)
    identity.look()
    assert (identity.contexts, identity.days_left(0)) == (None, None)
    assert identity.problem == "STELE_TLS_DIR is not set"


def test_what_is_mounted_is_used(tmp_path: Path) -> None:
    identity = identity_of(shared_ca().leaf(days=10).write(tmp_path))
    assert identity.problem == ""
    assert identity.contexts is not None
    now = identity.contexts.ends_s - 86_400
    assert identity.days_left(now) == 1
    assert set(identity.contexts.servers) == set(ssl.VerifyMode)


def test_cas_may_have_their_names_in_any_script_between_them(tmp_path: Path) -> None:
    folder = shared_ca().leaf().write(tmp_path)
    (folder / "ca.crt").write_bytes(
        "# Zertifizierungsstelle für Köln\n".encode() + (folder / "ca.crt").read_bytes()
    )
    identity = identity_of(folder)
    assert identity.problem == ""
    assert identity.contexts is not None
    assert len(identity.contexts.dialling.get_ca_certs()) == 1


def test_the_kubelets_replacement_is_used_and_nothing_is_read_twice(tmp_path: Path) -> None:
    identity = identity_of(mount(tmp_path, shared_ca().leaf(days=10), "first"))
    first, before = identity.contexts, identity.digest
    assert before == identity_digest((tmp_path / "tls.crt").read_bytes(), (tmp_path / "ca.crt").read_bytes())
    identity.look()
    assert (identity.contexts, identity.loads) == (first, 1)
    mount(tmp_path, shared_ca().leaf(days=20), "second")
    identity.look()
    assert first is not None
    assert identity.contexts is not None
    assert identity.contexts.ends_s - first.ends_s == pytest.approx(10 * 86_400, abs=60)
    assert identity.digest == identity_digest(
        (tmp_path / "tls.crt").read_bytes(), (tmp_path / "ca.crt").read_bytes()
    )
    assert identity.digest != before


FAULTS = {
    "wrong key": ("tls.key", lambda: shared_ca().leaf().key, "tls.key is not the key of tls.crt"),
    "no PEM": ("tls.crt", lambda: b"nonsense", "tls.crt, tls.key or ca.crt is not usable PEM"),
    "other CA": ("ca.crt", lambda: FakeCa("other").certificate, "tls.crt is not valid by ca.crt: unable to"),
    "empty": ("ca.crt", lambda: b"", "tls.crt, tls.key or ca.crt is not usable PEM"),
    "too large": ("ca.crt", lambda: b"#" * (FILE_BYTES_MAX + 1), f"at most {FILE_BYTES_MAX}"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_used_is_reported_and_the_former_one_stays(tmp_path: Path, fault: str) -> None:
    name, content, text = FAULTS[fault]
    identity = identity_of(shared_ca().leaf().write(tmp_path))
    before = identity.contexts
    good = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content())
    identity.look()
    assert identity.contexts is before
    assert text in identity.problem
    assert identity_of(tmp_path).contexts is None, "a new process has no former one"
    (tmp_path / name).write_bytes(good)
    identity.look()
    assert identity.problem == ""


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_a_file_that_goes_is_reported(tmp_path: Path, name: str) -> None:
    identity = identity_of(shared_ca().leaf().write(tmp_path))
    before = identity.contexts
    (tmp_path / name).unlink()
    identity.look()
    assert name in identity.problem
    assert identity.contexts is before


def test_an_expired_certificate_is_not_taken(tmp_path: Path) -> None:
    identity = identity_of(shared_ca().leaf(days=-1).write(tmp_path))
    assert identity.contexts is None
    assert "certificate has expired" in identity.problem


def test_a_process_begins_with_one_that_ended_lately_and_changes_to_none(tmp_path: Path) -> None:
    """An operator that was away for long is no reason to be alone; what is in use is not made worse."""
    shared_ca().leaf(days=-1).write(tmp_path)
    identity = TlsIdentity(tmp_path, grace_seconds=2 * 86_400)
    identity.look()
    before = identity.contexts
    assert before is not None
    assert -1.1 < (identity.days_left(time.time()) or 0) < -0.9
    shared_ca().leaf(days=-2).write(tmp_path)
    identity.look()
    assert identity.contexts is before
    assert "certificate has expired" in identity.problem
    identity = TlsIdentity(tmp_path, grace_seconds=86_400)
    identity.look()
    assert identity.contexts is None


def test_a_certificate_of_tomorrow_is_not_taken(tmp_path: Path) -> None:
    identity = TlsIdentity(shared_ca().leaf(days=31).write(tmp_path), grace_seconds=1e9)
    identity.look()
    assert "certificate is not yet valid" in identity.problem


def test_a_ca_that_ended_long_ago_is_not_trusted_from_other_parts(tmp_path: Path) -> None:
    """Beside the present one, whose certificates go on."""
    leaf, old = shared_ca().leaf(), FakeCa("old", days_left=-8).certificate
    folder = Leaf(leaf.certificate, leaf.key, old + leaf.trusted).write(tmp_path)
    contexts = identity_of(folder).contexts
    assert contexts is not None
    for context in (contexts.dialling, contexts.dialled):
        assert [each["subject"] for each in context.get_ca_certs()] == [((("commonName", "stele test CA"),),)]


def test_files_that_change_while_they_are_read_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_ca().leaf(days=10).write(tmp_path)
    identity = TlsIdentity(tmp_path)
    read = identities.read_contexts

    def read_slowly(folder: Path, grace_seconds: float) -> identities.Contexts:
        contexts = read(folder, grace_seconds)
        shared_ca().leaf(days=20).write(tmp_path)
        monkeypatch.undo()
        return contexts

    monkeypatch.setattr(identities, "read_contexts", read_slowly)
    identity.look()
    assert identity.contexts is None
    identity.look()
    assert identity.contexts is not None


async def test_it_is_looked_at_again_and_again(tmp_path: Path) -> None:
    identity = TlsIdentity(tmp_path)
    watching = asyncio.create_task(identity.watch(0.01))
    try:
        await asyncio.sleep(0.05)
        assert identity.contexts is None
        shared_ca().leaf().write(tmp_path)
        await until(lambda: identity.contexts)
    finally:
        watching.cancel()
