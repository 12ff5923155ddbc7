"""What is in flight, including the proxy's own responses, and what each of them may do with its response."""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Final, final

from protocol.errors import MalformedFrame, UnexpectedResponse
from protocol.produce import (
    accepted_produce_run,
    finish_accepted_produce_response,
    finish_usual_produce_response,
    usual_produce_run,
)
from protocol.rewriting_walk import RewritingWalk
from protocol.walk import FrameWalk
from protocol.wire import INT32
from proxy.enforcement.delay import Delay
from proxy.streams.connection import Connection, Stream
from proxy.streams.memory import READ_SIZE, Holding, ResponseTooLarge
from proxy.streams.sent_records import SentRecords
from proxy.streams.steps import DELAY_RESPONSE, NEED, PASS, PIECES_PER_STEP, REPLACE, YIELD

#: The size of one read of a response that is rebuilt, which bounds what one slice leaves unparsed.
_REWRITING_READ_SIZE: Final = 65_536
#: The size of one read close to a limit or after a delay, which bounds what the next hold keeps in memory.
CAREFUL_READ_SIZE: Final = 16_384
#: If more bytes of the proxy's own responses than this wait for earlier ones, no request of the connection passes.
MAX_OWED_BYTES: Final = 65_536
LONGEST_FETCH_NS: Final = 10_000_000_000
"""Clients wait half a second for new records by default (`fetch.max.wait.ms`): a longer fetch waits for the broker."""
UNLIMITED_NS: Final = 1 << 62

_int32 = Struct(">i").unpack_from


def throttle_ms(buf: bytearray, pos: int, end: int, at: int) -> int:
    """The throttle time that is `at` bytes after the beginning of a response; 0 if it has not arrived."""
    found: int = _int32(buf, pos + at)[0] if at > 0 and pos + at + 4 <= end else 0
    return found


def nothing() -> None:
    """Does nothing."""


class Pending:
    """Something in flight: a request of the client, its kind if that is enough, or an `Answer` of the proxy.

    unseen            whether its response is forwarded without parsing while no throttle time is due
    produce_version   the version of a Produce request whose response needs at most a throttle time and hidden
                      endpoints; otherwise -1
    may_last_ns       how long the broker may wait on purpose; 0: it answers as soon as it can
    """

    __slots__ = ()

    unseen = False
    produce_version = -1
    may_last_ns = 0

    @abstractmethod
    def respond(self, responses: "Responses", pos: int, end: int, length: int, now_ns: int) -> int:
        """The next step for the response of `length` bytes at `pos`, whose correlation id is in the buffer.

        The call that forwards the response also takes it out of flight: see `Responses.forward`.
        """

    def pass_more(self, responses: "Responses", left: int, now_ns: int) -> int:
        """More of the response has arrived, except `left` bytes. Returns `PASS`, or `HOLD` if a limit holds it."""
        return PASS

    def on_walked(self, responses: "Responses") -> None:
        """Called when the walk over the response has advanced, perhaps to its end."""

    def on_rewritten(self, responses: "Responses", length: int) -> None:
        """The new beginning of a response of `length` bytes is complete. `responses.remaining` bytes follow."""

    def on_end(self, responses: "Responses", now_ns: int) -> None:
        """Called at the end of a response that a walk has parsed, or that was charged."""

    def cancel(self, responses: "Responses", now_ns: int) -> None:
        """The connection is closed, so the response, or the rest of it, will not arrive."""

    def throttle_place(self) -> int:
        """The offset of the throttle time in a response, counted from its length field; 0: it has no fixed place."""
        return 0


InFlight = deque[tuple[int, Pending]]
"""Correlation id, and what is to be answered. Brokers answer the requests of a connection in order."""


@final
class Timed(Pending):
    """Stands in flight for a request whose response is timed, until that response begins.

    since_ns   when the last byte of the request was forwarded
    """

    __slots__ = ("_is_produce", "_pending", "_sample_ns", "since_ns")

    def __init__(self, pending: Pending, now_ns: int, *, is_produce: bool) -> None:
        self._pending: Final = pending
        self._is_produce: Final = is_produce
        self._sample_ns: Final = now_ns
        self.since_ns = now_ns

    def respond(self, responses: "Responses", pos: int, end: int, length: int, now_ns: int) -> int:
        responses.in_flight[0] = responses.in_flight[0][0], self._pending
        # Read before the proxy raises the throttle time. Brokers before KIP-219 delay a response that contains one.
        is_delayed = throttle_ms(responses.buf, pos, end, self.throttle_place()) > 0
        step = self._pending.respond(responses, pos, end, length, now_ns)
        responses.connection.observer.answered(
            self._sample_ns, self.since_ns, now_ns, is_produce=self._is_produce, is_delayed=is_delayed
        )
        return step

    def cancel(self, responses: "Responses", now_ns: int) -> None:
        self._pending.cancel(responses, now_ns)

    def throttle_place(self) -> int:
        return self._pending.throttle_place()


@final
class Answer(Pending):
    """A response of the proxy's own, which is sent after all earlier responses.

    frame         the response with its length field; empty: it is promised, see `Answers.promise`
    throttle_at   the offset of the throttle time in it, which is set when it is sent; 0: it has none
    is_cancelled  the connection is closed
    """

    __slots__ = ("frame", "is_cancelled", "throttle_at")

    may_last_ns = UNLIMITED_NS

    def __init__(self, frame: bytes, throttle_at: int) -> None:
        self.frame = frame
        self.throttle_at = throttle_at
        self.is_cancelled = False

    def respond(self, responses: "Responses", pos: int, end: int, length: int, now_ns: int) -> int:
        """Never matches: the response that has arrived belongs to a later request."""
        if not self.frame:  # nothing was forwarded after the request
            raise UnexpectedResponse
        responses.output = responses.answers.pop_due(now_ns)
        responses.resume_at = pos
        return REPLACE

    def cancel(self, responses: "Responses", now_ns: int) -> None:
        self.is_cancelled = True


@final
class Answers:
    """The proxy's own responses among those in flight.

    in_flight   everything that is in flight, in order
    owed        how many bytes of memory the answers take, and what will be added to other responses
    sent_records
                the records of requests in flight; None: usage is not counted by topic, so errors do not matter
    finish_produce, produce_run
                finish Produce responses of the common layout
    wake        lets the session go on, outside of a step
    """

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self.in_flight: Final[InFlight] = deque()
        self.owed: Final = Holding()
        by_topic = connection.context.config.usage.by_topic
        self.sent_records: Final[SentRecords | None] = deque() if by_topic else None
        self.finish_produce: Final = finish_accepted_produce_response if by_topic else finish_usual_produce_response
        self.wake: Callable[[], None] = nothing
        self.produce_run: Final = accepted_produce_run if by_topic else usual_produce_run

    @property
    def owed_bytes(self) -> int:
        """How many bytes of the proxy's own responses wait for earlier ones."""
        return self.owed.pending

    def add(self, correlation_id: int, response: bytes, throttle_at: int = 0) -> None:
        """Queue a response of the proxy's own, which begins with its correlation id: see `Answer`."""
        frame = INT32.pack(len(response)) + response
        self.in_flight.append((correlation_id, Answer(frame, throttle_at)))
        self.owe(len(frame))
        self._connection.needs_session = True

    def promise(self, correlation_id: int) -> Answer:
        """Queue a response that is not known yet: see `keep`. The caller lets no request pass before it is."""
        answer = Answer(b"", 0)
        self.in_flight.append((correlation_id, answer))
        self._connection.needs_session = True
        return answer

    def keep(self, answer: Answer, response: bytes) -> None:
        """Send the response that was promised, outside of a step of the connection, which may be closed by now."""
        if not answer.is_cancelled:
            answer.frame = INT32.pack(len(response)) + response
            self.owe(len(answer.frame))
            self._connection.needs_session = True
            self.wake()

    def owe(self, size: int) -> None:
        """Count `size` more bytes for a response in flight, or fewer if it is negative."""
        connection = self._connection
        connection.context.memory.update(self.owed, 0, self.owed.pending + size, 0)
        connection.takes_requests = not connection.is_closing and self.owed_bytes <= MAX_OWED_BYTES

    def pop_due(self, now_ns: int) -> bytes:
        """All answers that are due, joined. Empty while the oldest request waits for the broker."""
        in_flight = self.in_flight
        due = []
        while in_flight and isinstance(answer := in_flight[0][1], Answer) and answer.frame:
            in_flight.popleft()
            frame, at = answer.frame, answer.throttle_at
            if at:
                throttle_ms = self._connection.observer.notify(self._connection.identity.notice, now_ns)
                frame = frame[:at] + INT32.pack(throttle_ms) + frame[at + 4 :]
            due.append(frame)
        frames = b"".join(due)
        if due:
            self.owe(-len(frames))
        return frames


class Responses(Stream):
    """The stream from broker to client, as what is in flight sees it.

    answers      the proxy's own responses
    in_flight    these and the requests that wait for the broker, in order: see `Answers`
    current      the request that the current response answers, if it is charged, walked or rebuilt
    walk         parses the current response while it is forwarded; None: its bytes are not parsed
    delay        the delay of the next response; None: it is not delayed
    has_begun    the broker has sent a response other than those to ApiVersions and to the proxy's own login
    read_size    the size of the next read between two responses
    """

    __slots__ = (
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
        self.answers: Final = Answers(connection)
        self.in_flight: Final = self.answers.in_flight
        self.current: Pending | None = None
        self.walk: FrameWalk | None = None
        self.delay: Delay | None = None
        self.has_begun = False
        self.read_size = READ_SIZE
        #: The delay that the next response contains as throttle time, if any.
        self._shown_delay_ms = 0
        #: Rebuilds the current response.
        self._rewriting: RewritingWalk | None = None

    def postpone(self, delay: Delay, now_ns: int) -> int:
        """Delay the next response; its request stays in flight. Returns `DELAY_RESPONSE`, or `PASS` if it passes."""
        context = self.connection.context
        if not self.is_over(delay, now_ns) and not context.memory.is_tight:
            self.delay = delay
            self.read_size = CAREFUL_READ_SIZE
            return DELAY_RESPONSE
        if delay.is_shown and context.actions.enforces:
            self._shown_delay_ms = delay.shown_ms(now_ns)
        return PASS

    def is_over(self, delay: Delay, now_ns: int) -> bool:
        """Whether a delay ends now, which may be early if its limit was raised or removed."""
        connection, limit = self.connection, delay.limit
        if now_ns >= delay.until_ns or connection.is_closing or not connection.context.actions.enforces:
            return True
        is_paid = not limit.debt_ns(now_ns) and not limit.waiters.waiting
        return is_paid or not connection.context.registry.is_in_use(limit)

    def throttle_ms(self, now_ns: int) -> int:
        """The throttle time for the next data response; 0: none."""
        identity, notice_ms = self.connection.identity, 0
        if identity.notice.until_ns:
            if identity.generation != identity.registry.generation:  # its limit may have been removed
                identity.refresh(now_ns)
            notice_ms = self.connection.observer.notify(identity.notice, now_ns)
        return max(notice_ms, self._shown_delay_ms)

    def forward(self, pos: int, end: int, length: int, charged_ns: int = 0) -> int:
        """Forward the response at `pos` without parsing it. Returns the step. `charged_ns`: the current time if the
        rest is charged as it passes (`Pending.pass_more`), otherwise 0.
        """
        current = self._pop()
        frame_end = pos + 4 + length
        passed_to = min(end, frame_end)
        self.remaining = frame_end - passed_to
        if charged_ns and self.remaining:
            self.current = current
        elif charged_ns:
            current.on_end(self, charged_ns)
        return passed_to

    def forward_walked(self, walk: FrameWalk, pos: int, end: int, length: int, now_ns: int) -> int:
        """Forward the response at `pos`, while `walk` parses what follows its length field. Returns the step."""
        self.current = self._pop()
        self.walk = walk
        self.remaining = length
        passed_to = self._walk_on(walk, pos + 4, min(end, pos + 4 + length), now_ns)
        return passed_to if passed_to >= 0 else pos + 4

    def rebuild(self, walk: RewritingWalk, pos: int, end: int, length: int) -> int:
        """Have `walk` rebuild the response at `pos`, for which memory has been allocated. Returns the step."""
        self.current = self._pop()
        self._rewriting = walk
        self.remaining = length
        step = self._rewrite_on(walk, pos + 4, min(end, pos + 4 + length))
        if step != REPLACE:
            self.output = b""
            self.resume_at = pos + 4
        return REPLACE

    def replace(self, response: bytes, pos: int, length: int) -> int:
        """Send `response`, or nothing if it is empty, instead of the one at `pos`. Returns the step."""
        self.in_flight.popleft()
        self.output = INT32.pack(len(response)) + response if response else b""
        self.resume_at = pos + 4 + length
        return REPLACE

    def _pop(self) -> Pending:
        self.has_begun = True
        return self.in_flight.popleft()[1]

    # ---- the rest of a response

    def _end(self, current: Pending, now_ns: int) -> None:
        current.on_end(self, now_ns)
        if self.walk is not None and self.walk.broker_throttle_ms > 0:
            self.connection.observer.throttled_by_broker(self.walk.broker_throttle_ms, now_ns)
        self.walk = self.current = None

    def _walk_on(self, walk: FrameWalk, pos: int, end: int, now_ns: int) -> int:
        """Walk as far as one step may. Returns the position up to which the bytes are final."""
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
        """Continue to rebuild a response, and output its new beginning when that is complete."""
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

    def cancel_all(self, now_ns: int) -> None:
        """Cancel everything in flight, because the connection is closed."""
        pending = [each for _, each in self.in_flight]
        if self.current is not None:
            pending.append(self.current)
        self.in_flight.clear()
        self.current = None
        for each in pending:
            each.cancel(self, now_ns)
        self.connection.context.memory.forget(self.answers.owed)
