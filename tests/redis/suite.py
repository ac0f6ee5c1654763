"""Runs Redis' own tests (Tcl) against members of a cluster, and reads what they print."""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster import debian, sources
from tests.worker import WORKER

RUN_SECONDS_MAX = 240.0
SILENCE_SECONDS_MAX = 60
DENIED = ("needs:repl", "needs:debug", "needs:save", "needs:config-maxmemory", "large-memory")
"""Tags of tests that are about one process of Redis, see left_out.txt."""
OPTIONS = ("--singledb", "--ignore-encoding", "--ignore-digest", "--durable", "--no-latency")
CHANGES = {
    # What each unit of an external server begins with: there are no functions that could be flushed.
    "support/server.tcl": [("    r function flush\n", "")],
    # Its tests with one server need none of their own; those after them have a replica.
    "unit/pubsubshard.tcl": [
        ('{"pubsubshard external:skip"}} {\n    test', '{"pubsubshard"}} {\n    test'),
    ],
    # Fewer rounds of requests that are sent one after the other: each waits for a second member.
    "unit/type/string.tcl": [
        ("{$x < 10000}", "{$x < 500}"),
        ("{set x 9999}", "{set x 499}"),
        ("} {10000}\n", "} {500}\n"),
        ("{$x < 9999}", "{$x < 500}"),
        ("{$j < 100}", "{$j < 20}"),
        ("{$j < 1000}", "{$j < 100}"),
        ("[randomInt 100]", "[randomInt 20]"),
        ("{$i < 1000}", "{$i < 100}"),
    ],
    "unit/other.tcl": [
        ("{set iterations 1000}", "{set iterations 100}"),
        ("{$i < 100000}", "{$i < 5000}"),
        ("{$i < 1000}", "{$i < 100}"),
    ],
    # CONFIG SET is refused: the flags are those of the keyspace. The pattern * has gaps of FLUSHALL, too.
    "unit/pubsub.tcl": [
        *(
            (f"        r config set notify-keyspace-events {flags}\n", "")
            for flags in ("KA", "EA", "KEA", "KEg", "Ex")
        ),
        ("[psubscribe $rd1 *]", "[psubscribe $rd1 __key*]"),
        ("pmessage * ", "pmessage __key* "),
    ],
    # What it would set here is the default.
    "unit/tracking.tcl": [("            r config set tracking-table-max-keys 1000000\n", "")],
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(r"\[(ok|err|skip|ignore|exception|TIMEOUT)\]: ?(.*)")
_TIME = re.compile(r" \(\d+ ms\)$")
_PLACE = re.compile(r" in tests/[\w/.-]+$")


@dataclass
class Outcome:
    """Names of tests by what became of them; `failed` with the lines that were printed, `ignored` by tag."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    aborted: str = ""

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(
            self.passed + other.passed,
            self.failed | other.failed,
            self.skipped + other.skipped,
            self.ignored + other.ignored,
            self.aborted + other.aborted,
        )


def unpacked(folder: Path) -> Path:
    """A changed copy of the tests in `folder`."""
    debian.ensure_packages({"tcl": debian.PACKAGES["tcl"]})
    copy = folder / "redis"
    shutil.copytree(sources.ensure("redis") / "tests", copy / "tests")
    for name, changes in CHANGES.items():
        file = copy / "tests" / name
        text = file.read_bytes().decode("latin-1")
        for old, new in changes:
            assert old in text, f"{name} has no {old!r}"
            text = text.replace(old, new)
        file.write_bytes(text.encode("latin-1"))
    return copy


async def run(
    copy: Path, host: str, port: int, units: Sequence[str], skipped: Iterable[str], *only: str
) -> Outcome:
    """Run units on one server, without the tests that are skipped by name; `only` those if there are any."""
    names = copy / "skipped"
    names.write_text("\n".join(skipped))
    # The test that talks to the server is a process of its own, which the first one listens for.
    words = ["--host", host, "--port", str(port), "--baseport", str(21111 + 100 * WORKER), *OPTIONS]
    words += ["--tags", " ".join(f"-{tag}" for tag in DENIED), "--skipfile", str(names)]
    for option, values in (("--single", units), ("--only", only)):
        words += [word for value in values for word in (option, value)]
    words += ["--timeout", str(SILENCE_SECONDS_MAX)]
    with (copy / "log").open("w+b") as log:
        tclsh = await asyncio.create_subprocess_exec(
            "tclsh", "tests/test_helper.tcl", *words, cwd=copy, stdout=log, stderr=log, start_new_session=True
        )
        try:
            async with asyncio.timeout(RUN_SECONDS_MAX):
                await tclsh.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(tclsh.pid, signal.SIGKILL)
        return read(_COLOUR.sub("", (copy / "log").read_text(errors="replace")))


def read(text: str) -> Outcome:
    """Parse what was printed up to the list of all failures at the end."""
    outcome, failure = Outcome(), ""
    for line in text.partition("\n!!! WARNING")[0].splitlines():
        found = _LINE.match(line)
        if found is None:
            if failure:
                outcome.failed[failure] += f"\n{line}"
            continue
        kind, rest = found.groups()
        failure = ""
        if kind == "ok":
            outcome.passed.append(_TIME.sub("", rest))
        elif kind == "err":
            failure = _PLACE.sub("", rest)
            outcome.failed[failure] = ""
        elif kind == "skip":
            outcome.skipped.append(rest)
        elif kind == "ignore":
            outcome.ignored.append(rest)
        else:
            outcome.aborted = text[-2000:]
    return outcome


def left_out(file: Path) -> dict[str, str]:
    """Names of tests with the reason, which is the comment above them."""
    reasons, reason = dict[str, str](), ""
    for line in file.read_text().splitlines():
        if line.startswith("# "):
            reason = line[2:]
        elif line:
            assert line not in reasons, f"{line} is listed twice"
            reasons[line] = reason
    return reasons
