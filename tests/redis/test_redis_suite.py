"""Redis' own tests, in Tcl, on a cluster of three: all of what is offered pass, and the others are named."""

import re
from pathlib import Path

from stele.core.formats import SPOKEN
from tests.member.harness.cluster import cluster
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


async def test_the_tests_of_redis_pass(tmp_path):
    copy = suite.unpacked(tmp_path)
    outcome, others = Outcome(), Outcome()
    for partitions, units in RUNS.items():
        async with cluster(tmp_path / str(partitions), 3, partitions) as made:
            made.features = SPOKEN.most
            await made.publish()
            address = made.members[0].host, made.ports[0]
            outcome += await suite.run(copy, *address, units, LEFT_OUT)
            others += await suite.run(copy, *address, units, (), *FAILING)
    assert not outcome.aborted
    assert not outcome.failed
    assert len(outcome.passed) >= PASSED_MIN
    assert {re.sub(r"^.*: (?=Tag:|Not )", "", name) for name in outcome.ignored} == set(IGNORED)
    assert set(outcome.skipped) == set(LEFT_OUT), "left_out.txt names tests that Redis does not have"
    assert not others.aborted
    assert not others.passed, "these pass now: take them off left_out.txt"
