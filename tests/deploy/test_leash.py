"""No process outlives the one that wanted it, however that one ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local import leash
from tests.deploy.processes import has_ended_within

LEASH = Path(leash.__file__)
# Prints the id of its process, then waits for ever.
COMMAND = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
# Starts a leash like the playground does, prints its id, then waits for ever.
PARENT = """
import os, signal, subprocess, sys
leash = subprocess.Popen(
    [sys.executable, "-I", sys.argv[1], str(os.getpid()), sys.argv[2], sys.executable, "-c", sys.argv[3]],
    start_new_session=True)
print(leash.pid, flush=True)
signal.pause()
"""


def lines_of(process: subprocess.Popen[str], count: int) -> list[int]:
    assert process.stdout is not None
    return [int(process.stdout.readline()) for _ in range(count)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_command_ends_with_the_parent_and_its_files_go(tmp_path: Path, number: signal.Signals) -> None:
    directory = tmp_path / "cluster" / "node-1"
    directory.mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(LEASH), str(directory), COMMAND], stdout=subprocess.PIPE, text=True
    ) as parent:
        processes = lines_of(parent, 2)  # leash and command, in either order
        parent.send_signal(number)
        parent.wait(30)
    assert all(has_ended_within(process, 30) for process in processes)
    assert not directory.parent.exists()


def test_a_parent_that_is_gone_before_the_leash_looks(tmp_path: Path) -> None:
    directory = tmp_path / "cluster" / "node-1"
    directory.mkdir(parents=True)
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait(30)
    done = subprocess.run(
        [sys.executable, "-I", str(LEASH), str(gone.pid), str(directory), sys.executable, "-c", COMMAND],
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert not directory.exists()


def start(directory: Path, script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", str(LEASH), str(os.getpid()), str(directory), sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
