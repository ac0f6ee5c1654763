"""Redis' own tests, in Tcl, on a cluster of three: all of what is offered pass, and the others are named."""

import re
from pathlib import Path

from e2e.cluster import sources
from stele.core.formats import SPOKEN
from stele.core.kv.keyspaces import Settings
from tests.member.harness.cluster import Cluster, cluster
from tests.redis import suite
from tests.redis.suite import Outcome

RUNS = {
    16: (
        "unit/type/string",
        "unit/type/incr",
        "unit/expire",
        "unit/scan",
        "unit/keyspace",
        "unit/protocol",
        "unit/quit",
        "unit/other",
        "unit/info-command",
        "unit/introspection",
        "unit/pubsub",
        "unit/pubsubshard",
        "unit/tracking",
    ),
    # The keys of its transactions have no {hashtag}.
    1: ("unit/multi",),
}
"""The units, by the number of partitions."""
NOT_RUN = {
    "values of other types than strings, or bits of strings": (
        *("bitfield", "bitops", "geo", "hyperloglog", "sort", "type/hash", "type/list", "type/list-2"),
        *("type/list-3", "type/set", "type/stream", "type/stream-cgroups", "type/zset"),
    ),
    "no tests: what others include, or print": ("printver", "type/list-common"),
    "scripts and functions": ("cluster-scripting", "functions", "scripting"),
    "users and passwords, as Redis has them, and its TLS port": ("acl", "acl-v2", "auth", "tls"),
    "DUMP, RESTORE and MIGRATE": ("dump",),
    "a server that the test starts with settings or a file of its own, or kills": (
        *("aofrw", "cluster", "limits", "networking", "oom-score-adj", "shutdown", "wait"),
        *("cluster/announced-endpoints", "cluster/links", "cluster/misc"),
    ),
    "the memory of one process: DEBUG, MEMORY, CONFIG SET of buffers and evictions": (
        *("client-eviction", "lazyfree", "maxmemory", "memefficiency", "obuf-limits", "pendingquerybuf"),
        *("querybuf", "replybufsize", "violations"),
    ),
    "LATENCY, SLOWLOG, CLIENT PAUSE, COMMAND GETKEYS and statistics of commands, which are not offered": (
        *("info", "introspection-2", "latency-monitor", "pause", "slowlog"),
    ),
}
"""The other files of tests/unit, by what they need or are about; those in moduleapi need modules."""
NOTIFICATIONS = {
    "KA": ("we receive keyspace notifications",),
    "EA": ("we receive keyevent notifications",),
    "KEA": ("we can receive both kind of events",),
    "KEg": ("general events test",),
    "Ex": ("expired events (triggered expire)", "expired events (background expire)"),
}
"""Tests of unit/pubsub by the flags that they would set: here the keyspace has them (`spec.notify`)."""
NOTIFYING = [f"Keyspace notifications: {name}" for names in NOTIFICATIONS.values() for name in names]
ROOT = Path(__file__).resolve().parents[2]
PASSED_MIN = 260
IGNORED = {
    "Not supported on external server": "starts a server with settings, files or a replica of its own",
    "Not supported on singledb": "COPY and MOVE to another database",
    "Tag: needs:debug denied": "DEBUG: sleep, reload, object encodings, replies of all types",
    "Tag: needs:repl denied": "the stream of writes to a replica",
    "Tag: needs:save denied": "SAVE",
    "Tag: needs:config-maxmemory denied": "CONFIG SET maxmemory",
}
"""Why tests are left out by what they are tagged with."""
LEFT_OUT = suite.left_out(Path(__file__).with_name("left_out.txt"))
FAILING = [name for name, reason in LEFT_OUT.items() if not reason.startswith("They look at what")]


def test_the_documentation_names_the_units():
    text = " ".join((ROOT / "docs" / "reference" / "commands.md").read_text().split())
    found = re.search(r"its files (.*?)\.", text)
    assert found is not None
    assert set(re.split(r", | and ", found[1])) == {
        unit.removeprefix("unit/") for units in RUNS.values() for unit in units
    }


def test_each_file_of_redis_is_run_or_is_named_with_a_reason():
    folder = sources.ensure("redis") / "tests" / "unit"
    files = [path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.tcl")]
    run = [unit.removeprefix("unit/") for units in RUNS.values() for unit in units]
    named = [*run, *(name for names in NOT_RUN.values() for name in names)]
    assert sorted(name for name in files if not name.startswith("moduleapi/")) == sorted(named)


async def test_the_tests_of_redis_pass(tmp_path):
    copy = suite.unpacked(tmp_path)
    outcome, notifying, others = Outcome(), Outcome(), Outcome()
    for partitions, units in RUNS.items():
        async with cluster(tmp_path / str(partitions), 3, partitions) as made:
            made.features = SPOKEN.most
            await made.publish()
            address = made.members[0].host, made.ports[0]
            outcome += await suite.run(copy, *address, units, [*LEFT_OUT, *NOTIFYING])
            if "unit/pubsub" in units:
                notifying = await notifications(made, copy)
            others += await suite.run(copy, *address, units, (), *FAILING)
    assert not outcome.aborted
    assert not outcome.failed
    assert len(outcome.passed) >= PASSED_MIN
    assert {re.sub(r"^.*: (?=Tag:|Not )", "", name) for name in outcome.ignored} == set(IGNORED)
    assert set(outcome.skipped) - set(NOTIFYING) == set(LEFT_OUT), (
        "left_out.txt names tests that are not there"
    )
    assert notifying.passed == NOTIFYING
    assert not notifying.failed
    assert not others.aborted
    assert not others.passed, "these pass now: take them off left_out.txt"


async def notifications(made: Cluster, copy: Path) -> Outcome:
    """Run the tests of notifications, each with the flags that it would set."""
    outcome = Outcome()
    for flags, names in NOTIFICATIONS.items():
        await made.declare({"default": Settings(notify=flags)})
        only = [f"Keyspace notifications: {name}" for name in names]
        outcome += await suite.run(copy, made.members[0].host, made.ports[0], ["unit/pubsub"], (), *only)
    await made.declare({})
    return outcome
