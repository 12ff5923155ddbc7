"""The command line, and one benchmark of it from start to end without a peer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench.__main__ import main


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
