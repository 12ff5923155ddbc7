"""CreateTopics, DeleteTopics, CreatePartitions under `controller_mutation_rate` (KIP-599).

Kafka's controller does this topic by topic; here a whole request passes or is refused, before it is forwarded. It is
kept until it is complete, and decided in one step:

    strict      CreateTopics 6+, DeleteTopics 5+, CreatePartitions 3+. A request that finds debt is not forwarded: the
                proxy answers with error 89 for each topic, and the wait. Else it is charged and passes.
    permissive  older versions. All pass and are charged; the response contains the debt that is left, in versions that
                have a throttle time.

No request is held: these are control requests. `protocol.topic_mutations` counts partitions; a deleted topic that no
Metadata response has contained counts 1. What passes is charged, also where the broker then refuses it.
"""

from contextlib import suppress
from typing import final

from protocol.errors import ProtocolError, TooManyItems
from protocol.request_header import unpack_prefix
from protocol.throttle_time import throttle_needs
from protocol.topic_mutations import MAX_ITEMS, MutationRequest, is_strict
from protocol.topics import Topic
from proxy.enforcement.identity import NS_PER_MS, throttle_time_ms
from proxy.enforcement.measures import told_ns
from proxy.enforcement.report import NOTIFY, REJECT, reason_of
from proxy.streams.connection import Connection
from proxy.streams.handlers.forward import MAX_KEPT, MAX_PARTIAL, Forward
from proxy.streams.request import Kind, Requests
from proxy.streams.response_stream import Pending, ResponseStream
from proxy.streams.steps import NEED, PASS


class MutationRequestTooLarge(ProtocolError):
    """A request that creates or deletes so much at once that it cannot be limited."""

    reason = "mutation_request_too_large"

    def __init__(self, api_name: str, length: int) -> None:
        super().__init__(
            f"{api_name} request of {length} bytes: where a controller_mutation_rate applies, {MAX_ITEMS} topics,"
            f" configs and replicas in {MAX_KEPT} bytes are the most, and {MAX_PARTIAL} bytes"
            " while memory is short; ask for fewer topics at once",
            -1,
        )


@final
class ThrottledMutation(Pending):
    """A request in flight with a wait in its response. `until_ns`: when that is over."""

    __slots__ = ("_handler", "_kind", "_until_ns")

    def __init__(self, handler: "Mutations", kind: Kind, until_ns: int) -> None:
        self._handler = handler
        self._kind = kind
        self._until_ns = until_ns

    def respond(self, responses: ResponseStream, pos: int, end: int, length: int, now_ns: int) -> int:
        throttle_ms = self._handler.throttle_ms(responses.connection, self._until_ns, now_ns)
        step = self._handler.raise_throttle_time(responses, self._kind, pos, end, length, now_ns, throttle_ms)
        return responses.begin(pos, end, length) if step == PASS else step


@final
class Mutations(Forward):
    """Decides the whole request, or forwards it where no limit applies."""

    batchable = False

    def admit(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        if not requests.connection.identity.limits.mutations.limits:
            return super().admit(requests, kind, pos, end, now_ns)
        length = unpack_prefix(requests.buf, pos)[0]
        if self.may_keep(pos, end, length):
            whole = requests.whole(pos, end, length)
            if not whole:
                return NEED
            with suppress(TooManyItems):
                request = MutationRequest(kind.api_key, kind.version, whole, kind.header.body_offset - 4)
                return self._decide(requests, kind, request, pos, end, now_ns)
        if self.context.measures.enforces:
            raise MutationRequestTooLarge(kind.header.api.name, length)
        return super().admit(requests, kind, pos, end, now_ns)

    def _decide(self, requests: Requests, kind: Kind, request: MutationRequest, pos: int, end: int, now_ns: int) -> int:
        """Charge the request, and set the wait of its response; or refuse it."""
        connection, measures = requests.connection, self.context.measures
        client, limits = connection.identity.client, connection.identity.limits.mutations
        partitions = request.partitions(self._partitions_of)
        if is_strict(kind.api_key, kind.version):
            decision = limits.admit(partitions, now_ns)
            is_throttled = not decision.admitted
        else:
            decision = limits.charge(partitions, now_ns)
            is_throttled = throttle_needs(kind.header.api, kind.version) > 0
            is_throttled &= not measures.is_untold(connection.identity, decision.limit, decision.wait_ns)
        limit, wait_ns = decision.limit, decision.wait_ns
        if limit is not None:
            wait_ns = told_ns(limit, limit.expected_ns(wait_ns, now_ns))
        is_throttled = is_throttled and limit is not None
        self.count(requests, now_ns, is_counted=is_throttled)
        if limit is None or not is_throttled:
            return requests.forward(kind, kind, pos, end)
        mode = NOTIFY if decision.admitted else REJECT
        measures.report.throttled(client, limit, mode, reason_of(limit), wait_ns, wait_ns, now_ns)
        if not measures.enforces:
            return requests.forward(kind, kind, pos, end)
        if decision.admitted:
            return requests.forward(kind, ThrottledMutation(self, kind, now_ns + wait_ns), pos, end)
        length, _, correlation_id = unpack_prefix(requests.buf, pos)
        answer = request.refusal(correlation_id, self.throttle_ms(connection, now_ns + wait_ns, now_ns))
        requests.responses.answers.add(correlation_id, answer)
        return requests.discard(pos, end, length)

    def _partitions_of(self, topic: Topic) -> int | None:
        name = self.context.topics.name_of(topic)
        return None if name is None else self.context.topics.partitions_of(name)

    def throttle_ms(self, connection: Connection, until_ns: int, now_ns: int) -> int:
        """What a response carries: the wait for mutations or that of `request_rate`, whichever is longer."""
        until_ns = max(until_ns, connection.identity.request_notice.until_ns)
        return throttle_time_ms(until_ns - now_ns, self.context.config.enforcement.max_throttle_ms * NS_PER_MS)
