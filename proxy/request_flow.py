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
from protocol.apis import SHARE_FETCH
from protocol.errors import MalformedFrame
from protocol.fetch import lower_fetch_budget
from protocol.request_header import (
    PREFIX_SIZE,
    peek_request,
)
from proxy.buffers import READ_SIZE, Buffers
from proxy.pump import IN_FLIGHT, Pump
from proxy.request_kind import Data, RequestKind
from quotas.decision import ADMITTED, Decision
from quotas.limit import Limit

if TYPE_CHECKING:
    from proxy.session import Session

#: Requests without an answer yet, for one connection; reading rests above it. Bounds the bookkeeping to some 100 KiB.
MAX_IN_FLIGHT = 1_000
#: Close to its limit a session reads only to the end of the current frame plus this much of the next one's head.
HEAD_READ_SIZE = 128
#: A share consumer acknowledges with its next ShareFetch, and what it acquired is locked for it for 30 s by default
#: (``group.share.record.lock.duration.ms``, KIP-932): a hold takes a third of that at most.
LONGEST_SHARE_HOLD_NS = 10_000_000_000

# An enum member costs a slow look-up on its class, and these are asked for each read.
_PRODUCE = Data.PRODUCE
_FETCH = Data.FETCH
#: Length, API key and version as one, correlation id.
_unpack_prefix = Struct(">iii").unpack_from


class RequestFlow(Pump):
    """The client's direction of one session."""

    __slots__ = ("_until_ns", "discarding", "kind", "near_limit", "turn")

    def __init__(
        self, loop: AbstractEventLoop, buffers: Buffers, session: "Session", client: socket, upstream: socket
    ) -> None:
        super().__init__(loop, buffers, session, client, upstream)
        #: The current frame is answered here: its bytes go nowhere.
        self.discarding = False
        self.kind: RequestKind | None = None
        #: The last data frame came near its limit or beyond.
        self.near_limit = False
        #: The limit whose queue has named this session next, while its held frame is looked at again.
        self.turn: Limit | None = None
        #: When the held frame passes at the latest; 0: there is none, or it waits as long as it takes.
        self._until_ns = 0

    def take(self, end: int) -> None:
        """Forward what may pass of ``buffers.data[:end]``; keep the rest."""
        pos = self.remaining
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

    def _scan(self, start: int, pos: int, end: int) -> None:
        """Go through the frames from ``pos`` on; bytes from ``start`` on have not been forwarded yet."""
        session = self.session
        kind = self.kind
        turn = self.turn
        room = 0
        now_ns = session.shared.clock()
        if session.limits_generation != session.shared.registry.generation:
            session.resolve_limits()
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
            length, _, correlation_id = _unpack_prefix(self.buffers.data, pos)
            if kind.data is _PRODUCE:
                decision = session.limits.produce.admit(length, now_ns, turn)
                if decision is not ADMITTED and not self._act(decision, kind, length, now_ns):
                    self.near_limit = True
                    break
                session.entity.produce_bytes += length
                session.entity.requests += 1
                self.near_limit = True
                turn = None
            elif kind.data is _FETCH:
                if not self._take_fetch(kind, pos, now_ns, turn):
                    break
                turn = None
            elif not kind.runs:
                self.forward(start, pos)
                session.response_flow.answer(correlation_id, unsupported_version_answer(correlation_id))
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
        self.kind = kind
        if pos >= end:
            if not self.discarding:
                self.forward(start, end)
            self.remaining = pos - end
        else:
            self.forward(start, pos)
            self.remaining = 0
            self.keep(pos, end)
        # Near the limit, read only to the end of the frame and the next one's head: a hold then keeps little.
        narrow = self.near_limit and not session.shared.config.dry_run
        self.want = self.remaining + HEAD_READ_SIZE if narrow else READ_SIZE
        if session.is_closing:
            session.on_frame_boundary()
        if len(session.in_flight) > MAX_IN_FLIGHT:
            self.pause(IN_FLIGHT)

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
        alike, tail, size, shortest, longest, answered = kind.run
        first = pos
        count = 0
        while end - pos >= size:
            length, seen, correlation_id = _unpack_prefix(buf, pos)
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
            left = session.limits.produce.spend(total, now_ns)
            if left < 0:
                if answered:
                    for _ in range(count):
                        session.in_flight.pop()
                return -1
            self.near_limit = left < READ_SIZE
            entity = session.entity
            entity.produce_bytes += total
            entity.requests += count
            if not answered:
                session.sent_unanswered = True
        kind.cell.value += count
        return pos

    def _kind_at(self, kind: RequestKind | None, pos: int, end: int) -> RequestKind | None:
        """The kind of the request at ``pos``: ``kind`` if it is like the one before. None: more bytes are needed."""
        buf = self.buffers.data
        if kind is not None and end - pos >= kind.size:
            length, seen, _ = _unpack_prefix(buf, pos)
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

    def _act(self, decision: Decision, kind: RequestKind, length: int, now_ns: int) -> bool:
        """Do what a Decision other than "passes, no debt" asks; True when the frame passes now."""
        session = self.session
        throttling = session.shared.throttling
        if decision.admitted:
            throttling.notify_later(session, decision, now_ns)
            return True
        if kind.api_key != SHARE_FETCH:
            return throttling.hold(session, decision, length, answered=kind.expects_response, now_ns=now_ns)
        if not self._until_ns:  # it may be held again, by another limit or at new rates: the time runs on
            self._until_ns = now_ns + LONGEST_SHARE_HOLD_NS
        if now_ns < self._until_ns:
            until_ns = self._until_ns
            return throttling.hold(session, decision, length, answered=True, now_ns=now_ns, until_ns=until_ns)
        return True

    def _take_fetch(self, kind: RequestKind, pos: int, now_ns: int, turn: Limit | None) -> bool:
        """Let a fetch pass with the budget that is left, or hold it; it is charged when its response is seen."""
        session = self.session
        limits = session.limits
        fetch = limits.fetch
        if fetch.limits:
            decision = fetch.check(now_ns, turn)
            if not decision.admitted and not self._act(decision, kind, session.last_fetch_size, now_ns):
                return False
            if kind.budget_at and not session.shared.config.dry_run:
                budget = fetch.headroom(now_ns) // (limits.open_fetches + 1)
                lower_fetch_budget(self.buffers.data, pos + kind.header.body_offset, kind.version, budget)
        self._until_ns = 0
        session.fetch_opened()
        return True

    # ---- holding

    def look_again(self, limit: Limit) -> None:
        """It is this session's turn for ``limit``: look at the held frame again."""
        self.turn = limit
        self.parse(self.restore_kept())
        self.turn = None

    # ---- ends

    def on_source_ended(self) -> None:
        self.session.on_client_ended()

    def on_source_failed(self, error: OSError) -> None:
        self.session.on_client_failed(error)

    def on_sink_failed(self, error: OSError) -> None:
        self.session.on_upstream_unwritable(error)

    def on_flushed(self) -> None:
        self.session.on_requests_flushed()
