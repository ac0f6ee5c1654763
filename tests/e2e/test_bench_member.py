"""The parts of the member's bench that decide what is printed: rates, stages, goals, the tiny master."""

from pathlib import Path

import pytest

from e2e.bench import member
from e2e.bench.member_budget import STAGES, Clock, group_commit, measure
from e2e.bench.member_stage import stage


@pytest.mark.plain
async def test_a_command_costs_something_at_each_stage_that_it_passes() -> None:
    median, least, stages = await measure(b"SET", 3, 4, turns=3)
    assert 0 < least <= median
    assert set(stages) == set(STAGES)
    for stage_of_a_write in ("parse", "route to partitions", "log to RocksDB", "apply", "collect replies"):
        assert stages[stage_of_a_write] > 0, stage_of_a_write


def test_a_stage_does_not_pay_for_what_it_calls() -> None:
    clock, now = Clock(), [0.0]

    def inner() -> None:
        now[0] += 5.0

    def outer() -> None:
        now[0] += 1.0
        clock.wrap("apply", inner)()
        now[0] += 1.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("e2e.bench.member_budget.time.perf_counter", lambda: now[0])
        clock.wrap("commit", outer)()
    taken = clock.taken()
    assert (taken["commit"], taken["apply"]) == (2.0, 5.0)
    assert clock.taken()["commit"] == 0.0


async def test_group_commits_count_only_what_is_applied_after_a_sync(tmp_path: Path) -> None:
    made = await group_commit(tmp_path, 0.1, window=500)
    assert made.operations > 0
    assert 0 < made.syncs <= made.operations


def test_commands_in_a_pipeline_are_held_to_redis_server() -> None:
    rows = [
        {"command": command, "pipeline": pipeline, "value_bytes": size, "ratio": 0.5}
        for command in ("GET", "SET")
        for pipeline in member.PIPELINES
        for size in (member.VALUE_BYTES, 1024)
    ]
    found = {goal.text: goal.met for goal in member.client_goals(rows)}
    assert found == {
        "GET with pipeline 16: at least 0.60 of redis-server": False,
        "SET with pipeline 16: at least 0.40 of redis-server": True,
    }


def test_a_member_is_filled_restarted_and_still_has_it(tmp_path: Path) -> None:
    with stage(tmp_path, partitions=7) as made:
        only = made.members[0]
        member.fill(only, 20 * member.LOADED_VALUE_BYTES)
        assert only.resident_bytes() > 0
        only.close()
        assert made.restart() > 0
        status, text = only.get("/metrics")
        assert status == 200
        assert b'stele_tablets{state="ready"} 7.0' in text
        only.stop()
