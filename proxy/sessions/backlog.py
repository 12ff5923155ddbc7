"""The bytes of a read that do not all pass in one step: the stream's steps are carried out one by one, and what cannot
pass now is kept.
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
#: The turn is over before that.
BROKEN_OFF: Final = 2

#: The least that is read at once after more had been read than one turn parses.
_SMALLEST_READ: Final = 4_096


@final
class Backlog:
    """Of one direction. Its bytes stand in the shared buffer while steps are carried out, else in `kept`.

    kept         bytes that were read and not forwarded: an incomplete header, or what follows a boundary
    unparsed     `kept` may contain more than an incomplete header: the stream parses it before the next read
    read_limit   largest read: smaller after more was read than one turn parses
    """

    def __init__(self, shared: PumpSet, stream: Stream, writer: Writer) -> None:
        self._shared = shared
        self._stream = stream
        self._writer = writer
        self._stopped_at = 0
        self.kept = b""
        self.unparsed = False
        self.read_limit = READ_SIZE

    def restore(self) -> int:
        """Copy the kept bytes to the beginning of the shared buffer; returns their number."""
        kept = self.kept
        size = len(kept)
        self._shared.memory.data[:size] = kept
        self.drop()
        return size

    def carry_out(self, end: int, until_ns: int, step: int | None) -> int:
        """Carry out the stream's steps for ``data[:end]``, of which the first may have been taken already.

        Returns `DONE`, `BROKEN_OFF` at the time `until_ns`, or the step for which the rest has to wait: `keep_rest`.
        """
        stream = self._stream
        take = stream.take
        work_clock = self._shared.turns.clock
        now_ns = self._shared.clock()
        # Neighbouring steps that change nothing are sent together: `start` is the first byte that has not been sent.
        start = pos = 0
        try:
            while pos < end:
                if step is None:
                    step = take(pos, end, now_ns)
                # A position: all bytes up to it pass unchanged.
                if step > pos:
                    pos = step
                elif step == REPLACE:
                    self._forward(start, pos)
                    if stream.output:
                        self._writer.write(stream.output)
                    start = pos = stream.resume_at
                # YIELD: the step has done its share of work without a byte to pass, and is taken again.
                elif step != YIELD:
                    if step == NEED and end - pos >= READ_SIZE:  # the buffer is full: it could never be completed
                        raise MalformedFrame("a frame's head within the buffer", READ_SIZE)
                    self._stopped_at = pos
                    return step
                step = None
                # Steps are bounded in work, a turn is bounded in time: so the clock is read between two of them.
                if pos < end and work_clock() >= until_ns:
                    self._stopped_at = pos
                    self.read_limit = max(_SMALLEST_READ, min(pos, READ_SIZE))
                    return BROKEN_OFF
        finally:
            self._forward(start, pos)  # after an error: bytes before it were charged, and are forwarded
        if self.read_limit < READ_SIZE:
            self.read_limit = min(READ_SIZE, 2 * self.read_limit)
        return DONE

    def _forward(self, start: int, end: int) -> None:
        if start < end:
            self._writer.write(self._shared.memory.view[start:end])

    def keep_rest(self, end: int, *, unparsed: bool) -> None:
        """Keep the bytes of ``data[:end]`` from where `carry_out` stopped."""
        self.keep(bytes(self._shared.memory.view[self._stopped_at : end]))
        self.unparsed = unparsed

    def keep(self, kept: bytes) -> None:
        self.kept = kept
        self._shared.account(self._stream.holding, len(kept), self._stream.holding.pending)

    def drop(self) -> None:
        """Forget the bytes that were kept."""
        self.unparsed = False
        if self.kept:
            self.keep(b"")

    def stop(self) -> None:
        """The pump is done. The account of its memory is closed in one piece: see `PumpSet.forget`."""
        self.kept = b""
        self.unparsed = False
