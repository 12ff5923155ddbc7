"""The command line, and one benchmark of it from start to end without a peer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "bench", *arguments], capture_output=True, text=True, timeout=120)


def test_a_short_run_prints_a_table_and_keeps_its_figures(tmp_path: Path) -> None:
    kept = tmp_path / "figures.json"
    run = bench(
        *("--only", "against_haproxy", "--peers", "direct", "--scenario", "16 KiB", "--quick", "--rounds", "1"),
        *("--json", str(kept)),
    )

    assert run.returncode == 0, run.stderr
    assert "produce 16 KiB" in run.stdout
    figures = json.loads(kept.read_text())["figures"]
    assert {(each["metric"], each["unit"]) for each in figures} == {
        ("throughput", "MB/s"),
        ("throughput", "requests/s"),
    }
    assert all(each["value"] > 0 for each in figures)


def test_help_lists_the_benchmarks() -> None:
    assert "against_haproxy|connections|evenness|metadata_storm|producer_ids|quota_decision" in bench("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--peers", "envoy"), "allowed are proxy, haproxy, direct"),
        (("--only", "nothing"), "'nothing' is not one of"),
        (("--only", "against_haproxy", "--scenario", "9 KiB"), "no scenario has '9 KiB' in its name"),
    ],
)
def test_a_wrong_argument_is_explained(arguments: tuple[str, ...], complaint: str) -> None:
    run = bench(*arguments)

    assert run.returncode == 2
    assert complaint in run.stderr
