"""Client to broker: finds the frames, and asks the handler of each what to do.

A frame's header is parsed (`protocol.request_header`); its payload is forwarded unchanged from the shared buffer.
Requests of the same kind differ only in length and correlation id: they pass in `batches`.
"""

from typing import Final, final

from protocol.errors import MalformedFrame
from protocol.request_header import peek_request, unpack_prefix
from protocol.walk import FrameWalk
from proxy.enforcement.data_frame import DataFrame, FrameEvent, Life
from proxy.streams.batches import Batches
from proxy.streams.connection import Connection
from proxy.streams.handler import RequestKind, Requests
from proxy.streams.handlers.data import HEAD_READ_SIZE
from proxy.streams.handlers.produce import Produce
from proxy.streams.kinds import Kinds
from proxy.streams.memory import READ_SIZE
from proxy.streams.steps import HOLD, NEED, PASS, PIECES_PER_STEP, REPLACE, YIELD


@final
class RequestStream(Requests):
    """The requests of one connection: see `Stream`."""

    __slots__ = ("_batches", "_kinds")

    def __init__(self, connection: Connection, kinds: Kinds) -> None:
        super().__init__(connection)
        self._kinds: Final = kinds
        longest = connection.context.config.security.max_request_bytes
        self._batches: Final = Batches(longest, connection.max_in_flight)

    @property
    def is_answered(self) -> bool:
        """Whether the client waits for a response to the latest request that was forwarded, perhaps in part."""
        return self.kind is None or self.kind.answered

    def take(self, pos: int, end: int, now_ns: int) -> int:
        if self.remaining:
            return self._go_on(pos, end, now_ns)
        connection = self.connection
        identity = connection.identity
        if identity.generation != identity.registry.generation:
            identity.refresh(now_ns)
        most = connection.max_in_flight - len(connection.in_flight)
        if most <= 0:
            return self.full()
        if connection.frame is None:
            if connection.is_stopped:
                return self.full()
            kind = self.kind
            if kind is not None and kind.batchable:
                passed_to = self._batches.take(self, kind, pos, end, most, now_ns)
                if passed_to > pos:
                    if passed_to <= end and not self.near_limit and self.want == READ_SIZE:
                        return passed_to
                    return self._end_batch(kind, passed_to, end, now_ns)
        return self._take_frame(pos, end, most, now_ns)

    def _end_batch(self, kind: RequestKind, passed_to: int, end: int, now_ns: int) -> int:
        """A batch has passed; its last request may not have arrived whole."""
        if passed_to > end:
            self.remaining = passed_to - end
            self.is_counted = False
            batches = self._batches
            if batches.passage is not None and type(kind.handler) is Produce:
                self.connection.frame = frame = DataFrame(batches.last_size, answered=kind.answered)
                kind.handler.passes(frame, batches.passage, now_ns)
        if self.near_limit:
            self._notify_early(kind, now_ns)
        self._set_want()
        return min(passed_to, end)

    def _notify_early(self, kind: RequestKind, now_ns: int) -> None:
        """Send a notice where a limit is below its soft mark, so that the client stops before there is debt."""
        if type(kind.handler) is Produce:
            context, identity = self.connection.context, self.connection.identity
            limits = identity.limits
            context.measures.soft(identity, limits.produce.limits + limits.requests.limits, kind.reply, now_ns)

    def _take_frame(self, pos: int, end: int, most: int, now_ns: int) -> int:
        """The step for the request that begins at `pos`."""
        connection = self.connection
        before = self.kind
        kind = self._kind_at(pos, end, now_ns)
        if kind is None:
            return NEED
        if kind is not before and kind.batchable and connection.frame is None:
            passed_to = self._batches.take(self, kind, pos, end, most, now_ns)
            if passed_to > pos:
                return self._end_batch(kind, passed_to, end, now_ns)
        self.is_counted = connection.frame is not None
        step = kind.handler.admit(self, kind, pos, end, now_ns)
        if step == PASS:
            return self._pass(kind, pos, end, now_ns)
        if step == REPLACE:
            self._end_frame(now_ns)
            self._set_want()
        return step

    # ---- one frame

    def _kind_at(self, pos: int, end: int, now_ns: int) -> RequestKind | None:
        """The kind of the request at `pos`. None: more bytes are needed."""
        buf = self.buf
        kind = self.kind
        if kind is not None and kind.shortest <= kind.length_at(buf, pos, end) <= self._batches.longest:
            return kind
        pass_unknown_apis = self.connection.context.config.security.pass_unknown_apis
        header = peek_request(buf, pos, end, self._batches.longest, pass_unknown_apis=pass_unknown_apis)
        if header is None:
            self.want = self.full_read
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

    def _pass(self, kind: RequestKind, pos: int, end: int, now_ns: int) -> int:
        """The request at `pos` passes: returns the position up to which its bytes may be forwarded now."""
        connection = self.connection
        length, _, correlation_id = unpack_prefix(self.buf, pos)
        kind.counter.value += 1
        if kind.answered:
            awaited = self.awaited
            connection.in_flight.append((correlation_id, kind if awaited is None else awaited))
            if self.delay is not None:
                self.delay_latest(self.delay)
        else:
            connection.sent_unanswered = True
        self.awaited = None
        frame_end = pos + 4 + length
        passed_to = min(end, frame_end) if self.walk is None else self.walked_to
        if self.near_limit and not self.is_counted:
            self._notify_early(kind, now_ns)
        self.remaining = frame_end - passed_to
        frame = connection.frame
        if frame is not None and (not self.remaining or frame.passage is None):
            self._end_frame(now_ns)
        self._set_want()
        return passed_to if passed_to > pos else YIELD

    def _end_frame(self, now_ns: int, event: FrameEvent = FrameEvent.END) -> None:
        """The current frame has passed, or never will. Its holds are counted together."""
        connection = self.connection
        frame, connection.frame = connection.frame, None
        if frame is None:
            return
        context = connection.context
        if frame.state is Life.RELEASED:
            frame.held_ns += now_ns - frame.since_ns
        if frame.counted_by is not None and (event is not FrameEvent.CLOSE or self.remaining):
            client = connection.identity.client
            context.measures.report.released(client, frame.counted_by, frame.held_ns, now_ns)
        context.holds.end(frame, event)
        if context.holds.changed:
            connection.needs_session = True

    def put_back(self, now_ns: int) -> None:
        """A released frame was not decided: more of it must arrive first. It begins anew."""
        self._end_frame(now_ns)

    def _set_want(self) -> None:
        """Close to the limit, read only to the end of the frame and the next header, or what a frame has reserved that
        lapsed: a hold then keeps little.
        """
        if not self.remaining:  # so the first request is complete
            self.full_read = READ_SIZE
        if self.near_limit and self.connection.context.measures.enforces:
            frame = self.connection.frame
            if frame is None or not frame.rest_bytes:
                self.want = self.remaining + HEAD_READ_SIZE
            else:
                self.want = frame.reserved_bytes or HEAD_READ_SIZE
        elif self.connection.is_closing and self.remaining:
            self.want = self.remaining
        else:
            self.want = self.full_read

    # ---- the rest of a frame

    def _go_on(self, pos: int, end: int, now_ns: int) -> int:
        """More of the current frame has arrived."""
        if self.is_dropping:
            return self._discard(pos, end, now_ns)
        frame, kind = self.connection.frame, self.kind
        arrived = min(end - pos, self.remaining)
        if frame is not None and kind is not None and frame.reserved_bytes < arrived:
            assert type(kind.handler) is Produce  # noqa: S101 - for the type checker: nothing else has a `DataFrame`
            if kind.handler.ask_rest(self, kind, frame, arrived, now_ns) == HOLD:
                return HOLD
        if self.walk is not None:
            return self._walk_on(self.walk, pos, pos + arrived, now_ns)
        self._forwarded(arrived, now_ns)
        if self.want != READ_SIZE or self.connection.is_closing:
            self._set_want()
        return pos + arrived

    def _forwarded(self, size: int, now_ns: int) -> None:
        """So many bytes of the rest of the current frame are forwarded."""
        self.remaining -= size
        kind, frame = self.kind, self.connection.frame
        if kind is not None and type(kind.handler) is Produce:
            self.connection.identity.entity.produce_bytes += size
        if frame is not None:
            if frame.passage is not None:
                frame.passage.passed(size, now_ns)
            if not self.remaining:
                self._end_frame(now_ns)

    def _walk_on(self, walk: FrameWalk, pos: int, end: int, now_ns: int) -> int:
        is_whole = end - pos == self.remaining
        walk.work_left = PIECES_PER_STEP
        walked_to = walk.advance(self.buf, pos, end)
        if self.kind is not None:
            self.kind.handler.on_walked(self, now_ns)
        self._forwarded(walked_to - pos, now_ns)
        self._set_want()
        if not self.remaining:
            self.walk = None
        elif walk.work_left > 0 and is_whole:
            raise MalformedFrame("a request's last field", self.remaining)
        if walked_to > pos:
            return walked_to
        return NEED if walk.work_left > 0 else YIELD

    def end(self, now_ns: int) -> None:
        """Nothing of the current frame arrives any more."""
        self._end_frame(now_ns, FrameEvent.CLOSE)

    # ---- requests that are not forwarded

    def _discard(self, pos: int, end: int, now_ns: int) -> int:
        """More of a request has arrived that is not forwarded."""
        self.output = b""
        walk, kind = self.walk, self.kind
        known = min(end, pos + self.remaining)
        if walk is None or kind is None:
            self.resume_at = known
        else:
            walk.work_left = PIECES_PER_STEP
            self.resume_at = walk.advance(self.buf, pos, known)
            kind.handler.on_walked(self, now_ns)
        self.remaining -= self.resume_at - pos
        if not self.remaining:
            self.is_dropping = False
            self.walk = None
        if self.want != READ_SIZE or self.connection.is_closing:
            self._set_want()
        if self.resume_at > pos:
            return REPLACE
        return NEED if walk is not None and walk.work_left > 0 else YIELD
