"""The example service: installed by pip in a folder of its own, and asked."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

from tests.member.services.recording import site_environment

EXAMPLE = Path(__file__).parents[3] / "examples" / "quota"


def install(folder: Path, port: int) -> dict[str, str]:
    """The environment of a member that has the package, as pip installs it."""
    copied, site = folder / "quota", folder / "site"
    shutil.copytree(EXAMPLE, copied)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(site), str(copied)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return site_environment(site) | {"QUOTA_PORT": str(port)}


async def ask(host: str, port: int, line: bytes) -> str:
    """What the member there answers, empty when it ends without an answer; OSError when nobody is there."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(line + b"\n")
        return (await reader.readline()).decode().strip()
    finally:
        writer.close()
        await writer.wait_closed()
