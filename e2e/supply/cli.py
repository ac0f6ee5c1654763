"""The command line of the supply chain: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.command_line import EXIT_OK, AddCommand, commands_of, exit_code_of, grammar
from e2e.cluster.errors import ClusterError
from e2e.supply import chart, commit, crates, dashboards, locks, native, plugin, readers, release, sbom

_DESCRIPTION = "What images are made from: exact versions with hashes, and what can be said about them."
_EPILOG = """\
exit codes: 0 done; 1 failed (the message says what to do); 2 wrong use; 130 interrupted."""


def _lock(_: argparse.Namespace) -> None:
    found = {name: locks.resolve(name) for name in locks.NAMES}
    for name, lock in found.items():
        locks.write(name, lock)


def _chart(arguments: argparse.Namespace) -> None:
    chart.release(chart.pairs(arguments.image), arguments.out)


def _release(arguments: argparse.Namespace) -> None:
    options = release.Options(
        images=chart.pairs(arguments.image) if arguments.image else {},
        registry=chart.registry(arguments.registry) if arguments.registry else "",
        url=arguments.url,
        platforms=list(map(plugin.platform_of, arguments.platform)) or locks.PLUGIN_PLATFORMS,
        version=arguments.version,
    )
    release.write(arguments.out, commit.head(), options)
    print((arguments.out / release.SUMS).read_text(encoding="utf-8"), end="")


def _add_release(command: AddCommand) -> None:
    made = command("release", _release, "make a folder with all of a release, out of the commit that is here")
    made.add_argument("--out", metavar="DIR", type=Path, default=Path("dist"), help="default: dist")
    made.add_argument("--version", metavar="X.Y.Z", help="fail unless the commit is of this version")
    made.add_argument("--url", default="", help="folder from which krew is to download the archives")
    made.add_argument(
        "--platform", metavar="OS_ARCH", action="append", default=[], help="of the plugin; default: all"
    )
    where = made.add_mutually_exclusive_group()
    where.add_argument("--registry", default="", help="where the images of this version are")
    where.add_argument(
        "--image", metavar="NAME=REFERENCE", action="append", default=[], help="each image, by its digest"
    )


def _audit_crates(_: argparse.Namespace) -> None:
    print(f"No known vulnerabilities found in {crates.audit()} crates of {crates.LOCK.name}")


def _sbom(arguments: argparse.Namespace) -> None:
    file = arguments.dpkg_status
    try:
        packages = file.read_text(encoding="utf-8") if file else ""
    except OSError as error:
        raise ClusterError(f"Could not read --dpkg-status {file}: {error.strerror}.") from error
    lock_file = native.SOURCE / "Cargo.lock"
    crates = "" if arguments.image == locks.PLUGIN else lock_file.read_text(encoding="utf-8")
    print(sbom.bill(arguments.image, locks.read(arguments.image), packages, crates))


def _readers(_: argparse.Namespace) -> None:
    for path in readers.ensure():
        print(path)


def parser() -> argparse.ArgumentParser:
    """The command line's grammar and its help."""
    top = grammar("supply", _DESCRIPTION, _EPILOG)
    command = commands_of(top)

    command("lock", _lock, "write images/locks/ anew, with the newest versions that pyproject.toml allows")
    command("native", lambda _: native.install(), "build the compiled module and install it here")
    command("dashboards", lambda _: dashboards.write(), "write the chart's Grafana dashboards anew")
    command("readers", _readers, "make buildx, krew and hadolint, which tests read a release with")
    command("audit-crates", _audit_crates, "compare native/Cargo.lock with known vulnerabilities; asks OSV")
    bill = command("sbom", _sbom, "print what an image, or the plugin (cli), consists of: JSON of CycloneDX")
    bill.add_argument("image", choices=(*locks.IMAGES, locks.PLUGIN))
    bill.add_argument(
        "--dpkg-status",
        metavar="FILE",
        type=Path,
        help="the image's /var/lib/dpkg/status, to list Debian's packages too",
    )
    _add_release(command)
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
