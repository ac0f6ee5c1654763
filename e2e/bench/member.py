"""One member beside redis-server, and what its log, its start and its tablets cost.

Servers take turns, so that what else the machine does falls on all of them; shown are medians.
"""

from __future__ import annotations

import logging
import re
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import uvloop

from e2e.bench import machine
from e2e.bench.errors import BenchError
from e2e.bench.member_budget import STAGES, group_commit, measure
from e2e.bench.member_stage import Echo, Member, RedisServer, Server, redis_program, stage
from e2e.bench.report import Column, Goal, Report, Row, Section, factor, milliseconds, plain, whole
from e2e.cluster.steps import say
from stele.wire.resp import encode_request

TITLE = (
    "one member beside redis-server: clients, budget of a command, log, start, tablets (minutes; quick: one)"
)
CONNECTIONS = 50
KEYS = 100_000
VALUE_BYTES = 100
PIPELINES = (1, 16, 64)
COMMANDS = {1: 30_000, 16: 150_000, 64: 300_000}
SERVED_PARTITIONS, MANY_PARTITIONS = 271, 5_000
LOADED_VALUE_BYTES = 8 * 1024
LOADED_BATCH = 64
STARTS = 3
GOAL_PIPELINE = 16
RATIOS_MIN = {"GET": 0.6, "SET": 0.4}
"""Of redis-server, by command."""
GROUP_COMMIT_MIN = 100_000
START_SECONDS_MAX = 3.0
TABLET_BYTES_MAX = 20 * 1024
RUN_SECONDS_MAX = 120.0

_NOTE = """\
redis: appendonly yes, appendfsync everysec. member: fsync Interval, one replica, 271 tablets. echo: the same
event loop answers +OK and parses nothing, the bound of any server in Python here. us: what a command takes of
the server's processor, the least of the rounds; a busy machine changes it less than commands per second."""


def run(report: Report, quick: bool) -> None:
    """Fill the report; raises BenchError when something outside is not as it must be."""
    redis_program()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="stele-bench-") as name:
        folder = Path(name)
        report.goals += _clients(report, folder / "clients", quick)
        _budget(report, quick)
        report.goals.append(_log_alone(report, folder / "log", quick))
        report.goals += _starts(report, folder, quick)
        if not quick:
            _replicated(report, folder / "replicated")


# -- clients


def load(server: Server, command: str, pipeline: int, number: int, value_bytes: int = VALUE_BYTES) -> float:
    """Commands per second that redis-benchmark reaches with 50 clients and random keys."""
    words = ["redis-benchmark", "-h", server.host, "-p", str(server.port), "--csv", "-t", command.lower()]
    words += ["-c", str(CONNECTIONS), "-P", str(pipeline), "-n", str(number), "-r", str(KEYS)]
    done = subprocess.run(
        [*words, "-d", str(value_bytes)], capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )
    found = re.search(rf'^"{command}","([0-9.]+)"', done.stdout, re.MULTILINE)
    if found is None:
        raise BenchError(f"redis-benchmark said {done.stdout[-200:]!r} {done.stderr[-200:]!r}")
    return float(found[1])


def _clients(report: Report, folder: Path, quick: bool) -> list[Goal]:
    columns = (
        Column("command", "command"),
        Column("pipeline", "pipeline"),
        Column("value bytes", "value_bytes"),
        Column("redis/s", "redis_per_second", whole),
        Column("echo/s", "echo_per_second", whole),
        Column("member/s", "member_per_second", whole),
        Column("member/redis", "ratio", factor),
        Column("redis us", "redis_microseconds", factor),
        Column("member us", "member_microseconds", factor),
    )
    section = report.section("Clients", columns, _NOTE)
    cases = [(command, pipeline, VALUE_BYTES) for command in ("SET", "GET") for pipeline in PIPELINES]
    if not quick:
        cases += [(command, 16, size) for command in ("SET", "GET") for size in (1024, 10_240)]
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer(folder / "redis"))
        echo = stack.enter_context(Echo(folder))
        member = stack.enter_context(stage(folder)).members[0]
        for command, pipeline, value_bytes in cases:
            section.rows.append(_case(redis, echo, member, (command, pipeline, value_bytes), quick))
    return client_goals(section.rows)


def client_goals(rows: Sequence[Row]) -> list[Goal]:
    """The goals for values of VALUE_BYTES at GOAL_PIPELINE."""
    held = {"pipeline": GOAL_PIPELINE, "value_bytes": VALUE_BYTES}
    return [_ratio(row) for row in rows if row.items() >= held.items()]


def _ratio(row: Row) -> Goal:
    least = RATIOS_MIN[row["command"]]
    text = f"{row['command']} with pipeline {GOAL_PIPELINE}: at least {factor(least)} of redis-server"
    return Goal(text, factor(row["ratio"]), row["ratio"] >= least)


def _case(
    redis: RedisServer, echo: Echo, member: Member, case: tuple[str, int, int], quick: bool
) -> dict[str, object]:
    command, pipeline, value_bytes = case
    say(f"clients: {command}, pipeline {pipeline}, {value_bytes} bytes")
    number = COMMANDS[pipeline] // (3 if quick else 1) * VALUE_BYTES // max(VALUE_BYTES, value_bytes // 8)
    rates: dict[str, list[float]] = {"redis": [], "echo": [], "member": []}
    spent: dict[str, list[float]] = {"redis": [], "member": []}
    for _ in range(1 if quick else 3):
        for name, server, commands in (("redis", redis, 2 * number), ("member", member, number)):
            before = server.cpu_seconds()
            rates[name].append(load(server, command, pipeline, commands, value_bytes))
            spent[name].append((server.cpu_seconds() - before) / commands * 1e6)
        if value_bytes == VALUE_BYTES:
            rates["echo"].append(load(echo, command, pipeline, 2 * number, value_bytes))
    found = {name: statistics.median(values) if values else None for name, values in rates.items()}
    assert found["member"] is not None
    assert found["redis"] is not None
    return {
        "command": command,
        "pipeline": pipeline,
        "value_bytes": value_bytes,
        **{f"{name}_per_second": value for name, value in found.items()},
        "ratio": found["member"] / found["redis"],
        **{f"{name}_microseconds": min(values) for name, values in spent.items()},
    }


# -- inside


def _budget(report: Report, quick: bool) -> None:
    """Where the time of one command goes."""
    columns = (
        Column("stage", "stage"),
        Column("SET us", "set_microseconds", factor),
        Column("GET us", "get_microseconds", factor),
    )
    note = (
        "One process, no sockets, 50 connections with 16 commands each in every turn; the best turn. "
        "The clocks of the stages cost something too: without them the whole is what the first row says."
    )
    if machine.are_modules_compiled():
        say("budget of a command: only of plain Python, `python -m e2e.bench.member_budget`")
        return
    section = report.section("Budget of a command", columns, note)
    say("budget of a command")
    turns = 30 if quick else 150
    sets = uvloop.run(measure(b"SET", CONNECTIONS, 16, turns))
    gets = uvloop.run(measure(b"GET", CONNECTIONS, 16, turns))
    section.rows.append(
        {"stage": "whole, best turn", "set_microseconds": sets[1], "get_microseconds": gets[1]}
    )
    for name in STAGES:
        section.rows.append(
            {"stage": name, "set_microseconds": sets[2][name], "get_microseconds": gets[2][name]}
        )


def _log_alone(report: Report, folder: Path, quick: bool) -> Goal:
    """Operations of 100 bytes from many tablets, each counted once it is on disk and committed."""
    columns = (
        Column("fsync", "fsync"),
        Column("operations", "operations"),
        Column("per sync", "per_sync", whole),
        Column("operations/s", "per_second", whole),
    )
    section = report.section(
        "The log alone, without clients",
        columns,
        "Appended 16 at a time to each of 271 tablets, synced, committed, applied.",
    )
    say("the log alone")
    rounds = [uvloop.run(group_commit(folder / str(n), 0.5 if quick else 2.0)) for n in range(3)]
    best = max(rounds, key=lambda found: found.per_second)
    section.rows.append(
        {
            "fsync": "Always",
            "operations": best.operations,
            "per_sync": best.operations / best.syncs,
            "per_second": best.per_second,
        }
    )
    text = f"durable group commit: at least {GROUP_COMMIT_MIN:,} operations/s"
    return Goal(text, f"{best.per_second:,.0f} (best of three)", best.per_second >= GROUP_COMMIT_MIN)


# -- starting


def _starts(report: Report, folder: Path, quick: bool) -> list[Goal]:
    columns = (
        Column("tablets", "tablets"),
        Column("data MiB", "data_bytes", lambda value: plain(value >> 20)),
        Column("form ms", "form_seconds", milliseconds),
        Column("stop ms", "stop_seconds", milliseconds),
        Column("start ms", "start_seconds", milliseconds),
        Column("after kill ms", "killed_seconds", milliseconds),
        Column("memory MiB", "memory_bytes", lambda value: plain(value >> 20)),
        Column("SET/s", "set_per_second", whole),
        Column("GET/s", "get_per_second", whole),
    )
    note = (
        "start: from the process's start until every tablet is served, the median of three. "
        "after kill: the same once after SIGKILL, with the log to replay. "
        "memory: resident with empty tablets. Clients as above, pipeline 16."
    )
    section = report.section("Start, stop and number of tablets", columns, note)
    few = _start(section, folder / "few", SERVED_PARTITIONS, 64 << 20 if quick else 1 << 30)
    start, loaded = few["start_seconds"], int(few["data_bytes"]) >> 20
    restart = f"restart with {SERVED_PARTITIONS} tablets and {loaded} MiB: under {START_SECONDS_MAX:g} s"
    started = Goal(restart, f"{start:.2f} s", start < START_SECONDS_MAX)
    if quick:
        return [started]
    many = _start(section, folder / "many", MANY_PARTITIONS, 0)
    per_tablet = (many["memory_bytes"] - few["memory_bytes"]) / (MANY_PARTITIONS - SERVED_PARTITIONS)
    memory = f"memory of an empty tablet: under {TABLET_BYTES_MAX} bytes"
    served = f"{MANY_PARTITIONS} tablets start, serve and stop"
    return [
        started,
        Goal(memory, f"{per_tablet:,.0f}", per_tablet < TABLET_BYTES_MAX),
        Goal(served, f"started in {many['start_seconds']:.1f} s", many["get_per_second"] > 0),
    ]


def _start(section: Section, folder: Path, partitions: int, data_bytes: int) -> dict[str, int | float]:
    say(f"start with {partitions} tablets and {data_bytes >> 20} MiB")
    with stage(folder, partitions=partitions) as made:
        member = made.members[0]
        row: dict[str, int | float] = {"tablets": partitions, "form_seconds": made.form_seconds}
        row["memory_bytes"] = member.resident_bytes()
        for command in ("SET", "GET"):
            row[f"{command.lower()}_per_second"] = load(member, command, 16, COMMANDS[16] // 2)
        fill(member, data_bytes)
        row["data_bytes"] = data_bytes
        starts = []
        for _ in range(STARTS):
            row["stop_seconds"] = member.stop()
            starts.append(made.restart())
        row["start_seconds"] = statistics.median(starts)
        load(member, "SET", 16, COMMANDS[16] // 2)
        member.close()
        row["killed_seconds"] = made.restart()
        member.stop()
    section.rows.append(row)
    return row


def fill(member: Member, data_bytes: int) -> None:
    """Write so many bytes in values of 8 KiB, each key once."""
    left, value = data_bytes // LOADED_VALUE_BYTES, bytes(range(256)) * (LOADED_VALUE_BYTES // 256)
    with socket.create_connection((member.host, member.port), RUN_SECONDS_MAX) as connection:
        while left > 0:
            number = min(left, LOADED_BATCH)
            keys = (b"data:%d" % key for key in range(left - number, left))
            connection.sendall(b"".join(encode_request((b"SET", key, value)) for key in keys))
            expected, got = b"+OK\r\n" * number, b""
            while len(got) < len(expected) and (more := connection.recv(65536)):
                got += more
            if got != expected:
                raise BenchError(f"the member answered {got[:200]!r} to SET")
            left -= number


def _replicated(report: Report, folder: Path) -> None:
    """Three members, two replicas, each write on both disks before it is answered; one member is asked."""
    columns = (
        Column("command", "command"),
        Column("pipeline", "pipeline"),
        Column("commands/s", "per_second", whole),
    )
    note = "For information: on this machine three members, their disks and the clients share the same cores."
    section = report.section("Three members, two replicas, fsync Always", columns, note)
    with stage(folder, members=3, replicas=2, fsync="Always") as made:
        for command in ("SET", "GET"):
            say(f"three members: {command}")
            rate = load(made.members[0], command, 16, COMMANDS[16] // 4)
            section.rows.append({"command": command, "pipeline": 16, "per_second": rate})
