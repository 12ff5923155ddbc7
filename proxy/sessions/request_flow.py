"""Client to broker: finds the frames, asks the quotas, holds at a boundary where they say so.

A frame's head is peeked (see protocol/request_header.py); its payload goes from the shared buffer to the broker's
socket untouched. Consecutive requests of one kind differ only in length and correlation id, so what was read of the
last one is remembered and compared with one ``startswith``: that is the fast path.
"""

from asyncio import AbstractEventLoop
from socket import socket
from struct import Struct
from typing import TYPE_CHECKING

from protocol.api_versions import unsupported_version_answer
from protocol.errors import MalformedFrame, ProtocolError
from protocol.request_header import PREFIX_SIZE, peek_request, unpack_prefix
from proxy.sessions import mutations
from proxy.sessions.buffers import READ_SIZE, Buffers
from proxy.sessions.frame_admission import FrameAdmission
from proxy.sessions.produce_usage import LOOKAHEAD, ProduceUsage
from proxy.sessions.pump import IN_FLIGHT, Pump
from proxy.sessions.request_kind import Data, RequestKind
from quotas.admission.decision import ADMITTED
from quotas.admission.limit import Ticket

if TYPE_CHECKING:
    from proxy.sessions.session import Session

#: Requests without an answer yet, for one connection; reading rests above it. Bounds the bookkeeping to some 100 KiB.
MAX_IN_FLIGHT = 1_000
#: The same for what the proxy itself has to say in responses that wait for earlier ones, in bytes.
MAX_OWED_BYTES = 65_536
#: Close to its limit a session reads only to the end of the current frame plus this much of the next one's head.
HEAD_READ_SIZE = 128
#: What is read at once while a request goes by that has more topics in it than one turn looks at.
DENSE_READ_SIZE = 16_384

# An enum member costs a slow look-up on its class, and these are asked for each read.
_PRODUCE = Data.PRODUCE
_FETCH = Data.FETCH
_length = Struct(">i")


class RequestFlow(Pump):
    """The client's direction of one session."""

    __slots__ = (
        "_clock",
        "_registry",
        "_unfinished",
        "_usage",
        "admission",
        "discarding",
        "kind",
    )

    def __init__(
        self, loop: AbstractEventLoop, buffers: Buffers, session: "Session", client: socket, upstream: socket
    ) -> None:
        super().__init__(loop, buffers, session, client, upstream)
        self._clock = session.shared.clock
        self._registry = session.shared.registry
        #: The current frame is answered here: its bytes go nowhere.
        self.discarding = False
        self.kind: RequestKind | None = None
        self.admission = FrameAdmission(session)
        #: What Produce requests carry, for a client whose limits ask for it.
        self._usage: ProduceUsage | None = None
        #: More was read than one turn looks at: the next one goes on with what was kept, before anything is read.
        self._unfinished = False

    def take(self, end: int) -> None:
        """Forward what may pass of ``buffers.data[:end]``; keep the rest."""
        pos = self.remaining
        kind = self.kind
        usage = self._usage
        if usage is not None:
            usage.begin_turn()
        if not pos and kind is not None and kind.runs and self._take_run(kind, end):
            return
        if usage is not None and usage.is_walking:
            self._walk_on(usage, end)
            return
        if pos >= end:
            self.remaining = pos - end
            if not self.discarding:
                self.write(self.buffers.view[:end])
            if self.want != READ_SIZE:
                self.want = self.remaining + HEAD_READ_SIZE
            if self.session.is_closing:
                self.session.on_frame_boundary()
            return
        if self.discarding:
            self.discarding = False
            self._scan(pos, pos, end)
        else:
            self._scan(0, pos, end)

    def _take_run(self, kind: RequestKind, end: int) -> bool:
        """Most reads by far: whole requests like the one before, and room for all. False: nothing has been done."""
        session = self.session
        if session.is_closing or session.limits_generation != self._registry.generation:
            return False
        stop = self._pass_run(kind, 0, end, self._clock())
        if stop < end:
            if stop > 0:
                self._scan(0, stop, end)
                return True
            return False
        self.write(self.buffers.view[:end])
        self.remaining = stop - end
        if self.admission.near_limit:
            self._set_want(0)
        elif self.want != READ_SIZE:
            self.want = READ_SIZE
        if len(session.in_flight) > MAX_IN_FLIGHT:
            self.pause(IN_FLIGHT)
        return True

    def _set_want(self, ahead: int) -> None:
        """Near the limit, read only to the end of the frame and the next one's head: a hold then keeps little.

        ``ahead``: bytes that are needed beyond what is kept.
        """
        narrow = self.admission.near_limit and not self.session.shared.config.dry_run
        self.want = max(self.remaining + HEAD_READ_SIZE, ahead) if narrow else READ_SIZE
        if self._usage is not None and self._usage.is_dense:
            self.want = min(self.want, DENSE_READ_SIZE)

    def _scan(self, start: int, pos: int, end: int) -> None:
        """Go through the frames from ``pos`` on; bytes from ``start`` on have not been forwarded yet."""
        session = self.session
        kind = self.kind
        room = 0
        #: What the next read must bring beyond what is kept.
        ahead = 0
        usage = self._usage
        now_ns = self._clock()
        if session.limits_generation != self._registry.generation:
            session.resolve_limits()
        try:
            while pos < end:
                if room >= 0 and kind is not None and kind.runs:
                    stop = self._pass_run(kind, pos, end, now_ns)
                    if stop < 0:
                        room = -1
                    else:
                        pos = stop
                        if pos >= end:
                            break
                kind = self._kind_at(kind, pos, end)
                if kind is None:
                    break
                length, _, correlation_id = unpack_prefix(self.buffers.data, pos)
                if kind.data is _PRODUCE:
                    if session.limits.walks:
                        if usage is not None and usage.has_done_enough:
                            self._unfinished = True
                            break
                        # While memory is short it must do with what has come: bytes that wait to be decided upon would
                        # keep out those that complete them.
                        ahead = min(4 + length, LOOKAHEAD) - (end - pos)
                        if ahead > 0 and self.buffers.read_size == READ_SIZE:
                            break
                        usage = self._usage_of_session()
                        passes = self.admission.walked(usage, kind, self.buffers.data, pos, end, now_ns)
                    else:
                        passes = self.admission.produce(kind, length, now_ns)
                    if not passes:
                        break
                    session.entity.produce_bytes += length
                    session.entity.requests += 1
                elif kind.data is _FETCH:
                    if not self.admission.fetch(kind, self.buffers.data, pos, now_ns):
                        break
                elif kind.runs:
                    session.limits.requests.charge(1, now_ns)
                elif kind.mutates:
                    if mutations.limit_applies(session, kind, length, is_whole=pos + 4 + length <= end):
                        ahead = pos + 4 + length - end
                        if ahead > 0:
                            break
                        self.forward(start, pos)
                        start = pos
                        self._pass_mutation(kind, pos, pos + 4 + length, now_ns)
                        pos = start = pos + 4 + length
                        continue
                    session.limits.requests.charge(1, now_ns)
                    session.mutation_notices.append(None)
                else:
                    self.forward(start, pos)
                    session.response_flow.answer(correlation_id, unsupported_version_answer(correlation_id))
                    session.limits.requests.charge(1, now_ns)
                    kind.cell.value += 1
                    pos += 4 + length
                    start = min(pos, end)
                    self.discarding = pos > end
                    continue
                kind.cell.value += 1
                if kind.expects_response:
                    session.in_flight.append((correlation_id, kind))
                else:
                    session.sent_unanswered = True
                pos += 4 + length
                if usage is not None and usage.is_walking:
                    break
        except ProtocolError:
            self.forward(start, pos)  # what passed was charged, and what follows closes the connection
            raise
        self.kind = kind
        if usage is not None and usage.is_walking:
            self._keep_from(start, usage, pos, end)
        elif pos >= end:
            if not self.discarding:
                self.forward(start, end)
            self.remaining = pos - end
        else:
            self.forward(start, pos)
            self.remaining = 0
            self.keep(pos, end)
        self._set_want(ahead)
        if self._unfinished:
            self._rest()
        if session.is_closing:
            session.on_frame_boundary()
        if len(session.in_flight) > MAX_IN_FLIGHT:
            self.pause(IN_FLIGHT)

    def _walk_on(self, usage: ProduceUsage, end: int) -> None:
        """More has come of a Produce request that is walked while it passes."""
        now_ns = self._clock()
        if self.session.limits_generation != self._registry.generation:
            self.session.resolve_limits()
        frame_end = self.remaining
        decision = usage.walk_on(self.buffers.data, 0, min(end, frame_end), now_ns)
        if decision is not ADMITTED:
            self.session.shared.throttling.notify_later(self.session, decision, now_ns)
            self.admission.near_limit = True
        if not usage.is_walking:
            self.remaining = 0
            self._scan(0, frame_end, end)
            return
        self._keep_from(0, usage, frame_end, end)
        self._set_want(0)
        if self._unfinished:
            self._rest()
        if self.session.is_closing:
            self.session.on_frame_boundary()

    def _keep_from(self, start: int, usage: ProduceUsage, frame_end: int, end: int) -> None:
        """Forward what has been walked of a frame; what has not been is kept, with all that came behind it."""
        seen = usage.walked_to
        self.forward(start, seen)
        self.remaining = frame_end - seen
        self.keep(seen, end)
        self._unfinished = usage.has_done_enough and seen < end

    def _pass_run(self, kind: RequestKind, pos: int, end: int, now_ns: int) -> int:
        """Pass the requests from ``pos`` on that are like ``kind``, if there is room for all of them together.

        Returns where it stopped: at a request that is another kind or is not there yet. Returns -1 when there is not
        that much room: nothing has passed, and each request needs a decision of its own. This is the hot path: its loop
        makes no decision, since deciding one by one would come to the same.
        """
        session = self.session
        buf = self.buffers.data
        startswith = buf.startswith
        append = session.in_flight.append
        limits = session.limits
        if kind.data is _PRODUCE and (limits.decides_each or self.admission.ticket is not None):
            return -1
        alike, tail, size, shortest, longest, answered = kind.run
        first = pos
        count = 0
        while end - pos >= size:
            length, seen, correlation_id = unpack_prefix(buf, pos)
            if seen != alike or not shortest <= length <= longest or not startswith(tail, pos + PREFIX_SIZE):
                break
            if answered:
                append((correlation_id, kind))
            count += 1
            pos += 4 + length
        if not count:
            return pos
        if kind.data is _PRODUCE:
            total = pos - first - 4 * count
            left = limits.produce.spend(total, now_ns)
            if left < 0:
                if answered:
                    for _ in range(count):
                        session.in_flight.pop()
                return -1
            self.admission.near_limit = left < READ_SIZE
            entity = session.entity
            entity.produce_bytes += total
            entity.requests += count
            if not answered:
                session.sent_unanswered = True
        else:
            limits.requests.charge(count, now_ns)
        kind.cell.value += count
        return pos

    def _kind_at(self, kind: RequestKind | None, pos: int, end: int) -> RequestKind | None:
        """The kind of the request at ``pos``: ``kind`` if it is like the one before. None: more bytes are needed."""
        buf = self.buffers.data
        if kind is not None and end - pos >= kind.size:
            length, seen, _ = unpack_prefix(buf, pos)
            longest = self.session.shared.config.socket_request_max_bytes
            if (
                seen == kind.alike
                and kind.shortest <= length <= longest
                and buf.startswith(kind.tail, pos + PREFIX_SIZE)
            ):
                return kind
        session = self.session
        shared = session.shared
        config = shared.config
        header = peek_request(
            self.buffers.data,
            pos,
            end,
            config.socket_request_max_bytes,
            pass_unknown_apis=config.pass_unknown_apis,
        )
        if header is None:
            return None
        kind = shared.kind_of(header, bytes(self.buffers.data[pos + PREFIX_SIZE : pos + header.size]))
        frame_size = 4 + int.from_bytes(self.buffers.data[pos : pos + 4], "big")
        if kind.size > frame_size:
            raise MalformedFrame("the budget of a fetch request", frame_size - 4)
        if end - pos < kind.size:
            return None
        if header.client_id != session.wire_client_id:
            session.identify(header.client_id)
        return kind

    def _pass_mutation(self, kind: RequestKind, pos: int, frame_end: int, now_ns: int) -> None:
        """Forward what the limits let pass of a request that creates or deletes partitions, or answer it."""
        session = self.session
        responses = session.response_flow
        correlation_id = unpack_prefix(self.buffers.data, pos)[2]
        request = bytes(self.buffers.view[pos + 4 : frame_end])
        forwarded, notice = mutations.limited(session, kind, request, now_ns)
        session.limits.requests.charge(1, now_ns)
        kind.cell.value += 1
        if forwarded is None and notice is not None:
            responses.answer(correlation_id, mutations.refusal(session, kind, correlation_id, notice))
        elif forwarded is not None:
            self.write(_length.pack(len(forwarded)) + forwarded)
            session.in_flight.append((correlation_id, kind))
            session.mutation_notices.append(notice)
            if notice is not None:
                responses.owed_bytes += notice.size
        if responses.owed_bytes > MAX_OWED_BYTES:
            self.pause(IN_FLIGHT)

    def _usage_of_session(self) -> ProduceUsage:
        if self._usage is None:
            self._usage = ProduceUsage(self.session)
        return self._usage

    # ---- turns

    def _rest(self) -> None:
        """This turn has looked at all that it may: others come first."""
        self.buffers.end_turns()
        self.buffers.wait_for_turn(self)

    def go_on(self) -> None:
        if self._unfinished:
            self.buffers.wait_for_turn(self)
        else:
            super().go_on()

    def on_turn(self) -> None:
        if not self._unfinished:
            super().on_turn()
        elif not self.paused:  # else `go_on` is told
            self._unfinished = False
            self.buffers.end_turns()
            self.loop.add_reader(self.source_fd, self.on_readable)
            self.parse(self.restore_kept())

    # ---- holding

    def look_again(self, ticket: Ticket) -> None:
        """It is this session's turn: look at the held frame again."""
        self.admission.ticket = ticket
        self.parse(self.restore_kept())
        self.admission.ticket = None
        held = self.session.held
        if held is None or held.ticket is not ticket:
            # It has passed, or more of it must come before it is decided upon anew.
            self.session.shared.throttling.give_up(ticket)

    @property
    def awaits_produce_responses(self) -> bool:
        """Whether `on_produce_response` must be shown the next one whole."""
        return self._usage is not None and self._usage.awaits_answers

    def on_produce_response(self, kind: RequestKind, response: memoryview) -> None:
        """A Produce request is answered by ``response``, which begins with its correlation id."""
        if self._usage is not None:
            self._usage.answered(kind.version, response, self.session.shared.clock())

    # ---- ends

    def on_source_ended(self) -> None:
        self.session.on_client_ended()

    def on_source_failed(self, error: OSError) -> None:
        self.session.on_client_failed(error)

    def on_sink_failed(self, error: OSError) -> None:
        self.session.on_upstream_unwritable(error)

    def on_flushed(self) -> None:
        self.session.on_requests_flushed()
