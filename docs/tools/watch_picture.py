"""Draws what `kubectl stele watch` shows of a playground while data moves: docs/pictures/watch.svg.

    make playground                                        # and load, in other terminals
    .venv/bin/python docs/tools/watch_picture.py docs/pictures/watch.svg
    .venv/bin/kubectl-stele playground scale 5

It waits for a plan that has copied something, so start it before the change.
"""

import argparse
import asyncio
import re
from io import StringIO
from pathlib import Path

from rich.console import Console

from stele.adapters.kubernetes.console import Console as Cluster
from stele.cli.live import read_scene
from stele.cli.live_view import Scene, picture
from stele.playground.api import SocketApi
from stele.playground.cluster import NAME
from stele.playground.folder import DEFAULT, running_socket
from stele.playground.objects import NAMESPACE

COLUMNS = 92
LOOK_SECONDS = 0.2
WAIT_SECONDS_MAX = 300.0


def drawn(scene: Scene) -> str:
    """Return the picture as SVG that asks no other host for a font."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), highlight=False, emoji=False, markup=False)
    console.print(picture(scene))
    text = console.export_svg(title=f"kubectl stele watch {NAME}")
    return re.sub(r"@font-face \{.*?\}\s*", "", text, flags=re.DOTALL)


async def moving(folder: Path) -> Scene:
    """Wait for a moment in which a plan is under way. Raises TimeoutError when none comes."""
    async with asyncio.timeout(WAIT_SECONDS_MAX), SocketApi(running_socket(folder)) as api:
        while True:
            scene = await read_scene(Cluster(api, NAMESPACE), NAME)
            if any(0 < each.status.done.total < each.status.planned.total for each in scene.plans):
                return scene
            await asyncio.sleep(LOOK_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("target", type=Path, help="file to write")
    parser.add_argument("--dir", type=Path, default=DEFAULT, help="folder of the playground")
    arguments = parser.parse_args()
    arguments.target.write_text(drawn(asyncio.run(moving(arguments.dir.expanduser().absolute()))))


if __name__ == "__main__":
    main()
