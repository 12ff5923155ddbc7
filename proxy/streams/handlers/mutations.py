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
from proxy.enforcement.report import NOTIFY, REJECT
from proxy.streams.connection import Connection
from proxy.streams.handler import Awaited, Handler, RequestKind, Requests, Responses
from proxy.streams.handlers.forward import MAX_KEPT, MAX_PARTIAL, Forward
from proxy.streams.produce_usage import name_of
from proxy.streams.steps import NEED, PASS, REPLACE


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
class ThrottledMutation(Awaited):
    """A request in flight with a wait in its response. `until_ns`: when that is over."""

    __slots__ = ("kind", "until_ns")

    def __init__(self, handler: Handler, kind: RequestKind, until_ns: int) -> None:
        super().__init__(handler)
        self.kind = kind
        self.until_ns = until_ns


@final
class Mutations(Forward):
    """Decides the whole request, or forwards it where no limit applies."""

    batchable = False

    def admit(self, requests: Requests, kind: RequestKind, pos: int, end: int, now_ns: int) -> int:
        if not requests.connection.identity.limits.mutations.limits:
            self.count(requests, now_ns)
            return PASS
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
        self.count(requests, now_ns)
        return PASS

    def _decide(
        self, requests: Requests, kind: RequestKind, request: MutationRequest, pos: int, end: int, now_ns: int
    ) -> int:
        """Charge the request, and set the wait of its response; or refuse it."""
        connection = requests.connection
        limits = connection.identity.limits.mutations
        partitions = request.partitions(self._partitions_of)
        if is_strict(kind.api_key, kind.version):
            decision = limits.admit(partitions, now_ns)
            is_throttled = not decision.admitted
        else:
            decision = limits.charge(partitions, now_ns)
            is_throttled = decision.limit is not None and throttle_needs(kind.header.api, kind.version) > 0
        self.count(requests, now_ns, is_counted=is_throttled)
        if not is_throttled:
            return PASS
        measures = self.context.measures
        mode = NOTIFY if decision.admitted else REJECT
        until_ns = measures.notice_until_ns(connection.identity.client, decision, mode, now_ns)
        if not measures.enforces:
            return PASS
        if decision.admitted:
            requests.awaited = ThrottledMutation(self, kind, until_ns)
            return PASS
        length, _, correlation_id = unpack_prefix(requests.buf, pos)
        answer = request.refusal(correlation_id, self._throttle_ms(connection, until_ns, now_ns))
        connection.answer(correlation_id, answer)
        requests.drop(pos, end, length)
        return REPLACE

    def _partitions_of(self, topic: Topic) -> int | None:
        name = name_of(self.context, topic)
        return None if name is None else self.context.topics.partitions_of(name)

    def _throttle_ms(self, connection: Connection, until_ns: int, now_ns: int) -> int:
        """What a response carries: the wait for mutations or that of `request_rate`, whichever is longer."""
        until_ns = max(until_ns, connection.identity.request_notice.until_ns)
        return throttle_time_ms(until_ns - now_ns, self.context.config.enforcement.max_throttle_ms * NS_PER_MS)

    def respond(self, responses: Responses, awaited: Awaited, pos: int, end: int, length: int, now_ns: int) -> int:
        if not isinstance(awaited, ThrottledMutation):
            return super().respond(responses, awaited, pos, end, length, now_ns)
        throttle_ms = self._throttle_ms(responses.connection, awaited.until_ns, now_ns)
        step = self.raise_throttle_time(responses, awaited.kind, pos, end, length, now_ns, throttle_ms)
        return responses.begin(pos, end, length) if step == PASS else step
