"""A transfer process that stands still holds up no exchange: who does not answer loses its place."""

import asyncio
import signal
from pathlib import Path

from stele.core.control import commands as m
from tests.member.harness.cluster import Cluster, MemberProcess, cluster, eventually

SESSION = "s-1"
ANSWER_SECONDS_MAX = 3.0


async def health(made: Cluster, member: MemberProcess) -> int:
    async with made.http.get(f"http://{member.host}:{member.ports[3]}/healthz") as answer:
        return answer.status


async def test_a_session_is_closed_while_the_transfer_process_stands_still(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, partitions=2, replicas=1) as made:
        member = made.members[0]
        await member.start_transfer()
        await eventually(lambda: health(made, member), lambda status: status == 200)
        folder = member.folder / "staging" / SESSION
        folder.mkdir()
        (folder / "half.part").write_bytes(b"half")
        assert member.transfer is not None
        member.transfer.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            asked = await made.exchange(0, m.CloseSession(SESSION))
            again = await made.exchange(0, m.CloseSession(SESSION))
        assert [asked.results[0].code, again.results[0].code] == ["WAIT", "WAIT"]
        member.transfer.send_signal(signal.SIGCONT)
        await made.order(0, m.CloseSession(SESSION))
        assert not folder.exists()
