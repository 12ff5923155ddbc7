"""Runs of Produce requests that are charged for their records together, whatever limits apply.

A `Plan` has the prefix of its requests, and the limits of their topic. Requests for several partitions vary: `TopicRun`
reads the topics and partitions of each.

The sums of a run are charged with one call for each limit. Decisions one by one have the same result if no limit gets
into debt by it. Otherwise nothing is charged, and the requests are decided one by one.
"""

from functools import lru_cache
from struct import Struct
from typing import Final, final

from protocol.produce_walk import TopicUsage, one_partition, read_topics
from protocol.record_batch import (
    BATCH_HEADER,
    BEFORE_SIZE,
    claimed_messages,
    length_field,
)
from protocol.request_header import PREFIX_SIZE, unpack_prefix
from proxy.observability.topic_traffic import TopicTraffic
from proxy.streams.connection import InFlight, RequestKind
from proxy.streams.produce_usage import PIECES, ProduceUsage
from proxy.streams.runs import INDEX, MAX_PREFIX, Charge, Layout, Run, Unpack
from proxy.streams.steps import PIECES_PER_STEP
from quotas.admission.client_limits import ClientLimits, TopicCharges
from quotas.admission.limit import Limit
from quotas.algorithms.producer_ids import ProducerIdQuota

#: Plans of one connection.
MAX_PLANS: Final = 4


@lru_cache(maxsize=256)
def _layout(prefix_size: int, width: int) -> Unpack:
    """Reads a request of a plan: length, API key and version, correlation id, prefix; the length of the records in the
    last `width` of four bytes; size, magic and attributes of the batch, producer id, records count.
    """
    return Struct(f">iii{prefix_size}s{width}xI8xi4xb4xh20xq6xi").unpack_from


class ChargedRun(Run):
    """Requests that are charged together. `producer_id`: of all of them; -1: none."""

    __slots__ = ("_known_by", "_known_id", "_known_until_ns", "producer_id")

    def __init__(self) -> None:
        super().__init__()
        self.producer_id = -1
        #: A producer id that is known until then.
        self._known_id = -1
        self._known_until_ns = 0
        self._known_by: ProducerIdQuota | None = None

    def is_known(self, client: ClientLimits, now_ns: int) -> bool:
        producer_ids = client.producer_ids
        return producer_ids is None or self.producer_id < 0 or self._is_known(producer_ids.known, now_ns)

    def _is_known(self, known: ProducerIdQuota, now_ns: int) -> bool:
        """Whether the producer id is known. A run has that of its first request, so no other is asked for."""
        producer_id = self.producer_id
        if producer_id == self._known_id and now_ns < self._known_until_ns and known is self._known_by:
            return True
        until_ns = known.known_until_ns(producer_id, now_ns)
        if until_ns is None:
            return False
        self._known_id, self._known_until_ns, self._known_by = producer_id, until_ns, known
        return True


@final
class Plan(ChargedRun):
    """See the module. The limits of the client and the topic, one of which counts records.

    kind         of the requests
    prefix       see `runs`
    generation   of the limits
    """

    __slots__ = (
        "_last_messages",
        "_last_records",
        "_layout",
        "_limits",
        "_messages",
        "_record_bytes",
        "_topic",
        "generation",
        "kind",
        "prefix",
    )

    def __init__(
        self, kind: RequestKind, prefix: bytes, client: ClientLimits, charges: TopicCharges, generation: int
    ) -> None:
        super().__init__()
        self.kind: Final = kind
        self.prefix: Final = prefix
        self.generation: Final = generation
        #: Records and messages of the last request found, where it has not arrived whole.
        self._last_records = 0
        self._last_messages = 0
        self._topic: Final = charges.topic
        #: Each limit, and which of four sums it is charged with.
        self._limits: Final = tuple(
            (limit, unit)
            for unit, limits in enumerate(
                (client.produce.limits, client.requests.limits, charges.bytes_in, charges.messages_in)
            )
            for limit in limits
        )
        self._layout: Final = Layout(kind, len(prefix), _layout)
        self._record_bytes = 0
        self._messages = 0

    def scan(
        self,
        kind: RequestKind,
        buf: bytearray,
        pos: int,
        end: int,
        most: int,
        longest: int,
        in_flight: InFlight,
        now_ns: int,
    ) -> int:
        """A request is found as soon as the header of its batch is in the buffer. It has one batch, and no tags."""
        key, prefix, answered, layout = kind.key, self.prefix, kind.answered, self._layout
        layout.fit(buf, pos)
        width, unpack, tags = layout.width, layout.unpack, layout.tags
        mask = (1 << 8 * width) - 1
        startswith, append = buf.startswith, in_flight.append
        before = PREFIX_SIZE + len(prefix) + INDEX + width
        last = end - before - BATCH_HEADER
        around = before + len(tags) - 4
        known_size = field = -1
        count = record_bytes = messages = 0
        producer_id = -1
        while pos <= last and count < most:
            length, seen, correlation_id, head, written, batch_size, magic, attributes, seen_id, claimed = unpack(
                buf, pos
            )
            size = length - around
            if seen != key or head != prefix or magic != 2 or batch_size + BEFORE_SIZE != size or length > longest:
                break
            if size != known_size:
                known_size, field = size, length_field(size, width)
            if written & mask != field or (seen_id != producer_id and count):
                break
            frame_end = pos + 4 + length
            tags_at = frame_end - len(tags)
            if not startswith(tags, tags_at) and (frame_end <= end or any(buf[tags_at:end])):
                break
            if answered:
                append((correlation_id, kind))
            count += 1
            record_bytes += size
            if 0 <= claimed <= size - BATCH_HEADER >> 3:  # as in nearly all batches
                messages += claimed
            else:
                messages += claimed_messages(claimed, attributes, size)
            producer_id = seen_id
            pos = frame_end
        if count and self._topic.last_ns < now_ns:
            self._topic.last_ns = now_ns
        if pos > end:  # the loop has ended with this request
            self.last_size, self._last_records = length, size
            self._last_messages = claimed_messages(claimed, attributes, size)
        self.count, self.producer_id, self._record_bytes, self._messages = count, producer_id, record_bytes, messages
        return pos

    def charges(self, client: ClientLimits, size: int, missing: int) -> list[Charge]:
        sums = (size, self.count, self._record_bytes, self._messages)
        if not missing:
            return [(limit, sums[unit], 0) for limit, unit in self._limits]
        length = self.last_size
        beside = (missing, 0, self._last_records * missing // length, self._last_messages * missing // length)
        return [(limit, sums[unit] - beside[unit], beside[unit]) for limit, unit in self._limits]

    def count_topics(self, traffic: dict[str, TopicTraffic]) -> None:
        counters = traffic[self._topic.name]
        counters.produce_bytes += self._record_bytes
        counters.produce_messages += self._messages


@final
class TopicRun(ChargedRun):
    """See the module. One object for each connection."""

    __slots__ = ("_counts_topics", "_found", "_usage", "_usages")

    def __init__(self, usage: ProduceUsage) -> None:
        super().__init__()
        self._usage: Final = usage
        self._counts_topics: Final = usage.counts_topics
        self._found: dict[Limit, int] = {}
        #: The topics of the requests found, where they are counted.
        self._usages: list[TopicUsage] = []

    def scan(
        self,
        kind: RequestKind,
        buf: bytearray,
        pos: int,
        end: int,
        most: int,
        longest: int,
        in_flight: InFlight,
        now_ns: int,
    ) -> int:
        """A request is found when all of it is in the buffer."""
        key, tail, shortest, body_offset = kind.key, kind.tail, kind.shortest, kind.header.body_offset
        amounts: dict[Limit, int] = {}
        counted: list[TopicUsage] = []
        work_left = PIECES_PER_STEP
        count = 0
        producer_ids: tuple[int, ...] = ()
        while end - pos >= kind.needed and count < most:
            length, seen, correlation_id = unpack_prefix(buf, pos)
            frame_end = pos + 4 + length
            if seen != key or not shortest <= length <= longest or frame_end > end:
                break
            if not buf.startswith(tail, pos + PREFIX_SIZE):
                break
            usages, pieces = read_topics(buf, pos + body_offset, frame_end, kind.version, min(PIECES, work_left))
            if usages and not count:
                producer_ids = usages[0].producer_ids
            if not self._usage.add(amounts, usages, producer_ids, now_ns):
                break
            if self._counts_topics:
                counted += usages
            work_left -= pieces
            if kind.answered:
                in_flight.append((correlation_id, kind))
            count += 1
            pos = frame_end
        self.count, self.producer_id = count, next(iter(producer_ids), -1)
        self._found, self._usages = amounts, counted
        return pos

    def charges(self, client: ClientLimits, size: int, missing: int) -> list[Charge]:
        return [(limit, amount, 0) for limit, amount in (client.amounts(size, self.count) | self._found).items()]

    def count_topics(self, traffic: dict[str, TopicTraffic]) -> None:
        self._usage.count_topics(self._usages)
        self._usages = []


@final
class Runs:
    """What finds the runs of one connection. `latest`: the plan that was found last; None: there is none."""

    __slots__ = ("_plans", "_topic_run", "_usage", "latest")

    def __init__(self, usage: ProduceUsage) -> None:
        self.latest: Plan | None = None
        self._usage: Final = usage
        #: The latest one first.
        self._plans: list[Plan] = []
        self._topic_run: Final = TopicRun(usage)

    def find(
        self,
        kind: RequestKind,
        client: ClientLimits,
        generation: int,
        buf: bytearray,
        pos: int,
        end: int,
        now_ns: int,
    ) -> ChargedRun | None:
        """What finds the requests from `pos` on, if the first is of this kind. None: that one is decided alone.

        client, generation   the limits of now
        """
        usage = self._usage
        plans = self._plans
        if usage.has_late:
            return None
        for index, known in enumerate(plans):
            if known.kind is kind and buf.startswith(known.prefix, pos + PREFIX_SIZE):
                if known.generation != generation:
                    del plans[index]
                    break
                if index:
                    plans.insert(0, plans.pop(index))
                self.latest = known
                return known
        if usage.counts_errors or kind.length_at(buf, pos, end) < 0:
            return None
        plan = self._plan_at(kind, client, generation, buf, pos, end, now_ns)
        if plan is None:
            return self._topic_run
        plans.insert(0, plan)
        del plans[MAX_PLANS:]
        self.latest = plan
        return plan

    def _plan_at(
        self,
        kind: RequestKind,
        client: ClientLimits,
        generation: int,
        buf: bytearray,
        pos: int,
        end: int,
        now_ns: int,
    ) -> Plan | None:
        """A plan for requests such as the one at `pos`; None: it has several partitions, or a long or unknown topic."""
        found = one_partition(buf, pos + kind.header.body_offset, end, kind.version)
        if found is None:
            return None
        topic, prefix_end = found
        start = pos + PREFIX_SIZE
        charges = self._usage.lasting_charges(topic, now_ns)
        if charges is None or prefix_end - start > MAX_PREFIX:
            return None
        prefix = bytes(buf[start:prefix_end])
        return Plan(kind, prefix, client, charges, generation)
