"""Produce: charged by its length before its first byte is forwarded; held while its limits are in debt.

Topics, records and producer ids are parsed only for clients with a limit on these (`produce_usage`). The response
contains the throttle time; node endpoints in it are hidden while it streams by.
"""

from typing import Final, final

from protocol.produce import ProduceResponseWalk, finish_usual_produce_response
from protocol.produce_walk import ProduceRequestWalk, TopicUsage
from protocol.request_header import unpack_prefix
from proxy.streams.connection import Awaited, Handler, RequestKind, Requests, Responses, Stream
from proxy.streams.handlers.data import DataHandler, longest_charge
from proxy.streams.memory import READ_SIZE
from proxy.streams.produce_usage import LOOKAHEAD, ProduceUsage, name_of
from proxy.streams.steps import HOLD, NEED, PASS
from quotas.admission.decision import ADMITTED
from quotas.admission.limit import Ticket
from quotas.admission.limit_set import LimitSet

#: First version with broker addresses in responses (KIP-951).
FIRST_WITH_NODE_ENDPOINTS: Final = 10
#: Longest response that the fast path handles as a whole.
_USUAL_RESPONSE: Final = 512


@final
class CountedProduce(Awaited):
    """A Produce request in flight; its response is parsed for errors, since thresholds count accepted records."""

    __slots__ = ("charged_ns", "kind", "usages", "walk")

    def __init__(self, handler: Handler, kind: RequestKind, usages: list[TopicUsage], now_ns: int) -> None:
        super().__init__(handler)
        self.kind = kind
        self.usages = usages
        self.charged_ns = now_ns
        self.walk: ProduceResponseWalk | None = None


@final
class Produce(DataHandler):
    """See the module."""

    __slots__ = ()

    def batches(self, kind: RequestKind) -> bool:
        return True

    # ---- requests

    def admit(self, requests: Requests, kind: RequestKind, pos: int, end: int, now_ns: int) -> int:
        connection = requests.connection
        identity = connection.identity
        length = unpack_prefix(requests.buf, pos)[0]
        produce = identity.limits.produce
        size = length if connection.turn is None else _first_charge(produce, length, pos, end)
        if identity.limits.walks:
            step = self._admit_read(requests, kind, length, size, pos, end, now_ns)
        else:
            decision, amounts = ADMITTED, None
            fitting = identity.limits.spend(size, 1, now_ns) if connection.turn is None else -1
            if fitting < 0:
                decision, amounts = self.ask(requests, produce, size, now_ns)
            requests.near_limit = fitting < READ_SIZE
            step = self.act(requests, kind, decision, length, amounts, now_ns)
        if step == PASS:
            requests.unpaid = length - size
            entity = identity.entity
            entity.produce_bytes += length
            entity.requests += 1
        elif requests.hold is not None and requests.hold.limit in produce.limits:
            requests.hold.units = _first_charge(produce, length, pos, end)
        return step

    def _admit_read(
        self, requests: Requests, kind: RequestKind, length: int, size: int, pos: int, end: int, now_ns: int
    ) -> int:
        """Decide about a request of a client with limits on topics, records or producer ids; `size` bytes of it are
        charged now.
        """
        connection = requests.connection
        ahead = min(4 + length, LOOKAHEAD) - (end - pos)
        # While memory is tight, decide with the bytes in the buffer: bytes kept for a decision would block others.
        if ahead > 0 and not self.context.memory.is_tight:
            requests.want = ahead if requests.near_limit else READ_SIZE
            return NEED
        usage = connection.usage
        if usage is None:
            usage = connection.usage = ProduceUsage(self.context, connection.identity)
        usage.read(kind.version, kind.header.body_offset, requests.buf, pos, end, length)
        turn = connection.turn
        decision = usage.admit(size, now_ns, None if turn is None else turn.ticket)
        requests.near_limit = usage.fitting < READ_SIZE
        step = self.act(requests, kind, decision, length, usage.amounts, now_ns)
        if not decision.admitted:
            hold = requests.hold
            usage.count_throttled(decision, Ticket() if hold is None else hold.ticket, now_ns)
        if step == HOLD:
            usage.walk = None
            return HOLD
        usage.passed(now_ns, answered=kind.answered)
        requests.walk = usage.walk
        requests.walked_to = usage.walked_to
        if usage.counted is not None:
            requests.awaited = CountedProduce(self, kind, usage.counted, now_ns)
        return PASS

    def on_walked(self, stream: Stream, now_ns: int) -> None:
        walk, usage = stream.walk, stream.connection.usage
        if usage is None or not isinstance(walk, ProduceRequestWalk):
            return
        decision = usage.charge_late(walk.take(), now_ns)
        if decision is not ADMITTED:
            assert isinstance(stream, Requests)  # noqa: S101 - for the type checker: the walk is over a request
            assert isinstance(stream.current, RequestKind)  # noqa: S101 - for the type checker
            connection, kind = stream.connection, stream.current
            delay = self.leave_debt(connection, decision, kind, now_ns, was_held=stream.is_counted)
            if delay is not None:
                stream.watch_latest(delay, 0)
            stream.is_counted = True
            stream.near_limit = True

    # ---- responses

    def respond(self, responses: Responses, awaited: Awaited, pos: int, end: int, length: int, now_ns: int) -> int:
        throttle_ms = responses.throttle_ms(now_ns)
        if isinstance(awaited, CountedProduce):
            walk = ProduceResponseWalk(awaited.kind.version, length, throttle_ms, counts_errors=True)
            awaited.walk = walk
            return responses.begin_walk(walk, pos, end, length, now_ns)
        assert isinstance(awaited, RequestKind)  # noqa: S101 - for the type checker
        version = awaited.version
        if not throttle_ms and version < FIRST_WITH_NODE_ENDPOINTS:
            return responses.begin(pos, end, length)
        frame_end = pos + 4 + length
        if frame_end > end and length <= _USUAL_RESPONSE:
            responses.want = frame_end - end
            return NEED
        if frame_end <= end and finish_usual_produce_response(responses.buf, pos + 4, frame_end, version, throttle_ms):
            return responses.begin(pos, end, length)
        walk = ProduceResponseWalk(version, length, throttle_ms, counts_errors=False)
        return responses.begin_walk(walk, pos, end, length, now_ns)

    def on_response_end(self, awaited: Awaited, now_ns: int) -> None:
        """Give back the records that the broker refused."""
        if not isinstance(awaited, CountedProduce) or awaited.walk is None:
            return
        refused = awaited.walk.refused_shares()
        registry = self.context.registry
        for usage in awaited.usages:
            share = refused.of(usage.topic)
            name = name_of(self.context, usage.topic) if share else None
            if name is not None:
                record_bytes, messages = int(usage.record_bytes * share), int(usage.messages * share)
                registry.records_refused(name, record_bytes, messages, awaited.charged_ns, now_ns)


def _first_charge(limits: LimitSet, length: int, pos: int, end: int) -> int:
    """Bytes that a held frame of `length` bytes is charged when it passes; the rest is charged as it arrives."""
    return min(length, max(end - pos - 4, longest_charge(limits)))
