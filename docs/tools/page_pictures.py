"""Draws the page of a playground while data moves: docs/pictures/page-light.png and page-dark.png.

    make playground                                        # and load, in other terminals
    .venv/bin/python docs/tools/page_pictures.py http://127.0.0.1:PORT/ docs/pictures
    .venv/bin/kubectl-stele playground scale 6

PORT is that of the page, which the playground prints. It waits for the change: start it a minute before, for
graphs that have a beginning. It needs Chromium.
"""

import argparse
import asyncio
from pathlib import Path

from PIL import Image

from e2e.page.browser import LOOK_SECONDS, Tab, chromium

WIDTH, HEIGHT = 1360, 1000
WAIT_SECONDS_MAX = 300.0
DRAW_SECONDS = 0.5
READY = "Boolean(document.body?.dataset.version && window.steleMap?.frames)"
MOVING = """(({ members, moves } = { members: [], moves: [] }) => {
  const all = members.every((member) => member.state === "Active");
  return (all && moves.find((move) => move.step === "COPY")?.partition) || -1;
})(steleMap._cluster?.view)"""
WHY = "document.getElementById('why-title').textContent"


async def moving(tab: Tab) -> int:
    """Wait for one that is copied while all members are there. Raises TimeoutError when none comes."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            if (partition := int(await tab.run(MOVING))) >= 0:
                return partition
            await asyncio.sleep(LOOK_SECONDS)


async def explain(tab: Tab, partition: int) -> None:
    """Select a partition, and have the page say why it is as it is."""
    await tab.run(f"steleMap.select(0, {partition}, true)")
    await tab.until(f"{WHY}.endsWith('partition {partition}')")


async def draw(url: str, folder: Path) -> None:
    """Write both pictures."""
    async with chromium() as tab:
        await tab.window(WIDTH, HEIGHT)
        await tab.open(url, READY)
        await explain(tab, await moving(tab))
        for scheme in ("light", "dark"):
            await tab.window(WIDTH, HEIGHT, scheme)
            await asyncio.sleep(DRAW_SECONDS)
            await tab.picture(path := folder / f"page-{scheme}.png")
            Image.open(path).convert("RGB").quantize().save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("url", help="address of the page")
    parser.add_argument("folder", type=Path, help="folder to write the pictures to")
    arguments = parser.parse_args()
    asyncio.run(draw(arguments.url, arguments.folder))


if __name__ == "__main__":
    main()
