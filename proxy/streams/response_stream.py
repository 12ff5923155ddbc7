"""Broker to client: matches responses with the requests in flight, and lets each request answer for itself.

Most responses are forwarded unchanged. Throttle times and node endpoints are changed in place in the shared buffer
while the response streams by; where a broker's address is replaced, the response or its beginning is rebuilt.
"""

from abc import abstractmethod
from collections import deque
from struct import Struct
from typing import Final, final

from protocol.errors import CorrelationMismatch, MalformedFrame, UnexpectedResponse
from protocol.produce import (
    accepted_produce_run,
    finish_accepted_produce_response,
    finish_usual_produce_response,
    usual_produce_run,
)
from protocol.request_header import TLS_ALERT_LENGTH, check_frame_length
from protocol.rewriting_walk import RewritingWalk
from protocol.walk import FrameWalk
from protocol.wire import INT32
from proxy.enforcement.delay import Delay
from proxy.streams.connection import Connection, Stream
from proxy.streams.memory import READ_SIZE, Holding, ResponseTooLarge
from proxy.streams.sent_records import SentRecords
from proxy.streams.steps import DELAY_RESPONSE, HOLD, NEED, PASS, PIECES_PER_STEP, REPLACE, YIELD

#: Length and correlation id.
HEAD_SIZE: Final = 8
#: A TLS alert as a whole: shorter than the head of a response.
_TLS_ALERT_SIZE: Final = 7
#: Responses that one step forwards.
_MOST_AT_ONCE: Final = 500
#: With this many bytes, eight responses to Produce requests or so, it pays to read them in a run.
_RUN_SIZE: Final = 600
#: Size of one read of a response that is rebuilt: bounds what one turn leaves unparsed.
_REWRITING_READ_SIZE: Final = 65_536
#: Size of one read between responses, close to a limit or after a delay: bounds what the next hold keeps in memory.
CAREFUL_READ_SIZE: Final = 16_384
#: Bytes of the proxy's own responses that wait for earlier ones: with more, no request of the connection passes.
MAX_OWED_BYTES: Final = 65_536
LONGEST_FETCH_NS: Final = 10_000_000_000
"""Clients wait half a second for new records by default (`fetch.max.wait.ms`): a longer fetch waits for the broker."""
UNLIMITED_NS: Final = 1 << 62

_head = Struct(">ii").unpack_from
_int32 = Struct(">i").unpack_from


def _throttle_ms(buf: bytearray, pos: int, end: int, at: int) -> int:
    """The throttle time `at` bytes behind the beginning of a response; 0 also where it has not arrived."""
    throttle_ms: int = _int32(buf, pos + at)[0] if at > 0 and pos + at + 4 <= end else 0
    return throttle_ms


class Pending:
    """What is in flight: a request of the client, its kind if that is enough, or an `Answer` of the proxy.

    unseen            its response is forwarded without parsing while no throttle time is due
    produce_version   of a Produce request whose response is only changed for throttle times and endpoints; else -1
    may_last_ns       how long it may take on purpose; 0: it is answered as soon as the broker can
    """

    __slots__ = ()

    unseen = False
    produce_version = -1
    may_last_ns = 0

    @abstractmethod
    def respond(self, responses: "ResponseStream", pos: int, end: int, length: int, now_ns: int) -> int:
        """The next step for the response of `length` bytes at `pos`; its correlation id is in the buffer.

        What forwards it removes it from those in flight: see `ResponseStream.begin`.
        """

    def pass_more(self, responses: "ResponseStream", left: int, now_ns: int) -> int:
        """More of the response has arrived, of which `left` bytes have not. `PASS`, or `HOLD`: a limit holds it."""
        return PASS

    def on_walked(self, responses: "ResponseStream") -> None:
        """The walk over the response has advanced, perhaps to its end."""

    def on_rewritten(self, responses: "ResponseStream", length: int) -> None:
        """The new beginning of a response of `length` bytes is complete; `responses.remaining` of them follow."""

    def on_end(self, responses: "ResponseStream", now_ns: int) -> None:
        """A response has ended that a walk has parsed, or that was charged."""

    def cancel(self, responses: "ResponseStream", now_ns: int) -> None:
        """The connection is closed: no response arrives, or no more of it."""

    def throttle_place(self) -> int:
        """Where a response has its throttle time, from its length field on; 0: at no fixed place."""
        return 0

    @property
    def holds_response(self) -> bool:
        """Whether its response waits for a limit, in part perhaps."""
        return False


InFlight = deque[tuple[int, Pending]]
"""Correlation id, and what is to be answered. Brokers answer the requests of a connection in order."""


def _is_unseen(pending: Pending, buf: bytearray, pos: int, end: int) -> bool:
    """Whether the response at `pos` need not be parsed: it contains no throttle time either."""
    return pending.unseen and not _throttle_ms(buf, pos, end, pending.throttle_place())


@final
class Answer(Pending):
    """A response of the proxy's own. It is sent after all earlier responses.

    frame         with the length in front
    throttle_at   offset in it of the throttle time of data responses, which is set when it is sent; 0: it has none
    """

    __slots__ = ("frame", "throttle_at")

    may_last_ns = UNLIMITED_NS

    def __init__(self, frame: bytes, throttle_at: int) -> None:
        self.frame = frame
        self.throttle_at = throttle_at

    def respond(self, responses: "ResponseStream", pos: int, end: int, length: int, now_ns: int) -> int:
        """The response at hand is to a later request."""
        responses.output = responses.answers.take(now_ns)
        responses.resume_at = pos
        return REPLACE


@final
class Answers:
    """The proxy's own responses among those in flight.

    in_flight   all that is in flight
    owed        bytes in memory: answers, and what is added to other responses in flight
    sent_records
                of requests in flight; None: usage is not counted by topic, so that errors do not matter
    finish_produce, produce_run
                finish responses to Produce of the common layout
    """

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self.in_flight: Final[InFlight] = deque()
        self.owed: Final = Holding()
        by_topic = connection.context.config.usage.by_topic
        self.sent_records: Final[SentRecords | None] = deque() if by_topic else None
        self.finish_produce: Final = finish_accepted_produce_response if by_topic else finish_usual_produce_response
        self.produce_run: Final = accepted_produce_run if by_topic else usual_produce_run

    @property
    def owed_bytes(self) -> int:
        """Bytes of the proxy's own responses that wait for earlier ones."""
        return self.owed.pending

    def add(self, correlation_id: int, response: bytes, throttle_at: int = 0) -> None:
        """Queue a response of the proxy's own, which is given from its correlation id on: see `Answer`."""
        frame = INT32.pack(len(response)) + response
        self.in_flight.append((correlation_id, Answer(frame, throttle_at)))
        self.owe(len(frame))
        self._connection.needs_session = True

    def owe(self, size: int) -> None:
        """Count `size` bytes more for a response in flight; a negative size: less."""
        connection = self._connection
        connection.context.memory.update(self.owed, 0, self.owed.pending + size, 0)
        connection.takes_requests = not connection.is_closing and self.owed_bytes <= MAX_OWED_BYTES

    def take(self, now_ns: int) -> bytes:
        """All answers that are due, joined; empty while the oldest request waits for the broker."""
        in_flight = self.in_flight
        due = []
        while in_flight and isinstance(answer := in_flight[0][1], Answer):
            in_flight.popleft()
            frame, at = answer.frame, answer.throttle_at
            if at:
                throttle_ms = self._connection.tell(self._connection.identity.notice, now_ns)
                frame = frame[:at] + INT32.pack(throttle_ms) + frame[at + 4 :]
            due.append(frame)
        frames = b"".join(due)
        if due:
            self.owe(-len(frames))
        return frames


@final
class ResponseStream(Stream):
    """The responses of one connection, and what is in flight.

    answers      the proxy's own responses; `in_flight`: with what waits for the broker, see `Answers`
    current      what the current response answers, if it is charged, walked or rebuilt
    walk         parses the current response while it is forwarded; None: its bytes are not parsed
    delay        the response at hand is delayed
    has_begun    the broker has sent a response other than those to ApiVersions and to the proxy's own login
    read_size    of the next read between two responses
    """

    __slots__ = (
        "_longest_in_batch",
        "_rewriting",
        "_shown_delay_ms",
        "answers",
        "current",
        "delay",
        "has_begun",
        "in_flight",
        "read_size",
        "walk",
    )

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._longest_in_batch: Final = min(self._longest, TLS_ALERT_LENGTH - 1)
        self.answers: Final = Answers(connection)
        self.in_flight: Final = self.answers.in_flight
        self.current: Pending | None = None
        self.walk: FrameWalk | None = None
        self.delay: Delay | None = None
        self.has_begun = False
        self.read_size = READ_SIZE
        #: The delay of the response at hand, if it contains that.
        self._shown_delay_ms = 0
        #: Rebuilds the current response.
        self._rewriting: RewritingWalk | None = None

    @property
    def _longest(self) -> int:
        """Length of the longest response that is accepted."""
        return self.connection.context.config.security.max_response_bytes

    def take(self, pos: int, end: int, now_ns: int) -> int:
        self.taken_ns = now_ns
        if self.connection.timer.left:
            return self._take_timed(pos, end, now_ns)
        if self.remaining:
            return self._go_on(pos, min(end, pos + self.remaining), now_ns)
        self.want, self.read_size = self.read_size, READ_SIZE
        identity = self.connection.identity
        if not identity.notice.until_ns and not identity.request_notice.until_ns:
            passed_to = self._take_batch(pos, end)
            if pos < passed_to <= end:
                return passed_to
            if passed_to > end:
                self.remaining = passed_to - end
                return end
        elif not self.connection.context.measures.enforces:
            identity.drop_notices()
        return self._take_response(pos, end, now_ns)

    def _take_timed(self, pos: int, end: int, now_ns: int) -> int:
        """As `take`, and count the responses up to the one that is timed."""
        timer, before = self.connection.timer, len(self.in_flight)
        left, timer.left = timer.left, 0
        step = self.take(pos, end, now_ns)
        stopped = step in {DELAY_RESPONSE, HOLD}
        timer.passed(left, before - len(self.in_flight), now_ns, stopped=stopped)
        return step

    def _take_response(self, pos: int, end: int, now_ns: int) -> int:
        """The step for the response that begins at `pos`."""
        if end - pos < HEAD_SIZE:
            if end - pos >= _TLS_ALERT_SIZE:  # nothing follows it
                check_frame_length(self.buf, pos, _int32(self.buf, pos)[0], self._longest)
            return NEED
        length, correlation_id = _head(self.buf, pos)
        in_flight = self.in_flight
        if not 4 <= length <= self._longest or length >= TLS_ALERT_LENGTH:
            check_frame_length(self.buf, pos, length, self._longest)
            if length < 4:
                raise MalformedFrame("the correlation id", length)
        if not in_flight:
            raise UnexpectedResponse
        expected, pending = in_flight[0]
        if expected != correlation_id and not isinstance(pending, Answer):
            raise CorrelationMismatch(expected, correlation_id)
        self._shown_delay_ms = 0
        count, throttle_ms = len(in_flight), _throttle_ms(self.buf, pos, end, pending.throttle_place())
        step = pending.respond(self, pos, end, length, now_ns)
        if throttle_ms > 0 and len(in_flight) < count:  # once: the response may have to wait
            self.connection.told_by_broker(throttle_ms, now_ns)
        return step

    def _take_batch(self, pos: int, end: int) -> int:
        """Forward responses that need no change: those that are not parsed, and Produce responses of the common shape.

        Returns where the last of them ends, which may be after `end`; `pos` where the first is handled alone.
        """
        in_flight, buf, longest = self.in_flight, self.buf, self._longest_in_batch
        left, first, finish = _MOST_AT_ONCE, pos, self.answers.finish_produce
        if end - pos >= _RUN_SIZE:
            # Pipelined requests have their responses in runs of one size.
            pos = self._take_produce_run(pos, end)
        while end - pos >= HEAD_SIZE and in_flight and left > 0:
            length, correlation_id = _head(buf, pos)
            # Anything unusual ends the batch: `_take_response` finds out what it is, and raises the errors.
            expected, pending = in_flight[0]
            if expected != correlation_id or not 4 <= length <= longest:
                break
            frame_end = pos + 4 + length
            version = pending.produce_version
            if version < 0:
                if not _is_unseen(pending, buf, pos, end):
                    break
            elif frame_end > end or not finish(buf, pos + 4, frame_end, version, 0):
                break
            in_flight.popleft()
            # A turn is bounded by work, not by bytes.
            left -= 1 + (length >> 7)  # a longer one may have several topics
            pos = frame_end
        if pos > first:
            self.has_begun = True
        return pos

    def _take_produce_run(self, pos: int, end: int) -> int:
        """Forward Produce responses of one size that answer requests of one kind. Returns where the last of them ends.

        With 50 in a read this takes 0.3 us for each, and `_take_batch` 0.5 us: a third of all that a request costs then
        (`python -m bench --only hot_path`).
        """
        in_flight = self.in_flight
        pending = in_flight[0][1] if in_flight else None
        if pending is None or pending.produce_version < 0:
            return pos
        size = 4 + _int32(self.buf, pos)[0]
        frames = self.connection.context.memory.view[pos : min(end, pos + _MOST_AT_ONCE * size)]
        for correlation_id in self.answers.produce_run(frames, size, pending.produce_version):
            if not in_flight or in_flight[0] != (correlation_id, pending):
                break
            in_flight.popleft()
            pos += size
        return pos

    # ---- what requests call for their responses

    def postpone(self, delay: Delay, now_ns: int) -> int:
        """Delay the response at hand; its request stays in flight. `DELAY_RESPONSE`, or `PASS`: it passes now."""
        context = self.connection.context
        if not self.is_over(delay, now_ns) and not context.memory.is_tight:
            self.delay = delay
            self.read_size = CAREFUL_READ_SIZE
            return DELAY_RESPONSE
        if delay.is_shown and context.measures.enforces:
            self._shown_delay_ms = delay.throttle_time_ms
        return PASS

    def is_over(self, delay: Delay, now_ns: int) -> bool:
        """Whether a delay ends now, perhaps early: its limit may have been raised or removed."""
        connection, limit = self.connection, delay.limit
        if now_ns >= delay.until_ns or connection.is_closing or not connection.context.measures.enforces:
            return True
        is_paid = not limit.debt_ns(now_ns) and not limit.waiters.waiting
        return is_paid or not connection.context.registry.is_in_use(limit)

    def throttle_ms(self, now_ns: int) -> int:
        """The throttle time for the data response at hand; 0: none."""
        identity, notice_ms = self.connection.identity, 0
        if identity.notice.until_ns:
            if identity.generation != identity.registry.generation:  # its limit may be gone
                identity.refresh(now_ns)
            notice_ms = self.connection.tell(identity.notice, now_ns)
        return max(notice_ms, self._shown_delay_ms)

    def begin(self, pos: int, end: int, length: int) -> int:
        """Forward the response at `pos` without parsing it. Returns the step."""
        self._pop()
        frame_end = pos + 4 + length
        passed_to = min(end, frame_end)
        self.remaining = frame_end - passed_to
        return passed_to

    def begin_charged(self, pos: int, end: int, length: int, now_ns: int) -> int:
        """As `begin`, and charge the rest as it passes: see `Pending.pass_more`."""
        current = self._pop()
        frame_end = pos + 4 + length
        passed_to = min(end, frame_end)
        self.remaining = frame_end - passed_to
        if self.remaining:
            self.current = current
        else:
            current.on_end(self, now_ns)
        return passed_to

    def begin_walk(self, walk: FrameWalk, pos: int, end: int, length: int, now_ns: int) -> int:
        """Forward the response at `pos`; `walk` parses it from its correlation id on. Returns the step."""
        self.current = self._pop()
        self.walk = walk
        self.remaining = length
        passed_to = self._walk_on(walk, pos + 4, min(end, pos + 4 + length), now_ns)
        return passed_to if passed_to >= 0 else pos + 4

    def begin_rewrite(self, walk: RewritingWalk, pos: int, end: int, length: int) -> int:
        """`walk` rebuilds the response at `pos`; memory for it is allocated. Returns the step."""
        self.current = self._pop()
        self._rewriting = walk
        self.remaining = length
        step = self._rewrite_on(walk, pos + 4, min(end, pos + 4 + length))
        if step != REPLACE:
            self.output = b""
            self.resume_at = pos + 4
        return REPLACE

    def replace(self, response: bytes, pos: int, length: int) -> int:
        """Send `response`, or nothing if it is empty, in place of the one at `pos`. Returns the step."""
        self.in_flight.popleft()
        self.output = INT32.pack(len(response)) + response if response else b""
        self.resume_at = pos + 4 + length
        return REPLACE

    def _pop(self) -> Pending:
        self.has_begun = True
        return self.in_flight.popleft()[1]

    # ---- the rest of a response

    def _go_on(self, pos: int, end: int, now_ns: int) -> int:
        """More of the current response has arrived, up to `end`."""
        current = self.current
        if current is not None:
            left = self.remaining - (end - pos)
            if current.pass_more(self, left, now_ns) == HOLD:
                return HOLD
            if self._rewriting is not None:
                return self._rewrite_on(self._rewriting, pos, end)
            if self.walk is not None:
                return self._walk_on(self.walk, pos, end, now_ns)
            if not left:
                self._end(current, now_ns)
        self.remaining -= end - pos
        return end

    def _end(self, current: Pending, now_ns: int) -> None:
        current.on_end(self, now_ns)
        if self.walk is not None and self.walk.broker_throttle_ms > 0:
            self.connection.told_by_broker(self.walk.broker_throttle_ms, now_ns)
        self.walk = self.current = None

    def _walk_on(self, walk: FrameWalk, pos: int, end: int, now_ns: int) -> int:
        """Walk as far as one step may; returns the position up to which the bytes are final."""
        current = self.current
        frame_end = pos + self.remaining
        walk.work_left = PIECES_PER_STEP
        walked_to = walk.advance(self.buf, pos, end)
        self.remaining = frame_end - walked_to
        if current is not None:
            current.on_walked(self)
            if not self.remaining:
                self._end(current, now_ns)
                return walked_to
        if walk.work_left > 0:
            if frame_end <= end:
                raise MalformedFrame("a response's last field", self.remaining)
            return walked_to if walked_to > pos else NEED
        return walked_to if walked_to > pos else YIELD

    def _rewrite_on(self, walk: RewritingWalk, pos: int, end: int) -> int:
        """Continue to rebuild a response; when its new beginning is complete, output it."""
        walk.work_left = PIECES_PER_STEP
        self.resume_at = walk.advance(self.buf, pos, end)
        self.remaining = walk.frame_left
        self.output = b""
        memory, current = self.connection.context.memory, self.current
        if walk.is_done:
            self._rewriting = self.current = None
            self.output = INT32.pack(len(walk.out) + self.remaining) + walk.out
            memory.release(self.holding)
            self.want = READ_SIZE
            if current is not None:
                current.on_rewritten(self, walk.frame_length)
                if self.walk is not None:
                    self.current = current
            return REPLACE
        if len(walk.out) > memory.largest_response:
            raise ResponseTooLarge("rebuilt", walk.frame_length, memory.largest_response)
        memory.grow(self.holding, len(walk.out))
        self.want = _REWRITING_READ_SIZE
        if self.resume_at > pos:
            return REPLACE
        return NEED if walk.work_left > 0 else YIELD

    @property
    def has_room_again(self) -> bool:
        """Whether enough responses have arrived after a step `FULL`."""
        is_short = len(self.in_flight) <= self.connection.max_in_flight // 2
        return is_short and self.answers.owed_bytes <= MAX_OWED_BYTES // 2

    @property
    def held(self) -> Pending | None:
        """What waits for a limit with its response, if one does."""
        pending = self.current
        if pending is None and self.in_flight:
            pending = self.in_flight[0][1]
        return pending if pending is not None and pending.holds_response else None

    def cancel_all(self, now_ns: int) -> None:
        """The connection is closed."""
        pending = [each for _, each in self.in_flight]
        if self.current is not None:
            pending.append(self.current)
        self.in_flight.clear()
        self.current = None
        for each in pending:
            each.cancel(self, now_ns)
        self.connection.context.memory.forget(self.answers.owed)
