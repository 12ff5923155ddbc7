"""Broker to client: matches responses with requests, and asks the handler of each what to change.

Most responses are forwarded unchanged. Throttle times and node endpoints are changed in place in the shared buffer
while the response streams by; where a broker's address is replaced, the response or its beginning is rebuilt.
"""

from struct import Struct
from typing import final

from protocol.errors import CorrelationMismatch, MalformedFrame, UnexpectedResponse
from protocol.produce import finish_usual_produce_response, usual_produce_run
from protocol.request_header import TLS_ALERT_LENGTH, check_frame_length
from protocol.rewriting_walk import RewritingWalk
from protocol.walk import FrameWalk
from proxy.enforcement.holds import Delay
from proxy.streams.connection import Answer, Awaited, Connection, Delayed, RequestKind, Responses
from proxy.streams.handlers.produce import Produce
from proxy.streams.memory import READ_SIZE, ResponseTooLarge
from proxy.streams.steps import DELAY_RESPONSE, NEED, PASS, PIECES_PER_STEP, REPLACE, YIELD

#: Length and correlation id.
HEAD_SIZE = 8
#: A TLS alert as a whole: shorter than the head of a response.
_TLS_ALERT_SIZE = 7
#: Size of one read of a response that is rebuilt: bounds what one turn leaves unparsed.
REWRITING_READ_SIZE = 65_536
#: Size of one read after a response was delayed: bounds what the next delay keeps in memory.
DELAYED_READ_SIZE = 16_384
#: Responses that one step forwards.
_MOST_AT_ONCE = 500
#: With this many bytes, eight responses to Produce requests or so, it pays to read them in a run.
_RUN_SIZE = 600

_head = Struct(">ii").unpack_from
_int32 = Struct(">i").unpack_from
_length = Struct(">i").pack


@final
class ResponseStream(Responses):
    """The responses of one connection; a `Stream`."""

    __slots__ = (
        "_longest",
        "_longest_in_batch",
        "_read_size",
        "_rewriting",
        "_shown_delay_ms",
        "_size",
        "_view",
    )

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._longest = connection.context.config.security.max_response_bytes
        self._view = connection.context.memory.view
        self._longest_in_batch = min(self._longest, TLS_ALERT_LENGTH - 1)
        self._read_size = READ_SIZE
        #: The delay of the response at hand, if it contains that.
        self._shown_delay_ms = 0
        #: Rebuilds the current response.
        self._rewriting: RewritingWalk | None = None
        #: Length of the response that is rebuilt, as the broker sends it.
        self._size = 0

    def take(self, pos: int, end: int, now_ns: int) -> int:
        if self.remaining:
            if self._rewriting is not None:
                return self._rewrite_on(pos, end)
            if self.walk is not None:
                return self._walk_on(pos, end, now_ns)
            passed_to = min(end, pos + self.remaining)
            self.remaining -= passed_to - pos
            return passed_to
        self.want = self._read_size
        self.has_begun = True
        identity = self.connection.identity
        if not identity.notice.until_ns and not identity.request_notice.until_ns:
            passed_to = self._take_batch(pos, end)
            if passed_to > pos:
                return passed_to
        elif not self.connection.context.measures.enforces:
            identity.drop_notices()
        return self._take_response(pos, end, now_ns)

    def _take_response(self, pos: int, end: int, now_ns: int) -> int:
        """The step for the response that begins at `pos`."""
        if end - pos < HEAD_SIZE:
            if end - pos >= _TLS_ALERT_SIZE:  # nothing follows it
                check_frame_length(self.buf, pos, _int32(self.buf, pos)[0], self._longest)
            return NEED
        length, correlation_id = _head(self.buf, pos)
        in_flight = self.connection.in_flight
        if not 4 <= length <= self._longest or length >= TLS_ALERT_LENGTH:
            check_frame_length(self.buf, pos, length, self._longest)
            if length < 4:
                raise MalformedFrame("the correlation id", length)
        if not in_flight:
            raise UnexpectedResponse
        expected, awaited = in_flight[0]
        if isinstance(awaited, Answer):
            self.output = self.connection.take_answers(now_ns)
            self.resume_at = pos
            return REPLACE
        if expected != correlation_id:
            raise CorrelationMismatch(expected, correlation_id)
        self._shown_delay_ms = 0
        if isinstance(awaited, Delayed):
            if self.postpone(awaited.delay, now_ns) != PASS:
                return DELAY_RESPONSE
            awaited = awaited.awaited
        elif self._read_size < READ_SIZE:
            self._read_size = READ_SIZE
        return awaited.handler.respond(self, awaited, pos, end, length, now_ns)

    def _take_batch(self, pos: int, end: int) -> int:
        """Forward responses that need no change: those that are not parsed, and Produce responses of the common shape.

        Returns where the last of them ends, or `end` if that is after it (then `remaining` is set); `pos` where the
        first needs its handler.
        """
        in_flight = self.connection.in_flight
        buf, longest, popleft = self.buf, self._longest_in_batch, in_flight.popleft
        left = _MOST_AT_ONCE
        if end - pos >= _RUN_SIZE:
            pos = self._take_produce_run(pos, end)
        while end - pos >= HEAD_SIZE and in_flight and left > 0:
            length, correlation_id = _head(buf, pos)
            expected, kind = in_flight[0]
            if expected != correlation_id or not 4 <= length <= longest or type(kind) is not RequestKind:
                break
            frame_end = pos + 4 + length
            if not kind.handler.unseen and not self._is_plain(kind, pos + 4, frame_end, end):
                break
            popleft()
            left -= 1 + (length >> 7)  # a longer one may have several topics
            pos = frame_end
        if pos > end:
            self.remaining = pos - end
            return end
        return pos

    def _is_plain(self, kind: RequestKind, start: int, frame_end: int, end: int) -> bool:
        """Whether this is a whole Produce response of the common shape, which is ready to be forwarded then."""
        return (
            type(kind.handler) is Produce
            and frame_end <= end
            and finish_usual_produce_response(self.buf, start, frame_end, kind.version, 0)
        )

    def _take_produce_run(self, pos: int, end: int) -> int:
        """Forward Produce responses of one size that answer requests of one kind. Returns where the last of them ends.

        With 50 responses in a read this takes 0.3 us for each, and `_take_batch` 0.5 us (CPython 3.11).
        """
        in_flight = self.connection.in_flight
        kind = in_flight[0][1] if in_flight else None
        if type(kind) is not RequestKind or type(kind.handler) is not Produce:
            return pos
        size = 4 + _int32(self.buf, pos)[0]
        for correlation_id in usual_produce_run(
            self._view[pos : min(end, pos + _MOST_AT_ONCE * size)], size, kind.version
        ):
            if not in_flight or in_flight[0] != (correlation_id, kind):
                break
            in_flight.popleft()
            pos += size
        return pos

    # ---- what handlers call

    def postpone(self, delay: Delay, now_ns: int) -> int:
        connection = self.connection
        context = connection.context
        if not connection.is_over(delay, now_ns) and not context.memory.is_tight:
            self.delay = delay
            self._read_size = DELAYED_READ_SIZE
            correlation_id, awaited = connection.in_flight[0]
            if isinstance(awaited, Delayed):
                awaited.delay = delay
            else:
                assert isinstance(awaited, Awaited)  # noqa: S101 - for the type checker: answers are not delayed
                connection.in_flight[0] = (correlation_id, Delayed(awaited, delay))
            return DELAY_RESPONSE
        if delay.is_shown and context.measures.enforces:
            self._shown_delay_ms = delay.throttle_time_ms
        return PASS

    def throttle_ms(self, now_ns: int) -> int:
        identity = self.connection.identity
        notice_ms = 0
        if identity.notice.until_ns:
            if identity.generation != identity.registry.generation:
                identity.refresh(now_ns)
            notice_ms = identity.notice.throttle_time_ms(now_ns)
        return max(notice_ms, self._shown_delay_ms)

    def begin(self, pos: int, end: int, length: int) -> int:
        self.connection.in_flight.popleft()
        frame_end = pos + 4 + length
        passed_to = min(end, frame_end)
        self.remaining = frame_end - passed_to
        return passed_to

    def begin_walk(self, walk: FrameWalk, pos: int, end: int, length: int, now_ns: int) -> int:
        _, awaited = self.connection.in_flight.popleft()
        if isinstance(awaited, Delayed):
            awaited = awaited.awaited
        assert not isinstance(awaited, Answer)  # noqa: S101 - for the type checker: answers have no walk
        self.current = awaited
        self.walk = walk
        self.remaining = length
        passed_to = self._walk_on(pos + 4, end, now_ns)
        return passed_to if passed_to >= 0 else pos + 4

    def begin_rewrite(self, walk: RewritingWalk, kind: RequestKind, pos: int, end: int, length: int) -> int:
        self.connection.in_flight.popleft()
        self.current = kind
        self._rewriting = walk
        self._size = self.remaining = length
        step = self._rewrite_on(pos + 4, end)
        if step != REPLACE:
            self.output = b""
            self.resume_at = pos + 4
        return REPLACE

    # ---- the rest of a response

    def _walk_on(self, pos: int, end: int, now_ns: int) -> int:
        """Walk as far as one step may; returns the position up to which the bytes are final."""
        walk, awaited = self.walk, self.current
        assert walk is not None  # noqa: S101 - for the type checker: the callers have looked
        assert awaited is not None  # noqa: S101 - for the type checker: set with the walk
        frame_end = pos + self.remaining
        walk.work_left = PIECES_PER_STEP
        walked_to = walk.advance(self.buf, pos, min(end, frame_end))
        self.remaining = frame_end - walked_to
        awaited.handler.on_walked(self, now_ns)
        if not self.remaining:
            self.walk = self.current = None
            awaited.handler.on_response_end(awaited, now_ns)
            return walked_to
        if walk.work_left > 0:
            if frame_end <= end:
                raise MalformedFrame("a response's last field", self.remaining)
            return walked_to if walked_to > pos else NEED
        return walked_to if walked_to > pos else YIELD

    def _rewrite_on(self, pos: int, end: int) -> int:
        """Continue to rebuild a response; when its new beginning is complete, output it."""
        walk, kind = self._rewriting, self.current
        assert walk is not None  # noqa: S101 - for the type checker: the callers have looked
        assert isinstance(kind, RequestKind)  # noqa: S101 - for the type checker: set with the walk
        walk.work_left = PIECES_PER_STEP
        self.resume_at = walk.advance(self.buf, pos, min(end, pos + self.remaining))
        self.remaining = walk.frame_left
        self.output = b""
        context = self.connection.context
        if walk.is_done:
            self._rewriting = self.current = None
            self.output = _length(len(walk.out) + self.remaining) + walk.out
            context.memory.release(self.holding)
            self.want = READ_SIZE
            kind.handler.after_rewrite(self, kind, self._size)
            if self.walk is not None:
                self.current = kind
            return REPLACE
        if len(walk.out) > context.memory.largest_response:
            raise ResponseTooLarge(kind.header.api.name, self._size, context.memory.largest_response)
        context.memory.grow(self.holding, len(walk.out))
        self.want = REWRITING_READ_SIZE
        if self.resume_at > pos:
            return REPLACE
        return NEED if walk.work_left > 0 else YIELD
