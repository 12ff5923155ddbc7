"""`controller_mutation_rate` (KIP-599): requests that create or delete partitions, limited topic by topic.

Kafka's controller does it; here it is done before the request leaves. A CreateTopics, DeleteTopics or CreatePartitions
request is held back until it is whole, and its topics are asked for in their order:

    strict      CreateTopics 6+, DeleteTopics 5+, CreatePartitions 3+. A topic that finds debt is refused: taken out of
                the request, and answered with error 89 and the wait. Where nothing is left the proxy answers itself.
    permissive  older versions. Everything passes and is charged; the response tells the debt that is left, in versions
                that have a throttle time.

A limit without debt lets a topic pass whatever it asks for, as Kafka's does. Nothing is held: these are control
requests. How partitions are counted is said in protocol/topic_mutations.py; a topic of which no Metadata response has
told anything counts 1 when it is deleted. What passes is charged, also where the broker then refuses it.
"""

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from protocol.errors import ProtocolError
from protocol.topic_mutations import (
    MutationRequest,
    is_strict,
    merged_response,
    refused_response,
    throttled_response,
)
from protocol.topics import Topic
from proxy.sessions.buffers import READ_SIZE
from proxy.sessions.request_kind import RequestKind
from proxy.sessions.topics import Topics
from quotas.admission.decision import ADMITTED

if TYPE_CHECKING:
    from proxy.sessions.session import Session

#: Some 3,000 topics; they are decoded at one go, which takes the loop up to 0.1 ms each.
MAX_REQUEST_LENGTH = 131_072
#: While memory is short, for one that has not come as a whole: half requests must not keep out what completes them.
MAX_PARTIAL_REQUEST_LENGTH = 4_096


class MutationRequestTooLarge(ProtocolError):
    """A request that creates or deletes so much at once that it cannot be limited."""

    reason = "mutation_request_too_large"

    def __init__(self, api_name: str, length: int, limit: int) -> None:
        why = "" if limit == MAX_REQUEST_LENGTH else " while memory is short"
        super().__init__(
            f"{api_name} request of {length} bytes: where a controller_mutation_rate applies {limit} is the most{why};"
            " ask for fewer topics at once",
            -1,
        )
        self.api_name = api_name
        self.length = length
        self.limit = limit


class Notice(NamedTuple):
    """What the response to one request has to say besides what the broker says."""

    refused: tuple[Topic, ...]
    not_before_ns: int
    """Until when the client shall wait."""
    size: int
    """What it takes to remember this, in bytes, roughly."""


class Outcome(NamedTuple):
    """What becomes of one request."""

    forwarded: bytes | None
    """What the broker gets, from the API key on; None where nothing is left."""
    notice: Notice | None
    """None where the response may stay as it is."""


def limit_applies(session: "Session", kind: RequestKind, length: int, *, is_whole: bool) -> bool:
    """Whether a request of so many bytes is for `limited`, for which it has to be held back until it is whole.

    Raises MutationRequestTooLarge. In a dry run such a request passes unseen instead.
    """
    if not session.limits.mutations.limits:
        return False
    memory_is_short = session.shared.buffers.read_size < READ_SIZE
    limit = MAX_PARTIAL_REQUEST_LENGTH if memory_is_short and not is_whole else MAX_REQUEST_LENGTH
    if length <= limit:
        return True
    if session.shared.config.dry_run:
        return False
    raise MutationRequestTooLarge(kind.header.api.name, length, limit)


def limited(session: "Session", kind: RequestKind, request: bytes, now_ns: int) -> Outcome:
    """Ask the limits for what a request wants, charge what passes, count and log what does not.

    ``request``: all of it, from its API key on. Raises MalformedFrame when it is no such request.
    """
    wanted = MutationRequest(kind.api_key, kind.version, request, kind.header.body_offset - 4)
    mutations = wanted.mutations(partial(_partitions_of, session.shared.topics))
    limits = session.limits.mutations
    throttling = session.shared.throttling
    if not is_strict(kind.api_key, kind.version):
        decision = limits.charge(sum(mutation.partitions for mutation in mutations), now_ns) if mutations else ADMITTED
        throttle_from = kind.header.api.throttle_from
        if decision is ADMITTED or throttle_from is None or kind.version < throttle_from:
            return Outcome(request, None)
        not_before_ns = throttling.wait_of(session, decision, "notify", now_ns)
        return Outcome(request, Notice((), not_before_ns, 0) if not_before_ns else None)
    passed, decision = 0, ADMITTED
    for mutation in mutations:
        decision = limits.admit(mutation.partitions, now_ns)
        if not decision.admitted:  # and the debt that one finds is there for all behind it
            break
        passed += 1
    if passed == len(mutations):
        return Outcome(request, None)
    not_before_ns = throttling.wait_of(session, decision, "reject", now_ns)
    if session.shared.config.dry_run:
        return Outcome(request, None)
    refused = tuple(mutation.topic for mutation in mutations[passed:])
    rest = wanted.without(frozenset(refused)) if passed else None
    return Outcome(rest, Notice(refused, not_before_ns, len(request)))


def refusal(session: "Session", kind: RequestKind, correlation_id: int, notice: Notice) -> bytes:
    """The answer to a request of which nothing is left, from its correlation id on."""
    throttle_ms = session.shared.throttling.notice_ms(notice.not_before_ns)
    return refused_response(kind.api_key, kind.version, correlation_id, notice.refused, throttle_ms)


def told(session: "Session", kind: RequestKind, response: bytes, notice: Notice) -> bytes:
    """The broker's response, from its correlation id on, with what the notice adds.

    Raises MalformedFrame when it is no such response.
    """
    throttle_ms = session.shared.throttling.notice_ms(notice.not_before_ns)
    if notice.refused:
        return merged_response(kind.api_key, kind.version, response, notice.refused, throttle_ms)
    return throttled_response(kind.api_key, kind.version, response, throttle_ms)


def _partitions_of(topics: Topics, topic: Topic) -> int | None:
    name = topic if isinstance(topic, str) else topics.name_of(topic)
    return None if name is None else topics.partitions_of(name)
