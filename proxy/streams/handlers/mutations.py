"""CreateTopics, DeleteTopics, CreatePartitions under `controller_mutation_rate` (KIP-599).

Kafka's controller decides topic by topic. Here, a request passes or is refused as a whole, before it is forwarded. It
is kept until it is complete, and decided in one step:

    strict      CreateTopics 6+, DeleteTopics 5+, CreatePartitions 3+. A request that finds debt is not forwarded: the
                proxy answers with error 89 for each topic, and the wait. Otherwise it is charged and passes.
    permissive  older versions. All requests pass and are charged. In versions with a throttle time, the response
                contains the debt that is left.

No request is held, because these are control requests. `protocol.topic_mutations` counts partitions; a deleted topic
that no Metadata response has contained counts as 1. Requests that pass are charged even if the broker refuses them.
"""

from contextlib import suppress
from typing import final

from protocol.errors import ProtocolError, TooManyItems
from protocol.request_header import unpack_prefix
from protocol.throttle_time import throttle_needs
from protocol.topic_mutations import MAX_ITEMS, MutationRequest, is_strict
from protocol.topics import Topic
from proxy.enforcement.identity import throttle_time_ms
from proxy.enforcement.report import NOTIFY, REJECT, reason_of
from proxy.enforcement.throttle_actions import notified_ns
from proxy.streams.connection import Connection
from proxy.streams.handlers.forward import MAX_KEPT, MAX_PARTIAL, Forward
from proxy.streams.pending import Pending, Responses
from proxy.streams.request import Kind, Requests
from proxy.streams.steps import NEED, PASS
from quotas.admission.frame import worst_debt
from quotas.time_units import NS_PER_MS


class MutationRequestTooLarge(ProtocolError):
    """A request that creates or deletes so many topics at once that it cannot be limited."""

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
    """A request in flight whose response will contain a wait. `until_ns`: when the wait ends."""

    __slots__ = ("_handler", "_kind", "_until_ns")

    def __init__(self, handler: "Mutations", kind: Kind, until_ns: int) -> None:
        self._handler = handler
        self._kind = kind
        self._until_ns = until_ns

    def respond(self, responses: Responses, pos: int, end: int, length: int, now_ns: int) -> int:
        throttle_ms = self._handler.throttle_ms(responses.connection, self._until_ns, now_ns)
        step = self._handler.raise_throttle_time(responses, self._kind, pos, end, length, now_ns, throttle_ms)
        return responses.forward(pos, end, length) if step == PASS else step


@final
class Mutations(Forward):
    """Decides about whole requests, or forwards them if no limit applies."""

    batchable = False

    def on_request(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        if not requests.connection.identity.limits.mutations.limits:
            return super().on_request(requests, kind, pos, end, now_ns)
        length = unpack_prefix(requests.buf, pos)[0]
        if self.may_keep(pos, end, length):
            whole = requests.whole(pos, end, length)
            if not whole:
                return NEED
            with suppress(TooManyItems):
                request = MutationRequest(kind.api_key, kind.version, whole, kind.header.body_offset - 4)
                return self._decide(requests, kind, request, pos, end, now_ns)
        if self.context.actions.enforces:
            raise MutationRequestTooLarge(kind.header.api.name, length)
        return super().on_request(requests, kind, pos, end, now_ns)

    def _decide(self, requests: Requests, kind: Kind, request: MutationRequest, pos: int, end: int, now_ns: int) -> int:
        """Charge the request and set the wait in its response, or refuse it."""
        connection, actions = requests.connection, self.context.actions
        client, limits = connection.identity.client, connection.identity.limits.mutations
        partitions = request.partitions(self._partitions_of)
        if is_strict(kind.api_key, kind.version):
            wait_ns, limit = worst_debt(limits.limits, now_ns)
            is_refused = is_throttled = limit is not None
            if not is_refused:
                limits.charge(partitions, now_ns)
        else:
            wait_ns, limit = limits.charge(partitions, now_ns)
            is_refused = False
            is_throttled = throttle_needs(kind.header.api, kind.version) > 0
            is_throttled &= not actions.must_not_notify(connection.identity, limit, wait_ns)
        if limit is not None:
            wait_ns = notified_ns(limit, limit.expected_ns(wait_ns, now_ns))
        is_throttled = is_throttled and limit is not None
        self.count(requests, now_ns, is_counted=is_throttled)
        if limit is None or not is_throttled:
            return requests.forward(kind, kind, pos, end)
        mode = REJECT if is_refused else NOTIFY
        actions.report.throttled(client, limit, mode, reason_of(limit), wait_ns, wait_ns, now_ns)
        if not actions.enforces:
            return requests.forward(kind, kind, pos, end)
        if not is_refused:
            return requests.forward(kind, ThrottledMutation(self, kind, now_ns + wait_ns), pos, end)
        length, _, correlation_id = unpack_prefix(requests.buf, pos)
        answer = request.refusal(correlation_id, self.throttle_ms(connection, now_ns + wait_ns, now_ns))
        requests.responses.answers.add(correlation_id, answer)
        return requests.discard(pos, end, length)

    def _partitions_of(self, topic: Topic) -> int | None:
        name = self.context.topics.name_of(topic)
        return None if name is None else self.context.topics.partitions_of(name)

    def throttle_ms(self, connection: Connection, until_ns: int, now_ns: int) -> int:
        """The throttle time of a response: the wait for mutations or for `request_rate`, whichever is longer."""
        until_ns = max(until_ns, connection.identity.request_notice.until_ns)
        return throttle_time_ms(until_ns - now_ns, self.context.config.enforcement.max_throttle_ms * NS_PER_MS)
