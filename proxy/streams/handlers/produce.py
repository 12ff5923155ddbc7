"""Produce: charged by its length before its first byte is forwarded; held while its limits are in debt.

Topics, records and producer ids are parsed only for clients with a limit on these, and for usage by topic
(`produce_usage`). The response contains the throttle time; node endpoints in it are hidden while it streams by.

A request of which every topic is over a limit with `action=reject` is dropped, and answered by the proxy (`refusals`).
"""

from collections.abc import Mapping
from struct import Struct
from typing import Final, final

from protocol.produce import FIRST_FLEXIBLE, ProduceResponseWalk, finish_usual_produce_response
from protocol.produce_refusals import refused_produce_response
from protocol.produce_walk import ProduceRequestWalk
from protocol.request_header import unpack_prefix
from proxy.streams.connection import Awaited, Connection, Handler, RequestKind, Requests, Responses, Stream
from proxy.streams.context import Context
from proxy.streams.handlers.data import MOST_DRY_RUN_DEBT_NS, DataHandler, longest_charge
from proxy.streams.memory import READ_SIZE
from proxy.streams.produce_usage import LOOKAHEAD, FirstUsages, ProduceUsage, Refusal, name_of
from proxy.streams.refusals import Refusals, without_rejecting
from proxy.streams.steps import HOLD, NEED, PASS, REPLACE
from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.limit import Limit, Ticket
from quotas.admission.limit_set import LimitSet, charge_all

#: First version with broker addresses in responses (KIP-951).
FIRST_WITH_NODE_ENDPOINTS: Final = 10
#: Longest response that the fast path handles as a whole.
_USUAL_RESPONSE: Final = 512

_length = Struct(">i").pack


@final
class CountedProduce(Awaited):
    """A Produce request in flight whose response is parsed for errors, since thresholds count accepted records.

    counted   what was charged
    """

    __slots__ = ("charged_ns", "counted", "kind", "walk")

    def __init__(self, handler: Handler, kind: RequestKind, counted: FirstUsages, now_ns: int) -> None:
        super().__init__(handler)
        self.kind = kind
        self.counted = counted
        self.charged_ns = now_ns
        self.walk: ProduceResponseWalk | None = None


@final
class Produce(DataHandler):
    """See the module."""

    __slots__ = ("_refusals",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._refusals = Refusals(context)

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
            entity.produce_requests += 1
        elif requests.hold is not None and requests.hold.limit in produce.limits:
            requests.hold.units = _first_charge(produce, length, pos, end)
        return step

    def _admit_read(
        self, requests: Requests, kind: RequestKind, length: int, size: int, pos: int, end: int, now_ns: int
    ) -> int:
        """Decide about a request that is parsed for its topics, records and producer ids.

        size   bytes of it that are charged now
        """
        connection = requests.connection
        ahead = min(4 + length, LOOKAHEAD) - (end - pos)
        if ahead > 0 and self._looks_ahead(connection):
            requests.want = ahead if requests.near_limit else requests.full_read
            return NEED
        usage = connection.usage
        if usage is None:
            usage = connection.usage = ProduceUsage(self.context, connection.identity)
        body_offset = kind.header.body_offset
        lists = self._refusals.lists_partitions(connection, kind, requests.buf[pos + body_offset])
        usage.read(kind.version, body_offset, requests.buf, pos, end, length, lists_partitions=lists)
        if lists:
            refusal = self._refusals.refusal(connection, usage, now_ns)
            if refusal is not None:
                return self._refuse(requests, kind, usage, refusal, length, pos, now_ns)
        return self._admit_streamed(requests, kind, usage, length, size, now_ns)

    def _admit_streamed(
        self, requests: Requests, kind: RequestKind, usage: ProduceUsage, length: int, size: int, now_ns: int
    ) -> int:
        """Decide about a request that passes as it arrives, by what has been parsed of it."""
        turn = requests.connection.turn
        decision = usage.admit(size, now_ns, None if turn is None else turn.ticket)
        requests.near_limit = usage.fitting < READ_SIZE
        if usage.lists_partitions and decision.admitted and decision.exceeded:
            decision = without_rejecting(decision, now_ns)
        step = self.act(requests, kind, decision, length, usage.amounts, now_ns)
        if not decision.admitted:
            hold = requests.hold
            usage.count_throttled(decision, Ticket() if hold is None else hold.ticket, now_ns)
        if step == HOLD:
            usage.walk = None
            return HOLD
        usage.passed(now_ns, len(requests.connection.in_flight), answered=kind.answered)
        if usage.lists_partitions:
            self._refusals.follow(requests.connection, usage, now_ns)
        requests.walk = usage.walk
        requests.walked_to = usage.walked_to
        if usage.counted is not None:
            requests.awaited = CountedProduce(self, kind, usage.counted, now_ns)
        return PASS

    def _looks_ahead(self, connection: Connection) -> bool:
        """Whether a decision waits for the bytes that it uses. Not while memory is tight: bytes kept for it would block
        others. Producers with refused batches are an exception: their order depends on the producer id.
        """
        identity = connection.identity
        return identity.limits.counts_records and (
            not self.context.memory.is_tight or self.context.registry.refused.concerns(identity.client.key)
        )

    def exceeds(self, requests: Requests, limit: Limit, size: int) -> None:
        self.context.measures.report.exceeded(requests.connection.identity.client, limit, size)

    def pass_in_debt(
        self, requests: Requests, decision: Decision, size: int, amounts: Mapping[Limit, int] | None, now_ns: int
    ) -> None:
        """Charge it, so that the debt is that of an enforced limit whose client sends the same at the same times."""
        if decision.wait_ns < MOST_DRY_RUN_DEBT_NS:
            requests.is_charged = True
            produce = requests.connection.identity.limits.produce
            charge_all(dict.fromkeys(produce.limits, size) if amounts is None else amounts, now_ns)

    def _refuse(
        self,
        requests: Requests,
        kind: RequestKind,
        usage: ProduceUsage,
        refusal: Refusal,
        length: int,
        pos: int,
        now_ns: int,
    ) -> int:
        """Drop a request; it is answered when its end has arrived."""
        connection = requests.connection
        self.count(requests, now_ns)
        usage.refusal = refusal
        refusal.correlation_id = unpack_prefix(requests.buf, pos)[2]
        self._refusals.add(connection, usage, refusal, now_ns)
        walk = usage.walk
        if walk is None:
            requests.drop(pos, usage.walked_to, length)
            self._answer(connection, kind, usage)
        else:
            requests.drop_walked(walk, pos, usage.walked_to, length)
        return REPLACE

    def on_dropped(self, requests: Requests, kind: RequestKind, now_ns: int) -> None:
        usage = requests.connection.usage
        if usage is not None:
            self._answer(requests.connection, kind, usage)

    def _answer(self, connection: Connection, kind: RequestKind, usage: ProduceUsage) -> None:
        """All partitions of a refused request have been found."""
        refusal, usage.refusal = usage.refusal, None
        if refusal is None:
            return
        answer = refused_produce_response(kind.version, refusal.correlation_id, refusal.errors, throttle_time_ms=0)
        throttle_at = len(answer) - (1 if kind.version >= FIRST_FLEXIBLE else 0)  # the last field, before the tags
        connection.answer(refusal.correlation_id, _length(len(answer)) + answer, throttle_at)

    def on_walked(self, stream: Stream, now_ns: int) -> None:
        walk, usage = stream.walk, stream.connection.usage
        if usage is None or not isinstance(walk, ProduceRequestWalk):
            return
        if usage.refusal is not None:
            self._refusals.add(stream.connection, usage, usage.refusal, now_ns)
            return
        if usage.lists_partitions:
            self._refusals.follow(stream.connection, usage, now_ns)
        seen = walk.take()
        if not seen:
            return
        decision = usage.charge_late(seen, now_ns)
        assert isinstance(stream, Requests)  # noqa: S101 - for the type checker: the walk is over a request
        assert isinstance(stream.current, RequestKind)  # noqa: S101 - for the type checker
        self.on_late(stream, stream.current, decision, now_ns)
        stream.note_charge(now_ns)

    def on_late(self, requests: Requests, kind: RequestKind, decision: Decision, now_ns: int) -> None:
        """Records have been charged after the request passed."""
        if decision is ADMITTED:
            return
        delay = self.leave_debt(requests.connection, decision, kind, now_ns, was_held=requests.is_counted)
        if delay is not None:
            requests.delay_latest(delay)
        requests.is_counted = True
        requests.near_limit = True

    # ---- responses

    def respond(self, responses: Responses, awaited: Awaited, pos: int, end: int, length: int, now_ns: int) -> int:
        throttle_ms = responses.throttle_ms(now_ns)
        if isinstance(awaited, CountedProduce):
            return self._respond_counted(responses, awaited, pos, end, length, throttle_ms, now_ns)
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

    def _respond_counted(
        self,
        responses: Responses,
        awaited: CountedProduce,
        pos: int,
        end: int,
        length: int,
        throttle_ms: int,
        now_ns: int,
    ) -> int:
        """The response to a request whose errors are counted."""
        awaited.walk = walk = ProduceResponseWalk(awaited.kind.version, length, throttle_ms, counts_errors=True)
        return responses.begin_walk(walk, pos, end, length, now_ns)

    def on_response_end(self, awaited: Awaited, now_ns: int) -> None:
        """Return the records that the broker refused. Topics with records that it accepted exist."""
        if not isinstance(awaited, CountedProduce) or awaited.walk is None:
            return
        refused = awaited.walk.refused_shares()
        registry = self.context.registry
        for usage in awaited.counted.usages:
            share = refused.of(usage.topic)
            name = name_of(self.context, usage.topic)
            if name is None:
                continue
            if share < 1 and usage.topic in refused.seen:
                registry.topic_exists(name)
            if share:
                record_bytes, messages = int(usage.record_bytes * share), int(usage.messages * share)
                registry.records_refused(name, record_bytes, messages, awaited.charged_ns, now_ns)


def _first_charge(limits: LimitSet, length: int, pos: int, end: int) -> int:
    """Bytes that a held frame of `length` bytes is charged when it passes; the rest is charged as it arrives."""
    return min(length, max(end - pos - 4, longest_charge(limits)))
