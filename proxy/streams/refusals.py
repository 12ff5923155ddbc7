"""Noisy topics: records over a limit with `action=reject` are taken out of their Produce request, the rest passes.

A hold keeps all topics of a connection waiting, and so does a throttle time: Java waits with all requests to that
broker. An error for single partitions concerns these alone. Only where the client sends them again, in order:

    who     clients that name their software in ApiVersions: see `refusal_error`
    what    batches of idempotent producers, outside of transactions, with acks other than 0
    order   `quotas.admission.refused_sequences`

Everything else is held, as with `action=throttle`: also a batch that has been refused for `MAX_REFUSED_NS`, since held
frames are served in order, while producers that are refused depend on who comes back first.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, final

from protocol.api_versions import ClientSoftware
from protocol.errors import ProtocolError
from protocol.produce_partitions import PartitionData
from protocol.produce_refusals import NOT_ENOUGH_REPLICAS, THROTTLING_QUOTA_EXCEEDED, Refused
from protocol.produce_walk import FIRST_FLEXIBLE, FIRST_WITH_TRANSACTIONAL_ID, TopicUsage
from proxy.enforcement.holds import Hold
from proxy.enforcement.identity import NS_PER_MS
from proxy.enforcement.report import REJECT
from proxy.streams.connection import Connection, RequestKind
from proxy.streams.context import Context
from proxy.streams.produce_usage import ProduceUsage
from proxy.streams.verdicts import Verdicts
from quotas.admission.client_limits import TopicCharges
from quotas.admission.decision import Decision
from quotas.admission.limit import Limit
from quotas.admission.refused_sequences import Arrival, Producer, ProducerPartition, RefusedSequences
from quotas.admission.topic_thresholds import TopicThreshold

#: The longest request that is kept until it is complete.
MAX_WHOLE: Final = 2 * 1_048_576
#: Refused partitions of one request that have an error message: the others would make its response longer than itself.
MAX_MESSAGES: Final = 100
#: A quarter of the delivery timeout of Java.
MAX_REFUSED_NS: Final = 30_000_000_000

_JAVA: Final = "apache-kafka-java"
_FIRST_JAVA_WITH_89: Final = (2, 7)
_version_of = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})", re.ASCII).match


class ProduceRequestTooLarge(ProtocolError):
    """A long request of a producer with a refused batch, which may have to pass first. After a reconnect the producer
    sends that one first.
    """

    reason = "produce_request_too_large"

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(
            f"Produce request of {length} bytes after a batch of its producer was refused: with action=reject"
            f" {limit} bytes are the most; lower the producer's max.request.size",
            -1,
        )
        self.length = length
        self.limit = limit


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
    """See the module. One object for all connections."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def sequences(self) -> RefusedSequences:
        """What has been refused, of all connections."""
        return self._context.registry.refused

    def concern(self, connection: Connection, kind: RequestKind, first_byte: int, length: int, now_ns: int) -> bool:
        """Whether partitions of a request may be refused, whose first bytes have been read.

        first_byte   of its body: of the length of its transactional id

        Raises ProduceRequestTooLarge: it must not pass, and is too long to be kept.
        """
        usage, identity = connection.usage, connection.identity
        if usage is None or not kind.answered or not identity.refusal_error or not identity.limits.rejects:
            return False
        if not self._are_refusable(kind, first_byte, usage) or not usage.may_be_refused(now_ns):
            return False
        longest = min(MAX_WHOLE, self._context.memory.largest_response)
        if length <= longest:
            return True
        if self.has_refused(connection, usage):
            raise ProduceRequestTooLarge(length, longest)
        return False

    def has_refused(self, connection: Connection, usage: ProduceUsage) -> bool:
        """Whether a batch of a producer of the request was refused and has not come back."""
        return any(self.sequences.concerns(_producer_of(connection, each)) for each in usage.producer_ids)

    def _are_refusable(self, kind: RequestKind, first_byte: int, usage: ProduceUsage) -> bool:
        """Whether the request is of an idempotent producer, outside of transactions."""
        if kind.version < FIRST_WITH_TRANSACTIONAL_ID or (usage.walk is None and not usage.producer_ids):
            return False
        if not self._context.measures.enforces and not len(self.sequences):
            return False
        return first_byte == (0 if kind.version >= FIRST_FLEXIBLE else 0xFF)

    def decide(
        self,
        connection: Connection,
        usage: ProduceUsage,
        partitions: Sequence[PartitionData],
        verdicts: Verdicts,
        most: int,
        now_ns: int,
    ) -> None:
        """What happens to the next partitions of a request, at most `most`, if nothing else holds it."""
        sequences = self.sequences
        later: dict[int, tuple[ProducerPartition, Limit | None]] = {}
        to_refuse: dict[int, tuple[ProducerPartition, Limit | None]] = {}
        first = verdicts.decided
        verdicts.decided = min(len(partitions), first + most)
        for at in range(first, verdicts.decided):
            data = partitions[at]
            if data.sequence < 0 or not usage.is_checked(data.topic, (data.producer_id,), now_ns):
                self._let_pass(usage, verdicts, data, now_ns)
                continue
            charges = usage.charges_of(data.topic, now_ns)
            partition: ProducerPartition = (
                _producer_of(connection, data.producer_id),
                (charges.topic.name, data.partition),
            )
            limit = _longest(charges.rejecting, connection.turn, now_ns)
            arrival = sequences.arrival(partition, data.epoch, data.sequence, now_ns)
            if arrival is Arrival.LATER:
                later[at] = partition, limit or next(iter(charges.rejecting), None)
            elif arrival is Arrival.EARLIER or limit is None or self._must_pass(partition, now_ns):
                self._let_pass(usage, verdicts, data, now_ns)
                verdicts.followed.append((partition, data))
            else:
                to_refuse[at] = partition, limit
        partitions_to_refuse = [partition for partition, _ in to_refuse.values()]
        if not sequences.has_room(connection.identity.client.key, partitions_to_refuse, now_ns):
            for at, (partition, _) in to_refuse.items():
                self._let_pass(usage, verdicts, partitions[at], now_ns)
                verdicts.followed.append((partition, partitions[at]))
            to_refuse = {}
        verdicts.refused.update(sorted((later | to_refuse).items()))

    def _let_pass(self, usage: ProduceUsage, verdicts: Verdicts, data: PartitionData, now_ns: int) -> None:
        passing = _usage_of(data)
        verdicts.passing.append(passing)
        usage.add_topics(verdicts.amounts, (passing,), now_ns)

    def _must_pass(self, partition: ProducerPartition, now_ns: int) -> bool:
        """Whether a batch over its limit is not refused: it passes in a dry run, else it is held."""
        return not self._context.measures.enforces or self.sequences.refused_for_ns(partition, now_ns) >= MAX_REFUSED_NS

    def refuse(
        self,
        connection: Connection,
        usage: ProduceUsage,
        partitions: Sequence[PartitionData],
        verdicts: Verdicts,
        now_ns: int,
    ) -> None:
        """Record the refused partitions that have no error yet, and set their errors."""
        sequences, identity, errors = self.sequences, connection.identity, verdicts.errors
        for at, (partition, limit) in islice(verdicts.refused.items(), len(errors), None):
            data = partitions[at]
            wait_ns = 0 if limit is None else limit.debt_ns(now_ns) + limit.queued_ns()
            message = _message(limit, -(-wait_ns // NS_PER_MS)) if len(errors) < MAX_MESSAGES else ""
            errors.append(Refused(data.topic, data.partition, identity.refusal_error, message))
            if sequences.refuse(partition, data.epoch, data.sequence, now_ns) and limit is not None:
                decision = Decision(False, wait_ns, limit, (limit,))
                self._context.measures.notice_until_ns(identity.client, decision, REJECT, now_ns)
                self._context.measures.report.refused(identity.client, limit, data.record_bytes)
                _count_throttled(usage.charges_of(data.topic, now_ns), data, now_ns)

    def follow(self, verdicts: Verdicts, now_ns: int) -> None:
        """The request is forwarded without its refused partitions."""
        for partition, data in verdicts.followed:
            self.sequences.passed(partition, data.epoch, data.sequence, data.next_sequence, now_ns)


def without_rejecting(decision: Decision, now_ns: int) -> Decision:
    """The decision about a request that passes, as far as its response contains the wait: an error reports the others.

    A throttle time would concern all topics of the client.
    """
    others = [(limit.debt_ns(now_ns), limit) for limit in decision.exceeded if not limit.rejects]
    wait_ns, worst = max(others, key=lambda each: each[0], default=(0, None))
    return Decision(True, wait_ns, worst, tuple(limit for _, limit in others))


def _message(limit: Limit | None, wait_ms: int) -> str:
    """The error message of a refused partition."""
    if limit is None:
        return "an earlier batch of this partition was refused: send that one first"
    return f"{limit.name}={limit.rate} of {limit.entity} is exceeded: retry in {wait_ms} ms"


def _producer_of(connection: Connection, producer_id: int) -> Producer:
    return connection.identity.client.key, producer_id


def _usage_of(data: PartitionData) -> TopicUsage:
    producer_ids = () if data.producer_id < 0 else (data.producer_id,)
    return TopicUsage(data.topic, data.record_bytes, data.messages, producer_ids)


def _longest(limits: Iterable[Limit], hold: Hold | None, now_ns: int) -> Limit | None:
    """The limit with the longest wait; None if none is in debt and none has waiters besides `hold`."""
    turn = None if hold is None else hold.limit
    waits = [
        (wait_ns, limit)
        for limit in limits
        if (wait_ns := limit.debt_ns(now_ns)) or (limit.waiters.waiting and limit is not turn)
    ]
    return max(waits, key=lambda each: each[0], default=(0, None))[1]


def _count_throttled(charges: TopicCharges, data: PartitionData, now_ns: int) -> None:
    """Thresholds count what is refused."""
    amounts: dict[Limit, int] = {}
    charges.add_to(amounts, data.record_bytes, data.messages)
    for limit in charges.rejecting:
        if isinstance(limit.algorithm, TopicThreshold):
            limit.algorithm.record_throttled(amounts[limit], now_ns)
