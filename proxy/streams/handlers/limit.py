"""CreateTopics, DeleteTopics, CreatePartitions under `controller_mutation_rate` (KIP-599), limited topic by topic.

Kafka's controller does this; here it is done before the request is forwarded. The request is kept until it is complete,
and its topics are decided in their order:

    strict      CreateTopics 6+, DeleteTopics 5+, CreatePartitions 3+. A topic that finds debt is refused: cut out of
                the request, and answered with error 89 and the wait. Where no topic is left, the proxy answers.
    permissive  older versions. All topics pass and are charged; the response contains the debt that is left, in
                versions that have a throttle time.

A limit without debt passes a topic with any number of partitions, as Kafka's does. No request is held: these are
control requests. `protocol.topic_mutations` counts partitions; a deleted topic that no Metadata response has
contained counts 1. What passes is charged, also where the broker then refuses it.
"""

from collections.abc import Collection
from struct import Struct
from typing import Final, final

from protocol.errors import MalformedFrame, ProtocolError
from protocol.mutation_responses import MutationResponseHead, refused_response
from protocol.request_header import unpack_prefix
from protocol.topic_mutations import Mutation, MutationRequest, is_strict
from protocol.topics import Topic
from proxy.enforcement.identity import throttle_time_ms
from proxy.enforcement.report import NOTIFY, REJECT
from proxy.streams.connection import Awaited, Connection, Handler, RequestKind, Requests, Responses
from proxy.streams.handlers.forward import Forward
from proxy.streams.steps import NEED, PASS, PIECES_PER_STEP, REPLACE, YIELD
from quotas.admission.decision import ADMITTED, Decision

#: The request is kept until it is complete, and its topics are charged and refused in one step.
MAX_REQUEST_LENGTH: Final = 131_072
MAX_REQUEST_TOPICS: Final = 3_000
#: The same for a request that has not arrived whole while half of the memory is used by such requests and held frames:
#: incomplete requests must not block their own rest.
MAX_PARTIAL_REQUEST_LENGTH: Final = 4_096
#: More than the bytes of a response up to the count of its results.
RESPONSE_HEAD: Final = 1_024
NS_PER_MS: Final = 1_000_000

_length = Struct(">i").pack


class MutationRequestTooLarge(ProtocolError):
    """A request that creates or deletes so much at once that it cannot be limited."""

    reason = "mutation_request_too_large"

    def __init__(self, api_name: str, length: int, limit: int) -> None:
        why = "" if limit == MAX_REQUEST_LENGTH else " while memory is short"
        super().__init__(
            f"{api_name} request of {length} bytes: where a controller_mutation_rate applies {limit} bytes and"
            f" {MAX_REQUEST_TOPICS} topics are the most{why}; ask for fewer topics at once",
            -1,
        )
        self.api_name = api_name
        self.length = length
        self.limit = limit


@final
class LimitedMutation(Awaited):
    """A request in flight with refused topics, or with a wait for its response.

    refused    topics that were cut out of it
    until_ns   when its client may ask again; 0: no wait
    size       bytes, about, by which its response grows: they are kept in memory
    """

    __slots__ = ("kind", "refused", "size", "until_ns")

    def __init__(
        self, handler: Handler, kind: RequestKind, refused: Collection[Topic], until_ns: int, size: int
    ) -> None:
        super().__init__(handler)
        self.kind = kind
        self.refused = refused
        self.until_ns = until_ns
        self.size = size


@final
class Limit(Forward):
    """See the module."""

    __slots__ = ()

    def batches(self, kind: RequestKind) -> bool:
        return False

    # ---- requests

    def admit(self, requests: Requests, kind: RequestKind, pos: int, end: int, now_ns: int) -> int:
        connection = requests.connection
        limits = connection.identity.limits
        length, _, correlation_id = unpack_prefix(requests.buf, pos)
        frame_end = pos + 4 + length
        if not limits.mutations.limits or not self._is_limited(kind, length, is_whole=frame_end <= end):
            connection.mutation = None  # the limit may have been removed while the request was read
            self.count(requests, now_ns)
            return PASS
        if frame_end > end:
            requests.want = frame_end - end
            return NEED
        request = connection.mutation
        if request is None:
            whole = bytes(requests.buf[pos + 4 : frame_end])
            request = MutationRequest(kind.api_key, kind.version, whole, kind.header.body_offset - 4)
            connection.mutation = request
        if not request.read(PIECES_PER_STEP):
            return YIELD
        connection.mutation = None
        if request.topics > MAX_REQUEST_TOPICS and self.context.measures.enforces:
            raise MutationRequestTooLarge(kind.header.api.name, length, MAX_REQUEST_LENGTH)
        return self._limit(requests, kind, request, correlation_id, length, pos, now_ns)

    def _is_limited(self, kind: RequestKind, length: int, *, is_whole: bool) -> bool:
        """Whether a request of `length` bytes is limited; in a dry run one that is too long passes unparsed."""
        limit = MAX_REQUEST_LENGTH
        if self.context.memory.keeps_much and not is_whole:
            limit = MAX_PARTIAL_REQUEST_LENGTH
        if length <= limit:
            return True
        if self.context.measures.enforces:
            raise MutationRequestTooLarge(kind.header.api.name, length, limit)
        return False

    def _limit(
        self,
        requests: Requests,
        kind: RequestKind,
        request: MutationRequest,
        correlation_id: int,
        length: int,
        pos: int,
        now_ns: int,
    ) -> int:
        """Charge what passes; refuse the rest, or set the wait of the response."""
        connection = requests.connection
        mutations = request.mutations(self._partitions_of)
        passed, decision = self._ask(connection, kind, mutations, now_ns)
        self.count(requests, now_ns, is_counted=decision is not ADMITTED)
        if decision is ADMITTED:
            return PASS
        client, measures = connection.identity.client, self.context.measures
        is_refused = passed < len(mutations)
        until_ns = measures.notice_until_ns(client, decision, REJECT if is_refused else NOTIFY, now_ns)
        if not measures.enforces:
            return PASS
        refused = tuple(mutation.topic for mutation in mutations[passed:])
        if not is_refused:
            requests.awaited = LimitedMutation(self, kind, refused, until_ns, 0)
            return PASS
        frame_end = pos + 4 + length
        if passed:
            rest = request.without(frozenset(refused))
            requests.output = _length(len(rest)) + rest
            connection.owe(length)
            connection.in_flight.append((correlation_id, LimitedMutation(self, kind, refused, until_ns, length)))
        else:
            throttle_ms = self._throttle_ms(connection, until_ns, now_ns)
            answer = refused_response(kind.api_key, kind.version, correlation_id, refused, throttle_ms)
            connection.answer(correlation_id, _length(len(answer)) + answer)
            requests.output = b""
        kind.counter.value += 1
        requests.resume_at = frame_end
        return REPLACE

    def _ask(
        self, connection: Connection, kind: RequestKind, mutations: list[Mutation], now_ns: int
    ) -> tuple[int, Decision]:
        """The number of topics that pass, which have been charged, and the decision about the others or the debt."""
        limits = connection.identity.limits.mutations
        if not is_strict(kind.api_key, kind.version):
            if not mutations:
                return 0, ADMITTED
            decision = limits.charge(sum(mutation.partitions for mutation in mutations), now_ns)
            throttle_from = kind.header.api.throttle_from
            told = throttle_from is not None and kind.version >= throttle_from
            return len(mutations), decision if told else ADMITTED
        for passed, mutation in enumerate(mutations):
            decision = limits.admit(mutation.partitions, now_ns)
            if not decision.admitted:  # the following topics find the same debt
                return passed, decision
        return len(mutations), ADMITTED

    def _partitions_of(self, topic: Topic) -> int | None:
        topics = self.context.topics
        name = topic if isinstance(topic, str) else topics.name_of(topic)
        return None if name is None else topics.partitions_of(name)

    def _throttle_ms(self, connection: Connection, until_ns: int, now_ns: int) -> int:
        """What a response carries: the wait for mutations or that of `request_rate`, whichever is longer."""
        until_ns = max(until_ns, connection.identity.request_notice.until_ns)
        return throttle_time_ms(until_ns - now_ns, self.context.config.enforcement.max_throttle_ms * NS_PER_MS)

    # ---- responses

    def respond(self, responses: Responses, awaited: Awaited, pos: int, end: int, length: int, now_ns: int) -> int:
        if not isinstance(awaited, LimitedMutation):
            return super().respond(responses, awaited, pos, end, length, now_ns)
        kind = awaited.kind
        throttle_ms = self._throttle_ms(responses.connection, awaited.until_ns, now_ns)
        head = MutationResponseHead(kind.api_key, kind.version, awaited.refused, throttle_ms)
        at_hand = min(end - pos - 4, length, RESPONSE_HEAD)
        rewritten = head.rewrite(bytes(responses.buf[pos + 4 : pos + 4 + at_hand]))
        if rewritten is None:
            if at_hand == min(length, RESPONSE_HEAD):
                raise MalformedFrame("the results of a response", length)
            return NEED
        first, replaced = rewritten
        responses.connection.owe(-awaited.size)
        return responses.begin_replaced(first, replaced, pos, length)
