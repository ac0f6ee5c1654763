"""The command line of the supply chain: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.command_line import EXIT_OK, commands_of, exit_code_of, grammar
from e2e.cluster.errors import ClusterError
from e2e.supply import chart, dashboards, locks, native, sbom

_DESCRIPTION = "What images are made from: exact versions with hashes, and what can be said about them."
_EPILOG = """\
exit codes: 0 done; 1 failed (the message says what to do); 2 wrong use; 130 interrupted."""


def _lock(_: argparse.Namespace) -> None:
    found = {name: locks.resolve(name) for name in locks.NAMES}
    for name, lock in found.items():
        locks.write(name, lock)


def _chart(arguments: argparse.Namespace) -> None:
    chart.release(chart.pairs(arguments.image), arguments.out)


def _sbom(arguments: argparse.Namespace) -> None:
    file = arguments.dpkg_status
    try:
        packages = file.read_text(encoding="utf-8") if file else ""
    except OSError as error:
        raise ClusterError(f"Could not read --dpkg-status {file}: {error.strerror}.") from error
    crates = (native.SOURCE / "Cargo.lock").read_text(encoding="utf-8")
    print(sbom.bill(arguments.image, locks.read(arguments.image), packages, crates))


def parser() -> argparse.ArgumentParser:
    """The command line's grammar and its help."""
    top = grammar("supply", _DESCRIPTION, _EPILOG)
    command = commands_of(top)

    command("lock", _lock, "write images/locks/ anew, with the newest versions that pyproject.toml allows")
    command("native", lambda _: native.install(), "build the compiled module and install it here")
    command("dashboards", lambda _: dashboards.write(), "write the chart's Grafana dashboards anew")
    bill = command("sbom", _sbom, "print what an image consists of, as JSON of CycloneDX")
    bill.add_argument("image", choices=locks.IMAGES)
    bill.add_argument(
        "--dpkg-status",
        metavar="FILE",
        type=Path,
        help="the image's /var/lib/dpkg/status, to list Debian's packages too",
    )
    make = command("chart", _chart, "write the chart of a release, with images that are named by digest")
    make.add_argument("out", metavar="OUT", type=Path, help="folder to write, which must not exist")
    make.add_argument(
        "image", metavar="NAME=REFERENCE", nargs="+", help=f"one for each of {', '.join(locks.IMAGES)}"
    )
    return top


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit code. A user's mistake is one sentence, never a traceback."""
    arguments = parser().parse_args(words)

    def act() -> int:
        arguments.action(arguments)
        return EXIT_OK

    return exit_code_of(act, "Interrupted; run the same command again.")
