"""The output of the running process on its way to stderr and stdout: no print ever waits for its reader.

A pipe whose reader has stopped, a terminal after Ctrl-S or a hanging disk would block the event loop in a write, and
with it all clients, `/healthz` and SIGTERM. So `install` replaces `sys.stderr` and `sys.stdout`, through which
everything in Python prints: logging, warnings, tracebacks, click. A write is queued, and a thread executes it. A
full queue drops lines, and so does a write that fails. They are counted, and reported once lines are written again.

The descriptor itself must stay blocking: other processes share it.
"""

import atexit
import io
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Condition, Thread
from typing import Any, Final, final

#: A queue with as many bytes accepts no more, so it holds at most one write more: a line of the log is bounded.
MAX_BYTES: Final = 1 << 20
#: How long the exit of the process waits for what is queued.
EXIT_SECONDS: Final = 2.0


@final
class Output(io.RawIOBase):
    """A queue in front of a descriptor. Each write is whole lines in most cases, and is written or dropped as a whole.

    dropped   lines since the start of the process
    on_gap    called by the thread with the number of lines that are missing where the next one is written
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        #: The first one is being written.
        self._queue = deque[bytes]()
        self._bytes = 0
        self._is_full = False
        self._changed = Condition()
        self._thread: Thread | None = None
        self._missing = 0
        self.dropped = 0
        self.on_gap: Callable[[int], None] = lambda _lines: None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any, /) -> int:
        """Queue the data, or drop it: from a full queue on until half of it has been written, so gaps are few."""
        chunk = bytes(data)
        with self._changed:
            self._is_full |= self._bytes >= MAX_BYTES
            if self._is_full:
                self._drop(chunk)
            else:
                self._queue.append(chunk)
                self._bytes += len(chunk)
                self._changed.notify_all()
            if self._thread is None:
                self._thread = Thread(target=self._run, name=f"output-{self._descriptor}", daemon=True)
                self._thread.start()
        return len(chunk)

    def drain(self, seconds: float) -> None:
        """Wait until everything is written, for at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue, seconds)

    @property
    def is_stuck(self) -> bool:
        """Lines were dropped, and none has been written since: nothing reads them, or their disk is full."""
        return self._missing > 0

    def _drop(self, chunk: bytes) -> None:
        lines = max(1, chunk.count(b"\n"))
        self.dropped += lines
        self._missing += lines

    def _run(self) -> None:
        is_torn = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                chunk = self._queue[0]
            rest = memoryview(b"\n" + chunk if is_torn else chunk)
            written = self._write_all(rest)
            is_torn = (is_torn and not written) or 0 < written < len(rest)
            missing = 0
            with self._changed:
                if written < len(rest):
                    self._drop(chunk)
                self._bytes -= len(chunk)
                self._is_full &= self._bytes > MAX_BYTES // 2
                if written == len(rest) and not self._is_full:
                    missing, self._missing = self._missing, 0
            if missing:
                self.on_gap(missing)
            with self._changed:  # only now, so that `drain` waits for the report as well
                self._queue.popleft()
                self._changed.notify_all()

    def _write_all(self, rest: memoryview) -> int:
        """How many bytes were written before an error: a full disk, a reader that is gone."""
        written = 0
        while written < len(rest):
            try:
                written += os.write(self._descriptor, rest[written:])
            except BlockingIOError:  # another process that shares the descriptor has made it non-blocking
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()
            except OSError:
                break
        return written


_installed: Final[dict[str, Output]] = {}


def install() -> None:
    """Put a queue in front of `sys.stderr` and `sys.stdout` until the process exits."""
    # A process that is started without one of these would give its number to a connection, and whatever the interpreter
    # or a library in C prints would reach that client.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stderr", "stdout"):
        stream = getattr(sys, name)
        if stream is not None:
            output = _installed[name] = Output(stream.fileno())
            wrapped = io.TextIOWrapper(output, stream.encoding, "backslashreplace", write_through=True)  # type: ignore[type-var] # any raw stream will do
            setattr(sys, name, wrapped)
    atexit.register(drain)


def drain() -> None:
    """Wait for what is queued, for at most `EXIT_SECONDS`."""
    end = time.monotonic() + EXIT_SECONDS
    for output in _installed.values():
        output.drain(end - time.monotonic())


def report_gaps(report: Callable[[str, int], None]) -> None:
    """Call `report` with the stream's name and the number of lines that were dropped before the next one is written."""
    for name, output in _installed.items():
        output.on_gap = partial(report, name)


def dropped_lines() -> int:
    """Of both streams, since the start of the process."""
    return sum(output.dropped for output in _installed.values())


def stuck() -> str:
    """The streams whose lines are being dropped now, in words."""
    return " and ".join(name for name, output in _installed.items() if output.is_stuck)
