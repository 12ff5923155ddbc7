"""One direction of a session: reads a wire into the shared buffer, asks the stream what to do, and writes to the other
wire.

Reading is level-triggered, with one ``recv`` for each wake-up. This module has the common case, in which all bytes pass
in one step. `backlog` and `writer` have the rest.
"""

from abc import abstractmethod
from typing import Final, Protocol, final

from proxy.sessions.backlog import BROKEN_OFF, DONE, Backlog
from proxy.sessions.pump_set import (
    CONNECTING,
    DELAY,
    IN_FLIGHT,
    MEMORY,
    QUOTA,
    REASON_NAMES,
    RESPONSE_MEMORY,
    SLICE,
    STOPPED,
    WAITS,
    Direction,
    PumpSet,
)
from proxy.sessions.slices import FAST_SLICE_NS, HEAVY_NS, ROUND_NS, SLICE_NS, WORTH_COUNTING_NS, LoopUser
from proxy.sessions.wire import Wire
from proxy.sessions.writer import Writer
from proxy.streams.connection import Stream
from proxy.streams.memory import HEAD_READ_SIZE, READ_SIZE
from proxy.streams.steps import DELAY_RESPONSE, FULL, HOLD, NEED, WAIT

#: A pump with more than this left of its frame moves bulk, so its slices count as expensive.
BULK: Final = 65_536


class Owner(Protocol):
    """The methods of a session that its pumps call."""

    @abstractmethod
    def after_step(self) -> None:
        """Called when `Connection.needs_session` is set, or when the sink has taken all bytes."""

    @abstractmethod
    def on_hold(self, pump: "Pump") -> None:
        """A limit holds a frame of this pump (`held` of its stream), and the pump has been paused."""

    @abstractmethod
    def on_delay(self) -> None:
        """A response is delayed (`ResponseStream.delay`), and its pump has been paused."""

    @abstractmethod
    def on_wait(self, pump: "Pump", reason: int) -> None:
        """A wait of this pump has begun or ended, which may change the state that the connection's time counts for."""

    @abstractmethod
    def on_source_ended(self, pump: "Pump", error: OSError | None = None) -> None:
        """The source ended its stream, or its connection broke."""

    @abstractmethod
    def on_sink_failed(self, pump: "Pump", error: OSError) -> None:
        """The sink's connection broke."""

    @abstractmethod
    def close_for(self, error: Exception, pump: "Pump | None" = None) -> None:
        """Close because of what the source of `pump` (None: the broker) sent, or of a defect in this program."""


@final
class Pump(LoopUser, Direction):
    """Moves the bytes of one direction as its stream decides.

    stream    decides what happens to the bytes
    paused    the reasons for which the source is not read
    backlog   the bytes that were read and have not passed
    writer    the bytes that have passed and that the sink has not taken
    """

    __slots__ = (
        "_byte_cost",
        "_connection",
        "_decrypts",
        "_owner",
        "_recv_into",
        "_shared",
        "backlog",
        "is_heavy",
        "paused",
        "source",
        "stream",
        "writer",
    )

    def __init__(self, shared: PumpSet, owner: Owner, stream: Stream, source: Wire, sink: Wire) -> None:
        self._shared = shared
        self._owner = owner
        self.stream = stream
        self._connection = stream.connection
        self.source = source
        self._recv_into = source.recv_into
        self.writer = Writer(shared, self, stream.holding, sink)
        self.backlog = Backlog(shared, stream, self.writer)
        #: What a byte that passes costs, in quarters of a nanosecond.
        self._byte_cost = 1 + source.byte_cost + sink.byte_cost
        self._decrypts = source.byte_cost > 0
        self.paused = CONNECTING
        shared.paused["connecting"] += 1
        self.is_heavy = False

    # ---- when to read

    def pause(self, reason: int) -> None:
        """Stop reading for `reason`. No effect if the reason is set already."""
        before = self.paused
        if before & (reason | STOPPED):
            return
        self.paused = before | reason
        self._shared.paused[REASON_NAMES[reason]] += 1
        if not before:
            self.source.stop_reading()
        if reason & WAITS:
            self._owner.on_wait(self, reason)

    def resume(self, reason: int) -> None:
        """Remove `reason`. Reading resumes if it was the last one."""
        if not self.paused & reason:
            return
        self.paused &= ~reason
        self._shared.paused[REASON_NAMES[reason]] -= 1
        if reason & WAITS:
            self._owner.on_wait(self, reason)
        if not self.paused:
            # The loop reports bytes in the socket, but not those that were read from it. They are handled in a later
            # slice, because the caller may be in the middle of another connection's slice.
            if self.backlog.unparsed or self.source.buffers:
                self._wait_for_slice()
            else:
                self.source.when_readable(self.on_readable)

    def _wait_for_slice(self) -> None:
        if not self.paused & SLICE:
            self.pause(SLICE)
            self._shared.slices.wait(self)

    def on_slice(self) -> None:
        """See `LoopUser`."""
        if self.paused & STOPPED or not self.paused & SLICE:
            return
        self.paused &= ~SLICE
        self._shared.paused["turn"] -= 1
        if self.paused:
            return  # `resume` handles `unparsed` when it removes the last reason
        self.source.when_readable(self.on_readable)
        self.read_on()

    def _wait_for_memory(self) -> None:
        self.pause(MEMORY)
        self._shared.short[self] = None

    # ---- reading

    def on_readable(self) -> None:
        """Handle one wake-up, with at most one ``recv``. Nearly always, all its bytes pass in one step, and the sink
        takes them. That case is in this one function, because function calls are much of its cost.
        """
        shared, stream, writer = self._shared, self.stream, self.writer
        slices, memory, clock = shared.slices, shared.memory, shared.clock
        # No further `recv` once the round's time is used up: the bytes stay in the kernel, which slows the peer down.
        if (slices.used_ns >= ROUND_NS or self.is_heavy) and not slices.may_begin(self):
            self._wait_for_slice()
            return
        # The read is not counted as memory: its bytes leave the shared buffer before this call ends, or they are kept,
        # and counted then.
        want, receive = stream.want, self._recv_into
        if self.backlog.most < want or memory.is_tight:
            self._read_less(want)
            return
        try:
            size = receive(memory.data, want)
        except OSError as error:
            self._on_unread(error)
            return
        if not size:
            self._owner.on_source_ended(self)
            return
        try:
            step = stream.next_step(0, size, clock())
        except Exception as error:  # noqa: BLE001 - a defect may cost its own connection, never the process
            self._owner.close_for(error, self)
            return
        if step != size:
            self._run(size, step)
            return
        send, data = writer.send, memory.views[size]
        try:
            sent = send(data)
        except OSError as error:
            sent = writer.on_unsent(error)
        if sent < size:
            writer.keep(data[sent:])
        self._count_slice(size)

    def _count_slice(self, size: int) -> None:
        """Account for a slice in which `size` bytes have passed in one step."""
        slices = self._shared.slices
        # Estimated, not measured, because reading the clock twice would cost as much as all of this accounting.
        cost_ns = FAST_SLICE_NS + (size * self._byte_cost >> 2)
        slices.used_ns = used_ns = slices.used_ns + cost_ns
        if used_ns > WORTH_COUNTING_NS and not slices.is_busy:
            slices.begin_round()
        # The next reads belong to a long frame, so they share time with other bulk, not with short requests.
        if self.stream.remaining > BULK:
            self.is_heavy = True
            slices.heavy_used_ns += cost_ns
        elif self.is_heavy:
            self.is_heavy = False
        if self._connection.needs_session:
            self._owner.after_step()
        if self._decrypts:
            self._read_decrypted()

    def _read_decrypted(self) -> None:
        """Read what TLS has decrypted beyond the size of the last read, which the loop does not report."""
        if self.source.buffers and not self.paused:
            self._wait_for_slice()

    def _read_less(self, want: int) -> None:
        """Handle a wake-up of a pump that has kept bytes, or that must read less than `want`."""
        shared, backlog, stream = self._shared, self.backlog, self.stream
        memory = shared.memory
        want = min(want, backlog.read_limit)
        if memory.is_tight:
            want = memory.allowance(stream.holding, want, stream.remaining, HEAD_READ_SIZE)
            if want <= 0:
                self._wait_for_memory()
                return
        # Read to the place that follows the kept bytes. These are copied in front of it only if something was read.
        kept_size = len(backlog.kept)
        try:
            size = self._recv_into(memory.view[kept_size:], min(want, READ_SIZE - kept_size))
        except OSError as error:
            self._on_unread(error)
            return
        if size:
            self._run(backlog.restore() + size)
        else:
            self._owner.on_source_ended(self)

    def _on_unread(self, error: OSError) -> None:
        """A read failed, or there was nothing to read."""
        if not isinstance(error, BlockingIOError | InterruptedError):
            self._owner.on_source_ended(self, error)
        else:
            self._read_decrypted()

    def parse_kept(self) -> None:
        """Let the stream parse the kept bytes before the next read."""
        if self.backlog.kept:
            self._run(self.backlog.restore())

    def read_on(self) -> None:
        """Read what has arrived without waiting for the loop to report it. No effect while paused."""
        if not self.paused:
            if self.backlog.unparsed:
                self.parse_kept()
            else:
                self.on_readable()

    # ---- what the stream asks for

    def _run(self, end: int, first_step: int | None = None) -> None:
        """Carry out the stream's steps for ``data[:end]``. `first_step`: the first one, if it is known already."""
        shared = self._shared
        slices = shared.slices
        started_ns = slices.clock()
        step = BROKEN_OFF
        try:
            step = self.backlog.carry_out(end, started_ns + SLICE_NS, first_step)
            if step != DONE and not self.paused & STOPPED:
                self._stop_for(step, end)
        except Exception as error:  # noqa: BLE001 - a defect may cost its own connection, never the process
            self._owner.close_for(error, self)
        used_ns = slices.clock() - started_ns + (end * self.source.byte_cost >> 2)  # with its decryption, before
        self.is_heavy = step == BROKEN_OFF or used_ns > HEAVY_NS
        slices.used(self, used_ns)
        if shared.short or shared.queued:  # a collected frame may have been sent
            shared.memory_returned()
        if self._connection.needs_session:
            self._owner.after_step()
        self._read_decrypted()

    def _stop_for(self, step: int, end: int) -> None:
        """Keep the rest of ``data[:end]`` for the reason that the step gives."""
        self.backlog.keep_rest(end, unparsed=step != NEED)
        if step == BROKEN_OFF:
            self.is_heavy = True  # before it waits, because expensive slices have their own queue
            if not self.paused:
                self._wait_for_slice()
        elif step == HOLD:
            self.pause(QUOTA)
            self._owner.on_hold(self)
        elif step == DELAY_RESPONSE:
            self.pause(DELAY)
            self._owner.on_delay()
        elif step == FULL:
            self.pause(IN_FLIGHT)
            self._connection.needs_session = True
        elif step == WAIT:
            self.pause(RESPONSE_MEMORY)
            self._shared.queued[self.stream.holding] = self

    # ---- what the writer reports, and the end

    def on_sent(self) -> None:
        self._owner.after_step()

    def on_sink_failed(self, error: OSError) -> None:
        self._owner.on_sink_failed(self, error)

    def stop(self) -> None:
        """Leave the loop for good, before the wires are closed."""
        shared = self._shared
        self.source.stop_reading()
        for reason, name in REASON_NAMES.items():
            if self.paused & reason:
                shared.paused[name] -= 1
        self.paused = STOPPED
        self.backlog.stop()
        self.writer.stop()
        shared.forget(self, self.stream.holding)
