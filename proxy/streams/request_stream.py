"""Client to broker: finds the frames, and lets each request, or the handler of its kind, decide what happens to it.

A frame's header is parsed (`protocol.request_header`), and its payload is forwarded unchanged from the shared buffer.
Requests of the same kind differ only in length and correlation id, so they pass in `batches`.
"""

from typing import Final, final

from protocol.errors import MalformedFrame
from protocol.request_header import peek_request, unpack_prefix
from proxy.streams.batches import Batches
from proxy.streams.connection import Connection
from proxy.streams.memory import FIRST_READ_SIZE, HEAD_READ_SIZE, READ_SIZE
from proxy.streams.pending import Responses
from proxy.streams.request import Kind, Kinds, Request, Requests
from proxy.streams.steps import FULL, NEED, REPLACE


@final
class RequestStream(Requests):
    """The requests of one connection."""

    __slots__ = ("_batches", "_kinds")

    def __init__(self, connection: Connection, responses: Responses, kinds: Kinds) -> None:
        super().__init__(connection, responses)
        self._kinds: Final = kinds
        self.want = FIRST_READ_SIZE
        longest = connection.context.config.security.max_request_bytes
        self._batches: Final = Batches(longest, connection.max_in_flight)

    @property
    def is_answered(self) -> bool:
        """Whether the client expects a response to the latest request that was forwarded, completely or in part."""
        return self.kind is None or self.kind.answered

    @property
    def held(self) -> Request | None:
        """The request that waits for a limit, if there is one."""
        request = self.current
        return request if request is not None and request.is_held else None

    def next_step(self, pos: int, end: int, now_ns: int) -> int:
        self.taken_ns = now_ns
        if self.remaining:
            return self._go_on(pos, min(end, pos + self.remaining), now_ns)
        connection = self.connection
        # The quotas may have been replaced since the last request. One comparison covers all limits.
        identity = connection.identity
        if identity.generation != identity.registry.generation:
            identity.refresh(now_ns)
        most = connection.max_in_flight - len(self.responses.in_flight)
        if most <= 0:
            return FULL
        kind = self.kind
        # Decided alone: the first request, requests without data, the next one after debt or a hold, and any request
        # that may not pass now.
        if kind is None or not kind.batchable or not self.room or self.current is not None:
            return self._take_frame(pos, end, most, now_ns)
        if not connection.takes_requests:
            return self._take_frame(pos, end, most, now_ns)
        passed_to = self._batches.pass_together(self, kind, pos, end, most, now_ns)
        # No request of this kind begins here, or there is no room for the first one.
        if passed_to == pos:
            return self._take_frame(pos, end, most, now_ns)
        if passed_to <= end and self.room >= READ_SIZE == self.want:
            return passed_to
        return self._end_batch(passed_to, end)

    def _end_batch(self, passed_to: int, end: int) -> int:
        """A batch has passed, whose last request may be incomplete."""
        if passed_to > end:
            self.remaining = passed_to - end
        self._set_want()
        return min(passed_to, end)

    def _take_frame(self, pos: int, end: int, most: int, now_ns: int) -> int:
        """The step for the request that begins at `pos`."""
        if self.current is not None:  # it has been held
            return self._after(self.current.decide(self, pos, end, now_ns), pos)
        is_closing = self.connection.is_closing
        if not self.connection.takes_requests and not is_closing:
            return FULL
        before = self.kind
        kind = self._kind_at(pos, end, now_ns)
        if kind is None:
            return NEED
        if is_closing and kind.answered:
            return self._after(self.discard(pos, end, unpack_prefix(self.buf, pos)[0]), pos)
        if kind is not before and kind.batchable and self.room:
            passed_to = self._batches.pass_together(self, kind, pos, end, most, now_ns)
            if passed_to > pos:
                return self._end_batch(passed_to, end)
        return self._after(kind.handler.on_request(self, kind, pos, end, now_ns), pos)

    def _after(self, step: int, pos: int) -> int:
        """Set what the next read may take, after a step for the request at `pos`. Returns the step."""
        if step > pos or step == REPLACE:
            self._set_want()
        return step

    def _kind_at(self, pos: int, end: int, now_ns: int) -> Kind | None:
        """The kind of the request at `pos`. None: more bytes are needed."""
        buf = self.buf
        kind = self.kind
        if kind is not None and kind.shortest <= kind.length_at(buf, pos, end) <= self._batches.longest:
            return kind
        pass_unknown_apis = self.connection.context.config.security.pass_unknown_apis
        header = peek_request(buf, pos, end, self._batches.longest, pass_unknown_apis=pass_unknown_apis)
        if header is None:
            self.want = self._full_read
            return None
        kind = self._kinds.kind_of(header, buf, pos)
        length = unpack_prefix(buf, pos)[0]
        if kind.shortest > length:
            raise MalformedFrame("the head of a request", length)
        if end - pos < kind.needed:
            self.want = kind.needed - (end - pos)
            return None
        identity = self.connection.identity
        if header.client_id != identity.wire_client_id and kind.handler.identifies:
            self.connection.check_login()
            identity.identify(header.client_id, now_ns)
        self.kind = kind
        return kind

    def _go_on(self, pos: int, end: int, now_ns: int) -> int:
        """Continue the current frame, of which more has arrived, up to `end`."""
        request = self.current
        if request is None:
            step = self._pass_on(pos, end)
        else:
            identity = self.connection.identity
            if identity.generation != identity.registry.generation:
                identity.refresh(now_ns)
            step = self._after(request.go_on(self, pos, end, now_ns), pos)
        if not self.remaining:
            self.sent(now_ns)
        return step

    def _pass_on(self, pos: int, end: int) -> int:
        """Forward or discard more of a frame that needs no object."""
        self.remaining -= end - pos
        step = end
        if self.is_discarding:
            self.is_discarding = self.remaining > 0
            self.output, self.resume_at, step = b"", end, REPLACE
        if self.want != READ_SIZE:
            self._set_want()
        return step

    def _set_want(self) -> None:
        """Set what the next read may take. Close to the limit, read only to the end of the frame and the next header,
        so that a hold keeps little in memory. In the middle of a frame that fits only in part, read what fits, unless
        the frame has taken its limit into debt, because then all of it passes.
        """
        remaining = self.remaining
        if not remaining:
            self.has_request = True
        if self.room < READ_SIZE and self.connection.context.actions.enforces:
            rest = remaining + HEAD_READ_SIZE
            self.want = min(rest, max(self.room, HEAD_READ_SIZE)) if self.room else rest
        else:
            self.want = self._full_read

    @property
    def _full_read(self) -> int:
        """How much a read takes far from any limit."""
        return READ_SIZE if self.has_request else FIRST_READ_SIZE

    def end(self, now_ns: int) -> None:
        """End the current request: no more of it passes."""
        request, self.current = self.current, None
        if request is not None:
            request.close(self.connection, now_ns)
