"""`plan --offline`: what it prints, and that replaying it gives what it aims at."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from e2e.bench.quality import PlanError
from tests.cli.conftest import Ran, Run
from tests.cli.replaying import replayed

ROOT = Path(__file__).parents[2]
PLAN = ("plan", "--offline", "-")
KEYS = ["target", "migrations", "refusals", "stats"]
MIGRATION_KEYS = [
    "partition",
    "type",
    "source",
    "source_current_index",
    "source_new_index",
    "destination",
    "destination_current_index",
    "destination_new_index",
]
STATS = ["copies", "lower_bound", "owner_spread", "replica_spread", "seconds"]


def file(
    current: list[list[str | None]], members: str | list[dict[str, Any]], replicas: int = 2, **more: Any
) -> dict[str, Any]:
    entries = [{"name": name} for name in members] if isinstance(members, str) else members
    return {"partitions": len(current), "replicas": replicas, "members": entries, "current": current, **more}


def planned(run: Run, given: dict[str, Any], *options: str) -> Ran:
    return run(*PLAN, *options, stdin=json.dumps(given).encode())


def balanced(names: str, partitions: int) -> list[list[str | None]]:
    """Two replicas of each partition, evenly over the names."""
    count = len(names)
    return [
        [names[number % count], names[(number + 1 + number // count % (count - 1)) % count]]
        for number in range(partitions)
    ]


def test_keys_are_those_that_are_promised_in_their_order(run: Run) -> None:
    answer = planned(run, file(balanced("abc", 30), "abcd"), "-o", "json").json
    assert list(answer) == KEYS
    assert list(answer["stats"]) == STATS
    assert [list(migration) for migration in answer["migrations"]] == [MIGRATION_KEYS] * 15
    assert answer["stats"] | {"seconds": 0} == {
        "copies": 15,
        "lower_bound": 15,
        "owner_spread": 1,
        "replica_spread": 0,
        "seconds": 0,
    }


def test_yaml_says_the_same_as_json(run: Run) -> None:
    import yaml

    given = file(balanced("abc", 30), "abcd")
    as_yaml = yaml.safe_load(planned(run, given, "-o", "yaml").out)
    as_json = planned(run, given, "-o", "json").json
    as_yaml["stats"]["seconds"] = as_json["stats"]["seconds"]
    assert as_yaml == as_json


def test_a_member_that_is_gone_is_replaced_and_told_as_gone(run: Run) -> None:
    given = file([["a", "x"], ["x", "b"], ["b", "c"]], "abc")
    answer = planned(run, given, "-o", "json").json
    assert replayed(given["current"], "abc", answer) == answer["target"]
    assert not any("x" in row for row in answer["target"])
    assert "x" in planned(run, given).out
    assert "gone" in planned(run, given).out


def test_a_row_of_members_that_are_gone_is_lost_and_an_empty_one_is_assigned(run: Run) -> None:
    answer = planned(run, file([["x", None], [None], ["a", "b"]], "ab"), "-o", "json").json
    reasons = {each["partition"]: each["reason"].partition(":")[0] for each in answer["refusals"]}
    assert reasons == {0: "NO_REPLICA"}
    assert answer["target"] == [[], ["b", "a"], ["a", "b"]]
    assert [(each["type"], each["source"], each["destination"]) for each in answer["migrations"]] == [
        ("COPY", None, "b"),
        ("COPY", None, "a"),
    ]


def test_a_new_cluster_is_given_its_first_rows(run: Run) -> None:
    given = file([[]] * 30, "abc")
    answer = planned(run, given, "-o", "json").json
    assert answer["refusals"] == []
    assert replayed(given["current"], "abc", answer) == answer["target"]
    assert Counter(name for row in answer["target"] for name in row) == {"a": 20, "b": 20, "c": 20}
    assert Counter(row[0] for row in answer["target"]) == {"a": 10, "b": 10, "c": 10}


def test_lite_members_get_nothing_and_leaving_ones_are_emptied(run: Run) -> None:
    members = [{"name": "a"}, {"name": "b"}, {"name": "c", "leaving": True}, {"name": "l", "lite": True}]
    answer = planned(run, file(balanced("abc", 30), members), "-o", "json").json
    assert {name for row in answer["target"] for name in row} == {"a", "b"}


def test_a_member_that_is_away_is_expected_back_and_planned_around(run: Run) -> None:
    rows = balanced("abc", 30)
    members = [{"name": "a"}, {"name": "b"}, {"name": "c", "away": True}, {"name": "d"}]
    answer = planned(run, file(rows, members), "-o", "json").json
    waiting = [number for number, row in enumerate(rows) if "c" in row]
    assert [answer["target"][number] for number in waiting] == [rows[number] for number in waiting]
    assert any("d" in row for row in answer["target"])
    assert not any("c" in (each["source"], each["destination"]) for each in answer["migrations"])
    text = planned(run, file(rows, members)).out
    assert f"{len(waiting)} partitions are not planned: they wait for a member that is away" in text
    assert "3 members available for data" in text
    # Gone for good, what it held is made anew.
    gone = planned(run, file(rows, [each for each in members if each["name"] != "c"]), "-o", "json").json
    assert not any("c" in row for row in gone["target"])


def test_weights_and_zones_are_honoured(run: Run) -> None:
    members = [
        {"name": "a", "zone": "1", "weight": 2},
        {"name": "b", "zone": "1"},
        {"name": "c", "zone": "2", "weight": 2},
        {"name": "d", "zone": "2"},
    ]
    answer = planned(run, file([["a", "b"], ["b", "a"]] * 30, members), "-o", "json").json
    assert all({name in "ab" for name in row} == {True, False} for row in answer["target"])
    held = Counter(name for row in answer["target"] for name in row)
    assert held == {"a": 40, "b": 20, "c": 40, "d": 20}
    assert answer["stats"]["replica_spread"] == 0


def test_spread_of_unequal_weights_is_the_distance_from_fair_shares(run: Run) -> None:
    members = [{"name": "a", "weight": 2}, {"name": "b"}]
    stats = planned(run, file([["a"], ["b"]], members, replicas=1), "-o", "json").json["stats"]
    assert stats["owner_spread"] == pytest.approx(0.667)


def test_named_moves_are_done_or_refused_by_name(run: Run) -> None:
    moves = [
        {"partition": 0, "source": "a", "destination": "c"},
        {"partition": 1, "source": "c", "destination": "a"},
    ]
    answer = planned(run, file([["a"], ["b"], ["c"]], "abc", replicas=1, moves=moves), "-o", "json").json
    assert answer["target"][0] == ["c"]
    assert answer["refusals"] == [
        {"partition": 1, "reason": "NOT_ALLOWED: c holds no replica of it that stays"}
    ]


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    names = [f"m-{number}" for number in range(9)]
    entry = st.fixed_dictionaries(
        {},
        optional={
            "weight": st.integers(1, 5),
            "zone": st.sampled_from(["x", "y"]),
            "leaving": st.booleans(),
            "away": st.booleans(),
        },
    ).filter(lambda entry: not (entry.get("away") and entry.get("leaving")))
    members = [
        draw(entry) | {"name": name}
        for name in draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    ]
    row = st.lists(st.sampled_from([*names, None, None]), max_size=4, unique_by=lambda name: name or object())
    current = draw(st.lists(row, min_size=1, max_size=30))
    return file(current, members, draw(st.integers(1, 4)))


@given(files())
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_replaying_the_migrations_gives_the_target(run: Run, given: dict[str, Any]) -> None:
    answer = planned(run, given, "-o", "json").json
    alive = {member["name"] for member in given["members"]}
    assert replayed(given["current"], alive, answer) == answer["target"]


def test_the_replayer_notices_a_migration_that_does_not_fit() -> None:
    migration = dict(zip(MIGRATION_KEYS, [0, "MOVE", "a", 0, -1, "b", -1, 0], strict=True))
    assert replayed([["a"]], "ab", {"migrations": [migration], "target": [["b"]]}) == [["b"]]
    clear = migration | {"type": "CLEAR", "destination": None, "destination_new_index": -1}
    for wrong in (
        {"source": "c"},
        {"destination_new_index": 1},
        {"destination": "a"},
        {"type": "COPY"},
        clear,
    ):
        with pytest.raises(PlanError):
            replayed([["a"]], "ab", {"migrations": [migration | wrong], "target": [["b"]]})


def test_people_see_bars_counts_and_refusals(run: Run) -> None:
    found = planned(run, file(balanced("abc", 30), "abcd", replicas=2)).out
    assert "10 -> 8" in found
    assert "0 -> 15" in found
    assert "░" in found
    assert "▓" in found
    assert "15: 15 MOVE" in found
    assert "15 (lower bound 15)" in found
    assert "\x1b" not in found


def test_wide_adds_every_migration(run: Run) -> None:
    given = file(balanced("abc", 30), "abcd")
    assert planned(run, given, "-o", "wide").out.count(" MOVE ") == 15 + planned(run, given).out.count(
        " MOVE "
    )


@pytest.mark.parametrize("columns", ["20", "40", "60", "80", "200"])
def test_no_line_is_wider_than_the_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    members = [{"name": f"a-rather-long-name-{number}", "zone": "z"} for number in range(4)]
    current: list[list[str | None]] = [[members[0]["name"], members[1]["name"]]] * 9
    found = planned(run, file(current, members, replicas=5)).out
    assert max(map(len, found.splitlines())) <= int(columns)
    assert "TOO_FEW_MEMBERS" in found.replace("\n", "")


def test_many_members_and_refusals_are_cut_with_a_count(run: Run) -> None:
    members = [{"name": f"m-{number}"} for number in range(100)]
    given = file([["gone"]] * 30 + [["m-0"]], members)
    found = planned(run, given).out
    assert "and 61 more members; -o wide shows all" in found
    assert "(30 partitions: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...)" in " ".join(found.split())
    wide = planned(run, given, "-o", "wide").out
    assert "m-99" in wide
    assert "27, 28, 29)" in " ".join(wide.split())


def test_many_kinds_of_refusals_are_cut_with_a_count(run: Run) -> None:
    moves = [{"partition": 0, "source": f"m-{number}", "destination": "a"} for number in range(12)]
    members = [{"name": "a"}, {"name": "b"}] + [{"name": f"m-{number}"} for number in range(12)]
    found = planned(run, file([["a", "b"]], members, moves=moves))
    assert "and 2 more; plan -o wide shows all" in found.out


def test_a_large_table_with_no_kubernetes_library(tmp_path: Path) -> None:
    """As a process of its own, with the libraries of the online commands made impossible to import."""
    (tmp_path / "kubernetes.py").write_text("raise ImportError('not here')\n")
    (tmp_path / "aiohttp.py").write_text("raise ImportError('not here')\n")
    table = tmp_path / "table.json"
    table.write_text(json.dumps(file(balanced("abcdefghij", 20_000), "abcdefghijk")))
    done = subprocess.run(
        [sys.executable, "-m", "stele.cli", "plan", "--offline", str(table), "-o", "json"],
        capture_output=True,
        env={"PYTHONPATH": str(tmp_path)},
        check=False,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    assert len(answer["migrations"]) == answer["stats"]["copies"] == answer["stats"]["lower_bound"] == 3636
    assert answer["stats"]["owner_spread"] == answer["stats"]["replica_spread"] == 1


def test_a_terminal_without_blocks_gets_plain_letters(tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    table.write_text(json.dumps(file(balanced("abc", 30), "abcd")))
    done = subprocess.run(
        [sys.executable, "-m", "stele.cli", "plan", "--offline", str(table)],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "COLUMNS": "80"},
        check=True,
        timeout=60,
    )
    assert b"##" in done.stdout
    assert b"+ more" in done.stdout


def test_the_example_of_the_readme_prints_what_the_readme_shows(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = [
        line.rstrip() for line in run("plan", "--offline", str(ROOT / "examples/plan.json")).out.splitlines()
    ]
    readme = (ROOT / "README.md").read_text().splitlines()
    begin = readme.index(printed[0])
    shown = readme[begin : begin + len(printed)]
    timed = next(number for number, line in enumerate(printed) if line.startswith("Planned in"))
    assert shown[:timed] + shown[timed + 1 :] == printed[:timed] + printed[timed + 1 :]
