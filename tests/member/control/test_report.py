"""What a member says of its own process in each answer."""

from pathlib import Path

from tests.member.harness.single_member import single_member


async def test_a_process_names_the_time_of_its_first_answer(tmp_path: Path) -> None:
    """Not of its start, which the kubelet may note later; and it names that time in all answers."""
    async with single_member(tmp_path) as made:
        now = [100.0]
        made.node.background.wall = lambda: now[0]
        made.exchange._reporter._first_reply_unix_seconds = None
        now[0] = 103.5
        assert (await made.ask()).started_seconds == 103.5
        now[0] = 90.0
        assert (await made.ask()).started_seconds == 103.5
