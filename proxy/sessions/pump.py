"""One direction of a session: reads a wire into the shared buffer, asks the stream, writes to the other wire.

Level-triggered, one ``recv`` for each wake-up. The common case stands here: all bytes pass in one step. The rest is in
`backlog` and `writer`.
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
    STOPPED,
    TURN,
    WAITS,
    Direction,
    PumpSet,
)
from proxy.sessions.turns import FAST_TURN_NS, HEAVY_NS, ROUND_NS, TURN_NS, WORTH_COUNTING_NS, Turn
from proxy.sessions.wire import Wire
from proxy.sessions.writer import Writer
from proxy.streams.connection import Stream
from proxy.streams.memory import HEAD_READ_SIZE, READ_SIZE
from proxy.streams.steps import DELAY_RESPONSE, FULL, HOLD, NEED, WAIT

#: With more than this left of its frame a pump moves bulk, and takes turns with others that do.
BULK: Final = 65_536


class Owner(Protocol):
    """What a pump calls of its session."""

    @abstractmethod
    def after_step(self) -> None:
        """`Connection.needs_session` is set, or the sink took all bytes."""

    @abstractmethod
    def on_hold(self, pump: "Pump") -> None:
        """A limit holds what this pump moves: see `held` of its stream. The pump has been paused."""

    @abstractmethod
    def on_delay(self) -> None:
        """A response is delayed: see `ResponseStream.delay`. The pump has been paused."""

    @abstractmethod
    def on_wait(self, pump: "Pump", reason: int) -> None:
        """A wait of this pump has begun or ended that may change where the connection's time goes."""

    @abstractmethod
    def on_source_ended(self, pump: "Pump", error: OSError | None = None) -> None:
        """The source ended its stream, or its connection broke."""

    @abstractmethod
    def on_sink_failed(self, pump: "Pump", error: OSError) -> None:
        """The sink's connection broke."""

    @abstractmethod
    def close_for(self, error: Exception, pump: "Pump | None" = None) -> None:
        """Close because of what the source of this pump sent, or of a defect in this program. None: the broker."""


@final
class Pump(Turn, Direction):
    """Moves the bytes of one direction as its stream decides.

    stream    decides what happens to the bytes
    paused    the reasons for which its source is not read
    backlog   what was read and has not passed; `writer`: what has passed and was not taken
    """

    __slots__ = (
        "_byte_cost",
        "_connection",
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
        #: Of a byte that passes, in quarters of a nanosecond.
        self._byte_cost = 1 + source.byte_cost + sink.byte_cost
        self.paused = CONNECTING
        shared.paused["connecting"] += 1
        self.is_heavy = False

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
        if reason & WAITS:
            self._owner.on_wait(self, reason)

    def resume(self, reason: int) -> None:
        """Remove `reason`; reading resumes when it was the last."""
        if not self.paused & reason:
            return
        self.paused &= ~reason
        self._shared.paused[REASON_NAMES[reason]] -= 1
        if reason & WAITS:
            self._owner.on_wait(self, reason)
        if not self.paused:
            # The loop reports what is in the socket, not what was read from it. And a turn of its own, not this one:
            # the caller is in the middle of another connection's, perhaps.
            if self.backlog.unparsed or self.source.buffers:
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

    def _wait_for_memory(self) -> None:
        self.pause(MEMORY)
        self._shared.short[self] = None

    # ---- reading

    def on_readable(self) -> None:
        """One wake-up: at most one ``recv``."""
        shared, backlog = self._shared, self.backlog
        turns = shared.turns
        # Not one more `recv` after the round's time is used: the kernel keeps the bytes, and the peer is slowed down.
        if turns.is_busy and (self.is_heavy or turns.used_ns >= ROUND_NS) and not turns.may_begin(self):
            self._wait_for_turn()
            return
        # Not counted as memory: the bytes leave the shared buffer before this call ends, or are kept and counted then.
        memory, receive, want = shared.memory, self._recv_into, self.stream.want
        if backlog.kept or memory.is_tight or backlog.read_limit < want:
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
        self.writer.write(views[size] if size in views else shared.memory.first(size))
        turns = shared.turns
        # Assumed, not measured: to read the clock twice would cost as much as all of this accounting.
        cost_ns = FAST_TURN_NS + (size * self._byte_cost >> 2)
        turns.used_ns = used_ns = turns.used_ns + cost_ns
        if used_ns > WORTH_COUNTING_NS and not turns.is_busy:
            turns.begin_round()
        # The next reads belong to a long frame: they take turns with other bulk, not with short requests.
        if stream.remaining > BULK:
            self.is_heavy = True
            turns.heavy_used_ns += cost_ns
        elif self.is_heavy:
            self.is_heavy = False
        if self._connection.needs_session:
            self._owner.after_step()
        # TLS has decrypted more than was asked for. The loop does not know of it.
        if self.source.buffers and not self.paused:
            self._wait_for_turn()

    def _read_less(self, want: int) -> None:
        """The wake-up of a pump that kept bytes, or reads less than `want`."""
        shared, backlog, stream = self._shared, self.backlog, self.stream
        memory = shared.memory
        want = min(want, backlog.read_limit)
        if memory.is_tight:
            want = memory.allowance(stream.holding, want, stream.remaining, HEAD_READ_SIZE)
            if want <= 0:
                self._wait_for_memory()
                return
        # Read to where it will stand after the kept bytes. These are copied only when the read has brought something.
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
        elif self.source.buffers and not self.paused:
            self._wait_for_turn()

    def parse_kept(self) -> None:
        """Let the stream parse the kept bytes, before the next read."""
        if self.backlog.kept:
            self._run(self.backlog.restore())

    def read_on(self) -> None:
        """Read what has arrived, without waiting for the loop to report it; no effect while paused."""
        if not self.paused:
            if self.backlog.unparsed:
                self.parse_kept()
            else:
                self.on_readable()

    # ---- what the stream asks for

    def _run(self, end: int, first_step: int | None = None) -> None:
        """Carry out the stream's steps for ``data[:end]``; the first of them may have been taken already."""
        shared = self._shared
        turns = shared.turns
        started_ns = turns.clock()
        step = BROKEN_OFF
        try:
            step = self.backlog.carry_out(end, started_ns + TURN_NS, first_step)
            if step != DONE and not self.paused & STOPPED:
                self._stop_for(step, end)
        except Exception as error:  # noqa: BLE001 - a defect may cost its own connection, never the process
            self._owner.close_for(error, self)
        used_ns = turns.clock() - started_ns + (end * self.source.byte_cost >> 2)  # it was decrypted before
        self.is_heavy = step == BROKEN_OFF or used_ns > HEAVY_NS
        turns.used(self, used_ns)
        if shared.short or shared.queued:  # a frame that was collected may have been sent
            shared.memory_returned()
        if self._connection.needs_session:
            self._owner.after_step()
        if self.source.buffers and not self.paused:
            self._wait_for_turn()

    def _stop_for(self, step: int, end: int) -> None:
        """Keep the rest of ``data[:end]``, for the reason that the step gives."""
        self.backlog.keep_rest(end, unparsed=step != NEED)
        if step == BROKEN_OFF:
            self.is_heavy = True  # before it waits: there is a queue for these
            if not self.paused:
                self._wait_for_turn()
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

    # ---- what the writer tells, and the end

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
