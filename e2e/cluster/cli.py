"""The command line of the test cluster: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from e2e.cluster import cache, compiled, debian, doctor, images, kind, node_image, programs
from e2e.cluster.command_line import EXIT_OK, choose_cluster, commands_of, exit_code_of, grammar

_DESCRIPTION = """\
The project's own test cluster: a real Kubernetes (one control plane, two workers) made by kind in
containers of this machine, without an image registry. All that is built is kept in the folder
${STELE_CACHE:-~/.cache/stele} and made anew only when its inputs change. The first time takes about
ten minutes on two cores, later ones less than one."""

_EPILOG = """\
exit codes: 0 done; 1 failed (the message says what to do); 2 wrong use, or this machine lacks something;
130 interrupted."""


def _up(_: argparse.Namespace) -> None:
    kind.up()


def _down(_: argparse.Namespace) -> None:
    kind.down()


def _status(_: argparse.Namespace) -> None:
    found = kind.status()
    print(f"cluster     {kind.NAME}: {_word(found)}")
    for node, state in found.nodes.items():
        print(f"node        {node}: {state}")
    print(f"kubeconfig  {kind.kubeconfig()}")
    print(f"node image  {node_image.name()}")
    print(f"cache       {cache.root()}")


def _word(found: kind.Status) -> str:
    if found.complete:
        return "up" if found.answers else "made, but does not answer"
    return "half-made; `up` makes it anew" if found.nodes else "absent"


def _load(arguments: argparse.Namespace) -> None:
    for image in arguments.image:
        kind.load(image)


def _images(arguments: argparse.Namespace) -> None:
    for image in images.build(arguments.name or images.NAMES).values():
        print(image)
        if arguments.load:
            kind.load(image)


def _kubeconfig(_: argparse.Namespace) -> None:
    print(kind.kubeconfig())


def _programs(_: argparse.Namespace) -> None:
    print(programs.ensure())


def _compiled(_: argparse.Namespace) -> None:
    print(compiled.ensure())


def _doctor(_: argparse.Namespace) -> None:
    doctor.check_user()
    doctor.check(bool(kind.status().nodes), {**debian.PACKAGES, **debian.TEST_PACKAGES})
    print("This machine has all that the test cluster and the tests need.")


def parser() -> argparse.ArgumentParser:
    """The command line's grammar and its help."""
    top = grammar("cluster", _DESCRIPTION, _EPILOG)
    top.add_argument("--kubeconfig", metavar="FILE", help="use this cluster; it is never created or removed")
    top.add_argument(
        "--context", metavar="NAME", help="the context of --kubeconfig to use (default: its current one)"
    )
    command = commands_of(top)

    command("up", _up, "make the cluster and wait until it is ready; does nothing when it is up")
    command(
        "down", _down, "remove the cluster, its volumes and its network; what was built stays in the cache"
    )
    command("status", _status, "say what there is; changes nothing")
    load = command("load", _load, "bring images into every node; nodes that have them are left alone")
    load.add_argument("image", nargs="+", metavar="IMAGE", help="full name with tag, as `images` prints it")
    command("kubeconfig", _kubeconfig, "print the path of the cluster's kubeconfig")
    make = command("images", _images, "build the project's images and print their names with tags")
    make.add_argument(
        "name",
        nargs="*",
        metavar="NAME",
        help=f"which: {', '.join(images.NAMES)} (default: these), {', '.join(images.ON_REQUEST)}",
    )
    make.add_argument("--load", action="store_true", help="load them into the nodes too")
    command(
        "programs", _programs, "build kubectl, helm, kind, kube-apiserver, etcd ... and print their folder"
    )
    command("compiled", _compiled, "compile modules as images have them; print the folder for PYTHONPATH")
    command("doctor", _doctor, "check whether this machine can run cluster and tests, and say what it lacks")
    return top


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit code. A user's mistake is one sentence, never a traceback."""
    arguments = parser().parse_args(words)
    choose_cluster(arguments)

    def act() -> int:
        arguments.action(arguments)
        return EXIT_OK

    return exit_code_of(act, "Interrupted; run the same command again to go on.")
