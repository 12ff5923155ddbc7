"""Noisy topics: a Produce request of which every topic is over a limit with `action=reject` is answered with errors.

A hold keeps all topics of a connection waiting, and so does a throttle time: Java waits with all requests to that
broker. An error for partitions delays these alone. Only where the client sends them again, in order:

    who     clients that name their software in ApiVersions: see `refusal_error`
    what    batches of idempotent producers, outside of transactions, with acks other than 0
    order   `quotas.admission.refused_sequences`: a request with a batch that follows a refused one is refused as well

Everything else is held, as with `action=throttle`: a request with another topic, one with very many partitions, and a
batch that has been refused for `MAX_REFUSED_NS`, since held frames are served in order, while producers that are
refused depend on which of them comes back first.

The first 64 KiB decide. A refused request is discarded while it arrives, and answered at its end. If a later part of a
forwarded request has a batch that follows a refused one, the connection is closed: the broker drops the incomplete
request, and the producer sends all batches again, in order.
"""

import re
from typing import Final, final

from protocol.api_versions import ClientSoftware
from protocol.errors import ProtocolError
from protocol.produce import FIRST_FLEXIBLE
from protocol.produce_partitions import PartitionData
from protocol.produce_refusals import NOT_ENOUGH_REPLICAS, THROTTLING_QUOTA_EXCEEDED, refused_produce_response
from proxy.enforcement.identity import NS_PER_MS
from proxy.enforcement.report import REJECT
from proxy.streams.connection import Connection
from proxy.streams.context import Context
from proxy.streams.handler import RequestKind
from proxy.streams.produce_usage import ProduceUsage, Refusal, name_of
from quotas.admission.client_limits import TopicCharges
from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.limit_set import refusal_by
from quotas.admission.refused_sequences import Partition
from quotas.admission.topic_thresholds import TopicThreshold

#: Partitions of one request that may be refused, and those of a connection with refused batches that have not come
#: back: 1 MB.
MAX_PARTITIONS: Final = 2_000
#: A quarter of the delivery timeout of Java.
MAX_REFUSED_NS: Final = 30_000_000_000

_JAVA: Final = "apache-kafka-java"
_FIRST_JAVA_WITH_89: Final = (2, 7)
_version_of = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})", re.ASCII).match


class OutOfOrder(ProtocolError):
    """A partition that must wait for a refused batch was found too late, or too many batches are refused."""

    reason = "refused_out_of_order"

    def __init__(self, data: PartitionData, why: str) -> None:
        super().__init__(f"partition {data.partition} of topic {data.topic!r}: {why}; the producer sends it again", -1)


def refusal_error(software: ClientSoftware) -> int:
    """The error code for partitions of this client: one that it retries in order, without a new look-up of metadata. 0:
    none is known, so its requests are held.
    """
    name = software.name
    if name == _JAVA:
        found = _version_of(software.version)
        is_new = found is not None and (int(found[1]), int(found[2])) >= _FIRST_JAVA_WITH_89
        return THROTTLING_QUOTA_EXCEEDED if is_new else NOT_ENOUGH_REPLICAS
    if name in {"librdkafka", "kgo"} or name.startswith("confluent-kafka-"):
        return NOT_ENOUGH_REPLICAS
    return 0


@final
class Refusals:
    """Decides which requests are refused. One object for all connections."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def lists_partitions(self, connection: Connection, usage: ProduceUsage, kind: RequestKind) -> bool:
        """Whether a request may be refused, or follow a refused one."""
        if not kind.answered or not connection.identity.refusal_error or not self._context.registry.rejects:
            return False
        return self._context.measures.enforces or bool(usage.refused.entries)

    def refusal(self, connection: Connection, usage: ProduceUsage, now_ns: int) -> Refusal | None:
        """The refusal of the request that `usage` has read the first part of; None: it is not refused."""
        decision = self._debt(connection, usage, now_ns)
        if decision is None:
            is_later = any(self._is_later(usage, each) for each in usage.partitions)
            return Refusal(ADMITTED) if is_later else None
        queued_ns = 0 if decision.limit is None else decision.limit.queued_ns()
        return Refusal(decision._replace(wait_ns=decision.wait_ns + queued_ns))

    def add(self, connection: Connection, usage: ProduceUsage, refusal: Refusal, now_ns: int) -> None:
        """Refuse the partitions that `usage` has found since the last call; when that were all, answer.

        Raises OutOfOrder: too many batches are refused to keep their order.
        """
        client, decision = connection.identity.client, refusal.decision
        for data in usage.take_partitions():
            refusal.partitions.append((data.topic, data.partition))
            is_new = data.sequence >= 0 and usage.refused.refuse(
                self._partition_of(data), data.producer, data.sequence, now_ns
            )
            if max(len(refusal.partitions), len(usage.refused.entries)) > MAX_PARTITIONS:
                raise OutOfOrder(data, "too many batches are refused at once")
            if is_new and decision.limit is not None:
                self._context.measures.notice_until_ns(client, decision, REJECT, now_ns)
                self._context.measures.report.refused(client, decision.limit, data.record_bytes)
                _count_throttled(usage.charges_of(data.topic, now_ns), data, now_ns)
        if usage.walk is None or usage.walk.is_over:
            usage.refusal = None
            self._answer(connection, refusal)

    def follow(self, usage: ProduceUsage, now_ns: int) -> None:
        """The partitions that `usage` has found since the last call are forwarded.

        Raises OutOfOrder: one of them follows a refused batch.
        """
        for data in usage.take_partitions():
            if self._is_later(usage, data):
                raise OutOfOrder(data, "it follows a refused batch, and was found after its request had begun to pass")
            if data.sequence >= 0:
                partition = self._partition_of(data)
                usage.refused.passed(partition, data.producer, data.sequence, data.next_sequence, now_ns)

    # ---- inside

    def _answer(self, connection: Connection, refusal: Refusal) -> None:
        """Queue the response to a refused request."""
        version, correlation_id = refusal.version, refusal.correlation_id
        error, message = connection.identity.refusal_error, _message(refusal.decision)
        response = refused_produce_response(version, correlation_id, refusal.partitions, error, message)
        throttle_at = len(response) - (1 if version >= FIRST_FLEXIBLE else 0)  # the last field before tags
        connection.answer(correlation_id, response, throttle_at)

    def _debt(self, connection: Connection, usage: ProduceUsage, now_ns: int) -> Decision | None:
        """The longest wait, if each topic is over a limit that rejects, and each batch may be refused."""
        partitions, refused = usage.partitions, usage.refused
        most = len(refused.entries) + len(partitions) + usage.partitions_left
        if not self._context.measures.enforces or not partitions or most > MAX_PARTITIONS:
            return None
        at_limit = None if connection.frame is None else connection.frame.limit
        found: list[Decision] = []
        for topic in usage.topics:
            decision = refusal_by(usage.charges_of(topic, now_ns).rejecting, now_ns, at_limit)
            if decision is None:
                return None
            found.append(decision)
        for data in partitions:
            if data.sequence < 0 or refused.refused_for_ns(self._partition_of(data), now_ns) >= MAX_REFUSED_NS:
                return None
        return max(found, key=lambda each: each.wait_ns, default=None)

    def _is_later(self, usage: ProduceUsage, data: PartitionData) -> bool:
        """Whether a batch follows one that was refused and has not come back."""
        return usage.refused.is_later(self._partition_of(data), data.producer, data.sequence)

    def _partition_of(self, data: PartitionData) -> Partition:
        """By name, if that is known: a client may use the name and the id of one topic in turn."""
        return name_of(self._context, data.topic) or repr(data.topic), data.partition


def _message(decision: Decision) -> str:
    """The error message of a refused partition."""
    limit = decision.limit
    if limit is None:
        return "an earlier batch of this producer was refused: send that one first"
    wait_ms = -(-decision.wait_ns // NS_PER_MS)
    return f"{limit.name}={limit.rate} of {limit.entity} is exceeded: retry in {wait_ms} ms"


def _count_throttled(charges: TopicCharges, data: PartitionData, now_ns: int) -> None:
    """Thresholds count what is refused."""
    for limits, amount in ((charges.bytes_in, data.record_bytes), (charges.messages_in, data.messages)):
        for limit in limits:
            if limit.rejects and isinstance(limit.algorithm, TopicThreshold):
                limit.algorithm.thresholds.throttled.record(amount, now_ns)
