"""What a storm draws, what its checker and its clients complain of, what it tells; and a short one."""

import asyncio
import fcntl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import hiredis
import pytest

from e2e.demo.errors import DemoError
from e2e.demo.history import Breach, Outcome, Violation, value_of
from e2e.demo.judge import partition_of
from e2e.demo.resp import Endpoint
from e2e.storm import course, faults, network, story
from e2e.storm.__main__ import entry
from e2e.storm.books import LARGE_BYTES, Books, Counters, packed, unpacked
from e2e.storm.clients import AVOIDING, Client, Load, Operation
from e2e.storm.faults import Kind, draw
from e2e.storm.report import Report
from e2e.storm.strikes import Struck
from e2e.storm.watch import Watch

ACK, REFUSED, DOUBT = Outcome.ACKNOWLEDGED, Outcome.REFUSED, Outcome.DOUBTFUL
KEY = "storm:count:0:0:0"
PARTITIONS, TURNS_MAX, TURN_SECONDS = 5, 1000, 0.02

# -- what is drawn


def test_the_same_seed_draws_the_same_faults() -> None:
    assert draw(7, 300) == draw(7, 300)
    assert draw(7, 300) != draw(8, 300)
    assert draw(7, 60) == [each for each in draw(7, 300) if each.at < 60 - faults.LAST_SECONDS]


def test_every_kind_is_drawn_and_what_lasts_ends() -> None:
    drawn = [each for seed in range(20) for each in draw(seed, 300)]
    assert {each.kind for each in drawn} == set(Kind) == set(faults.WEIGHTS)
    for each in drawn:
        assert (each.lasts > 0) == (each.kind in faults.SECONDS), each
        assert bool(each.word) == (each.kind in faults.WORDS), each
    assert {each.victim for each in drawn if each.kind is Kind.SCALE} == set(faults.MEMBERS_DRAWN)


def test_faults_come_in_time_and_often_close_together() -> None:
    times = [each.at for each in draw(3, 600)]
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] >= faults.FIRST_SECONDS
    assert all(gap > 0 for gap in gaps)
    assert 0.2 < sum(gap < 1 for gap in gaps) / len(gaps) < 0.6


def test_what_strikes_in_calm_strikes_alone() -> None:
    for drawn in (draw(seed, 300) for seed in range(20)):
        for number, fault in enumerate(drawn):
            if fault.calm:
                ended = max((each.at + each.lasts for each in drawn[:number]), default=0.0)
                assert fault.at >= ended + faults.CALM_SECONDS - 0.02
                assert all(each.at >= fault.at + fault.lasts for each in drawn[number + 1 :])


def test_time_stands_still_while_the_cluster_is_not_well_but_not_for_long() -> None:
    clock = faults.Clock(100.0)
    assert clock.turn(101.0, True) == 1.0
    assert clock.turn(105.0, False) == 1.0
    assert clock.turn(106.0, True) == 2.0
    assert clock.turn(116.0, False) == 2.0
    assert clock.turn(117.0, False) == 3.0


# -- counters


def ended(*outcomes: Outcome) -> Counters:
    """A counter whose increments ended so, each acknowledged one with the number of those acknowledged."""
    counters = Counters()
    for outcome in outcomes:
        assert increment(counters, outcome, counters.floor(KEY) + 1) is None
    return counters


def increment(counters: Counters, outcome: Outcome, value: object = None) -> Breach | None:
    return breach(counters.end(KEY, counters.send(KEY), outcome, value))


def breach(violation: Violation | None) -> Breach | None:
    return violation.breach if violation else None


def read(counters: Counters, value: bytes | None, floor: int | None = None) -> Breach | None:
    return breach(counters.judge(KEY, counters.floor(KEY) if floor is None else floor, value))


@pytest.mark.parametrize(
    ("outcomes", "number", "seen"),
    [
        ((ACK, ACK, ACK), 3, Breach.LOST),
        ((ACK, ACK), 4, Breach.NEVER_SENT),
        ((ACK, REFUSED), 3, Breach.NEVER_SENT),
    ],
)
def test_a_lost_doubled_or_refused_increment_is_seen_by_the_next(
    outcomes: tuple[Outcome, ...], number: int, seen: Breach
) -> None:
    assert increment(ended(*outcomes), ACK, number) is seen


@pytest.mark.parametrize(
    ("outcomes", "value", "floor", "seen"),
    [
        ((ACK, ACK), b"1", None, Breach.LOST),
        ((ACK,), None, None, Breach.LOST),
        ((ACK, REFUSED), b"2", None, Breach.NEVER_SENT),
        # The read was sent before the answer.
        ((ACK, ACK), b"1", 1, None),
    ],
)
def test_each_read_is_judged(
    outcomes: tuple[Outcome, ...], value: bytes | None, floor: int | None, seen: Breach | None
) -> None:
    assert read(ended(*outcomes), value, floor) is seen


def test_what_was_read_once_may_not_vanish() -> None:
    counters = ended(ACK, DOUBT)
    assert read(counters, b"2") is None
    assert read(counters, b"1") is Breach.LOST


def test_a_doubtful_increment_counts_once_at_any_later_time() -> None:
    for counted in (2, 3):
        counters = ended(ACK, DOUBT)
        assert increment(counters, ACK, counted) is None
        assert increment(counters, ACK, 4 if counted == 2 else 5) is (
            None if counted == 2 else Breach.NEVER_SENT
        )
    assert set(ended(ACK, DOUBT).allowed(KEY)) == {b"1", b"2"}
    assert set(ended(DOUBT).allowed(KEY)) == {None, b"1"}


def test_increments_in_one_pipeline_count_one_by_one_although_others_read_ahead() -> None:
    counters = Counters()
    first, second = counters.send(KEY), counters.send(KEY)
    assert read(counters, b"2") is None
    assert counters.end(KEY, first, ACK, 1) is None
    assert counters.end(KEY, second, ACK, 2) is None


def test_two_increments_of_one_pipeline_may_not_count_as_one() -> None:
    counters = Counters()
    first, second = counters.send(KEY), counters.send(KEY)
    assert counters.end(KEY, first, ACK, 1) is None
    assert breach(counters.end(KEY, second, ACK, 1)) is Breach.LOST


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"9" * 30])
def test_what_is_no_number_is_seen(value: bytes) -> None:
    assert read(ended(ACK), value) is Breach.GARBLED
    assert increment(ended(ACK), ACK, value) is Breach.GARBLED


# -- registers


@pytest.mark.parametrize("kind", ["set", "large"])
def test_a_register_complains_as_the_ledger_does(kind: str) -> None:
    key, books = f"storm:{kind}:0:1:0", Books.empty()
    for _ in range(2):
        books.registers.end(key, books.registers.send(key), ACK)
    old, new = packed(key, 1), packed(key, 2)
    assert len(new) == len(value_of(key, 2)) + (LARGE_BYTES[1] if kind == "large" else 0)
    assert breach(books.judge(key, 2, new)) is None
    assert breach(books.judge(key, 2, old)) is Breach.STALE
    assert breach(books.judge(key, 2, None)) is Breach.LOST
    assert breach(books.judge(key, 2, packed(key, 3))) is Breach.NEVER_SENT
    assert list(books.allowed(key)) == [new]


@pytest.mark.parametrize(
    "spoil", [lambda v: v[:-1], lambda v: v + b"x", lambda v: v[:-1] + b"?", lambda v: b""]
)
def test_a_large_value_that_was_changed_is_seen(spoil: Callable[[bytes], bytes]) -> None:
    key = "storm:large:0:0:0"
    books = Books.empty()
    books.registers.end(key, books.registers.send(key), ACK)
    assert unpacked(key, packed(key, 1)) == value_of(key, 1)
    assert breach(books.judge(key, 1, spoil(packed(key, 1)))) is Breach.GARBLED


# -- clients, against a server of one process that has a defect


class Server:
    """INCR, SET, GET and STELE.ONCE; `defect` is asked at each write and may do another thing instead."""

    def __init__(self, defect: str = "", every: int = 50) -> None:
        self.data: dict[bytes, bytes] = {}
        self.before: dict[bytes, bytes] = {}
        self.once: dict[bytes, tuple[bytes, bytes]] = {}
        self._defect, self._every, self._count = defect, every, 0

    async def ask(self, words: list[bytes]) -> bytes:
        return self.answer(words)

    def _struck(self, defect: str) -> bool:
        if defect != self._defect:
            return False
        self._count += 1
        return self._count % self._every == 0

    def answer(self, words: list[bytes]) -> bytes:
        name, *rest = words
        if name == b"GET":
            value = self.data.get(rest[0])
            if self._struck("old read"):
                value = self.before.get(rest[0])
            return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)
        if name == b"STELE.ONCE":
            return self._once(rest)
        if name == b"INCR":
            return self._increment(rest[0])
        assert name == b"SET", words
        if self._struck("refused write done"):
            self.data[rest[0]] = rest[1]
            return b"-TRYAGAIN nothing was done\r\n"
        if not self._struck("lost write"):
            self.before[rest[0]] = self.data.get(rest[0], b"")
            self.data[rest[0]] = rest[1]
        return b"+OK\r\n"

    def _increment(self, key: bytes) -> bytes:
        if self._struck("uncertain"):
            return b"-UNCERTAIN the owner was lost\r\n"
        value = int(self.data.get(key, b"0")) + (2 if self._struck("counts twice") else 1)
        if not self._struck("lost increment"):
            self.before[key] = self.data.get(key, b"0")
            self.data[key] = b"%d" % value
        return b":%d\r\n" % value

    def _once(self, rest: list[bytes]) -> bytes:
        client, number, _, key = rest
        if self.once.get(client, (b"",))[0] == number:
            return self.once[client][1]
        reply = self._increment(key)
        if not reply.startswith(b"-") and not self._struck("forgets once"):
            self.once[client] = (number, reply)
        return b"-UNCERTAIN the owner was lost\r\n" if self._defect == "forgets once" else reply


Ask = Callable[[list[bytes]], Awaitable[bytes]]


@asynccontextmanager
async def serving(answer: Ask) -> AsyncIterator[Endpoint]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests = hiredis.Reader()
        while data := await reader.read(1 << 16):
            requests.feed(data)
            while (words := requests.gets()) is not False:
                writer.write(await answer(words))
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield Endpoint("127.0.0.1", listening.sockets[0].getsockname()[1])


async def violations_with(defect: str, operations: int = 3_000) -> tuple[list[Violation], Load]:
    found: list[Violation] = []
    async with serving(Server(defect).ask) as endpoint:
        load = Load(1, {"storm-0": endpoint, "storm-1": endpoint}, found.append, PARTITIONS)

        async def until_told() -> None:
            for _ in range(TURNS_MAX):
                if found or load.counts.total() > operations:
                    break
                await asyncio.sleep(TURN_SECONDS)
            load.stopping = True

        await asyncio.gather(load.run(load.endpoints), until_told())
    return found, load


async def test_clients_complain_of_nothing_that_is_right() -> None:
    found, load = await violations_with("")
    assert found == []
    words = {each.split()[0] for each in load.counts}
    assert words == {"GET", "INCR", "ONCE", "SET"}


async def test_clients_take_no_answer_for_what_it_is() -> None:
    found, load = await violations_with("uncertain")
    assert found == []
    assert load.counts["INCR doubtful"] > 0
    assert load.counts["ONCE doubtful"] > 0


@pytest.mark.parametrize(
    "defect",
    ["lost increment", "counts twice", "lost write", "old read", "refused write done", "forgets once"],
)
async def test_clients_complain_of_a_defect(defect: str) -> None:
    found, load = await violations_with(defect)
    assert found, load.counts
    assert load.history[found[0].key]


class Orphan(Server):
    """Two members, of which the first owns one partition, until its pod goes while its process runs on.

    From then on it only answers reads of that partition, from what it had, for `LEASE_SECONDS`; the other
    serves the partition after `PROMOTED_SECONDS`, too soon, and everything else as before.
    """

    PROMOTED_SECONDS, LEASE_SECONDS = 0.5, 2.0
    OWNED = 1

    def __init__(self) -> None:
        super().__init__()
        self._old: dict[bytes, bytes] = {}
        self._begun = float("inf")
        self.ended = asyncio.Event()

    def begin(self) -> None:
        self._old, self._begun = dict(self.data), time.monotonic()

    def at(self, first: bool) -> Ask:
        return self._first if first else self._second

    async def _first(self, words: list[bytes]) -> bytes:
        if self._seconds < 0:
            return self.answer(words)
        if words[0] != b"GET" or not self._owned(words) or self._seconds > self.LEASE_SECONDS:
            await self.ended.wait()
            return b"-TRYAGAIN nothing was done\r\n"
        value = self._old.get(words[1])
        return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)

    async def _second(self, words: list[bytes]) -> bytes:
        if self._owned(words) and self._seconds >= 0:
            await asyncio.sleep(self.PROMOTED_SECONDS - self._seconds)
        return self.answer(words)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._begun

    def _owned(self, words: list[bytes]) -> bool:
        key = words[4] if words[0] == b"STELE.ONCE" else words[1]
        return partition_of(key, PARTITIONS) == self.OWNED


@pytest.mark.parametrize("first", ["storm-0", "storm-2"])
async def test_an_old_read_at_a_process_whose_pod_is_gone_is_seen(first: str) -> None:
    found: list[Violation] = []
    server = Orphan()
    async with serving(server.at(first=True)) as old, serving(server.at(first=False)) as new:
        load = Load(1, {first: old, "storm-1": new}, found.append, PARTITIONS)

        async def course() -> None:
            await asyncio.sleep(1.0)
            server.begin()
            load.endpoints = {"storm-1": new}
            await asyncio.sleep(Orphan.LEASE_SECONDS)
            load.stopping = True
            server.ended.set()

        await asyncio.gather(load.run(load.endpoints), course())
    assert {each.breach for each in found} <= {Breach.LOST, Breach.STALE}
    assert found


def test_no_client_has_to_write_at_all_members() -> None:
    load = Load(1, dict.fromkeys(("storm-0", "storm-1", "storm-2"), Endpoint("", 1)), lambda _: None, 1)
    clients = [Client(number, load) for number in range(AVOIDING)]
    used = [{each._member() for _ in range(100)} for each in clients]
    assert used == [load.endpoints.keys() - {f"storm-{number}"} for number in range(AVOIDING)]
    load.endpoints = {"storm-0": Endpoint("", 1)}
    assert clients[0]._member() == "storm-0"


# -- what is made and told


async def test_a_cut_that_one_node_refuses_is_left_on_none(monkeypatch: pytest.MonkeyPatch) -> None:
    rules: dict[str, list[str]] = {"1": [], "2": []}

    async def iptables(env: object, *words: str) -> str:
        node, line = words[3], words[-1]
        for rule in line.split("; "):
            verb, rest = rule.split()[3], rule.partition(network.CHAIN)[2]
            if verb == "-A" and (node == "1" or not rules[node]):
                rules[node].append(rest)
            elif verb == "-D" and rest in rules[node]:
                rules[node].remove(rest)
            else:
                raise DemoError("no")
        return ""

    monkeypatch.setattr(network, "command", iptables)
    with pytest.raises(DemoError):
        await network.Network({}, (1, 2)).cut(network.between("a", "b"))
    assert rules == {"1": [], "2": []}


def test_a_second_storm_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would begin by taking the first one's cluster away."""
    held: list[bool] = []

    def probe(seed: int, seconds: float) -> tuple[Report, Path]:
        with (tmp_path / "locks" / "storm").open("a") as file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(True)
        return Report(seed, seconds, ""), tmp_path

    monkeypatch.setenv("STELE_CACHE", str(tmp_path))
    monkeypatch.setattr(course, "_run", probe)
    course.run(1, 10.0)
    assert held == [True]


def test_a_member_that_is_being_deleted_is_struck_and_not_read_at_the_end(tmp_path: Path) -> None:
    def pod(name: str, **meta: str) -> dict[str, Any]:
        running = [{"name": "member", "containerID": "c://1", "state": {"running": {}}}]
        labels = {"stele.dev/component": "member", "stele.dev/cluster": "storm"}
        status = {"phase": "Running", "containerStatuses": running}
        return {"metadata": {"name": name, "labels": labels, **meta}, "status": status}

    pods = [pod("storm-0"), pod("storm-1", deletionTimestamp="2030-01-01T12:00:00Z")]
    watch = Watch(cast(Any, None), "n", "storm", tmp_path, pods=pods)
    assert [each["metadata"]["name"] for each in watch.members()] == ["storm-0", "storm-1"]
    assert [each["metadata"]["name"] for each in watch.staying()] == ["storm-0"]


def scene() -> tuple[Violation, story.Scene]:
    def done(number: int, answer: str, at: float) -> Operation:
        made = Operation(KEY, "INCR", (), number, member="storm-1", began=at, ended=at + 0.5, answer=answer)
        made.outcome = ACK
        return made

    history = {KEY: [done(n, f"answer {n}", 1000.0 + n) for n in range(50)]}
    rows = {3: [(900.0, 1, ("storm-0", "storm-1")), (1010.0, 2, ("storm-1",))]}
    logs = {
        "storm-0-abc-0": [
            "1970-01-01T00:16:40.5Z too early",
            "1970-01-01T00:17:26.250000001Z seen",
            "no time",
        ],
        "storm-1-abc-0": [f"1970-01-01T00:17:25.{n:03}Z line {n}" for n in range(400)] * 2,
    }
    struck = [Struck(1005.0, Kind.KILL, "SIGKILL to storm-0"), Struck(2000.0, Kind.KILL, "afterwards")]
    return Violation(Breach.LOST, KEY, "an increment gave 7"), story.Scene(history, rows, struck, logs)


def test_a_violation_is_told_with_history_rows_faults_and_logs() -> None:
    violation, seen = scene()
    text = "\n".join(story.tell(violation, 3, 1049.6, seen))
    for part in ("acknowledged write is missing", "an increment gave 7", "answer 49", "storm-0, storm-1"):
        assert part in text
    for part in ("version 2: storm-1", "SIGKILL to storm-0", "storm-0-abc-0  seen", "lines before"):
        assert part in text
    for part in ("answer 9\n", "afterwards", "too early", "no time"):
        assert part not in text
    assert text.count("line 399") == 1
    assert len(text.splitlines()) < story.OPERATIONS_TOLD_MAX + story.LOG_LINES_TOLD_MAX + 12


@pytest.mark.parametrize(
    "wrong",
    [
        {"violations": [{"breach": "b", "key": "k", "detail": "d"}]},
        {"replicas": {"missing": 1}},
        {"failure": "f"},
    ],
)
def test_a_report_with_anything_wrong_is_a_broken_promise(wrong: dict[str, Any]) -> None:
    assert not Report(1, 10.0, "now").broken
    assert Report(1, 10.0, "now", **wrong).broken
    assert "broken" in Report(1, 10.0, "now", **wrong).lines()[-1]


# -- the command line


@pytest.mark.parametrize("words", [["--seconds", "5"], ["--seconds", "soon"], ["--seed", "x"], ["more"]])
def test_wrong_use_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        entry(words)
    assert end.value.code == 2
    assert "usage: python -m e2e.storm" in capsys.readouterr().err


def test_a_cluster_of_the_user_is_not_stormed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config").write_text("apiVersion: v1\nkind: Config\n")
    monkeypatch.setenv("STELE_KUBECONFIG", str(tmp_path / "config"))
    assert entry([]) == 2
    assert "the project's own test cluster" in capsys.readouterr().err


def test_what_would_strike_is_printed_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry(["--draw", "--seed", "7", "--seconds", "60"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(draw(7, 60))


# -- on the real cluster


@pytest.mark.cluster
def test_a_short_storm_breaks_no_promise() -> None:
    """Its seed draws a process that only clients reach, a stop and a strike at once, kills and cuts."""
    report, _ = course.run(seed=632, seconds=35.0)
    assert not report.broken, "\n".join(report.lines())
    assert sum(report.faults.values()) >= 4, report.faults
    assert report.members_read == faults.MEMBERS_AT_FIRST
    assert report.operations["INCR acknowledged"] > 100
