"""Produce: charged by its length before its first byte is forwarded; held while its limits are in debt.

Topics, records and producer ids are parsed only for clients with a limit on these, and for usage by topic
(`produce_usage`). The response contains the throttle time; node endpoints in it are hidden while it streams by.

A request with a topic that has a limit with `action=reject` is kept until it is complete, and forwarded without the
partitions that are over their limit (`refusals`). Their errors go into the broker's response; where no partition is
left, the proxy answers.
"""

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final, final

from protocol.errors import MalformedFrame
from protocol.produce import FIRST_FLEXIBLE, ProduceResponseWalk, finish_usual_produce_response
from protocol.produce_partitions import ProduceRequest
from protocol.produce_refusals import MAX_HEAD, Refused, add_refused, refused_produce_response
from protocol.produce_walk import ProduceRequestWalk
from protocol.request_header import unpack_prefix
from proxy.streams.connection import Awaited, Collected, Connection, Handler, RequestKind, Requests, Responses, Stream
from proxy.streams.context import Context
from proxy.streams.handlers.data import MOST_DRY_RUN_DEBT_NS, DataHandler, longest_charge
from proxy.streams.memory import READ_SIZE
from proxy.streams.produce_usage import LOOKAHEAD, FirstUsages, ProduceUsage, name_of
from proxy.streams.refusals import Refusals, without_rejecting
from proxy.streams.steps import HOLD, NEED, PASS, REPLACE, WAIT, YIELD
from proxy.streams.verdicts import Verdicts
from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.limit import Limit, Ticket
from quotas.admission.limit_set import LimitSet, charge_all

#: First version with broker addresses in responses (KIP-951).
FIRST_WITH_NODE_ENDPOINTS: Final = 10
#: Longest response that the fast path handles as a whole.
_USUAL_RESPONSE: Final = 512

#: Partitions of a request that one step decides. Each takes 10 to 30 us.
DECIDED_PER_STEP: Final = 100
#: Not a step: see `Produce._admit_whole`.
_UNCOLLECTED: Final = -100

_length = Struct(">i").pack
_correlation_id = Struct(">4xi").unpack_from


@final
class CountedProduce(Awaited):
    """A Produce request in flight. Its response is parsed for errors, since thresholds count accepted records, or
    errors are added to it.

    counted   what was charged; None where no threshold counts it
    refused   the partitions that were taken out of it
    size      bytes, about, by which its response grows: they are kept in memory
    """

    __slots__ = ("charged_ns", "counted", "kind", "refused", "size", "walk")

    def __init__(
        self,
        handler: Handler,
        kind: RequestKind,
        counted: FirstUsages | None,
        now_ns: int,
        refused: Sequence[Refused] = (),
    ) -> None:
        super().__init__(handler)
        self.kind = kind
        self.counted = counted
        self.refused = refused
        self.size = sum(_SIZE_OF_REFUSED + len(each.topic) + len(each.message) for each in refused)
        self.charged_ns = now_ns
        self.walk: ProduceResponseWalk | None = None


#: Bytes of a refused partition in a response, about, without its topic and message.
_SIZE_OF_REFUSED: Final = 40


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
        usage.read(kind.version, kind.header.body_offset, requests.buf, pos, end, length)
        first_byte = requests.buf[pos + kind.header.body_offset]
        if self._refusals.concern(connection, kind, first_byte, length, now_ns):
            step = self._admit_whole(requests, kind, usage, length, pos, end, now_ns)
            if step != _UNCOLLECTED:
                return step
        if requests.holding.reserved:  # while it waited for memory, what it would be collected for has ended
            self.context.memory.release(requests.holding)
        return self._admit_streamed(requests, kind, usage, length, size, now_ns)

    def _admit_streamed(
        self, requests: Requests, kind: RequestKind, usage: ProduceUsage, length: int, size: int, now_ns: int
    ) -> int:
        """Decide about a request that passes as it arrives, by what has been parsed of it."""
        turn = requests.connection.turn
        decision = usage.admit(size, now_ns, None if turn is None else turn.ticket)
        requests.near_limit = usage.fitting < READ_SIZE
        step = self.act(requests, kind, decision, length, usage.amounts, now_ns)
        if not decision.admitted:
            hold = requests.hold
            usage.count_throttled(decision, Ticket() if hold is None else hold.ticket, now_ns)
        if step == HOLD:
            usage.walk = None
            return HOLD
        usage.passed(now_ns, len(requests.connection.in_flight), answered=kind.answered)
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
            not self.context.memory.is_tight or self._refusals.sequences.concerns(identity.client.key)
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

    def _admit_whole(
        self, requests: Requests, kind: RequestKind, usage: ProduceUsage, length: int, pos: int, end: int, now_ns: int
    ) -> int:
        """Decide about a request that may lose partitions, or keep what has arrived of it. `_UNCOLLECTED`: there is no
        memory for that, so it is held as a whole, like one that is too long.
        """
        frame_end = pos + 4 + length
        if frame_end <= end:
            data = bytes(requests.buf[pos + 4 : frame_end])
            request = ProduceRequest(kind.version, data, kind.header.body_offset - 4)
            if request.read(DECIDED_PER_STEP):
                requests.resume_at = frame_end
                return self._decide(requests, kind, usage, request, data, now_ns, is_collected=False)
        holding, memory = requests.holding, self.context.memory
        if not holding.reserved:
            if self._refusals.has_refused(requests.connection, usage):  # those must pass first
                if not memory.reserve(holding, length):
                    return WAIT
            elif requests.connection.turn is not None or not memory.reserve_now(holding, length):
                return _UNCOLLECTED
        return requests.collect(pos, min(end, frame_end - 1), length)

    def admit_collected(self, requests: Requests, kind: RequestKind, collected: Collected, now_ns: int) -> int:
        """Decide about a request that has been collected and parsed. Returns `HOLD`, `REPLACE`, or `YIELD`: the next
        step goes on.
        """
        connection, request = requests.connection, collected.request
        usage = connection.usage
        assert usage is not None  # noqa: S101 - for the type checker: it was there when the collection began
        assert request is not None  # noqa: S101 - for the type checker: it has been parsed
        partitions = request.partitions
        if len(partitions) <= DECIDED_PER_STEP:
            return self._decide(requests, kind, usage, request, collected.data, now_ns, is_collected=True)
        usage.renew()
        verdicts, generation = collected.verdicts, connection.identity.generation
        if verdicts is None or verdicts.generation != generation:
            verdicts = collected.verdicts = Verdicts(generation)
        if verdicts.decided < len(partitions):
            self._refusals.decide(connection, usage, partitions, verdicts, DECIDED_PER_STEP, now_ns)
            self._refusals.refuse(connection, usage, partitions, verdicts, now_ns)
            return YIELD
        return self._forward_rest(requests, kind, usage, request, collected.data, verdicts, now_ns, is_collected=True)

    def _decide(
        self,
        requests: Requests,
        kind: RequestKind,
        usage: ProduceUsage,
        request: ProduceRequest,
        data: bytes | bytearray,
        now_ns: int,
        *,
        is_collected: bool,
    ) -> int:
        """Decide about all partitions of a request, anew after each hold.

        data           its bytes, without the length
        is_collected   False: they are in the read buffer
        """
        usage.renew()
        verdicts = Verdicts(requests.connection.identity.generation)
        self._refusals.decide(requests.connection, usage, request.partitions, verdicts, DECIDED_PER_STEP, now_ns)
        return self._forward_rest(requests, kind, usage, request, data, verdicts, now_ns, is_collected=is_collected)

    def _forward_rest(
        self,
        requests: Requests,
        kind: RequestKind,
        usage: ProduceUsage,
        request: ProduceRequest,
        data: bytes | bytearray,
        verdicts: Verdicts,
        now_ns: int,
        *,
        is_collected: bool,
    ) -> int:
        """Charge what passes of a request whose partitions are decided, and refuse the rest; or hold it."""
        connection, refusals, partitions = requests.connection, self._refusals, request.partitions
        refused = verdicts.refused
        if refused and len(refused) == len(partitions):
            refusals.refuse(connection, usage, partitions, verdicts, now_ns)
            self._answer(requests, kind, _correlation_id(data)[0], verdicts.errors, now_ns)
            return REPLACE
        if verdicts.rest is None:
            verdicts.rest = request.without(refused) if refused else data
        if self._admit_rest(requests, kind, usage, verdicts, len(verdicts.rest), now_ns) == HOLD:
            return HOLD
        usage.passed(now_ns, len(connection.in_flight), answered=True)
        refusals.refuse(connection, usage, partitions, verdicts, now_ns)
        refusals.follow(verdicts, now_ns)
        if refused or usage.counted is not None:
            requests.awaited = awaited = CountedProduce(self, kind, usage.counted, now_ns, verdicts.errors)
            connection.owe(awaited.size)
        if not refused and not is_collected:
            return PASS
        self._forward(requests, kind, _correlation_id(data)[0], verdicts.rest)
        return REPLACE

    def _admit_rest(
        self, requests: Requests, kind: RequestKind, usage: ProduceUsage, verdicts: Verdicts, size: int, now_ns: int
    ) -> int:
        """Ask the limits about what is left of a request, `size` bytes. Returns `PASS` or `HOLD`."""
        turn = requests.connection.turn
        ticket = None if turn is None else turn.ticket
        decision = usage.admit_decided(verdicts.passing, verdicts.amounts, size, now_ns, ticket)
        requests.near_limit = usage.fitting < READ_SIZE
        if decision.exceeded and decision.admitted and (verdicts.refused or verdicts.followed):
            decision = without_rejecting(decision, now_ns)
        step = self.act(requests, kind, decision, size, usage.amounts, now_ns)
        if not decision.admitted:
            usage.count_throttled(decision, Ticket() if requests.hold is None else requests.hold.ticket, now_ns)
        return step

    def _forward(self, requests: Requests, kind: RequestKind, correlation_id: int, rest: bytes | bytearray) -> None:
        """What is left of a request, or all of it where it was collected."""
        connection = requests.connection
        entity = connection.identity.entity
        entity.produce_bytes += len(rest)
        entity.produce_requests += 1
        kind.counter.value += 1
        connection.in_flight.append((correlation_id, requests.awaited or kind))
        requests.awaited = None
        if requests.delay is not None:
            requests.delay_latest(requests.delay)
        requests.output = _length(len(rest)) + rest

    def _answer(
        self, requests: Requests, kind: RequestKind, correlation_id: int, refused: Sequence[Refused], now_ns: int
    ) -> None:
        """No partition of a request is left."""
        connection = requests.connection
        self.count(requests, now_ns)
        answer = refused_produce_response(kind.version, correlation_id, refused, throttle_time_ms=0)
        throttle_at = len(answer) - (1 if kind.version >= FIRST_FLEXIBLE else 0)  # the last field, before the tags
        connection.answer(correlation_id, _length(len(answer)) + answer, throttle_at)
        kind.counter.value += 1
        requests.output = b""

    def on_walked(self, stream: Stream, now_ns: int) -> None:
        walk, usage = stream.walk, stream.connection.usage
        if usage is None or not isinstance(walk, ProduceRequestWalk):
            return
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
        """The response to a request whose errors are counted, or to which errors are added."""
        version, refused = awaited.kind.version, awaited.refused
        first, replaced = b"", 0
        if refused:
            longest = min(length, MAX_HEAD)
            head = bytes(responses.buf[pos + 4 : min(end, pos + 4 + longest)])
            added = add_refused(version, head, refused)
            if added is None:
                if len(head) == longest:
                    raise MalformedFrame("the topics of a response", length)
                return NEED
            first, replaced = added
        counts_errors = awaited.counted is not None
        awaited.walk = walk = ProduceResponseWalk(version, length, throttle_ms, counts_errors=counts_errors)
        passed_to = responses.begin_walk(walk, pos, end, length, now_ns)
        if not refused:
            return passed_to
        responses.connection.owe(-awaited.size)
        rest = responses.buf[pos + 4 + replaced : passed_to]
        responses.output = _length(length + len(first) - replaced) + first + rest
        responses.resume_at = passed_to
        return REPLACE

    def on_response_end(self, awaited: Awaited, now_ns: int) -> None:
        """Return the records that the broker refused. Topics with records that it accepted exist."""
        if not isinstance(awaited, CountedProduce) or awaited.walk is None or awaited.counted is None:
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
