"""How much the commands of one request may do before the others wait for the next."""

from pathlib import Path

import pytest

from e2e.bench.member_budget import serving_node
from stele.core.kv.keyslot import partition_of
from stele.member import limits
from stele.member.settings import Fsync

P = 7
KEY = b"key"
HOME = partition_of(KEY, P)
LONG = limits.REQUEST_WORK_BYTES // 2 + 1


@pytest.mark.parametrize(
    ("command", "ran"),
    [
        ([b"STRLEN", KEY], 2),
        ([b"EXISTS", KEY], 2),
        ([b"APPEND", KEY, b"x"], 1),
        ([b"PEXPIRE", KEY, b"100000"], 1),
        ([b"STRLEN", b"other"], 100),
    ],
)
async def test_short_commands_on_a_long_value_run_some_at_a_time(
    tmp_path: Path, command: list[bytes], ran: int
) -> None:
    node = await serving_node(tmp_path, Fsync.NEVER, P)
    await node.router.execute(HOME, b"default", [[b"SET", KEY, b"v" * LONG]])
    replies = await node.router.execute(HOME, b"default", [command] * 100)
    assert len(replies) == ran
    await node.stop()
