"""The command line, and one benchmark of it from start to end without a peer."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench import against_haproxy, hot_path
from bench.__main__ import main
from bench.options import Options
from bench.peers import THIS_TREE, build, contender
from bench.processes import LOOPBACK, Cores, free_ports

QUICK = Options(quick=True, rounds=1, scenario="", peers={}, cores=Cores(None, None, None), progress=lambda _: None)


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "bench", *arguments], capture_output=True, text=True, timeout=120)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, terminal_width=200)


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


def test_one_and_all_limits_and_another_process_are_measured_side_by_side() -> None:
    """The other process is the null broker itself, at its own port; its pid is this one's."""
    (port,) = free_ports(1)
    other = contender("other", (LOOPBACK, port), os.getpid())
    options = replace(
        QUICK,
        scenario="java 1 KiB, 1 partition, depth 5 x 4; v13",
        peers={**build("", THIS_TREE), "other": other},
        broker_port=port,
    )

    figures = {(each.peer, each.metric): each for each in against_haproxy.run(options)}

    assert figures["one limit", "CPU"].value > 0
    assert figures["other", "CPU"].value > 0
    over = figures["all limits", "over one limit"]
    assert over.value == pytest.approx(figures["all limits", "CPU"].value - figures["one limit", "CPU"].value)
    assert over.target == pytest.approx(13.2)


def test_the_hot_path_is_set_against_a_loop() -> None:
    figures = hot_path.run(QUICK)
    assert [(each.peer, each.ratio_to) for each in figures] == [
        ("loop", None), ("one limit", "loop"), ("all limits", "one limit")
    ] * 2  # fmt: skip
    assert all(each.value > 0 for each in figures)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--peers", "nginx"), "allowed are one, all, haproxy, envoy, bare, forwarder one"),
        (("--build", "other=/does/not/exist"), "PROGRAM must exist"),
        (("--contender", "other=127.0.0.1:1,1"), "NAME=HOST:PORT,PID, with --broker-port"),
        (("--contender", "other=127.0.0.1", "--broker-port", "1"), "NAME=HOST:PORT,PID, with --broker-port"),
        (("--only", "nothing"), "'nothing' is not one of"),
        (("--only", "against_haproxy", "--scenario", "9 KiB"), "no scenario has '9 KiB' in its name"),
    ],
)
def test_a_wrong_argument_is_explained(arguments: tuple[str, ...], complaint: str) -> None:
    run = invoke(*arguments)

    assert run.exit_code == 2
    assert complaint in run.output
