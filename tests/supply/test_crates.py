"""What is asked about crates, of a service that answers as OSV does, and what is made of the answers."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.errors import ClusterError
from e2e.supply import cli, crates
from e2e.supply.crates import Crate

PAST = {"id": "RUSTSEC-2020-0001", "withdrawn": "2020-02-01T00:00:00Z", "summary": "none after all"}
FOUND = {"id": "RUSTSEC-2025-0020", "aliases": ["GHSA-pph8"], "summary": "Risk of buffer overflow"}
LOCK = """\
version = 4

[[package]]
name = "stele-native"
version = "0.1.0"
dependencies = ["pyo3"]

[[package]]
name = "pyo3"
version = "0.24.0"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "aa"

[[package]]
name = "libc"
version = "0.2.1"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "bb"
"""


class Osv(ThreadingHTTPServer):
    """Gives the pages that a test names for a crate, `{}` for others, and keeps what it is asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.pages: dict[str, list[str]] = {}
        self.asked: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/v1/query"


class _Answer(BaseHTTPRequestHandler):
    server: Osv

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        pages = self.server.pages.get(asked["package"]["name"], ["{}"])
        page = pages[int(asked.get("page_token") or 0)]
        self.send_response(500 if page == "broken" else 200)
        self.end_headers()
        self.wfile.write(page.encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def osv() -> Iterator[Osv]:
    with Osv() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "Cargo.lock"
    path.write_text(LOCK)
    return path


def page(*found: dict[str, Any], further: str = "") -> str:
    return json.dumps({"vulns": found} | ({"next_page_token": further} if further else {}))


def test_each_crate_of_others_is_asked_about_with_its_version(osv: Osv, lock: Path) -> None:
    osv.pages["libc"] = [page(PAST)]
    assert crates.audit(lock, osv.url) == 2
    assert osv.asked == [
        {"package": {"name": "pyo3", "ecosystem": "crates.io"}, "version": "0.24.0"},
        {"package": {"name": "libc", "ecosystem": "crates.io"}, "version": "0.2.1"},
    ]


def test_what_is_known_is_named_from_each_page(osv: Osv, lock: Path) -> None:
    osv.pages["pyo3"] = [page(PAST, further="1"), page(FOUND)]
    with pytest.raises(ClusterError) as raised:
        crates.audit(lock, osv.url)
    text = f"{raised.value}"
    assert "cargo update" in text
    assert text.endswith("\n  pyo3 0.24.0: RUSTSEC-2025-0020, GHSA-pph8: Risk of buffer overflow")


@pytest.mark.parametrize("answer", ["broken", "", "[]", "<html>"])
def test_no_answer_is_not_nothing_known(osv: Osv, lock: Path, answer: str) -> None:
    osv.pages["libc"] = [answer]
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1.*(run the same command|try) again"):
        crates.audit(lock, osv.url)


def test_an_endless_answer_and_a_lock_without_crates_are_refused(osv: Osv, lock: Path) -> None:
    osv.pages["pyo3"] = [page(further="0")]
    with pytest.raises(ClusterError, match="more than 100 pages about pyo3"):
        crates.audit(lock, osv.url)
    lock.write_text("version = 4\n")
    with pytest.raises(ClusterError, match="names no crate"):
        crates.audit(lock, osv.url)


def test_the_command_asks_about_the_lock_of_the_compiled_module(
    osv: Osv, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(crates.audit, "__defaults__", (crates.LOCK, osv.url))
    assert cli.main(["audit-crates"]) == 0
    listed = crates.crates_of(crates.LOCK.read_text())
    assert f"in {len(listed)} crates of Cargo.lock" in capsys.readouterr().out
    assert [Crate(each["package"]["name"], each["version"]) for each in osv.asked] == listed
    assert "pyo3" in {each.name for each in listed}
    osv.pages["pyo3"] = [page(FOUND)]
    assert cli.main(["audit-crates"]) == 1
    assert "RUSTSEC-2025-0020" in capsys.readouterr().err
