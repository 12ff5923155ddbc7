"""The entry point of `kafka-quota-proxy` and of `python -m proxy`: signals first, then the command line.

Loading the command line and the server takes most of the start. A supervisor that stops the proxy in that time gets a
clean end, as later from the server, which replaces these handlers.
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
        # Not for check-config: its exit code 0 means that the file is right.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the quotas file will be read anyway
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # it would end the process
        signal.signal(signal.SIGINT, _stop_before_start)
        signal.signal(signal.SIGTERM, _stop_before_start)
        gc.disable()  # 5 % of the start; `settle_garbage_collection` enables it
        from proxy.observability.output import install

        install()
    # kio imports hypothesis where that is installed, as in a development environment: 9 MB, and 40 % of the start.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type] # an import of it fails, as if not installed
    from proxy.commands import main as command

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None: it is closed
            stream.reconfigure(errors="backslashreplace")  # where a terminal is not in UTF-8, or a name in no encoding
    try:
        command(prog_name="kafka-quota-proxy")
    except OSError as error:  # of a print, because commands answer all others: the disk of stdout is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter writes what is left of it again, at its end
        sys.exit(f"error: the output cannot be written: {error.strerror or error}")


def _stop_before_start(_number: int, _frame: object) -> None:
    """End at once: an exception could be swallowed by whatever is being imported."""
    with suppress(OSError, ValueError):  # stderr may be closed, or a pipe that nobody reads
        if select.select([], [2], [], 0)[1]:
            os.write(2, b"stopped before it started\n")
    os._exit(0)
