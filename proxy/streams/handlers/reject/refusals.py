"""Which Produce requests are refused: answered with an error for each partition, and not forwarded.

Noisy topics: a request of which *every* topic is over a limit with `action=reject`. A hold keeps all topics of a
connection waiting, and so does a throttle time: Java waits with all requests to that broker. An error for partitions
delays these alone. Only where the client sends them again, in order:

    who     clients that name their software in ApiVersions: see `clients`
    what    batches of idempotent producers, outside of transactions, with acks other than 0
    order   `sequences`: a request with a batch that follows a refused one is refused as well

Everything else is held, as with `action=throttle`: a request with another topic, one with very many partitions, and a
batch that has been refused for `MAX_REFUSED_NS`, since held frames are served in order, while producers that are
refused depend on which of them comes back first.

Unknown topics: where a limit needs the names of topics, a request for an id that no Metadata response has contained is
answered with UNKNOWN_TOPIC_ID, as a broker does: the client asks for Metadata, and comes back.

Refusals are decided before anything is charged: by the first 64 KiB for noisy topics. A refused request is discarded
while it arrives, and answered at its end. If a later part of a forwarded request has a batch that follows a refused
one, or a topic that is not known, the connection is closed: the broker drops the incomplete request, and the producer
sends all batches again, in order.
"""

from collections.abc import Sequence
from typing import Final

from protocol.errors import ProtocolError
from protocol.produce import FIRST_FLEXIBLE
from protocol.produce_partitions import PartitionData
from protocol.produce_refusals import UNKNOWN_TOPIC_ID, refused_produce_response
from proxy.enforcement.identity import NS_PER_MS
from proxy.enforcement.measures import told_ns
from proxy.enforcement.report import REJECT, reason_of
from proxy.streams.connection import Connection
from proxy.streams.handlers.produce_content import ProduceContent, Refusal, topics_of
from proxy.streams.handlers.reject.sequences import RefusedSequences
from proxy.streams.request import Kind
from proxy.streams.response_stream import ResponseStream
from quotas.admission.client_limits import TopicCharges
from quotas.admission.frame import worst_debt
from quotas.admission.limit import Limit
from quotas.admission.topic_thresholds import count_throttled

#: Bytes of a request that decide whether it is refused.
LOOKAHEAD: Final = 65_536
#: Partitions of one request that may be refused, and those of a connection with refused batches that have not come
#: back: 1 MB.
MAX_PARTITIONS: Final = 2_000
#: A quarter of the delivery timeout of Java.
MAX_REFUSED_NS: Final = 30_000_000_000


class OutOfOrder(ProtocolError):
    """A partition that must wait for a refused batch was found too late, or too many batches are refused."""

    reason = "refused_out_of_order"

    def __init__(self, data: PartitionData, why: str) -> None:
        super().__init__(f"partition {data.partition} of topic {data.topic!r}: {why}; the producer sends it again", -1)


class UnknownTopicId(ProtocolError):
    """A request for an unknown topic that cannot be answered: it has no response, or began to pass before."""

    reason = "unknown_topic_id"

    def __init__(self, why: str) -> None:
        super().__init__(f"a limit needs the name of a topic, and no Metadata response has had its id; {why}", -1)


def sequences_of(connection: Connection) -> RefusedSequences:
    """The refused batches of a connection."""
    refused = connection.refused
    if not isinstance(refused, RefusedSequences):
        refused = connection.refused = RefusedSequences()
    return refused


def waits_for_refused(connection: Connection) -> bool:
    """Whether batches of the connection were refused and have not come back: others may have to wait for them."""
    return connection.refused is not None and bool(sequences_of(connection).entries)


def may_refuse(connection: Connection, kind: Kind) -> bool:
    """Whether a request may be refused for a noisy topic, or follow a refused one."""
    if not kind.answered:
        return False
    if waits_for_refused(connection):
        return True
    context = connection.context
    return context.registry.rejects and connection.identity.refusal_error > 0 and context.measures.enforces


def refusal_of(connection: Connection, content: ProduceContent, now_ns: int) -> Refusal | None:
    """The refusal of a request of which the first part has been read; None: it is not refused."""
    noisy = _noisiest(connection, content, now_ns)
    if noisy is not None:
        wait_ns, limit = noisy
        wait_ns = told_ns(limit, limit.expected_ns(wait_ns, now_ns) + limit.queued_ns())
        message = f"{limit.name}={limit.rate} of {limit.entity} is exceeded: retry in {-(-wait_ns // NS_PER_MS)} ms"
        return Refusal(connection.identity.refusal_error, message, limit, wait_ns)
    if any(_is_later(connection, each) for each in content.partitions):
        message = "an earlier batch of this producer was refused: send that one first"
        return Refusal(connection.identity.refusal_error or UNKNOWN_TOPIC_ID, message)
    return None


def unknown_topic_refusal() -> Refusal:
    """The refusal of a request for a topic that is not known."""
    return Refusal(UNKNOWN_TOPIC_ID, "a quota needs the name of this topic, which is not known yet: refresh metadata")


def refuse(connection: Connection, content: ProduceContent, refusal: Refusal, now_ns: int) -> bool:
    """Refuse the partitions that were found since the last call. Returns whether that were all.

    Raises OutOfOrder: too many batches are refused to keep their order.
    """
    sequences, report, client = sequences_of(connection), connection.context.measures.report, connection.identity.client
    for data in content.take_partitions():
        refusal.partitions.append((data.topic, data.partition))
        partition = data.topic, data.partition
        is_new = data.sequence >= 0 and sequences.refuse(partition, data.producer, data.sequence, now_ns)
        if max(len(refusal.partitions), len(sequences.entries)) > MAX_PARTITIONS:
            raise OutOfOrder(data, "too many batches are refused at once")
        if is_new and refusal.limit is not None:
            limit, wait_ns = refusal.limit, refusal.wait_ns
            report.throttled(client, limit, REJECT, reason_of(limit), wait_ns, wait_ns, now_ns)
            report.refused(client, limit, data.record_bytes)
            _count_throttled(topics_of(connection).of(data.topic, now_ns), data, now_ns)
    return content.walk.is_over


def answer(responses: ResponseStream, kind: Kind, refusal: Refusal) -> None:
    """Queue the response to a refused request."""
    correlation_id, partitions = refusal.correlation_id, refusal.partitions
    response = refused_produce_response(kind.version, correlation_id, partitions, refusal.error, refusal.message)
    throttle_at = len(response) - (1 if kind.version >= FIRST_FLEXIBLE else 0)  # the last field before tags
    responses.answers.add(correlation_id, response, throttle_at)


def follow(connection: Connection, content: ProduceContent, now_ns: int) -> None:
    """The partitions that were found since the last call are forwarded.

    Raises OutOfOrder: one of them follows a refused batch.
    """
    for data in content.take_partitions():
        if _is_later(connection, data):
            raise OutOfOrder(data, "it follows a refused batch, and was found after its request had begun to pass")
        if data.sequence >= 0:
            partition = data.topic, data.partition
            sequences_of(connection).passed(partition, data.producer, data.sequence, data.next_sequence, now_ns)


def _noisiest(connection: Connection, content: ProduceContent, now_ns: int) -> tuple[int, Limit] | None:
    """The longest wait and its limit, if each topic is over a limit that rejects, and each batch may be refused."""
    partitions: Sequence[PartitionData] = content.partitions
    refused, context = sequences_of(connection), connection.context
    if not context.measures.enforces or not connection.identity.refusal_error or not partitions:
        return None
    if len(refused.entries) + len(partitions) + content.partitions_left > MAX_PARTITIONS:
        return None
    topics = topics_of(connection)
    longest: tuple[int, Limit] | None = None
    for topic in content.topics:
        wait_ns, limit = worst_debt(topics.of(topic, now_ns).rejecting, now_ns)
        if limit is None:
            return None
        if longest is None or wait_ns > longest[0]:
            longest = wait_ns, limit
    for data in partitions:
        if data.sequence < 0 or refused.refused_for_ns((data.topic, data.partition), now_ns) >= MAX_REFUSED_NS:
            return None
    return longest


def _is_later(connection: Connection, data: PartitionData) -> bool:
    """Whether a batch follows one that was refused and has not come back."""
    return sequences_of(connection).is_later((data.topic, data.partition), data.producer, data.sequence)


def _count_throttled(charges: TopicCharges, data: PartitionData, now_ns: int) -> None:
    """Thresholds count what is refused."""
    for limits, amount in ((charges.bytes_in, data.record_bytes), (charges.messages_in, data.messages)):
        for limit in limits:
            if limit.rejects:
                count_throttled(limit, amount, now_ns)
