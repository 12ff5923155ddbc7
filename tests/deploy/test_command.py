"""`python -m deploy.local` as a person uses it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local import probe

COMMAND = [sys.executable, "-m", "deploy.local"]


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.nightly), signal.SIGTERM])
def test_runs_until_it_is_told_to_stop(number: signal.Signals) -> None:
    with subprocess.Popen(
        [*COMMAND, "start", "--set", "num.partitions=7"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        key, _, address = process.stdout.readline().strip().partition("=")
        assert key == "bootstrap.servers"
        host, _, port = address.partition(":")
        assert probe.answers_api_versions(host, int(port), timeout_seconds=10)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    (log,) = [line.split(": ")[1] for line in errors.splitlines() if "log of broker 1" in line]
    assert not Path(log).parents[1].exists()


def test_what_is_wrong_is_said_without_a_traceback() -> None:
    done = subprocess.run(
        [*COMMAND, "start", "--set", "process.roles=spectator"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: storage of broker 1 cannot be formatted")
    assert "Traceback" not in done.stderr
