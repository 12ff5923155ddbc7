"""The bytes of a read that do not all pass in one step. The stream's steps are carried out one by one, and bytes that
cannot pass now are kept.
"""

from typing import Final, final

from protocol.errors import MalformedFrame
from proxy.sessions.pump_set import PumpSet
from proxy.sessions.writer import Writer
from proxy.streams.connection import Stream
from proxy.streams.memory import READ_SIZE
from proxy.streams.steps import NEED, REPLACE, YIELD

# Results of `Backlog.carry_out`, besides the steps at which it stops, which are negative.
#: All bytes have passed.
DONE: Final = 1
#: The slice ended before that.
BROKEN_OFF: Final = 2

#: The smallest read, after a connection has read more than one slice can parse.
_SMALLEST_READ: Final = 4_096


@final
class Backlog:
    """The backlog of one direction. Its bytes are in `kept`, or in the shared buffer while steps are carried out.

    kept         bytes that were read but not forwarded: an incomplete header, or what follows a boundary
    unparsed     whether `kept` may contain more than an incomplete header, so that the stream must parse it before the
                 next read
    read_limit   the largest read, which shrinks after more has been read than one slice can parse
    most         `read_limit` while nothing is kept, otherwise 0
    """

    __slots__ = ("_shared", "_stopped_at", "_stream", "_writer", "kept", "most", "read_limit", "unparsed")

    def __init__(self, shared: PumpSet, stream: Stream, writer: Writer) -> None:
        self._shared = shared
        self._stream = stream
        self._writer = writer
        self._stopped_at = 0
        self.kept = b""
        self.unparsed = False
        self.read_limit = self.most = READ_SIZE

    def restore(self) -> int:
        """Copy the kept bytes to the beginning of the shared buffer; returns their number."""
        kept = self.kept
        size = len(kept)
        self._shared.memory.data[:size] = kept
        self.drop()
        return size

    def carry_out(self, end: int, until_ns: int, step: int | None) -> int:
        """Carry out the stream's steps for ``data[:end]``. `step`: the first one, if it has been determined already.

        Returns `DONE`, `BROKEN_OFF` if the time `until_ns` came first, or the step for which the rest has to wait. In
        the last two cases, the caller keeps the rest with `keep_rest`.
        """
        stream = self._stream
        next_step = stream.next_step
        work_clock = self._shared.slices.clock
        now_ns = self._shared.clock()
        # Consecutive steps that change nothing are sent together; `start` is the first byte that has not been sent.
        start = pos = 0
        try:
            while pos < end:
                if step is None:
                    step = next_step(pos, end, now_ns)
                # A position: all bytes up to it pass unchanged.
                if step > pos:
                    pos = step
                elif step == REPLACE:
                    self._forward(start, pos)
                    if stream.output:
                        self._writer.write(stream.output)
                    start = pos = stream.resume_at
                # YIELD: the step has done its share of work, but no byte can pass yet. It continues in the next step.
                elif step != YIELD:
                    if step == NEED and end - pos >= READ_SIZE:  # the buffer is full: it could never be completed
                        raise MalformedFrame("a frame's head within the buffer", READ_SIZE)
                    self._stopped_at = pos
                    return step
                step = None
                # A step is bounded in work and a slice in time, so the clock is read between two steps.
                if pos < end and work_clock() >= until_ns:
                    self._stopped_at = pos
                    self._limit_reads(max(_SMALLEST_READ, min(pos, READ_SIZE)))
                    return BROKEN_OFF
        finally:
            self._forward(start, pos)  # even after an error: the bytes before it have been charged
        if self.read_limit < READ_SIZE:
            self._limit_reads(min(READ_SIZE, 2 * self.read_limit))
        return DONE

    def _limit_reads(self, read_limit: int) -> None:
        self.read_limit = read_limit
        self.most = 0 if self.kept else read_limit

    def _forward(self, start: int, end: int) -> None:
        if start < end:
            self._writer.write(self._shared.memory.view[start:end])

    def keep_rest(self, end: int, *, unparsed: bool) -> None:
        """Keep the bytes of ``data[:end]`` from where `carry_out` stopped."""
        self.keep(bytes(self._shared.memory.view[self._stopped_at : end]))
        self.unparsed = unparsed

    def keep(self, kept: bytes) -> None:
        self.kept = kept
        self.most = 0 if kept else self.read_limit
        self._shared.account(self._stream.holding, len(kept), self._stream.holding.pending)

    def drop(self) -> None:
        """Forget the bytes that were kept."""
        self.unparsed = False
        if self.kept:
            self.keep(b"")

    def stop(self) -> None:
        """The pump has stopped. `PumpSet.forget` returns its memory."""
        self.kept = b""
        self.unparsed = False
