"""Asks OSV, which has the advisories of RustSec, about each crate that the compiled module is built with."""

from __future__ import annotations

import json
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.errors import ClusterError
from e2e.supply import native

LOCK = native.SOURCE / "Cargo.lock"
URL = "https://api.osv.dev/v1/query"
ECOSYSTEM = "crates.io"
ANSWER_SECONDS_MAX = 30.0
ANSWER_BYTES_MAX = 16 << 20
PAGES_MAX = 100


@dataclass(frozen=True)
class Crate:
    """One crate of a Cargo.lock."""

    name: str
    version: str


def audit(lock: Path = LOCK, url: str = URL) -> int:
    """Ask about each crate of a lock; return how many there are.

    Raises ClusterError, which lists what is known of them, or says that there was no answer.
    """
    crates = crates_of(lock.read_text(encoding="utf-8"))
    if not crates:
        raise ClusterError(f"{lock} names no crate of {ECOSYSTEM}; restore it with `git restore`.")
    found = [f"  {crate.name} {crate.version}: {about}" for crate in crates for about in known(crate, url)]
    if found:
        listed = "\n".join(found)
        raise ClusterError(
            f"{lock.name} has crates with known vulnerabilities; take newer ones with `cargo update` in"
            f" {lock.parent}, or leave out what needs them:\n{listed}"
        )
    return len(crates)


def crates_of(cargo_lock: str) -> list[Crate]:
    """Return the crates of others, also those that are only used while the module is built."""
    packages = tomllib.loads(cargo_lock).get("package", [])
    return [Crate(each["name"], each["version"]) for each in packages if "checksum" in each]


def known(crate: Crate, url: str = URL) -> Iterator[str]:
    """What is known of one version, other than what was withdrawn: names and one line."""
    asked: dict[str, Any] = {
        "package": {"name": crate.name, "ecosystem": ECOSYSTEM},
        "version": crate.version,
    }
    for _ in range(PAGES_MAX):
        answer = _ask(asked, url)
        for each in answer.get("vulns", ()):
            if not each.get("withdrawn"):
                names = ", ".join([each["id"], *each.get("aliases", ())])
                yield f"{names}: {each.get('summary', 'no summary')}"
        asked["page_token"] = answer.get("next_page_token")
        if not asked["page_token"]:
            return
    raise ClusterError(f"{url} gave more than {PAGES_MAX} pages about {crate.name}; try again later.")


def _ask(asked: dict[str, Any], url: str) -> dict[str, Any]:
    """Return one answer. Whatever is no answer is an error: nothing known must not be read into it."""
    body = json.dumps(asked).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as response:
            answer = json.loads(response.read(ANSWER_BYTES_MAX))
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"Could not ask {url} about {asked['package']['name']}: {error}. Check that this machine reaches"
            " it (HTTPS_PROXY names a proxy), then run the same command again."
        ) from error
    if not isinstance(answer, dict):
        raise ClusterError(f"{url} answered {type(answer).__name__}, expected an object; try again later.")
    return answer
