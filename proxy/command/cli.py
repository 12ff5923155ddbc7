"""The entry point of `kafka-quota-proxy` and of `python -m proxy`: signals first, then the command line.

Loading the command line and the server takes most of the startup time. A proxy that a supervisor stops during that time
exits cleanly, as it does later, when the server has replaced these handlers. The interpreter starts before them, and no
module can be earlier: 17 of 20 ms on an idle machine. SIGHUP ends the process then, unless whoever started it has it
ignored, which Python keeps, or it is process 1 of a container, to which the kernel delivers no signal without handler.
"""

import gc
import io
import os
import select
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Run the command of `sys.argv`, and exit with its code."""
    if sys.argv[1:2] == ["run"]:
        # Only for run: exit code 0 of check-config means that the file is valid.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the quotas file is about to be read anyway
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # it would end the process, like the next one
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.signal(signal.SIGINT, _stop_before_start)
        signal.signal(signal.SIGTERM, _stop_before_start)
        gc.disable()  # saves 5 % of the startup time; `settle_garbage_collection` enables it again
        from proxy.observability.output import install

        install()
    # kio imports hypothesis if it is installed, as in a development environment: 9 MB, and 40 % of the startup time.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type] # importing it fails as if it were not installed
    from proxy.command.commands import main as command

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None: it is closed
            stream.reconfigure(
                errors="backslashreplace"
            )  # for a terminal without UTF-8, or a name that no encoding has
    try:
        command(prog_name="kafka-quota-proxy")
    except OSError as error:  # from a print, because commands handle all others: the disk of stdout is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # at exit, the interpreter writes what is left once more
        sys.exit(f"error: the output cannot be written: {error.strerror or error}")


def _stop_before_start(_number: int, _frame: object) -> None:
    """End at once: an exception could be swallowed by whatever is being imported."""
    with suppress(OSError, ValueError):  # stderr may be closed, or a pipe that nobody reads
        if select.select([], [2], [], 0)[1]:
            os.write(2, b"stopped before it started\n")
    os._exit(0)
