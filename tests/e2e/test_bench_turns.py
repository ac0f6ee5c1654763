"""Two builds in turns: what is asked for, and what is made of what was found."""

import argparse
from pathlib import Path

import pytest

from e2e.bench.turns import case_of, folder_of, line


def test_a_line_has_the_medians_and_the_ratios_of_turns() -> None:
    first, second = [(100.0, 10.0), (50.0, 20.0), (80.0, 10.0)], [(50.0, 20.0), (30.0, 30.0), (60.0, 15.0)]
    assert line(case_of("set:100:32"), first, second) == (
        "SET 100 B, 32 connections: 80.0 us, 10/s; 50.0 us, 20/s; 0.60 of the processor, 1.50 of the rate"
    )


def test_only_what_can_be_measured_is_taken(tmp_path: Path) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="set:7:32 is no case; there are get:100:8, "):
        case_of("set:7:32")
    with pytest.raises(argparse.ArgumentTypeError, match="has no package `stele`"):
        folder_of(str(tmp_path))
