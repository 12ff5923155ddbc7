"""One direction of a session: reads a wire into the shared buffer, asks the stream, writes to the other wire.

Level-triggered, one ``recv`` for each wake-up. Reading stops at once when the other side does not take bytes: that is
the memory bound. The stream returns steps (`proxy.streams.steps`); here they are carried out.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Final, Protocol, final

from protocol.errors import MalformedFrame
from proxy.observability.metrics import PAUSE_REASONS
from proxy.sessions.turns import FAST_TURN_NS, HEAVY_NS, ROUND_NS, TURN_NS, WORTH_COUNTING_NS, Turn, Turns
from proxy.sessions.wire import Wire
from proxy.streams.connection import Stream
from proxy.streams.handlers.data import HEAD_READ_SIZE
from proxy.streams.memory import READ_SIZE, Holding, MemoryPool
from proxy.streams.steps import DELAY_RESPONSE, DRAINED, FULL, HOLD, NEED, REPLACE, WAIT, YIELD

# Why a wire is not being read: reading resumes without any of these bits. Each is a metric label.
CONNECTING: Final = 1
QUOTA: Final = 2
WRITE_BACKPRESSURE: Final = 4
MEMORY: Final = 8
IN_FLIGHT: Final = 16
DRAIN: Final = 32
END_OF_STREAM: Final = 64
TURN: Final = 128
RESPONSE_MEMORY: Final = 256
DELAY: Final = 512
LOGIN: Final = 1024
REASON_NAMES: Final = {1 << bit: name for bit, name in enumerate(PAUSE_REASONS)}

#: Not a reason: the pump is done, nothing resumes it.
STOPPED: Final = 1 << 30
#: With more than this left of its frame a pump moves bulk, and takes turns with others that do.
BULK: Final = 65_536
#: The least that a pump reads at once after it had read more than one turn parses.
_SMALLEST_READ: Final = 4_096


class Owner(Protocol):
    """What a pump calls of its session."""

    __slots__ = ()

    @abstractmethod
    def after_step(self) -> None:
        """`Connection.needs_session` is set, or the sink took all bytes."""

    @abstractmethod
    def on_hold(self) -> None:
        """A limit holds a frame: see `Connection.held`. The pump of requests has been paused."""

    @abstractmethod
    def on_delay(self) -> None:
        """A response is delayed: see `Responses.delay`. The pump has been paused."""

    @abstractmethod
    def on_source_ended(self, pump: "Pump", error: OSError | None = None) -> None:
        """The source ended its stream, or its connection broke."""

    @abstractmethod
    def on_sink_failed(self, pump: "Pump", error: OSError) -> None:
        """The sink's connection broke."""

    @abstractmethod
    def close_for(self, error: Exception, pump: "Pump | None" = None) -> None:
        """Close because of what the source of this pump sent, or of a defect in this program. None: the broker."""


class PumpSet:
    """What all pumps of one event loop share: memory, turns, the clock of the quotas, and a count for each reason.

    short    pumps that are not read because memory is used up, in order
    queued   pumps with a frame that waits for memory to be collected: see `MemoryPool.reserve`
    """

    __slots__ = ("clock", "memory", "paused", "queued", "short", "turns")

    def __init__(self, memory: MemoryPool, turns: Turns, clock: Callable[[], int], paused: dict[str, int]) -> None:
        self.memory = memory
        self.turns = turns
        self.clock = clock
        self.paused = paused
        self.short: dict[Pump, None] = {}
        self.queued: dict[Holding, Pump] = {}

    @property
    def is_short(self) -> bool:
        """Whether memory is used up: some wait for it."""
        return bool(self.short or self.queued)

    def memory_returned(self) -> None:
        """Memory may be free: resume pumps that wait for it."""
        memory = self.memory
        for holding in memory.grant():
            self.queued.pop(holding).resume(RESPONSE_MEMORY)
        if self.short and memory.used <= memory.limit * 3 // 4:
            short, self.short = self.short, {}
            for pump in short:
                pump.resume(MEMORY)


@final
class Pump(Turn):
    """Moves the bytes of one direction as its stream decides.

    stream      decides what happens to the bytes
    kept        bytes that were read and not forwarded: an incomplete header, or what follows a boundary
    unparsed    `kept` may contain more than an incomplete header: the stream parses it before the next read
    pending     bytes that the sink did not take
    """

    __slots__ = (
        "_byte_cost",
        "_connection",
        "_owner",
        "_read_limit",
        "_recv_into",
        "_send",
        "_shared",
        "_sink",
        "is_heavy",
        "kept",
        "paused",
        "pending",
        "source",
        "stream",
        "unparsed",
    )

    def __init__(self, shared: PumpSet, owner: Owner, stream: Stream, source: Wire, sink: Wire) -> None:
        self._shared = shared
        self._owner = owner
        self.stream = stream
        self._connection = stream.connection
        self.source = source
        self._sink = sink
        self._recv_into = source.recv_into
        self._send = sink.send
        #: Of a byte that passes, in quarters of a nanosecond.
        self._byte_cost = 1 + source.byte_cost + sink.byte_cost
        self.paused = CONNECTING
        shared.paused["connecting"] += 1
        self.kept = b""
        self.unparsed = False
        self.pending: bytearray | None = None
        self.is_heavy = False
        #: Largest read: smaller after more was read than one turn parses.
        self._read_limit = READ_SIZE

    @property
    def discarding(self) -> bool:
        """Whether the sink has gone, or its stream was ended: bytes are dropped."""
        return self._send is len

    # ---- when to read

    def pause(self, reason: int) -> None:
        """Stop reading for `reason`; no effect if it is set already."""
        before = self.paused
        if before & (reason | STOPPED):
            return
        self.paused = before | reason
        self._shared.paused[REASON_NAMES[reason]] += 1
        if not before:
            self.source.stop_reading()

    def resume(self, reason: int) -> None:
        """Remove `reason`; reading resumes when it was the last."""
        if not self.paused & reason:
            return
        self.paused &= ~reason
        self._shared.paused[REASON_NAMES[reason]] -= 1
        if not self.paused:
            if self.unparsed or self.source.buffers:
                self._wait_for_turn()
            else:
                self.source.when_readable(self.on_readable)

    def _wait_for_turn(self) -> None:
        if not self.paused & TURN:
            self.pause(TURN)
            self._shared.turns.wait(self)

    def on_turn(self) -> None:
        """See `Turn`."""
        if self.paused & STOPPED or not self.paused & TURN:
            return
        self.paused &= ~TURN
        self._shared.paused["turn"] -= 1
        if self.paused:
            return  # the resume that removes the last reason handles `unparsed`
        self.source.when_readable(self.on_readable)
        self.read_on()

    def on_readable(self) -> None:
        """One wake-up: at most one ``recv``."""
        shared = self._shared
        turns = shared.turns
        if turns.is_busy and (self.is_heavy or turns.used_ns >= ROUND_NS) and not turns.may_begin(self):
            self._wait_for_turn()
            return
        memory, receive, want = shared.memory, self._recv_into, self.stream.want
        if self.kept or memory.is_tight or self._read_limit < want:
            self._read_less(want)
            return
        try:
            size = receive(memory.data, want)
        except OSError as error:
            self._on_unread(error)
            return
        if size:
            self._run_whole(size)
        else:
            self._owner.on_source_ended(self)

    def _run_whole(self, size: int) -> None:
        """As `_run`, for the common case: all bytes pass in one step."""
        shared, stream = self._shared, self.stream
        clock, views = shared.clock, shared.memory.views  # to call an attribute that is no method is slow
        try:
            step = stream.take(0, size, clock())
        except Exception as error:  # noqa: BLE001 - a defect may cost its own connection, never the process
            self._owner.close_for(error, self)
            return
        if step != size:
            self._run(size, step)
            return
        self.write(views[size] if size in views else shared.memory.first(size))
        turns = shared.turns
        cost_ns = FAST_TURN_NS + (size * self._byte_cost >> 2)
        turns.used_ns = used_ns = turns.used_ns + cost_ns
        if used_ns > WORTH_COUNTING_NS and not turns.is_busy:
            turns.begin_round()
        if stream.remaining > BULK:
            self.is_heavy = True
            turns.heavy_used_ns += cost_ns
        elif self.is_heavy:
            self.is_heavy = False
        if self._connection.needs_session:
            self._owner.after_step()
        if self.source.buffers and not self.paused:
            self._wait_for_turn()

    def _read_less(self, want: int) -> None:
        """The wake-up of a pump that kept bytes, or reads less than `want`."""
        shared = self._shared
        memory = shared.memory
        stream = self.stream
        want = min(want, self._read_limit)
        if memory.is_tight:
            want = memory.allowance(stream.holding, want, stream.remaining, HEAD_READ_SIZE)
            if want <= 0:
                self._wait_for_memory()
                return
        kept_size = len(self.kept)
        try:
            size = self._recv_into(memory.view[kept_size:], min(want, READ_SIZE - kept_size))
        except OSError as error:
            self._on_unread(error)
            return
        if size:
            self._run(self._restore_kept() + size)
        else:
            self._owner.on_source_ended(self)

    def _on_unread(self, error: OSError) -> None:
        """A read failed, or there was nothing to read."""
        if not isinstance(error, BlockingIOError | InterruptedError):
            self._owner.on_source_ended(self, error)
        elif self.source.buffers and not self.paused:
            self._wait_for_turn()

    def _restore_kept(self) -> int:
        """Copy the kept bytes to the beginning of the shared buffer; returns their number."""
        kept = self.kept
        size = len(kept)
        self._shared.memory.data[:size] = kept
        self.unparsed = False
        self._keep(b"")
        return size

    def _wait_for_memory(self) -> None:
        self.pause(MEMORY)
        self._shared.short[self] = None

    def parse_kept(self) -> None:
        """Let the stream parse the kept bytes, before the next read."""
        if self.kept:
            self._run(self._restore_kept())

    def read_on(self) -> None:
        """Read what has arrived, without waiting for the loop to report it; no effect while paused."""
        if not self.paused:
            if self.unparsed:
                self.parse_kept()
            else:
                self.on_readable()

    # ---- what the stream asks for

    def _run(self, end: int, first_step: int | None = None) -> None:
        """Carry out the stream's steps for ``data[:end]``; the first of them may have been taken already."""
        shared = self._shared
        turns = shared.turns
        started_ns = turns.clock()
        is_done = False
        try:
            is_done = self._steps(end, started_ns + TURN_NS, first_step)
        except Exception as error:  # noqa: BLE001 - a defect may cost its own connection, never the process
            self._owner.close_for(error, self)
        used_ns = turns.clock() - started_ns + (end * self.source.byte_cost >> 2)  # it was decrypted before
        self.is_heavy = not is_done or used_ns > HEAVY_NS
        turns.used(self, used_ns)
        if shared.short or shared.queued:  # a frame that was collected may have been sent
            shared.memory_returned()
        if self._connection.needs_session:
            self._owner.after_step()
        if self.source.buffers and not self.paused:
            self._wait_for_turn()

    def _steps(self, end: int, until_ns: int, step: int | None) -> bool:
        """Take steps until all bytes have passed or are kept. Returns whether the turn was long enough for that."""
        stream = self.stream
        take = stream.take
        work_clock = self._shared.turns.clock
        now_ns = self._shared.clock()
        start = pos = 0
        try:
            while pos < end:
                if step is None:
                    step = take(pos, end, now_ns)
                if step > pos:
                    pos = step
                elif step == REPLACE:
                    self._forward(start, pos)
                    if stream.output:
                        self.write(stream.output)
                    start = pos = stream.resume_at
                elif step != YIELD:
                    self._forward(start, pos)
                    start = pos
                    self._stop_at(step, pos, end)
                    return True
                step = None
                if pos < end and work_clock() >= until_ns:
                    self._forward(start, pos)
                    start = pos
                    self._break_off(pos, end)
                    return False
        finally:
            self._forward(start, pos)  # after an error: bytes before it were charged, and are forwarded
        if self._read_limit < READ_SIZE:
            self._read_limit = min(READ_SIZE, 2 * self._read_limit)
        return True

    def _forward(self, start: int, end: int) -> None:
        if start < end:
            self.write(self._shared.memory.view[start:end])

    def _break_off(self, pos: int, end: int) -> None:
        """The turn is over before all bytes have been parsed: keep them, and read less from now on."""
        self._read_limit = max(_SMALLEST_READ, min(pos, READ_SIZE))
        if not self.paused & STOPPED:
            self._keep(bytes(self._shared.memory.view[pos:end]))
            self.unparsed = True
            self.is_heavy = True
            if not self.paused:
                self._wait_for_turn()

    def _stop_at(self, step: int, pos: int, end: int) -> None:
        """Keep the bytes from `pos` on, for the reason that the step gives."""
        if self.paused & STOPPED:
            return
        if step == DRAINED:
            self.pause(DRAIN)
            return
        size = end - pos
        if size >= READ_SIZE and step == NEED:
            raise MalformedFrame("a frame's head within the buffer", READ_SIZE)
        self._keep(bytes(self._shared.memory.view[pos:end]))
        self.unparsed = step != NEED
        if step == HOLD:
            self.pause(QUOTA)
            self._owner.on_hold()
        elif step == DELAY_RESPONSE:
            self.pause(DELAY)
            self._owner.on_delay()
        elif step == FULL:
            self.pause(IN_FLIGHT)
            self._connection.needs_session = True
        elif step == WAIT:
            self.pause(RESPONSE_MEMORY)
            self._shared.queued[self.stream.holding] = self

    def _keep(self, kept: bytes) -> None:
        self.kept = kept
        self._account()

    def _account(self) -> None:
        """Update the account of memory."""
        shared = self._shared
        holding = self.stream.holding
        before = holding.counted
        pending = self.pending
        shared.memory.update(holding, len(self.kept), 0 if pending is None else len(pending), holding.reserved)
        if holding.counted < before and (shared.short or shared.queued):
            shared.memory_returned()

    # ---- writing

    def write(self, data: memoryview | bytes | bytearray) -> None:
        """Send now what the sink takes, keep the rest and stop reading until it is gone."""
        if self.pending is not None:
            self.pending += data
            self._account()
            return
        send = self._send
        try:
            sent = send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._owner.on_sink_failed(self, error)
            return
        if sent < len(data):
            self.pending = bytearray(data[sent:])
            self._account()
            self.pause(WRITE_BACKPRESSURE)
            self._sink.when_writable(self._on_writable)

    def _on_writable(self) -> None:
        if (pending := self.pending) is not None:
            self.pending = None
            self.write(pending)
            self._on_written()

    def _on_written(self) -> None:
        """A method of its own: in `_on_writable`, mypyc would take `pending` for None, as it was before `write`."""
        if self.pending is None:  # all was taken, or the sink has gone
            self._drop_pending()
            self._owner.after_step()

    def _drop_pending(self) -> None:
        self.pending = None
        self._sink.stop_writing()
        self._account()
        self.resume(WRITE_BACKPRESSURE)

    # ---- ends

    def discard(self) -> None:
        """The sink has gone: drop pending bytes, and all that follow."""
        self._send = len
        if self.pending is not None:
            self._drop_pending()

    def end(self) -> None:
        """Nothing follows what the sink has taken: end its stream."""
        self._send = len
        self._sink.shutdown()

    def drop_kept(self) -> None:
        """Forget the bytes that were kept."""
        self.unparsed = False
        if self.kept:
            self._keep(b"")

    def stop(self) -> None:
        """Leave the loop for good, before the wires are closed."""
        shared = self._shared
        self.source.stop_reading()
        for reason, name in REASON_NAMES.items():
            if self.paused & reason:
                shared.paused[name] -= 1
        self.paused = STOPPED
        self._send = len
        self.kept = b""
        self.unparsed = False
        if self.pending is not None:
            self.pending = None
            self._sink.stop_writing()
        shared.short.pop(self, None)
        shared.queued.pop(self.stream.holding, None)
        shared.memory.forget(self.stream.holding)
        if shared.short or shared.queued:
            shared.memory_returned()
