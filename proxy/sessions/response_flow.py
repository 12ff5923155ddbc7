"""Broker to client: matches responses to requests, and changes only those that must be changed.

Most responses stream through untouched. Those that carry broker addresses, and those whose ``throttle_time_ms`` is
raised, are changed in place in the shared buffer where their length stays, else held whole (small ones) or at their
head (Metadata).
"""

from asyncio import AbstractEventLoop
from socket import socket
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from protocol.api_versions import negotiate
from protocol.apis import API_VERSIONS, PRODUCE, SHARE_ACKNOWLEDGE, SHARE_FETCH
from protocol.errors import CorrelationMismatch, MalformedFrame, ProtocolError, UnexpectedResponse
from protocol.fetch import FETCH_THROTTLE_BYTES, FetchResponseWalk, patch_fetch_throttle
from protocol.metadata import MetadataPrefix
from protocol.produce import finish_produce_response
from protocol.request_header import check_frame_length
from protocol.share import ShareAcknowledgeResponseWalk, ShareFetchResponseWalk, patch_share_fetch_throttle
from protocol.whole_responses import rewrite_response
from proxy.sessions import mutations
from proxy.sessions.buffers import READ_SIZE, Buffers
from proxy.sessions.pump import IN_FLIGHT, Pump
from proxy.sessions.request_flow import MAX_IN_FLIGHT, MAX_OWED_BYTES
from proxy.sessions.request_kind import (
    FETCH_ENDPOINTS_FROM,
    PRODUCE_ENDPOINTS_FROM,
    Answer,
    RequestKind,
    Response,
)
from proxy.sessions.topics import LearningWalk

if TYPE_CHECKING:
    from proxy.sessions.session import Session

# An enum member costs a slow look-up on its class, and these are asked for each response.
_UNSEEN = Response.UNSEEN
_PRODUCE = Response.PRODUCE
_FETCH = Response.FETCH
_HEAD = Response.HEAD
_WHOLE = Response.WHOLE
_FEW_BROKERS = 4_096
#: What is read at once of a Metadata response whose topics are remembered, which takes up to 60 ns a byte.
LEARNING_READ_SIZE = 131_072
#: Length and correlation id.
_HEAD_SIZE = 8
_head = Struct(">ii").unpack_from
_length = Struct(">i")


class ResponseWalk(Protocol):
    """A streaming walk over one response; see protocol/fetch.py."""

    def advance(self, buf: bytearray, pos: int, end: int) -> int: ...


def _walk_over(kind: RequestKind, length: int) -> ResponseWalk | None:
    """The walk that hides the node endpoints of such a response; None where there are none to hide."""
    if kind.api_key == SHARE_FETCH:
        return ShareFetchResponseWalk(kind.version, length)
    if kind.api_key == SHARE_ACKNOWLEDGE:
        return ShareAcknowledgeResponseWalk(kind.version, length)
    return FetchResponseWalk(kind.version, length) if kind.version >= FETCH_ENDPOINTS_FROM else None


class ResponseFlow(Pump):
    """The broker's direction of one session."""

    __slots__ = ("_collect", "_longest", "_walk", "_whole_size", "owed_bytes")

    def __init__(
        self, loop: AbstractEventLoop, buffers: Buffers, session: "Session", upstream: socket, client: socket
    ) -> None:
        super().__init__(loop, buffers, session, upstream, client)
        self._longest = session.shared.config.socket_response_max_bytes
        #: While a response is being walked (its bytes may change in place).
        self._walk: ResponseWalk | None = None
        #: A response too large for the shared buffer that must be held whole, and its size with the length.
        self._collect: bytearray | None = None
        self._whole_size = 0
        #: What the proxy itself has to say in responses that wait for earlier ones. Not in the account of buffers: only
        #: reading responses brings it down, and reading stops where that account is full.
        self.owed_bytes = 0

    def take(self, end: int) -> None:
        """Forward ``buffers.data[:end]``, changed where it must be; keep what more bytes are needed for."""
        if self._collect is not None:
            pos = self._go_on_collecting(end)
            if pos < end:
                self._scan(pos, pos, end)
        elif self._walk is not None:
            pos = self._go_on_walking(0, end)
            if self.remaining:
                self.forward(0, pos)
                self.keep(pos, end)
            else:
                self._scan(0, pos, end)
        elif self.remaining >= end:
            self.remaining -= end
            self.write(self.buffers.view[:end])
            if not self.remaining:
                self._at_boundary()
        else:
            self._scan(0, self.remaining, end)

    def _scan(self, start: int, pos: int, end: int) -> None:
        """Go through the responses from ``pos`` on; bytes from ``start`` on have not been forwarded yet."""
        session = self.session
        in_flight = session.in_flight
        longest = self._longest
        buf = self.buffers.data
        is_awaited = session.request_flow.awaits_produce_responses
        self.remaining = 0
        try:
            while end - pos >= _HEAD_SIZE:
                length, correlation_id = _head(buf, pos)
                if not 4 <= length <= longest:
                    check_frame_length(buf, pos, length, longest)
                    raise MalformedFrame("the correlation id", length)
                if not in_flight:
                    raise UnexpectedResponse
                expected, kind = in_flight[0]
                if type(kind) is Answer:  # no broker's response: the proxy's own stands in its place
                    self.forward(start, pos)
                    start = pos
                    self._send_answers()
                    continue
                if expected != correlation_id:
                    raise CorrelationMismatch(expected, correlation_id)
                frame_end = pos + 4 + length
                response = kind.response
                if response is _PRODUCE:
                    throttle_ms = session.notice_ms() if session.not_before_ns else 0
                    if throttle_ms or is_awaited or kind.version >= PRODUCE_ENDPOINTS_FROM:
                        if frame_end > end:
                            self._hold_whole(start, pos, end, frame_end)
                            return
                        finish_produce_response(buf, pos + 4, frame_end, kind.version, throttle_ms)
                        if is_awaited:
                            session.request_flow.on_produce_response(kind, self.buffers.view[pos + 4 : frame_end])
                    in_flight.popleft()
                    pos = frame_end
                elif response is _UNSEEN:
                    in_flight.popleft()
                    pos = frame_end
                elif response is _WHOLE:
                    if kind.mutates and session.mutation_notices[0] is None:
                        session.mutation_notices.popleft()
                        in_flight.popleft()
                        pos = frame_end
                        continue
                    if frame_end > end:
                        self._hold_whole(start, pos, end, frame_end)
                        return
                    self.forward(start, pos)
                    self._rewrite(kind, bytes(self.buffers.view[pos + 4 : frame_end]))
                    pos = start = frame_end
                elif response is _HEAD:
                    known = min(end, frame_end)
                    prefix_of = MetadataPrefix(kind.version, session.shared.nodes)
                    # The brokers nearly always fit a few KiB, and what is given is copied.
                    rewritten = prefix_of.rewrite(self.buffers.view[pos + 4 : min(known, pos + _FEW_BROKERS)])
                    if rewritten is None and known > pos + _FEW_BROKERS:
                        rewritten = prefix_of.rewrite(self.buffers.view[pos + 4 : known])
                    if rewritten is None:
                        if frame_end <= end:
                            raise MalformedFrame("the brokers of a metadata response", length)
                        break
                    prefix, replaced = rewritten
                    self.forward(start, pos)
                    self.write(_length.pack(length + len(prefix) - replaced) + prefix)
                    start = pos + 4 + replaced
                    in_flight.popleft()
                    if not session.shared.registry.learns_topics:
                        pos = frame_end
                        continue
                    self._walk = LearningWalk(kind.version, length, replaced, session.shared.topics)
                    self.want = LEARNING_READ_SIZE
                    self.remaining = length - replaced
                    pos = self._go_on_walking(start, end)
                    if self.remaining:
                        self.forward(start, pos)
                        self.keep(pos, end)
                        return
                else:
                    if response is _FETCH:
                        if end - pos < 4 + min(FETCH_THROTTLE_BYTES, length):
                            break
                        self._charge_fetch(kind, pos, length)
                    in_flight.popleft()
                    self._walk = _walk_over(kind, length)
                    if self._walk is None:
                        pos = frame_end
                        continue
                    self.remaining = length
                    pos = self._go_on_walking(pos + 4, end)
                    if self.remaining:
                        self.forward(start, pos)
                        self.keep(pos, end)
                        return
        except ProtocolError:
            self.forward(start, pos)  # those are answers; what follows closes the connection
            raise
        if pos >= end:
            self.forward(start, end)
            self.remaining = pos - end
            if in_flight and not self.remaining:
                self._send_answers()
        else:
            self.forward(start, pos)
            self.keep(pos, end)
        if session.is_closing:
            if not in_flight:
                session.on_all_answered()
        elif (
            session.request_flow.paused & IN_FLIGHT
            and len(in_flight) <= MAX_IN_FLIGHT // 2
            and self.owed_bytes <= MAX_OWED_BYTES // 2
        ):
            session.request_flow.resume(IN_FLIGHT)

    def _at_boundary(self) -> None:
        """A response has ended with a read, and nothing of the next one has come."""
        self._send_answers()
        session = self.session
        if not session.in_flight:
            session.on_all_answered()
            session.request_flow.resume(IN_FLIGHT)

    # ---- fetches

    def _charge_fetch(self, kind: RequestKind, pos: int, length: int) -> None:
        """Charge a fetch response when its head is seen, and write the notice that is due into it."""
        session = self.session
        session.on_fetch_response(length + 4)
        throttle_from = kind.header.api.throttle_from
        if session.not_before_ns and throttle_from is not None and kind.version >= throttle_from:
            throttle_ms = session.notice_ms()
            if throttle_ms:
                if length < FETCH_THROTTLE_BYTES:
                    raise MalformedFrame("the throttle time of a fetch response", length)
                if kind.api_key == SHARE_FETCH:
                    patch_share_fetch_throttle(self.buffers.data, pos + 4, throttle_ms)
                else:
                    patch_fetch_throttle(self.buffers.data, pos + 4, kind.version, throttle_ms)

    def _go_on_walking(self, pos: int, end: int) -> int:
        """Walk as far as the bytes go; returns up to where they are final. ``_walk`` is None when the frame is over."""
        walk = self._walk
        assert walk is not None  # noqa: S101 - for the type checker: the callers have looked
        frame_end = pos + self.remaining
        new_pos = walk.advance(self.buffers.data, pos, min(end, frame_end))
        self.remaining -= new_pos - pos
        if not self.remaining:
            self._walk = None
            self.want = READ_SIZE
        elif frame_end <= end:
            raise MalformedFrame("a response's last field", self.remaining)
        return new_pos

    # ---- responses held whole

    def _hold_whole(self, start: int, pos: int, end: int, frame_end: int) -> None:
        """Keep an incomplete response: in front of the next read if it fits the buffer, else in one of its own."""
        self.forward(start, pos)
        size = frame_end - pos
        if size < READ_SIZE:
            self.keep(pos, end)
            return
        self._collect = bytearray(self.buffers.view[pos:end])
        self._whole_size = size
        self.buffers.keep(end - pos)

    def _go_on_collecting(self, end: int) -> int:
        """Collect up to the response's end; returns where the next one begins."""
        collect = self._collect
        assert collect is not None  # noqa: S101 - for the type checker: the caller has looked
        more = min(end, self._whole_size - len(collect))
        collect += self.buffers.view[:more]
        self.buffers.keep(more)
        if len(collect) == self._whole_size:
            self._collect = None
            self.buffers.release(len(collect))
            self._finish_whole(collect)
            if more == end:
                self._at_boundary()
        return more

    def _finish_whole(self, frame: bytearray) -> None:
        session = self.session
        kind = session.in_flight[0][1]
        if isinstance(kind, Answer):
            raise UnexpectedResponse
        if kind.api_key == PRODUCE:
            session.in_flight.popleft()
            throttle_ms = session.notice_ms() if session.not_before_ns else 0
            finish_produce_response(frame, 4, len(frame), kind.version, throttle_ms)
            session.request_flow.on_produce_response(kind, memoryview(frame)[4:])
            self.write(frame)
        else:
            self._rewrite(kind, bytes(frame[4:]))

    def _rewrite(self, kind: RequestKind, response: bytes) -> None:
        """Forward a response that was held whole, rewritten."""
        session = self.session
        session.in_flight.popleft()
        if kind.api_key == API_VERSIONS:
            rewritten = negotiate(response, kind.version, pass_unknown_apis=session.shared.config.pass_unknown_apis)
        elif kind.mutates:
            notice = session.mutation_notices.popleft()
            rewritten = response
            if notice is not None:
                self.owed_bytes -= notice.size
                rewritten = mutations.told(session, kind, response, notice)
        else:
            rewritten = rewrite_response(kind.api_key, kind.version, response, session.shared.nodes)
        self.write(_length.pack(len(rewritten)) + rewritten)

    # ---- answers of the proxy itself

    def answer(self, correlation_id: int, data: bytes) -> None:
        """Send a response of the proxy's own when all earlier ones have gone, and the client has taken them."""
        self.session.in_flight.append((correlation_id, Answer(data)))
        self.owed_bytes += len(data)
        if self.pending is None and self._is_between_responses():
            self._send_answers()

    def _is_between_responses(self) -> bool:
        return not self.remaining and self._collect is None and not self.kept

    def _send_answers(self) -> None:
        in_flight = self.session.in_flight
        while in_flight and isinstance(answer := in_flight[0][1], Answer):
            in_flight.popleft()
            self.owed_bytes -= len(answer.bytes)
            self.write(_length.pack(len(answer.bytes)) + answer.bytes)

    # ---- ends

    def stop(self) -> None:
        super().stop()
        if self._collect is not None:
            self.buffers.release(len(self._collect))
            self._collect = None

    def on_source_ended(self) -> None:
        self.session.on_upstream_ended()

    def on_source_failed(self, error: OSError) -> None:
        self.session.on_upstream_failed(error)

    def on_sink_failed(self, error: OSError) -> None:
        self.session.on_client_unwritable()

    def on_flushed(self) -> None:
        if self._is_between_responses():
            self._at_boundary()
        self.session.on_responses_flushed()
