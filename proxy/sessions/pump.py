"""One direction of a session: reads a socket into the shared buffer, lets the flow look, writes to the other socket.

Level-triggered, one ``recv`` for each wake-up. Reading stops at once when the other side does not take bytes: that is
the memory bound. ``remove_reader`` and ``remove_writer`` come before ``close``: libuv aborts the process otherwise.
"""

from asyncio import AbstractEventLoop
from enum import IntFlag
from socket import socket
from typing import TYPE_CHECKING

from protocol.errors import MalformedFrame, ProtocolError
from proxy.sessions.buffers import READ_SIZE, SMALL_READ_SIZE, Buffers

if TYPE_CHECKING:
    from proxy.sessions.session import Session


class PauseReason(IntFlag):
    """Why a socket is not being read. Reading goes on when no reason is left; each is a metric label."""

    CONNECTING = 1
    QUOTA = 2
    WRITE_BACKPRESSURE = 4
    MEMORY = 8
    IN_FLIGHT = 16
    DRAIN = 32
    END_OF_STREAM = 64


# Plain ints: an IntFlag operation costs ten times an int's, and these stand on the hot path.
CONNECTING = int(PauseReason.CONNECTING)
QUOTA = int(PauseReason.QUOTA)
WRITE_BACKPRESSURE = int(PauseReason.WRITE_BACKPRESSURE)
MEMORY = int(PauseReason.MEMORY)
IN_FLIGHT = int(PauseReason.IN_FLIGHT)
DRAIN = int(PauseReason.DRAIN)
END_OF_STREAM = int(PauseReason.END_OF_STREAM)

#: With more than this left of its frame a flow moves bulk, and takes turns with others that do.
BULK = 65_536

#: Not a reason: the pump is done, nothing resumes it.
STOPPED = 1 << 30

REASON_NAMES = {int(reason): reason.name.lower() for reason in PauseReason if reason.name}


class Pump:
    """Reads ``source``, writes ``sink``; ``take`` (the subclass) decides what becomes of the bytes.

    ``kept`` are bytes that were read and not yet forwarded (a partial header, or what lies past a boundary where the
    session holds), ``pending`` bytes that the sink did not take. ``want`` is how many bytes the next read may take:
    the whole buffer, or just enough to reach the next frame's header.
    """

    __slots__ = (
        "buffers",
        "kept",
        "loop",
        "muted",
        "paused",
        "pending",
        "queued",
        "remaining",
        "session",
        "sink",
        "source",
        "source_fd",
        "want",
    )

    def __init__(
        self, loop: AbstractEventLoop, buffers: Buffers, session: "Session", source: socket, sink: socket
    ) -> None:
        self.loop = loop
        self.buffers = buffers
        self.session = session
        self.source = source
        self.source_fd = source.fileno()
        self.sink = sink
        self.paused = CONNECTING
        buffers.paused["connecting"] += 1
        #: Bytes of the current frame that have not been forwarded yet.
        self.remaining = 0
        #: Waits for its turn among those that move long frames.
        self.queued = False
        self.kept = b""
        self.pending: bytearray | None = None
        #: Nobody is there to write to: bytes are dropped.
        self.muted = False
        self.want = READ_SIZE

    # ---- what the flow defines

    def take(self, end: int) -> None:
        """Look at ``buffers.data[:end]``, forward or keep all of it."""
        raise NotImplementedError

    def on_source_ended(self) -> None:
        """The source said end of stream."""
        raise NotImplementedError

    def on_source_failed(self, error: OSError) -> None:
        """The source's connection broke."""
        raise NotImplementedError

    def on_sink_failed(self, error: OSError) -> None:
        """The sink's connection broke."""
        raise NotImplementedError

    def on_flushed(self) -> None:
        """All pending bytes have been taken by the sink."""

    # ---- reading

    def pause(self, reason: int) -> None:
        """Stop reading for ``reason``; a reason that stands already changes nothing."""
        before = self.paused
        if before & (reason | STOPPED):
            return
        self.paused = before | reason
        self.buffers.paused[REASON_NAMES[reason]] += 1
        if not before:
            self.loop.remove_reader(self.source_fd)

    def resume(self, reason: int) -> None:
        """Take ``reason`` away; reading goes on when it was the last."""
        if not self.paused & reason:
            return
        self.paused &= ~reason
        self.buffers.paused[REASON_NAMES[reason]] -= 1
        if not self.paused and not self.queued:
            self.go_on()

    def go_on(self) -> None:
        """The last reason not to read is gone."""
        self.loop.add_reader(self.source_fd, self.on_readable)

    def on_turn(self) -> None:
        """Its turn has come among those that wait for one (see `Buffers`)."""
        if not self.paused:
            self.loop.add_reader(self.source_fd, self.on_readable)
            self.on_readable()

    def stop(self) -> None:
        """Leave the loop for good, before the sockets are closed."""
        if not self.paused:
            self.loop.remove_reader(self.source_fd)
        else:
            for reason, name in REASON_NAMES.items():
                if self.paused & reason:
                    self.buffers.paused[name] -= 1
        self.paused = STOPPED
        self.muted = True
        if self.pending is not None:
            self.loop.remove_writer(self.sink.fileno())
            self.buffers.release(len(self.pending))
            self.pending = None
        self.drop_kept()

    def discard(self) -> None:
        """Nobody is there to write to any more: drop what waits, and all that comes."""
        self.muted = True
        if self.pending is not None:
            self.loop.remove_writer(self.sink.fileno())
            self.buffers.release(len(self.pending))
            self.pending = None
            self.resume(WRITE_BACKPRESSURE)

    def drop_kept(self) -> None:
        """Forget the bytes that were kept aside."""
        if self.kept:
            self.buffers.release(len(self.kept))
            self.kept = b""

    def keep(self, start: int, end: int) -> None:
        """Put ``buffers.data[start:end]`` aside, to be looked at again in front of what comes next.

        Something must be able to come, except where it is held: then it is looked at again before the next read.
        """
        if start < end and not self.paused & STOPPED:
            if end - start >= READ_SIZE and not self.paused & QUOTA:
                raise MalformedFrame("a frame's head within the buffer", READ_SIZE)
            self.kept = bytes(self.buffers.view[start:end])
            self.buffers.keep(end - start)

    def restore_kept(self) -> int:
        """Put the kept bytes back at the buffer's start; returns how many."""
        kept = self.kept
        size = len(kept)
        if size:
            self.buffers.data[:size] = kept
            self.kept = b""
            self.buffers.release(size)
        return size

    def on_readable(self) -> None:
        """One wake-up: at most one ``recv``."""
        buffers = self.buffers
        want = self.want
        if self.remaining > BULK:
            if not buffers.bulk_turn(self):
                return
            if want > buffers.bulk_read_size:
                want = buffers.bulk_read_size
        elif want > SMALL_READ_SIZE and buffers.small_reads:
            want = SMALL_READ_SIZE
        if want > buffers.read_size:
            want = buffers.read_size
            if not want:
                self.pause(MEMORY)
                buffers.when_free(self._memory_is_free)
                return
        kept_size = 0
        try:
            if self.kept:
                kept_size = len(self.kept)
                room = READ_SIZE - kept_size
                end = kept_size + self.source.recv_into(buffers.view[kept_size:], want if want < room else room)
            else:
                end = self.source.recv_into(buffers.data, want)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.on_source_failed(error)
            return
        if end == kept_size:
            self.on_source_ended()
            return
        if kept_size:
            self.restore_kept()
        try:  # as `parse`, which costs a call more for each wake-up
            self.take(end)
        except ProtocolError as error:
            self.session.close_for(error)
        except Exception as error:  # noqa: BLE001 - a defect may cost its own connection, never the process
            self.session.close_for_defect(error)

    def read_on(self) -> None:
        """Read what is there already, without waiting for the loop to tell of it; nothing while reading rests."""
        if not self.paused and not self.queued:
            self.on_readable()

    def read_to_end(self) -> None:
        """The source has gone: read what it left, one ``recv`` for each round of the loop, up to the end of the stream.

        libuv tells of a reset once, and uvloop forgets the descriptor then, whatever is still to be read from it.
        """
        if not self.paused and not self.queued:
            self.on_readable()
        if not self.paused:
            self.loop.call_soon(self.read_to_end)

    def parse(self, end: int) -> None:
        """Let the flow look at the bytes; an error closes this one session, whatever it is."""
        try:
            self.take(end)
        except ProtocolError as error:
            self.session.close_for(error)
        except Exception as error:  # noqa: BLE001 - a defect may cost its own connection, never the process
            self.session.close_for_defect(error)

    def _memory_is_free(self) -> None:
        self.resume(MEMORY)

    # ---- writing

    def forward(self, start: int, end: int) -> None:
        """Send ``buffers.data[start:end]`` on."""
        if start < end:
            self.write(self.buffers.view[start:end])

    def write(self, data: "memoryview | bytes | bytearray") -> None:
        """Send now what the sink takes, keep the rest and stop reading until it is gone."""
        if self.muted:
            return
        if self.pending is not None:
            self.pending += data
            self.buffers.keep(len(data))
            return
        try:
            sent = self.sink.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.on_sink_failed(error)
            return
        if sent < len(data):
            self.pending = bytearray(data[sent:])
            self.buffers.keep(len(self.pending))
            self.pause(WRITE_BACKPRESSURE)
            self.loop.add_writer(self.sink.fileno(), self.on_writable)

    def on_writable(self) -> None:
        """The sink takes bytes again."""
        pending = self.pending
        if pending is None:
            return
        try:
            sent = self.sink.send(pending)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.on_sink_failed(error)
            return
        del pending[:sent]
        if not pending:
            self.pending = None
            self.loop.remove_writer(self.sink.fileno())
        self.buffers.release(sent)
        if self.pending is None:
            self.resume(WRITE_BACKPRESSURE)
            self.on_flushed()
