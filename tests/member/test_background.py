"""Work in the background of a member: its log is about itself, not about what began it."""

import asyncio

from stele.adapters import logs
from stele.member.background import Background


async def test_lines_of_work_in_the_background_are_not_about_what_began_it() -> None:
    background, named = Background(lambda why: None), dict[str, object]()

    async def work() -> None:
        named.update(logs.fields_now())

    with logs.about(partition=17):
        task = background.spawn(work())
        assert logs.fields_now()["partition"] == 17
    await asyncio.wait_for(task, 5.0)
    background.slow.shutdown()
    assert "partition" not in named
