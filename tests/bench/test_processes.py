"""Processes are measured from outside, placed, and ended whatever happens."""

import os
import sys

import pytest

from bench.processes import (
    Cores,
    PeerError,
    cpu_ns,
    free_ports,
    peak_resident_bytes,
    private_bytes,
    running,
    wait_until_listening,
)

SPIN = [sys.executable, "-c", "while True: pass"]


@pytest.mark.parametrize(
    ("available", "chosen"),
    [
        ([], Cores(None, None, None)),
        ([3], Cores(None, None, None)),
        ([0, 1], Cores(0, 1, 1)),
        ([2, 4, 6, 8], Cores(2, 4, 8)),
    ],
)
def test_the_measured_process_has_a_core_to_itself(available: list[int], chosen: Cores) -> None:
    assert Cores.choose(available) == chosen


def test_cpu_time_of_another_process_is_read_in_nanoseconds() -> None:
    with running(SPIN, None) as (process, _):
        before = cpu_ns(process.pid)
        while cpu_ns(process.pid) < before + 20_000_000:
            assert process.poll() is None
        assert private_bytes(process.pid) > 1_000_000
        assert peak_resident_bytes(process.pid) >= private_bytes(process.pid)


def test_a_process_runs_on_its_core_and_ends_with_the_block() -> None:
    core = min(os.sched_getaffinity(0))
    with running(SPIN, core) as (process, _):
        assert os.sched_getaffinity(process.pid) == {core}
    assert process.returncode is not None


def test_a_process_that_does_not_listen_is_reported_with_its_output() -> None:
    (port,) = free_ports(1)
    complaint = [sys.executable, "-c", "raise SystemExit('no such quota')"]
    with (
        running(complaint, None) as (process, output),
        pytest.raises(PeerError, match=r"(?s)ended with 1.*no such quota"),
    ):
        wait_until_listening(process, output, port)
