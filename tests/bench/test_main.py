"""The command line, and one benchmark of it from start to end without a peer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers import proxy
from bench.processes import LOOPBACK, free_ports


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
    assert {len(each["rounds"]) for each in figures} == {1}
    assert all(each["value"] > 0 for each in figures)


def test_one_and_all_limits_and_another_process_are_measured_side_by_side(tmp_path: Path) -> None:
    """The proxy alone has all limits; another process takes part as a contender."""
    (port,) = free_ports(1)
    kept = tmp_path / "figures.json"
    with proxy((LOOPBACK, port), None, is_awaited=False) as other:
        spec = f"other={other.address[0]}:{other.address[1]},{other.pid}"
        run = bench(
            *("--only", "against_haproxy", "--peers", "one,all", "--contender", spec, "--broker-port", str(port)),
            *("--scenario", "java 1 KiB, 1 partition, depth 5 x 4; v13", "--quick", "--rounds", "1"),
            *("--json", str(kept)),
        )

    assert run.returncode == 0, run.stderr + run.stdout
    figures = {(each["peer"], each["metric"]): each for each in json.loads(kept.read_text())["figures"]}
    assert figures["one limit", "CPU"]["value"] > 0
    assert figures["other", "CPU"]["value"] > 0
    over = figures["all limits", "over one limit"]
    assert over["value"] == pytest.approx(figures["all limits", "CPU"]["value"] - figures["one limit", "CPU"]["value"])
    assert over["target"] == pytest.approx(13.2)
    assert max(map(len, run.stdout.splitlines())) <= 120


def test_help_lists_the_benchmarks() -> None:
    assert "against_haproxy|connections|evenness|metadata_storm|producer_ids|quota_decision" in bench("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--peers", "nginx"), "allowed are one, all, haproxy, envoy, direct"),
        (("--build", "other=/does/not/exist"), "PROGRAM must exist"),
        (("--contender", "other=127.0.0.1:1,1"), "NAME=HOST:PORT,PID, with --broker-port"),
        (("--contender", "other=127.0.0.1", "--broker-port", "1"), "NAME=HOST:PORT,PID, with --broker-port"),
        (("--only", "nothing"), "'nothing' is not one of"),
        (("--only", "against_haproxy", "--scenario", "9 KiB"), "no scenario has '9 KiB' in its name"),
    ],
)
def test_a_wrong_argument_is_explained(arguments: tuple[str, ...], complaint: str) -> None:
    run = bench(*arguments)

    assert run.returncode == 2
    assert complaint in run.stderr
