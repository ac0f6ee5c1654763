"""A short run of the fuzzers, and decoders with defects that the driver has to find."""

import re
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from tests.fuzz import http_streams
from tests.fuzz.__main__ import main
from tests.fuzz.driver import MEASURED_EACH, Finding, Fuzzer, Outcome, Target
from tests.fuzz.mutate import INPUT_BYTES_MAX, JSON, Mutator
from tests.fuzz.targets import STREAMS, TARGETS

INPUTS = 3_000
OF_CONNECTIONS = 150
SEED = 20_000


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_no_input_ends_a_decoder_or_takes_much_memory(target: Target) -> None:
    inputs = OF_CONNECTIONS if target.name in STREAMS else INPUTS
    outcome = Fuzzer(target).run(SEED, inputs)
    assert not outcome.findings, "\n\n".join(map(str, outcome.findings.values()))
    assert outcome.inputs == inputs
    assert outcome.measured


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_samples_are_valid(target: Target) -> None:
    """Most of them are read, so that what is made of them is nearly valid."""
    samples, read = target.samples(), 0
    for sample in samples if target.seal is None else ():
        with suppress(*target.refusals):
            target.run(sample)
            read += 1
    assert read * 2 > len(samples) or target.seal is not None


def test_requests_of_the_stream_targets_reach_their_handlers() -> None:
    """The end of a connection must not come before the answer: it would cancel the request."""
    for server, samples, expected in (
        (http_streams.transfer(), http_streams.transfer_requests(), {200, 204, 400, 404, 415}),
        (http_streams.bulk(), http_streams.bulk_requests(), {200, 400, 415}),
    ):
        answers = [server.answer(sample) for sample in samples]
        statuses = [[int(found) for found in http_streams.STATUS.findall(answer)] for answer in answers]
        assert all(statuses), statuses
        assert expected <= {each for found in statuses for each in found}
        assert statuses[0] == [200] * 3


class BrokenError(Exception):
    """What the decoders below say of bad input."""


def target_of(decode: Callable[[bytes], object]) -> Target:
    return Target("broken", decode, lambda: [b'{"name":"demo","count":3}'], (BrokenError,), JSON)


def broken(decode: Callable[[bytes], object], inputs: int = 2_500, **limits: Any) -> Outcome:
    return Fuzzer(target_of(decode), **limits).run(0, inputs)


def only(outcome: Outcome) -> Finding:
    (finding,) = outcome.findings.values()
    return finding


def test_another_error_than_the_decoders_own_is_found() -> None:
    def decode(data: bytes) -> None:
        if b"\xff" in data:
            raise BrokenError
        raise KeyError(data)

    finding = only(broken(decode))
    assert finding.place.startswith("KeyError in test_fuzz.py")
    assert "raise KeyError(data)" in finding.text
    assert f"python -m tests.fuzz broken --only {finding.seed}" in str(finding)
    assert b"\xff" not in target_of(decode).input_of(finding.seed)


def test_work_that_does_not_end_is_found() -> None:
    def decode(data: bytes) -> None:
        while b"\xff" in data:
            pass

    assert only(broken(decode, 100, seconds_max=0.05)).place == "takes too long"


def test_memory_out_of_proportion_is_found() -> None:
    def decode(data: bytes) -> None:
        bytearray(5_000_000 if len(data) % 2 else 10)

    finding = only(broken(decode))
    assert finding.place == "memory of one input"
    assert re.fullmatch(r"\d+ bytes take 5\d{6} of memory; expected at most \d+", finding.text)


def test_memory_that_is_never_given_back_is_found() -> None:
    kept: list[bytearray] = []
    finding = only(broken(lambda data: kept.append(bytearray(b"x" * 20_000)), growth_max=16 * 2**20))
    assert finding.place == "growth of the process"


def test_the_meter_of_memory_does_not_count_as_growth() -> None:
    """Where tracemalloc leaks lines of code, a stop for each of the inputs measured would be 9 MiB."""
    lines = "\n".join(f"x{n} = [{n}]" for n in range(50))
    programs = [compile(lines, f"lines-{n}", "exec") for n in range(40)]

    def decode(data: bytes) -> None:
        for program in programs if tracemalloc.is_tracing() else ():
            exec(program, {})

    outcome = broken(decode, 6_000, growth_max=4 * 2**20)
    assert outcome.measured == 6_000 // MEASURED_EACH + 1
    assert not outcome.findings


def test_the_meter_of_memory_does_not_measure_how_inputs_are_made() -> None:
    """Their memory would stay with the process, and hide what decoders take."""
    mutator = Mutator([b"some"], tokens=[b"long" * 2_000])
    tracemalloc.start()
    try:
        for seed in range(2_000):
            mutator._nest(Random(seed), b"body")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * INPUT_BYTES_MAX


def test_a_decoder_without_defects_has_no_findings() -> None:
    assert not broken(lambda data: JSON.decode(b"{}")).findings


def test_the_program_says_what_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resp", "frames", "--inputs", "200", "--seed", "5"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"resp +200 inputs", text)
    assert "400 inputs in" in text
    assert main(["resp", "--only", "7"]) == 0
    assert "input 7 of resp: b'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["rasp"], "unknown target 'rasp'; expected some of resp,"), (["--only", "7"], "--only needs the one")],
)
def test_wrong_arguments_are_named(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
