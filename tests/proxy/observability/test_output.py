"""No print waits for the reader of stderr, and nothing is lost without a count."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from proxy.observability.output import MAX_BYTES, Output

pytestmark = pytest.mark.claim(
    "enforcement",
    "a stderr that nobody reads stops neither clients nor /healthz nor SIGTERM; dropped lines are "
    "counted, and reported where they are missing",
)

PATIENCE_SECONDS = 30.0
PIPE_BYTES = 4096
LINE = b"x" * 1023 + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A reader, and a writer with room for `PIPE_BYTES`."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def fill(writer: int) -> None:
    """Leave no room in a pipe."""
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"f")
    os.set_blocking(writer, True)


def reading(reader: int, until: bytes) -> tuple[Thread, bytearray]:
    """A thread that reads up to this line."""
    found = bytearray()

    def read() -> None:
        while until not in found:
            found.extend(os.read(reader, 65_536))

    thread = Thread(target=read)
    thread.start()
    return thread, found


def last(output: Output, reader: int) -> bytes:
    """What a reader gets that begins now, up to the last line."""
    thread, found = reading(reader, b"last\n")
    output.drain(PATIENCE_SECONDS)
    output.write(b"last\n")
    thread.join(PATIENCE_SECONDS)
    return bytes(found)


def test_a_full_queue_drops_whole_lines_and_the_gap_is_reported_where_it_is(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    output, gaps, sent = Output(writer), [], 2 * MAX_BYTES // len(LINE)

    def report(lines: int) -> None:
        gaps.append(lines)
        output.write(b"gap\n")

    output.on_gap = report
    for _ in range(sent):
        assert output.write(LINE) == len(LINE)
    was_stuck = output.is_stuck
    assert abs(output.dropped * len(LINE) - MAX_BYTES) <= PIPE_BYTES + 2 * len(LINE), "the pipe took the rest"

    found = last(output, reader)
    assert gaps == [output.dropped]
    assert was_stuck
    assert not output.is_stuck
    assert found == LINE * (sent - output.dropped) + b"gap\nlast\n"


def test_what_waits_is_bounded_in_bytes_and_not_only_in_lines(pipe: tuple[int, int]) -> None:
    output = Output(pipe[1])
    for _ in range(100):
        output.write(b"x" * (MAX_BYTES // 2))
    assert output._bytes <= 1.5 * MAX_BYTES
    assert output.dropped >= 97
    last(output, pipe[0])


def test_a_reader_that_is_gone_and_a_full_disk_cost_the_lines_only() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for descriptor in (writer, os.open("/dev/full", os.O_WRONLY)):
        output = Output(descriptor)
        for number in range(3):
            output.write(b"one\ntwo\n")
            output.drain(PATIENCE_SECONDS)
            assert output.dropped == 2 * (number + 1)
            assert output.is_stuck
        os.close(descriptor)


def test_a_line_of_which_the_disk_took_a_part_ends_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, room, write = tmp_path / "log", [6, 0, 100, 100], os.write

    def limited(descriptor: int, data: bytes) -> int:
        left = room.pop(0)
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:left])

    monkeypatch.setattr(os, "write", limited)
    with closing(path.open("wb", buffering=0)) as file:
        output, gaps = Output(file.fileno()), list[int]()
        output.on_gap = gaps.append
        output.write(b"the first\n")
        output.drain(PATIENCE_SECONDS)
        output.write(b"the second\n")
        output.drain(PATIENCE_SECONDS)
    assert path.read_bytes() == b"the fi\nthe second\n"
    assert gaps == [output.dropped] == [1]


def test_a_pipe_that_another_process_made_non_blocking_gets_every_line(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.set_blocking(writer, False)
    output = Output(writer)
    for _ in range(100):
        output.write(LINE)
    assert last(output, reader) == LINE * 100 + b"last\n"
    assert output.dropped == 0


def test_threads_may_write_at_once(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    output, begin = Output(writer), Event()

    def write(letter: bytes) -> None:
        begin.wait()
        for _ in range(50):
            output.write(letter * 99 + b"\n")

    threads = [Thread(target=write, args=(letter,)) for letter in (b"a", b"b", b"c", b"d")]
    for each in threads:
        each.start()
    reads, found = reading(reader, b"end\n")
    begin.set()
    for each in threads:
        each.join(PATIENCE_SECONDS)
    output.write(b"end\n")
    reads.join(PATIENCE_SECONDS)
    assert sorted(found.splitlines()[:-1]) == [letter * 99 for letter in (b"a", b"b", b"c", b"d") for _ in range(50)]


# ---- processes

#: Everything in Python that prints, and the end of it.
PRINTS = """
import logging, sys, threading, warnings
from proxy.observability.output import install
install()
print("of print")
warnings.warn("of warnings")
logging.warning("of logging")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise ValueError("the last line, with half a character: \\udcfc")
"""
ENDS = {"crash": ["-c", PRINTS], "wrong configuration": ["-m", "proxy", "run", "--quota", "nonsense"]}


def test_all_that_python_prints_is_there_when_a_process_ends() -> None:
    ended = subprocess.run([sys.executable, *ENDS["crash"]], capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"of print\n")
    for each in (b"of warnings", b"of logging", b"ZeroDivisionError"):
        assert each in ended.stderr
    assert ended.stderr.endswith(b"ValueError: the last line, with half a character: \\udcfc\n")


@pytest.mark.parametrize(("end", "code"), [("crash", 1), ("wrong configuration", 2)])
def test_a_process_ends_though_nobody_reads_its_last_lines(end: str, code: int, pipe: tuple[int, int]) -> None:
    fill(pipe[1])
    command = [sys.executable, *ENDS[end]]
    ended = subprocess.run(command, stdout=pipe[1], stderr=pipe[1], timeout=PATIENCE_SECONDS, check=False)
    assert ended.returncode == code


@pytest.mark.parametrize("closed", [(0,), (2,), (0, 1, 2)])
def test_no_connection_becomes_standard_error_of_a_process_without_one(closed: tuple[int, ...]) -> None:
    """What the interpreter prints itself would reach a client."""
    program = "import os; from proxy.observability.output import install; install(); os._exit(os.open('/', 0))"
    redirections = " ".join(f"{each}>&-" for each in closed)
    shell = ["/bin/sh", "-c", f'exec "$0" -c "$1" {redirections}', sys.executable, program]
    assert subprocess.run(shell, timeout=PATIENCE_SECONDS, check=False).returncode > 2


@pytest.mark.parametrize("arguments", [["schema", "config"], ["--help"], ["run", "--help"]])
@pytest.mark.parametrize("where", ["full disk", "closed pipe", "closed"])
def test_a_command_whose_output_goes_nowhere_prints_no_traceback(where: str, arguments: list[str]) -> None:
    target = {"full disk": ">/dev/full", "closed pipe": "| true", "closed": ">&-"}[where]
    shell = ["/bin/sh", "-c", f'"$0" -m proxy "$@" {target}', sys.executable, *arguments]
    ended = subprocess.run(shell, stderr=subprocess.PIPE, timeout=PATIENCE_SECONDS, check=False)
    assert b"Traceback" not in ended.stderr
    assert b"Exception ignored" not in ended.stderr
