"""The verdicts pass and fail for the right reasons, and the table shows what was measured."""

import pytest

from demo.report import ScanResult, no_address_seen, nothing_lost, quota_held
from demo.runs import Plan, Run
from demo.verify import Tally
from deploy.local.frames import DataFrame

LIMIT = 5_000_000.0
SECOND_NS = 1_000_000_000
PLAN = Plan("proxy, 5 MB/s", "Through the proxy", "flights", "127.0.0.8:1", "flights-etl", LIMIT)


def run_of(
    *bins: int, frames_per_bin: int = 100, connections: int = 1, throttled: float | None = 3.2, load: float = 0.5
) -> Run:
    """A run with these bytes in its seconds, in equal frames spread evenly over each."""
    frames = [
        DataFrame(
            second * SECOND_NS + number * SECOND_NS // frames_per_bin,
            "produce",
            size // frames_per_bin,
            "flights-etl",
            number % connections,
        )
        for second, size in enumerate(bins)
        for number in range(frames_per_bin)
        if size
    ]
    return Run(PLAN, tuple(frames), throttled, 0.25, load)


EVEN = (10_000_000, 5_010_000, 4_990_000, 5_000_000, 1_200_000)


def test_an_even_run_passes_with_any_first_and_last_second() -> None:
    verdict = quota_held(run_of(*EVEN), LIMIT)
    assert verdict.passed
    assert verdict.evidence == "3 of 3 seconds within ±2% of 5 MB (worst +0.20%), mean 5.000 MB/s (+0.00%)"


def test_a_run_too_short_to_judge_fails_with_the_reason() -> None:
    verdict = quota_held(run_of(5_000_000, 5_000_000), LIMIT)
    assert (verdict.passed, verdict.evidence.startswith("nothing to judge: ")) == (False, True)


def test_lost_records_fail_with_their_topic_and_an_example() -> None:
    whole = Tally(records=3, duplicates=2)
    passed = nothing_lost({"a": whole, "b": whole}, 3)
    assert passed.passed
    assert passed.evidence == "2 x 3 keys read back, each with its checksum; duplicates 4"
    failed = nothing_lost({"a": whole, "b": Tally(records=2, missing=1, examples=["missing key b'2'"])}, 3)
    assert not failed.passed
    assert failed.evidence == "b: 1 missing, 0 with a wrong checksum, 0 unexpected (missing key b'2')"


@pytest.mark.parametrize(
    ("scan", "passed"),
    [
        (ScanResult(["127.0.0.2"], 1000, 3, 0, 2), True),
        (ScanResult(["127.0.0.2"], 1000, 3, 1, 2), False),
        (ScanResult(["127.0.0.2"], 1000, 3, 0, 0), False),
        (ScanResult(["127.0.0.2"], 0, 0, 0, 2), False),
    ],
    ids=["clean", "leaked", "blind scan", "nothing scanned"],
)
def test_the_address_verdict(scan: ScanResult, passed: bool) -> None:
    assert no_address_seen(scan).passed is passed
