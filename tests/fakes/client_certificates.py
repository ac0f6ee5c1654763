"""Certificates of clients, made by openssl with the commands of docs/operating/security.md."""

import re
import subprocess
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/operating/security.md"
SECTION = "### Certificates for clients"
OWN_CA = """
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=company" -days 365 \
  -keyout own-ca.key -out own-ca.crt
"""
BEGIN = "cat > clients.cnf"
USAGE = "extendedKeyUsage = clientAuth"
URI = "URI:spiffe://shop.example.com/orders"


def make_own_ca(folder: Path) -> None:
    """Make own-ca.crt and own-ca.key."""
    folder.mkdir(parents=True, exist_ok=True)
    _run(folder, OWN_CA)


def make_documented(folder: Path, uri: str = URI, usage: str = USAGE) -> tuple[Path, Path]:
    """Make a CA for clients below own-ca.crt, and by it a certificate, of this URI and usage instead.

    What runs begins with the CA for clients, since own-ca.crt is there; no server is.
    Return the files of certificate and key.
    """
    section = PAGE.read_text().partition(SECTION)[2].partition("\n### ")[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    commands = "\n".join(line for line in lines if not line.startswith("redis-cli"))
    commands = commands[commands.index(BEGIN) :]
    before, leaf, after = commands.partition(URI)
    assert leaf
    assert USAGE in after
    _run(folder, before + uri + after.replace(USAGE, usage))
    return folder / "orders.crt", folder / "orders.key"


def _run(folder: Path, commands: str) -> None:
    done = subprocess.run(["bash", "-ec", commands], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, re.sub(r"\n+", "\n", done.stderr)
