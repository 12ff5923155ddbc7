"""Runs one command and sees to it that the command never outlives the process that wanted it, however that one ends.

    python leash.py PARENT_PID DIRECTORY COMMAND [ARGUMENT...]

Started by path with nothing but the standard library, in a session of its own. Asking the kernel for a signal at the
parent's death (PR_SET_PDEATHSIG) would not do: it fires when the *thread* that started the child ends. So a small
process watches the parent through a pidfd. When the parent is gone the command is killed, and DIRECTORY (its data) is
removed, with the directory above it once that is empty. SIGTERM to the group lets the command shut down, SIGUSR1 to
the leash kills the command; either way the leash ends only when the command has ended and been reaped. Should the
leash itself be killed, its only thread has started the command, and there PR_SET_PDEATHSIG is exact.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Returns the command's exit code (as a shell has it), or 1 after the parent's death."""
    parent, directory, command = int(arguments[0]), arguments[1], arguments[2:]
    signal.signal(signal.SIGTERM, _leave_it_to_the_command)
    libc = ctypes.CDLL(None, use_errno=True)
    leash = os.getpid()

    def die_with_the_leash() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != leash:  # it died before this was asked for
            os._exit(1)

    process: subprocess.Popen[bytes] | None = None
    unwanted = False

    def kill_the_command(number: int, frame: FrameType | None) -> None:
        nonlocal unwanted
        unwanted = True
        if process is not None:
            process.kill()

    signal.signal(signal.SIGUSR1, kill_the_command)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_the_leash)
    if unwanted:  # before there was anything to kill
        process.kill()
    if _first_to_end(parent, process.pid) == process.pid:
        code = process.wait()
        return code if code >= 0 else 128 - code
    process.kill()
    process.wait()
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):  # while other nodes' directories are in there: the last leash removes it
        os.rmdir(os.path.dirname(directory))
    return 1


def _first_to_end(parent: int, child: int) -> int:
    """Waits until one of the two processes has ended. Returns its id."""
    poll = select.poll()
    ends = {os.pidfd_open(child): child}
    try:
        ends[os.pidfd_open(parent)] = parent
    except ProcessLookupError:
        return parent
    if os.getppid() != parent:  # it ended before we could watch it, and its number may belong to another by now
        return parent
    for descriptor in ends:
        poll.register(descriptor, select.POLLIN)
    ended = {ends[descriptor] for descriptor, _ in poll.poll()}
    return child if child in ended else parent


def _leave_it_to_the_command(number: int, frame: FrameType | None) -> None:
    """SIGTERM is sent to the whole group: the command shuts down in its own time, and the leash ends after it."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
