"""Broker to client: matches responses with the requests in flight, and lets each request handle its response.

Most responses are forwarded unchanged. Throttle times and node endpoints are changed in place, in the shared buffer,
while the response streams by. If a broker's address is replaced, the response, or its beginning, is rebuilt.
"""

from struct import Struct
from typing import Final, final

from protocol.errors import CorrelationMismatch, MalformedFrame, UnexpectedResponse
from protocol.request_header import TLS_ALERT_LENGTH, check_frame_length
from proxy.streams.connection import Connection
from proxy.streams.limited_request import LimitedRequest
from proxy.streams.memory import READ_SIZE
from proxy.streams.pending import MAX_OWED_BYTES, Answer, Pending, Responses, throttle_ms
from proxy.streams.steps import HOLD, NEED

#: Length and correlation id.
HEAD_SIZE: Final = 8
#: The size of a complete TLS alert, which is shorter than the header of a response.
_TLS_ALERT_SIZE: Final = 7
#: The most responses that one step forwards.
_MOST_AT_ONCE: Final = 500
#: With this many bytes, about eight Produce responses, reading them as a run is faster.
_RUN_SIZE: Final = 600

_head = Struct(">ii").unpack_from
_int32 = Struct(">i").unpack_from


def _is_unseen(pending: Pending, buf: bytearray, pos: int, end: int) -> bool:
    """Whether the response at `pos` need not be parsed. Its throttle time must be 0, too."""
    return pending.unseen and not throttle_ms(buf, pos, end, pending.throttle_place())


@final
class ResponseStream(Responses):
    """The responses of one connection."""

    __slots__ = ("_longest_in_batch",)

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._longest_in_batch: Final = min(self._longest, TLS_ALERT_LENGTH - 1)

    @property
    def _longest(self) -> int:
        """The length of the longest response that is accepted."""
        return self.connection.context.config.security.max_response_bytes

    def next_step(self, pos: int, end: int, now_ns: int) -> int:
        self.taken_ns = now_ns
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
        elif not self.connection.context.actions.enforces:
            identity.drop_notices()
        return self._take_response(pos, end, now_ns)

    def _take_response(self, pos: int, end: int, now_ns: int) -> int:
        """The step for the response that begins at `pos`."""
        if end - pos < HEAD_SIZE:
            if end - pos >= _TLS_ALERT_SIZE:  # nothing follows an alert
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
        count, broker_ms = len(in_flight), throttle_ms(self.buf, pos, end, pending.throttle_place())
        step = pending.respond(self, pos, end, length, now_ns)
        if broker_ms > 0 and len(in_flight) < count:  # only once, because the response may have to wait
            self.connection.observer.throttled_by_broker(broker_ms, now_ns)
        return step

    def _take_batch(self, pos: int, end: int) -> int:
        """Forward responses that need no change: those that are not parsed, and Produce responses of the common layout.

        Returns where the last of them ends, which may be after `end`, or `pos` if the first must be handled alone.
        """
        in_flight, buf, longest = self.in_flight, self.buf, self._longest_in_batch
        left, first, finish = _MOST_AT_ONCE, pos, self.answers.finish_produce
        if end - pos >= _RUN_SIZE:
            # The responses to pipelined requests come in runs of equal size.
            pos = self._take_produce_run(pos, end)
        while end - pos >= HEAD_SIZE and in_flight and left > 0:
            length, correlation_id = _head(buf, pos)
            # Anything unusual ends the batch. `_take_response` finds out what it is, and raises the errors.
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
            # A slice is bounded in work, not in bytes.
            left -= 1 + (length >> 7)  # a longer one may have several topics
            pos = frame_end
        if pos > first:
            self.has_begun = True
        return pos

    def _take_produce_run(self, pos: int, end: int) -> int:
        """Forward Produce responses of equal size that answer requests of one kind. Returns where the last one ends.

        With 50 responses in a read, this takes 0.3 us for each, and `_take_batch` would take 0.5 us, which is a third
        of what a request costs at that depth (`python -m bench --only hot_path`).
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

    # ---- the rest of a response

    def _go_on(self, pos: int, end: int, now_ns: int) -> int:
        """Continue the current response, of which more has arrived, up to `end`."""
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

    @property
    def has_room_again(self) -> bool:
        """Whether enough responses have arrived since a step `FULL`."""
        is_short = len(self.in_flight) <= self.connection.max_in_flight // 2
        return is_short and self.answers.owed_bytes <= MAX_OWED_BYTES // 2

    @property
    def held(self) -> LimitedRequest | None:
        """The request whose response waits for a limit, if there is one."""
        pending = self.current
        if pending is None and self.in_flight:
            pending = self.in_flight[0][1]
        return pending if isinstance(pending, LimitedRequest) and pending.holds_response else None
