"""What TLS between members costs a copy: the same ways, to a source that takes all and to one at Required.

Transfer processes on this machine. Each side with TLS has a volume of its own, whose file says Required, and
the certificate of a member; the source's checkpoints are those of the plain one.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.bench import disk
from e2e.bench.copy_ways import FULL, QUICK, QUICK_ROUNDS, ROUNDS, WORK, Case, answer, make_volume, transfer
from e2e.bench.report import Column, Goal, Report, Row, factor
from e2e.bench.secured import SETTINGS, Secured
from e2e.cluster import cache
from e2e.cluster.steps import say
from stele.wire.storage.volume import MEMBER_SECURITY, MemberSecurity, encode_file

TITLE = "copying tablets with TLS between members and without (6 minutes)"
TIME_RATIO_MAX = 1.25
"""Of the plain copy's time."""
RATIO_MIN = 1 / TIME_RATIO_MAX
"""Of the plain copy's speed."""
CLUSTER = "99999999-2222-3333-4444-555555555555"
WAYS = ("function, 1 process", "function, 2 processes", "Direct")

_NOTE = """\
The best of the rounds, in which all take turns. of plain: speed as a share of the same way without TLS. With
TLS both sides are at Required, and each has a certificate of its own from the cluster's CA."""


@dataclass(frozen=True, slots=True)
class Side:
    """How to copy with TLS, or without: the URLs of source and destination, whose volume is `dest`."""

    source_url: str
    jobs_url: str
    dest: Path
    tls_dir: str = ""


@dataclass(frozen=True, slots=True)
class Sides:
    """The one source volume, and both ways to copy it."""

    source: Path
    plain: Side
    tls: Side


def run(report: Report, quick: bool) -> None:
    """Measure all ways of all cases but the smallest, where next to nothing is sent."""
    section = report.section("Ways of copying with TLS, processes on this machine", _columns(), _NOTE)
    with sides() as made:
        for case in (QUICK if quick else FULL)[:-1]:
            section.rows.extend(measure(made, case, QUICK_ROUNDS if quick else ROUNDS))
    report.goals += goals(section.rows)


def _columns() -> Sequence[Column]:
    return (
        Column("data", "case"),
        Column("way", "way"),
        Column("plain s", "plain_seconds", lambda value: f"{value:.2f}"),
        Column("TLS s", "tls_seconds", lambda value: f"{value:.2f}"),
        Column("plain MB/s", "plain_bytes_per_second", lambda value: f"{value / 1e6:,.0f}"),
        Column("TLS MB/s", "tls_bytes_per_second", lambda value: f"{value / 1e6:,.0f}"),
        Column("of plain", "of_plain", factor),
    )


@contextmanager
def sides() -> Iterator[Sides]:
    """Four transfer processes; they and their volumes end with the block."""
    work = cache.root() / "work"
    work.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-copy-tls-", dir=work) as name,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        secured = Secured.of(folder / "secured", CLUSTER)
        source, dest = (make_volume(folder / each) for each in ("source", "dest"))
        plain = Side(transfer(stack, source), transfer(stack, dest), dest)
        tls_source, tls_dest = (_secured_volume(folder / f"{each}-tls") for each in ("source", "dest"))
        (tls_source / "checkpoints").rmdir()
        (tls_source / "checkpoints").symlink_to(source / "checkpoints")
        of_source, of_dest = (
            f"STELE_TLS_DIR={secured.member(each, '127.0.0.1')['STELE_TLS_DIR']}"
            for each in ("source", "dest")
        )
        urls = transfer(stack, tls_source, of_source), transfer(stack, tls_dest, of_dest)
        yield Sides(source, plain, Side(*urls, tls_dest, of_dest.partition("=")[2]))


def _secured_volume(folder: Path) -> Path:
    volume = make_volume(folder)
    assert SETTINGS.member_tls is not None
    (volume / MEMBER_SECURITY).write_bytes(encode_file(MemberSecurity(SETTINGS.member_tls)))
    return volume


def measure(made: Sides, case: Case, rounds: int) -> list[Row]:
    """One row for each way."""
    say(f"{case.name}: make the source")
    of_case = _work("make", made.source, case.data_bytes, case.value_bytes)
    best: dict[tuple[str, bool], float] = {}
    for _ in range(rounds):
        for way in WAYS:
            for tls, side in ((False, made.plain), (True, made.tls)):
                disk.until_idle(cache.root() / "work")
                say(f"  {way}{', TLS' if tls else ''}")
                seconds = float(_copy(made.source, side, way)["seconds"])
                best[way, tls] = min(seconds, best.get((way, tls), seconds))
    return [row_of(case, way, int(of_case["bytes"]), best[way, False], best[way, True]) for way in WAYS]


def _copy(source: Path, side: Side, way: str) -> dict[str, Any]:
    place = source, side.dest, side.source_url
    if way == "Direct":
        return _work("job", *place, f"{side.jobs_url}/v1/copies", "bench")
    return _work("alone", *place, way.split()[1], side.tls_dir)


def _work(*words: object) -> dict[str, Any]:
    return answer([sys.executable, WORK, *map(str, words)])


def row_of(case: Case, way: str, data_bytes: int, plain_seconds: float, tls_seconds: float) -> Row:
    """Seconds and speeds of both, and the speed with TLS as a share of the plain one."""
    return {
        "case": case.name,
        "way": way,
        "bytes": data_bytes,
        "plain_seconds": plain_seconds,
        "tls_seconds": tls_seconds,
        "plain_bytes_per_second": data_bytes / plain_seconds,
        "tls_bytes_per_second": data_bytes / tls_seconds,
        "of_plain": plain_seconds / tls_seconds,
    }


def goals(rows: Sequence[Row]) -> list[Goal]:
    """That TLS costs no way more than a quarter of its time."""
    worst = min(rows, key=lambda row: float(row["of_plain"]))
    found = f"{factor(worst['of_plain'])}: {worst['way']}, {worst['case']}"
    text = f"a copy with TLS: at least {RATIO_MIN} of the plain one's speed, each way"
    return [Goal(text, found, worst["of_plain"] >= RATIO_MIN)]
