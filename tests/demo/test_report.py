"""The verdicts pass and fail for the right reasons, and the table shows what was measured."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from demo.picture import draw, summary
from demo.progress import RunProgress
from demo.report import (
    ScanResult,
    no_address_seen,
    nothing_lost,
    quota_held,
    results_table,
    verdict_rows,
)
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


@pytest.mark.parametrize(
    "bins",
    [
        (10_000_000, 5_000_000, 5_150_000, 4_850_000, 1_200_000),
        (10_000_000, 5_090_000, 5_090_000, 5_090_000, 1_200_000),
        (54_000_000, 100_000, 100_000, 0, 49_000_000),
    ],
    ids=["a bin 3 % off", "a mean 1.8 % off", "the broker's own quota"],
)
def test_an_uneven_run_does_not(bins: tuple[int, ...]) -> None:
    assert not quota_held(run_of(*bins), LIMIT).passed


def test_a_bin_may_be_off_by_one_request_per_connection_as_reported_by_the_row() -> None:
    bins = (5_000_000, 5_200_000, 4_800_000, 5_000_000, 1_000_000)
    assert not quota_held(run_of(*bins, frames_per_bin=50), LIMIT).passed
    verdict = quota_held(run_of(*bins, frames_per_bin=50, connections=2), LIMIT)
    assert verdict.passed
    assert "within ±208 kB, one request per open data connection, of 5 MB" in verdict.evidence


def test_a_failed_row_mentions_a_busy_machine() -> None:
    assert "busy" not in quota_held(run_of(5_000_000, 4_000_000, 5_000_000), LIMIT).evidence
    assert "busy" not in quota_held(run_of(*EVEN, load=1000), LIMIT).evidence
    assert "; load average 1000.0 on " in quota_held(run_of(5_000_000, 4_000_000, 5_000_000, load=1000), LIMIT).evidence


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


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_shows_every_figure_whole(width: int) -> None:
    output = io.StringIO()
    runs = [run_of(*EVEN), run_of(*EVEN, throttled=None)]
    Console(file=output, width=width).print(results_table(runs, {"flights": Tally(records=336_776)}, width))
    rows = [line.split() for line in output.getvalue().splitlines() if "proxy" in line]
    figures = ["336,776", "26,200,000", "5.0", "5.25", "3.2", "s", "0.25", "s", "10.00", "MB"]
    assert rows[0] == ["proxy,", "5", "MB/s", *figures]
    assert rows[1] == ["proxy,", "5", "MB/s", *figures[:4], "n/a", *figures[6:]]


def test_verdict_rows_start_with_pass_or_fail() -> None:
    output = io.StringIO()
    verdicts = [quota_held(run_of(*EVEN), LIMIT), no_address_seen(ScanResult(["127.0.0.2"], 0, 0, 0, 2))]
    Console(file=output, width=120).print(verdict_rows(verdicts))
    starts = [line.split("  ")[0] for line in output.getvalue().splitlines()]
    assert starts == ["PASS", "FAIL"]


def test_progress_away_from_a_terminal_is_a_line_every_few_seconds() -> None:
    output = io.StringIO()
    frames = run_of(*EVEN).frames
    with RunProgress(Console(file=output, width=120), "proxy, 5 MB/s", 26.2e6, LIMIT) as progress:
        for second in (1, 2, 3, 4):
            now_ns = second * SECOND_NS
            progress.show([frame for frame in frames if frame.time_ns < now_ns], now_ns)
    assert [line.split(maxsplit=3)[3] for line in output.getvalue().splitlines()] == [
        "10.0 MB,  9.90 MB/s, 198% of limit",
        "25.0 MB,  4.95 MB/s,  99% of limit",
    ]


def test_the_picture_is_a_png_with_a_panel_for_each_run(tmp_path: Path) -> None:
    path = tmp_path / "new" / "picture.png"
    draw([run_of(*EVEN), run_of(*EVEN), run_of(54_000_000, 0, 49_000_000)], 336_776, LIMIT, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_pictures_summary_leaves_out_burst_and_tail() -> None:
    assert summary(run_of(*EVEN)) == "26 MB in 5 s; after the first second 4.99 to 5.01 MB"
    assert summary(run_of(5_000_000)) == "5 MB in 1 s"
