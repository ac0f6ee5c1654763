"""A bill of materials has every wheel of the lock with its hashes, and nothing that is not there."""

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.supply import cli, locks, native, sbom

DPKG_STATUS = """\
Package: libssl3
Status: install ok installed
Architecture: amd64
Version: 3.0.17-1~deb12u3
Description: Secure Sockets Layer toolkit
 with a second line: and a colon

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1.0

Package: tini
Status: install ok installed
Architecture: amd64
Version: 1:0.19.0-1
"""


def bill(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["sbom", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    return found


@pytest.mark.parametrize("image", [*locks.IMAGES, locks.PLUGIN])
def test_a_bill_lists_every_wheel_of_the_lock(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = bill(capsys, image)
    kind, name = (
        ("application", "kubectl-stele") if image == locks.PLUGIN else ("container", f"stele-{image}")
    )
    assert (found["metadata"]["component"]["type"], found["metadata"]["component"]["name"]) == (kind, name)
    listed = {
        (each["purl"], tuple(sorted(h["content"] for h in each["hashes"] if h["alg"] == "SHA-256")))
        for each in found["components"]
    }
    pins = locks.read(image).pins
    crates = {each for each in listed if each[0].startswith("pkg:cargo/")}
    assert listed - crates == {(f"pkg:pypi/{pin.name}@{pin.version}", pin.hashes) for pin in pins}
    (whole,) = (each for each in found["dependencies"] if "dependsOn" in each)
    assert len(whole["dependsOn"]) == len(pins) + len(crates)


def test_a_bill_of_a_release_is_the_same_whenever_it_is_written() -> None:
    stamp = sbom.Stamp("1.2.3", 1_790_000_001)
    first, second = (sbom.bill("member", locks.read("member"), stamp=stamp) for _ in range(2))
    assert first == second
    about = json.loads(first)
    assert about["metadata"]["timestamp"] == "2026-09-21T14:13:21+00:00"
    assert about["metadata"]["component"]["version"] == "1.2.3"
    assert (
        json.loads(sbom.bill("sql", locks.read("sql"), stamp=stamp))["serialNumber"] != about["serialNumber"]
    )


def test_a_bill_lists_the_crates_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    urls = {each["purl"]: each for each in bill(capsys, "member")["components"]}
    (pyo3,) = (each for url, each in urls.items() if url.startswith("pkg:cargo/pyo3@"))
    assert f'checksum = "{pyo3["hashes"][0]["content"]}"' in (native.SOURCE / "Cargo.lock").read_text()
    assert not any("stele-native" in url for url in urls)


def test_a_bill_lists_the_installed_packages_of_debian(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "status").write_text(DPKG_STATUS)
    found = bill(capsys, "member", "--dpkg-status", str(tmp_path / "status"))
    packages = {each["purl"] for each in found["components"] if each["purl"].startswith("pkg:deb/")}
    assert packages == {
        "pkg:deb/debian/libssl3@3.0.17-1~deb12u3?arch=amd64",
        "pkg:deb/debian/tini@1:0.19.0-1?arch=amd64",
    }


def test_a_list_of_packages_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sbom", "member", "--dpkg-status", "/nowhere/status"]) == 1
    assert "Could not read --dpkg-status /nowhere/status: No such file" in capsys.readouterr().err
