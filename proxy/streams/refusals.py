"""Noisy topics: a Produce request of which every topic is over a limit with `action=reject` is answered with errors.

A hold keeps all topics of a connection waiting, and so does a throttle time: Java waits with all requests to that
broker. An error for partitions delays these alone. Only where the client sends them again, in order:

    who     clients that name their software in ApiVersions: see `refusal_error`
    what    batches of idempotent producers, outside of transactions, with acks other than 0
    order   `quotas.admission.refused_sequences`: a request with a batch that follows a refused one is refused as well

Everything else is held, as with `action=throttle`: a request with another topic, and a batch that has been refused for
`MAX_REFUSED_NS`, since held frames are served in order, while producers that are refused depend on which of them comes
back first.

The first 64 KiB decide. A refused request is discarded while it arrives, and answered at its end. If a later part of a
forwarded request has a batch that follows a refused one, the connection is closed: the broker drops the incomplete
request, and the producer sends all batches again, in order.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, final

from protocol.api_versions import ClientSoftware
from protocol.errors import ProtocolError
from protocol.produce_partitions import PartitionData
from protocol.produce_refusals import NOT_ENOUGH_REPLICAS, THROTTLING_QUOTA_EXCEEDED, Refused
from protocol.produce_walk import FIRST_FLEXIBLE, FIRST_WITH_TRANSACTIONAL_ID
from proxy.enforcement.data_frame import DataFrame
from proxy.enforcement.identity import NS_PER_MS
from proxy.enforcement.report import REJECT
from proxy.streams.connection import Connection
from proxy.streams.context import Context
from proxy.streams.handler import RequestKind
from proxy.streams.produce_usage import ProduceUsage, Refusal
from quotas.admission.client_limits import TopicCharges
from quotas.admission.decision import Decision
from quotas.admission.limit import Limit
from quotas.admission.refused_sequences import Arrival, ProducerPartition, RefusedSequences
from quotas.admission.topic_thresholds import TopicThreshold

#: Partitions of one response that have an error message: with more it could be longer than the request.
MAX_MESSAGES: Final = 100
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

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def _sequences(self) -> RefusedSequences:
        return self._context.registry.refused

    def lists_partitions(self, connection: Connection, kind: RequestKind, first_byte: int) -> bool:
        """Whether a request may be refused, or follow a refused one: `first_byte` is that of its body."""
        identity = connection.identity
        if not kind.answered or not identity.refusal_error or not identity.limits.rejects:
            return False
        if kind.version < FIRST_WITH_TRANSACTIONAL_ID or first_byte != (0 if kind.version >= FIRST_FLEXIBLE else 0xFF):
            return False
        return self._context.measures.enforces or len(self._sequences) > 0

    def refusal(self, connection: Connection, usage: ProduceUsage, now_ns: int) -> Refusal | None:
        """The refusal of the request that `usage` has read the first part of; None: it is not refused."""
        partitions = usage.partitions
        limit = self._limit_over(connection, usage, now_ns)
        if limit is None and not any(self._is_later(connection, usage, each, now_ns) for each in partitions):
            return None
        wait_ns = 0 if limit is None else limit.debt_ns(now_ns) + limit.queued_ns()
        return Refusal(limit, wait_ns)

    def add(self, connection: Connection, usage: ProduceUsage, refusal: Refusal, now_ns: int) -> None:
        """Refuse the partitions that `usage` has found since the last call.

        Raises OutOfOrder: too many batches are refused to keep their order.
        """
        identity, limit = connection.identity, refusal.limit
        for data in usage.take_partitions():
            message = _message(limit, refusal.wait_ns) if len(refusal.errors) < MAX_MESSAGES else ""
            refusal.errors.append(Refused(data.topic, data.partition, identity.refusal_error, message))
            if data.sequence < 0:
                continue
            partition = _partition_of(connection, usage, data, now_ns)
            if not self._sequences.has_room(partition, now_ns):
                raise OutOfOrder(data, "too many batches are refused at once")
            if self._sequences.refuse(partition, data.epoch, data.sequence, now_ns) and limit is not None:
                decision = Decision(False, refusal.wait_ns, limit, (limit,))
                self._context.measures.notice_until_ns(identity.client, decision, REJECT, now_ns)
                self._context.measures.report.refused(identity.client, limit, data.record_bytes)
                _count_throttled(usage.charges_of(data.topic, now_ns), data, now_ns)

    def follow(self, connection: Connection, usage: ProduceUsage, now_ns: int) -> None:
        """The partitions that `usage` has found since the last call are forwarded.

        Raises OutOfOrder: one of them follows a refused batch.
        """
        for data in usage.take_partitions():
            if data.sequence < 0 or not self._sequences.has_refused((connection.identity.client.key, data.producer_id)):
                continue
            if self._is_later(connection, usage, data, now_ns):
                raise OutOfOrder(data, "it follows a refused batch, and was found after its request had begun to pass")
            partition = _partition_of(connection, usage, data, now_ns)
            self._sequences.passed(partition, data.epoch, data.sequence, data.next_sequence, now_ns)

    # ---- inside

    def _limit_over(self, connection: Connection, usage: ProduceUsage, now_ns: int) -> Limit | None:
        """The limit with the longest wait, if each topic is over one that rejects, and each batch may be refused."""
        topics, partitions = usage.topics, usage.partitions
        if not self._context.measures.enforces or not partitions or not topics:
            return None
        found: list[tuple[int, Limit]] = []
        for topic in topics:
            over = _longest(usage.charges_of(topic, now_ns).rejecting, connection.frame, now_ns)
            if over is None:
                return None
            found.append(over)
        for data in partitions:
            if data.sequence < 0:
                return None
            partition = _partition_of(connection, usage, data, now_ns)
            if self._sequences.refused_for_ns(partition, now_ns) >= MAX_REFUSED_NS:
                return None
            if self._sequences.arrival(partition, data.epoch, data.sequence, now_ns) is Arrival.EARLIER:
                return None
        return max(found, key=lambda each: each[0])[1]

    def _is_later(self, connection: Connection, usage: ProduceUsage, data: PartitionData, now_ns: int) -> bool:
        """Whether a batch follows one that was refused and has not come back."""
        sequences = self._sequences
        if data.sequence < 0 or not sequences.has_refused((connection.identity.client.key, data.producer_id)):
            return False
        partition = _partition_of(connection, usage, data, now_ns)
        return sequences.arrival(partition, data.epoch, data.sequence, now_ns) is Arrival.LATER


def without_rejecting(decision: Decision, now_ns: int) -> Decision:
    """The decision about a request that passes, as far as its response contains the wait: an error reports the others.

    A throttle time would delay all topics of the client.
    """
    others = [(limit.debt_ns(now_ns), limit) for limit in decision.exceeded if not limit.rejects]
    wait_ns, worst = max(others, key=lambda each: each[0], default=(0, None))
    return Decision(True, wait_ns, worst, tuple(limit for _, limit in others))


def _message(limit: Limit | None, wait_ns: int) -> str:
    """The error message of a refused partition."""
    if limit is None:
        return "an earlier batch of this producer was refused: send that one first"
    return f"{limit.name}={limit.rate} of {limit.entity} is exceeded: retry in {-(-wait_ns // NS_PER_MS)} ms"


def _partition_of(connection: Connection, usage: ProduceUsage, data: PartitionData, now_ns: int) -> ProducerPartition:
    topic = usage.charges_of(data.topic, now_ns).topic.name
    return (connection.identity.client.key, data.producer_id), (topic, data.partition)


def _longest(limits: Sequence[Limit], frame: DataFrame | None, now_ns: int) -> tuple[int, Limit] | None:
    """The limit with the longest wait; None if none is in debt and none has waiters besides this frame."""
    released_by = None if frame is None else frame.limit
    waits: Iterable[tuple[int, Limit]] = [
        (wait_ns, limit)
        for limit in limits
        if (wait_ns := limit.debt_ns(now_ns)) or (limit.waiters.waiting and limit is not released_by)
    ]
    return max(waits, key=lambda each: each[0], default=None)


def _count_throttled(charges: TopicCharges, data: PartitionData, now_ns: int) -> None:
    """Thresholds count what is refused."""
    amounts: dict[Limit, int] = {}
    charges.add_to(amounts, data.record_bytes, data.messages)
    for limit in charges.rejecting:
        if isinstance(limit.algorithm, TopicThreshold):
            limit.algorithm.thresholds.throttled.record(amounts[limit], now_ns)
