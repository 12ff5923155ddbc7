"""Which Produce requests are refused, that is, answered with an error for each partition and not forwarded.

Noisy topics: a request is refused if *every* topic in it is over a limit with `action=reject`. A hold would keep all
topics of the connection waiting, and so would a throttle time, because Java then delays all requests to that broker. An
error for a partition delays only that partition. Requests are refused only if the client will send them again in order:

    who     clients that name their software in ApiVersions: see `proxy.enforcement.habits`
    what    batches of idempotent producers, outside of transactions, with acks other than 0
    order   `sequences`: a request is refused as well if it has a batch that follows a refused one

Everything else is held, as with `action=throttle`: requests with other topics or with very many partitions, and batches
that have been refused for `MAX_REFUSED_NS`. Held frames are served in order, whereas among refused producers, the one
that comes back first wins.

Full disks: while the disk guard holds producers, a request is held for half of its client's timeout, and then refused
with KAFKA_STORAGE_ERROR, which all clients retry. Requests that waited behind it are refused at once.

Unknown topics: if a limit needs the names of topics, a request with an id that no Metadata response has contained is
answered with UNKNOWN_TOPIC_ID, the way brokers do. The client asks for Metadata and tries again.

Refusals are decided before anything is charged; for noisy topics, based on the first 64 KiB. A refused request is
discarded while it arrives, and answered when it has arrived. If a later part of a forwarded request has a batch that
follows a refused one, or a topic that is not known, the connection is closed. The broker then drops the incomplete
request, and the producer sends all batches again, in order.
"""

from collections.abc import Sequence
from typing import Final

from protocol.errors import ProtocolError
from protocol.produce import FIRST_FLEXIBLE
from protocol.produce_partitions import PartitionData
from protocol.produce_refusals import FIRST_WITH_STORAGE_ERROR, KAFKA_STORAGE_ERROR, UNKNOWN_TOPIC_ID
from protocol.produce_refusals import refused_produce_response as response_of
from protocol.request_header import transactional_id
from protocol.wire import unpack_int32
from proxy.enforcement.report import REJECT, reason_of
from proxy.enforcement.throttle_actions import notified_ns
from proxy.streams.connection import Connection
from proxy.streams.handlers.produce_content import ProduceContent, Refusal, topics_of
from proxy.streams.handlers.reject.sequences import RefusedSequences
from proxy.streams.pending import Responses
from proxy.streams.request import Kind
from quotas.adaptive.producer_guard import TOGETHER_NS, USUAL_TIMEOUT_MS, ProducerGuard
from quotas.admission.client_limits import TopicCharges
from quotas.admission.frame import worst_debt
from quotas.admission.limit import Limit
from quotas.admission.topic_thresholds import count_throttled
from quotas.time_units import NS_PER_MS

#: How many bytes of a request decide whether it is refused.
LOOKAHEAD: Final = 65_536
#: The most partitions of a request that can be refused, and the most partitions of a connection with refused batches
#: that have not come back, which take 1 MB.
MAX_PARTITIONS: Final = 2_000
#: A quarter of Java's default delivery timeout.
MAX_REFUSED_NS: Final = 30_000_000_000


class OutOfOrder(ProtocolError):
    """A batch that must wait for a refused one was found too late, or too many batches are refused."""

    reason = "refused_out_of_order"

    def __init__(self, data: PartitionData, why: str) -> None:
        super().__init__(f"partition {data.partition} of topic {data.topic!r}: {why}; the producer sends it again", -1)


class UnknownTopicId(ProtocolError):
    """A request for an unknown topic that cannot be answered, because it has no response or has begun to pass."""

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
    """Whether refused batches of the connection have not come back, so that others may have to wait for them."""
    return connection.refused is not None and bool(sequences_of(connection).entries)


def may_refuse(connection: Connection, kind: Kind) -> bool:
    """Whether a request may be refused for a noisy topic, or follow a refused one."""
    if not kind.answered:
        return False
    if waits_for_refused(connection):
        return True
    context = connection.context
    return context.registry.rejects and connection.identity.refusal_error > 0 and context.actions.enforces


def refusal_of(connection: Connection, content: ProduceContent, now_ns: int) -> Refusal | None:
    """The refusal of a request whose first part has been read. None: it is not refused."""
    noisy = _noisiest(connection, content, now_ns)
    if noisy is not None:
        wait_ns, limit = noisy
        wait_ns = limit.expected_ns(wait_ns, now_ns)
        wait_ns = notified_ns(limit, wait_ns + limit.queued_ns(wait_ns))
        message = f"{limit.name}={limit.rate} of {limit.entity} is exceeded: retry in {-(-wait_ns // NS_PER_MS)} ms"
        return Refusal(connection.identity.refusal_error, message, limit, wait_ns)
    if any(_is_later(connection, each) for each in content.partitions):
        message = "an earlier batch of this producer was refused: send that one first"
        return Refusal(sequences_of(connection).error or connection.identity.refusal_error or UNKNOWN_TOPIC_ID, message)
    return None


def behind_refused(connection: Connection, kind: Kind, pos: int, end: int, now_ns: int) -> Refusal | None:
    """The refusal of the request at `pos` if it has waited behind one that the disk guard refused. Otherwise None, and
    `held_until_ns` is set: when the guard gives up if it holds this request; 0 if it cannot be refused.
    """
    guard, connection.held_until_ns = connection.context.registry.guard, 0
    if guard is None or not kind.answered or kind.version < FIRST_WITH_STORAGE_ERROR:
        return None
    at = pos + kind.header.size  # its timeout follows the acks, if that has arrived
    timeout_ms = unpack_int32(connection.context.memory.data, at)[0] if at + 4 <= end else USUAL_TIMEOUT_MS
    connection.held_until_ns = now_ns + guard.hold_ns(timeout_ms)
    was_refused = connection.refused is not None and now_ns - sequences_of(connection).storage_ns < TOGETHER_NS
    return storage_refusal(connection, guard, now_ns) if was_refused and guard.limit.wait_ns(now_ns) else None


def spared_limit(connection: Connection, kind: Kind, pos: int, end: int, length: int, now_ns: int) -> Limit | None:
    """The limit of the disk guard, if the request at `pos` is of an open transaction that may go on."""
    guard, buf = connection.context.registry.guard, connection.context.memory.data
    is_spared = guard is not None and guard.spares(transactional_id(kind.header, buf, pos, end), length, now_ns)
    return guard.limit if guard is not None and is_spared else None


def storage_refusal(connection: Connection, guard: ProducerGuard, now_ns: int) -> Refusal:
    """The refusal of a request that the disk guard has held for long enough."""
    sequences_of(connection).storage_ns = now_ns
    guard.refused += 1
    return Refusal(KAFKA_STORAGE_ERROR, guard.message, guard.limit, guard.limit.debt_ns(now_ns))


def unknown_topic_refusal() -> Refusal:
    """The refusal of a request for a topic that is not known."""
    return Refusal(UNKNOWN_TOPIC_ID, "a quota needs the name of this topic, which is not known yet: refresh metadata")


def refuse(connection: Connection, content: ProduceContent, refusal: Refusal, now_ns: int) -> bool:
    """Refuse the partitions that were found since the last call. Returns whether these were the last ones.

    Raises OutOfOrder if so many batches are refused that their order cannot be kept.
    """
    sequences, report, client = sequences_of(connection), connection.context.actions.report, connection.identity.client
    for data in content.take_partitions():
        refusal.partitions.append((data.topic, data.partition))
        partition = data.topic, data.partition
        if refusal.limit is not None:
            sequences.error = refusal.error
        is_new = data.sequence >= 0 and sequences.refuse(partition, data.producer, data.sequence, now_ns)
        if max(len(refusal.partitions), len(sequences.entries)) > MAX_PARTITIONS:
            raise OutOfOrder(data, "too many batches are refused at once")
        if is_new and refusal.limit is not None:
            limit, wait_ns = refusal.limit, refusal.wait_ns
            report.throttled(client, limit, REJECT, reason_of(limit), wait_ns, wait_ns, now_ns)
            report.refused(client, limit, data.record_bytes)
            _count_throttled(topics_of(connection).of(data.topic, now_ns), data, now_ns)
    return content.walk.is_over


def answer(responses: Responses, kind: Kind, refusal: Refusal) -> None:
    """Queue the response to a refused request."""
    correlation_id, partitions = refusal.correlation_id, refusal.partitions
    response = response_of(kind.version, correlation_id, partitions, refusal.error, refusal.message)
    throttle_at = len(response) - (1 if kind.version >= FIRST_FLEXIBLE else 0)  # the last field, before the tags
    responses.answers.add(correlation_id, response, throttle_at)


def follow(connection: Connection, content: ProduceContent, now_ns: int) -> None:
    """Record that the partitions found since the last call are forwarded.

    Raises OutOfOrder if one of them follows a refused batch.
    """
    for data in content.take_partitions():
        if _is_later(connection, data):
            raise OutOfOrder(data, "it follows a refused batch, and was found after its request had begun to pass")
        if data.sequence >= 0:
            partition = data.topic, data.partition
            sequences_of(connection).passed(partition, data.producer, data.sequence, data.next_sequence, now_ns)


def _noisiest(connection: Connection, content: ProduceContent, now_ns: int) -> tuple[int, Limit] | None:
    """The longest wait and its limit, if every topic is over a limit that rejects and every batch may be refused."""
    partitions: Sequence[PartitionData] = content.partitions
    refused, context = sequences_of(connection), connection.context
    if not context.actions.enforces or not connection.identity.refusal_error or not partitions:
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
    """Whether a batch follows a refused one that has not come back."""
    return sequences_of(connection).is_later((data.topic, data.partition), data.producer, data.sequence)


def _count_throttled(charges: TopicCharges, data: PartitionData, now_ns: int) -> None:
    """Count a refused batch as throttled by its thresholds."""
    for limits, amount in ((charges.bytes_in, data.record_bytes), (charges.messages_in, data.messages)):
        for limit in limits:
            if limit.rejects:
                count_throttled(limit, amount, now_ns)
