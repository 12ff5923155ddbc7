"""Produce: charged by its length as its bytes are forwarded; held while its limits are in debt.

Topics, records and producer ids are parsed only for clients with a limit on these, and for usage by topic
(`produce_usage`). The response contains the throttle time; node endpoints in it are hidden while it streams by.

A request of which every topic is over a limit with `action=reject` is dropped, and answered by the proxy (`refusals`).
"""

from collections.abc import Mapping
from typing import Final, final

from protocol.produce import ProduceResponseWalk, finish_usual_produce_response
from protocol.produce_walk import ProduceRequestWalk
from protocol.request_header import unpack_prefix
from proxy.enforcement.data_frame import DataFrame
from proxy.streams.connection import Connection, Stream
from proxy.streams.context import Context
from proxy.streams.handler import Awaited, Handler, RequestKind, Requests, Responses
from proxy.streams.handlers.data import MOST_DRY_RUN_DEBT_NS, DataHandler
from proxy.streams.memory import READ_SIZE
from proxy.streams.produce_usage import LOOKAHEAD, FirstUsages, ProduceUsage, Refusal, name_of
from proxy.streams.refusals import Refusals
from proxy.streams.steps import HOLD, NEED, PASS, REPLACE
from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.limit import Limit, Ticket
from quotas.admission.limit_set import admit_all, admit_part, charge_all, charge_producer_ids, debt_of
from quotas.admission.passage import Passage
from quotas.admission.topic_thresholds import count_throttled
from quotas.algorithms.algorithm import UNLIMITED

#: First version with broker addresses in responses (KIP-951).
FIRST_WITH_NODE_ENDPOINTS: Final = 10
#: Longest response that the fast path handles as a whole.
_USUAL_RESPONSE: Final = 512


@final
class CountedProduce(Awaited):
    """A Produce request in flight whose response is parsed for errors, since thresholds count accepted records.

    counted   its topics and their records
    """

    __slots__ = ("counted", "kind", "walk")

    def __init__(self, handler: Handler, kind: RequestKind, counted: FirstUsages) -> None:
        super().__init__(handler)
        self.kind = kind
        self.counted = counted
        self.walk: ProduceResponseWalk | None = None


@final
class Produce(DataHandler):
    """Charges, holds and refuses Produce requests."""

    __slots__ = ("_refusals",)

    batchable = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._refusals = Refusals(context)

    # ---- requests

    def admit(self, requests: Requests, kind: RequestKind, pos: int, end: int, now_ns: int) -> int:
        connection = requests.connection
        limits = connection.identity.limits
        length = unpack_prefix(requests.buf, pos)[0]
        arrived = min(length, end - pos - 4)
        if not limits.walks:
            return self._decide(requests, kind, limits.amounts(length, 1), length, arrived, now_ns)
        ahead = min(length, LOOKAHEAD) - arrived
        if ahead > 0 and self._looks_ahead(connection):
            requests.want = ahead if requests.near_limit else requests.full_read
            return NEED
        usage = connection.usage
        if usage is None:
            usage = connection.usage = ProduceUsage(self.context, connection.identity)
        body_offset = kind.header.body_offset
        lists = self._refusals.lists_partitions(connection, usage, kind)
        usage.read(kind.version, body_offset, requests.buf, pos, end, length, lists_partitions=lists)
        if lists:
            refusal = self._refusals.refusal(connection, usage, now_ns)
            if refusal is not None:
                return self._refuse(requests, kind, usage, refusal, length, pos, now_ns)
        return self._admit_read(requests, kind, usage, length, pos, now_ns)

    def _admit_read(
        self, requests: Requests, kind: RequestKind, usage: ProduceUsage, length: int, pos: int, now_ns: int
    ) -> int:
        """Decide about a request by what has been read of it."""
        connection, walk = requests.connection, usage.walk
        arrived = length if walk is None else usage.walked_to - pos - 4
        step = self._decide(requests, kind, usage.charges(length, now_ns), length, arrived, now_ns)
        if step == HOLD:
            usage.walk = None
            return HOLD
        usage.passed(now_ns, len(connection.in_flight), answered=kind.answered)
        if usage.lists_partitions:
            self._refusals.follow(usage, now_ns)
        requests.walk = walk
        requests.walked_to = usage.walked_to
        if usage.counted is not None and kind.answered:
            requests.awaited = CountedProduce(self, kind, usage.counted)
        return PASS

    def _decide(
        self,
        requests: Requests,
        kind: RequestKind,
        amounts: Mapping[Limit, int],
        length: int,
        arrived: int,
        now_ns: int,
    ) -> int:
        """Ask the limits; charge what has arrived and reserve the rest, or hold the request.

        Returns `PASS` or `HOLD`.
        """
        connection = requests.connection
        frame = connection.frame
        ticket = None if frame is None else frame.ticket
        passage: Passage | None = None
        if arrived == length:
            decision = admit_all(amounts, now_ns, ticket)
        else:
            decision, passage = admit_part(amounts, length, arrived, now_ns, ticket)
        if not decision.admitted:
            if self._refused(requests, kind, decision, amounts, length, now_ns):
                return HOLD
            passage = self._pass_in_debt(decision, amounts, length, arrived, now_ns)
        elif decision is not ADMITTED:
            self.leaves_debt(requests, kind, self._in_response(connection, decision, now_ns), now_ns)
        requests.near_limit = decision is not ADMITTED or _fitting(amounts, length, now_ns) < READ_SIZE
        entity = connection.identity.entity
        entity.produce_bytes += arrived
        entity.produce_requests += 1
        if passage is not None:
            if frame is None:
                frame = connection.frame = DataFrame(length, answered=kind.answered)
            self.passes(frame, passage, now_ns)
        return PASS

    def _refused(
        self,
        requests: Requests,
        kind: RequestKind,
        decision: Decision,
        amounts: Mapping[Limit, int],
        length: int,
        now_ns: int,
    ) -> bool:
        """A request finds debt. Returns whether it is held."""
        connection = requests.connection
        usage = connection.usage if connection.identity.limits.walks else None
        if usage is not None:
            decision = usage.with_topics(decision, now_ns)
        units = length if decision.limit is None else amounts[decision.limit]
        is_held = self.is_held(requests, kind, decision, length, units, now_ns)
        if usage is not None:
            ticket = Ticket() if connection.frame is None else connection.frame.ticket
            count_throttled(amounts, decision, ticket, now_ns)
        return is_held

    def _in_response(self, connection: Connection, decision: Decision, now_ns: int) -> Decision:
        """The debt that the response of a request contains: without that of limits that would refuse it."""
        usage = connection.usage
        if usage is None or not usage.lists_partitions or not connection.identity.limits.walks:
            return decision
        return debt_of([limit for limit in decision.exceeded if not limit.rejects], now_ns)

    def _pass_in_debt(
        self, decision: Decision, amounts: Mapping[Limit, int], length: int, arrived: int, now_ns: int
    ) -> Passage | None:
        """A dry run forwards a request that finds debt. It is charged, so that the debt is that of an enforced limit
        whose client sends the same at the same times.
        """
        if decision.wait_ns >= MOST_DRY_RUN_DEBT_NS:
            return None
        if arrived == length:
            charge_all(amounts, now_ns)
            return None
        passage = Passage(charge_producer_ids(amounts, now_ns), length)
        passage.passed(arrived, now_ns)
        return passage

    def _looks_ahead(self, connection: Connection) -> bool:
        """Whether a decision waits for the bytes that it uses. Not while memory is tight: bytes kept for it would block
        others. Producers with refused batches are an exception: their order depends on the producer id.
        """
        usage = connection.usage
        if usage is not None and usage.refused.entries:
            return True
        return connection.identity.limits.counts_records and not self.context.memory.is_tight

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
        self.count(requests, now_ns)
        usage.refusal = refusal
        refusal.version, refusal.correlation_id = kind.version, unpack_prefix(requests.buf, pos)[2]
        requests.drop(pos, usage.walked_to, length, usage.walk)
        self._refusals.add(requests.connection, usage, refusal, now_ns)
        return REPLACE

    def on_walked(self, stream: Stream, now_ns: int) -> None:
        walk, usage, connection = stream.walk, stream.connection.usage, stream.connection
        if usage is None or not isinstance(walk, ProduceRequestWalk):
            return
        if usage.refusal is not None:
            self._refusals.add(connection, usage, usage.refusal, now_ns)
            return
        if usage.lists_partitions:
            self._refusals.follow(usage, now_ns)
        seen = walk.take()
        if not seen:
            return
        amounts = usage.charges_late(seen, now_ns)
        if connection.frame is not None:
            connection.frame.add(charge_producer_ids(amounts, now_ns), now_ns)
        else:
            charge_all(amounts, now_ns)
        decision = debt_of(amounts, now_ns)
        if decision is ADMITTED:
            return
        usage.keep_late(decision.exceeded)
        assert isinstance(stream, Requests)  # noqa: S101 - for the type checker: the walk is over a request
        kind = stream.kind
        if kind is not None:
            self.leaves_debt(stream, kind, decision, now_ns)
            if stream.delay is not None:
                stream.delay_latest(stream.delay)

    # ---- responses

    def respond(self, responses: Responses, awaited: Awaited, pos: int, end: int, length: int, now_ns: int) -> int:
        throttle_ms = responses.throttle_ms(now_ns)
        if isinstance(awaited, CountedProduce):
            awaited.walk = walk = ProduceResponseWalk(awaited.kind.version, length, throttle_ms, counts_errors=True)
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
        """Record what the broker accepted, and what it refused. Topics with records that it accepted exist."""
        if not isinstance(awaited, CountedProduce) or awaited.walk is None:
            return
        refused = awaited.walk.refused_shares()
        registry = self.context.registry
        for usage in awaited.counted.usages:
            share = refused.get(usage.topic, 0)
            name = name_of(self.context, usage.topic)
            if name is None:
                continue
            if share < 1 and usage.topic in refused:
                registry.topics.confirm(name)
            record_bytes, messages = int(usage.record_bytes * share), int(usage.messages * share)
            if share:
                registry.topics.refused(name, record_bytes, messages, now_ns)
            registry.topics.accepted(name, usage.record_bytes - record_bytes, usage.messages - messages, now_ns)


def _fitting(amounts: Mapping[Limit, int], length: int, now_ns: int) -> int:
    """Bytes of such requests that fit before a limit is in debt."""
    return min(
        (limit.headroom(now_ns) * length // amount for limit, amount in amounts.items() if amount), default=UNLIMITED
    )
