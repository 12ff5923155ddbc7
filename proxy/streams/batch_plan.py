"""Batches of Produce requests that pass together and whose records are read, because limits charge them or because
usage is counted by topic.

Consecutive requests of a producer for one partition of a topic have equal bytes from the client id to the partition
count. These are their prefix. In each further request, only the length of its records and the header of its batch are
read:

    length, API, version | correlation id | client id ... partition count | partition | size | batch header ...
    compared             |                | compared: the prefix          |           | read | read

A `PartitionPlan` has such a prefix, and the limits of the topic. Requests for several partitions vary, so a
`TopicsPlan` reads each of them completely, in flexible versions.

The sums of a batch are charged with one call for each limit. The result is the same as with a decision for each
request, provided that no limit goes into debt. Otherwise nothing is charged, and the requests are decided one by one.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final, final

from protocol.produce_walk import (
    FIRST_FLEXIBLE,
    FIRST_WITH_TOPIC_IDS,
    LastBatchWalk,
    PlainTopic,
    TopicUsage,
    one_partition,
    read_plain_body,
)
from protocol.record_batch import (
    BATCH_HEADER,
    BEFORE_SIZE,
    CODEC,
    PLAIN_WIDTH,
    claimed_messages,
    length_field,
    width_of,
)
from protocol.request_header import PREFIX_SIZE, unpack_prefix
from protocol.topics import Topic
from protocol.walk import UNBOUNDED
from proxy.enforcement.identity import Identity
from proxy.observability.tallies import RequestFacts, TopicTraffic
from proxy.streams.connection import Connection
from proxy.streams.pending import InFlight
from proxy.streams.request import Kind
from proxy.streams.sent_records import SentRequest, list_plain_body, most_kept
from proxy.streams.steps import PIECES_PER_STEP
from proxy.streams.topic_charges import PIECES, TopicChargesCache, Traffic
from quotas.admission.client_limits import ClientLimits, ProducerIdLimit, TopicCharges
from quotas.admission.limit_set import Sum, spend_all, spend_charges
from quotas.algorithms.producer_ids import ProducerIdQuota

#: The longest prefix.
MAX_PREFIX: Final = 1_024
#: How many prefixes are kept for one connection.
MAX_PLANS: Final = 8

#: The size of a partition's index, in bytes.
_INDEX: Final = 4
#: The tags of the partition, the topic and the body, at the end of a request of a flexible version.
_NO_TAGS: Final = bytes(3)


@lru_cache(maxsize=256)
def _layout(prefix_size: int, width: int) -> tuple[Callable[[bytearray, int], tuple[Any, ...]], int, int, int]:
    """A function that unpacks a request of a plan, the number of bytes before the batch, `width`, and the mask of the
    records' length.

    The fields are length, API key and version, correlation id, prefix; the length of the records, in the last `width`
    of four bytes; size, magic and attributes of the batch, producer id and number of records.
    """
    unpack = Struct(f">iii{prefix_size}s{width}xI8xi4xb4xh20xq6xi").unpack_from
    return unpack, PREFIX_SIZE + prefix_size + _INDEX + width, width, (1 << 8 * width) - 1


class BatchPlan:
    """Finds requests that pass together, and charges them.

    count        how many requests `scan` has found
    producer_id  the producer id of all of them; -1: none
    """

    def __init__(self, connection: Connection, in_flight: InFlight) -> None:
        self._in_flight: Final = in_flight
        #: The longest request that is accepted.
        self._longest: Final = connection.context.config.security.max_request_bytes
        self.count = 0
        self.producer_id = -1
        #: A producer id, the time until which it counts as known, and the limit that knows it.
        self._known: tuple[int, int, ProducerIdQuota | None] = (-1, 0, None)

    @abstractmethod
    def scan(self, kind: Kind, buf: bytearray, pos: int, end: int, most: int, now_ns: int) -> int:
        """Find at most `most` requests of `kind`, starting at `pos`, and put them in flight. Returns where the last one
        ends, which is after `end` if it has not arrived completely: then call `begin_rest`.
        """

    def fit(self, buf: bytearray, pos: int) -> bool:
        """Adapt to the request at `pos`. Returns whether `scan` may now find requests that it did not find before."""
        return False

    def begin_rest(self, missing: int) -> LastBatchWalk:
        """Count only what has arrived of the last request, which lacks `missing` bytes. Returns the walk over these."""
        raise NotImplementedError

    @abstractmethod
    def spend(self, client: ClientLimits, size: int, surcharges: Sequence[int], now_ns: int) -> int:
        """Charge the requests found, which have `size` bytes in total, if there is room for all: see `spend_all`, and
        `ClientLimits.surcharges`.
        """

    @abstractmethod
    def count_topics(self, traffic: dict[str, TopicTraffic]) -> tuple[list[SentRequest], Traffic]:
        """Count the records of the requests found by topic, because these pass. Returns the requests that will be
        answered, and where their records were counted.
        """

    def count_facts(self, facts: RequestFacts) -> None:
        """The requests found pass: count what is known of them besides."""

    def spend_rest(self, identity: Identity, chunk: int, found: Sequence[TopicUsage], now_ns: int) -> int:
        """Charge a further chunk of the request whose rest has begun, in which that found these records, if there is
        room for it in all limits, and these have not changed: like `spend`.
        """
        return -1

    def is_known(self, producer_id: int, producer_ids: ProducerIdLimit, now_ns: int) -> bool:
        """Whether the limit does not count this producer id as new. All requests of a batch have that of the first."""
        known_id, known_until_ns, known_by = self._known
        if producer_id != known_id or now_ns >= known_until_ns or known_by is not producer_ids.known:
            until_ns = producer_ids.known.known_until_ns(producer_id, now_ns)
            if until_ns is None:
                return False
            self._known = producer_id, until_ns, producer_ids.known
        return True


@final
class PartitionPlan(BatchPlan):
    """Requests with the same prefix. The limits are those of their client and topic.

    kind                the kind of the requests
    client, generation  the client whose limits these are, and the generation of the limits
    """

    def __init__(
        self,
        connection: Connection,
        in_flight: InFlight,
        kind: Kind,
        prefix: bytes,
        topic: Topic,
        charges: TopicCharges,
    ) -> None:
        super().__init__(connection, in_flight)
        identity = connection.identity
        client = identity.limits
        self.kind: Final = kind
        self.prefix: Final = prefix
        self.client: Final = client
        self.generation: Final = identity.generation
        self._topic: Final = topic
        self._charges: Final = charges
        #: The bytes at the end of each request.
        self._tags: Final = _NO_TAGS if kind.version >= FIRST_FLEXIBLE else b""
        self._is_counted: Final = identity.entity.topics is not None
        #: An incomplete request is found if it lacks at least this many bytes.
        self._least_missing: Final = UNBOUNDED if self._is_counted else len(self._tags)
        #: The layout of requests, and the size of the length of the records.
        self._layout = _layout(len(prefix), PLAIN_WIDTH)
        #: The latest size of records, and the length field that encodes it.
        self._field = (-1, -1)
        #: Of the requests found: the bytes of all records, the number of messages; the same of the last one; the
        #: attributes of the last batch seen.
        self._records = 0, 0, 0, 0, 0
        #: The requests found, if they will be answered and usage is counted by topic.
        self._sent: list[SentRequest] = []

    def scan(self, kind: Kind, buf: bytearray, pos: int, end: int, most: int, now_ns: int) -> int:
        """A request is found if it has exactly one batch, and no tags. The records of the last one may be incomplete,
        unless usage is counted by topic.
        """
        key, prefix, answered, tags = kind.key, self.prefix, kind.answered, self._tags
        unpack, before, width, mask = self._layout
        in_flight, longest = self._in_flight, self._longest
        known_size, field = self._field
        last = end - before - BATCH_HEADER
        around = before + len(tags) - 4
        parts_end = end + self._least_missing
        is_counted = self._is_counted
        sent: list[SentRequest] = []
        producer_id = -1
        count = record_bytes = messages = size = claimed = attributes = 0
        while pos <= last and count < most:
            length, seen, correlation_id, head, written, batch_size, magic, attributes, seen_id, claimed = unpack(
                buf, pos
            )
            size = length - around
            if seen != key or head != prefix or magic != 2 or batch_size + BEFORE_SIZE != size:
                break
            # In a run of records of the same size, the length field is computed once, then compared, so no varint is
            # decoded.
            if size != known_size:
                self._field = known_size, field = size, length_field(size, width, longest - around)
            if written & mask != field or (seen_id != producer_id and count):
                break
            frame_end = pos + 4 + length
            if frame_end < parts_end if frame_end > end else not buf.startswith(tags, frame_end - len(tags)):
                break
            # A false count could charge a year's worth of messages to a topic for one small batch.
            if not 0 <= claimed <= size - BATCH_HEADER >> 3:  # true of few real batches
                claimed = claimed_messages(claimed, attributes, size)
            if answered:
                in_flight.append((correlation_id, kind))
                if is_counted:
                    sent.append((correlation_id, [(None, 0, size, claimed)]))
            count += 1
            record_bytes += size
            messages += claimed
            producer_id = seen_id
            pos = frame_end
        self.count, self.producer_id, self._sent = count, producer_id, sent
        self._records = record_bytes, messages, size, claimed, attributes
        return pos

    def begin_rest(self, missing: int) -> LastBatchWalk:
        record_bytes, messages, size, number, attributes = self._records
        length = size + self._layout[1] + len(self._tags) - 4
        rest = LastBatchWalk(self.kind.version, length, missing, self._topic, size, number)
        late_bytes, late_messages = rest.late
        self._records = record_bytes - late_bytes, messages - late_messages, size, number, attributes
        return rest

    def is_valid(self, identity: Identity) -> bool:
        """Whether the limits still apply to this client."""
        return self.client is identity.limits and self.generation == identity.generation

    def spend_rest(self, identity: Identity, chunk: int, found: Sequence[TopicUsage], now_ns: int) -> int:
        if not self.is_valid(identity):
            return -1
        record_bytes = messages = 0
        for usage in found:
            record_bytes += usage.record_bytes
            messages += usage.messages
        return self._spend([(self.client.produce.limits, chunk)], record_bytes, messages, chunk, now_ns)

    def fit(self, buf: bytearray, pos: int) -> bool:
        if not self._tags:
            return False
        length: int = unpack_prefix(buf, pos)[0]
        width = width_of(length + 4 - PREFIX_SIZE - len(self.prefix) - _INDEX - len(_NO_TAGS))
        if width == self._layout[2]:
            return False
        self._layout, self._field = _layout(len(self.prefix), width), (-1, -1)
        return True

    def spend(self, client: ClientLimits, size: int, surcharges: Sequence[int], now_ns: int) -> int:
        record_bytes, messages, _, _, _ = self._records
        return self._spend(client.sums_of(size, self.count, surcharges), record_bytes, messages, size, now_ns)

    def _spend(self, sums: list[Sum], record_bytes: int, messages: int, size: int, now_ns: int) -> int:
        """Charge these records, with what else requests of `size` bytes are charged."""
        charges = self._charges
        charges.topic.last_ns = now_ns
        sums += (charges.bytes_in, record_bytes), (charges.messages_in, messages)
        return spend_all(sums, size, now_ns)

    def count_facts(self, facts: RequestFacts) -> None:
        count = self.count
        facts.inspected += count
        if self.producer_id >= 0:
            facts.idempotent += count
        if not self._records[4] & CODEC:
            facts.uncompressed += count

    def count_topics(self, traffic: dict[str, TopicTraffic]) -> tuple[list[SentRequest], Traffic]:
        counted = traffic[self._charges.topic.name]
        counted.add_produced(*self._records[:2])
        return self._sent, {None: counted}


@final
class TopicsPlan(BatchPlan):
    """Requests of one producer for any topics. There is one object for each connection."""

    def __init__(self, connection: Connection, in_flight: InFlight, topics: TopicChargesCache) -> None:
        super().__init__(connection, in_flight)
        self._topics: Final = topics
        #: The records of the requests found: their topic, their charges, their bytes, and their messages.
        self._found: list[tuple[Topic, TopicCharges, int, int]] = []
        self._sent: list[SentRequest] = []

    def scan(self, kind: Kind, buf: bytearray, pos: int, end: int, most: int, now_ns: int) -> int:
        key, tail, shortest, body_offset = kind.key, kind.tail, kind.shortest, kind.header.body_offset
        by_id = kind.version >= FIRST_WITH_TOPIC_IDS
        self._found.clear()
        self.count, self.producer_id = 0, -1
        self._sent = []
        work_left = PIECES_PER_STEP
        while end - pos >= kind.needed and self.count < most:
            length, seen, correlation_id, head = kind.unpack(buf, pos)
            frame_end = pos + 4 + length
            if seen != key or head != tail or not shortest <= length <= self._longest or frame_end > end:
                break
            found, pieces = read_plain_body(buf, pos + body_offset, frame_end, by_id, min(PIECES, work_left))
            if not found or not self._add(found, now_ns):
                break
            work_left -= pieces
            if kind.answered:
                self._in_flight.append((correlation_id, kind))
                self._keep(correlation_id, buf, pos + body_offset, frame_end, by_id=by_id)
            self.count += 1
            pos = frame_end
        return pos

    def _keep(self, correlation_id: int, buf: bytearray, pos: int, end: int, *, by_id: bool) -> None:
        """Keep the contents of the body at `pos`, which the response will refer to."""
        if self._topics.counts_topics:
            partitions = list_plain_body(buf, pos, end, by_id)[: most_kept(len(self._in_flight))]
            self._sent.append((correlation_id, partitions))

    def _add(self, found: list[PlainTopic], now_ns: int) -> bool:
        """Add the topics of a request to those found, if all have the batch's producer id, which is not charged."""
        if not self.count:
            self.producer_id = found[0][3]
        added = []
        for topic, record_bytes, messages, producer_id in found:
            charges = self._topics.lasting(topic, now_ns)
            if charges is None or producer_id != self.producer_id:
                return False
            added.append((topic, charges, record_bytes, messages))
        self._found += added
        return True

    def spend(self, client: ClientLimits, size: int, surcharges: Sequence[int], now_ns: int) -> int:
        amounts = dict(client.charges_of(size, self.count, surcharges))
        for _, charges, record_bytes, messages in self._found:
            charges.topic.last_ns = now_ns
            charges.add_to(amounts, record_bytes, messages)
        return spend_charges(list(amounts.items()), size, now_ns)

    def count_topics(self, traffic: dict[str, TopicTraffic]) -> tuple[list[SentRequest], Traffic]:
        counted: Traffic = {}
        for topic, charges, record_bytes, messages in self._found:
            counted[topic] = traffic[charges.topic.name]
            counted[topic].add_produced(record_bytes, messages)
        return self._sent, counted


@final
class BatchPlans:
    """The plans of one connection. `known`: the plans for one partition, latest first."""

    def __init__(self, connection: Connection, in_flight: InFlight, topics: TopicChargesCache) -> None:
        self._connection: Final = connection
        self._in_flight: Final = in_flight
        self._topics: Final = topics
        self.known: Final[list[PartitionPlan]] = []
        self._topics_plan: Final = TopicsPlan(connection, in_flight, topics)

    def find(self, kind: Kind, buf: bytearray, pos: int, end: int, now_ns: int) -> BatchPlan | None:
        """The plan for the requests that start at `pos`, if the first is of `kind`. None: it is decided alone."""
        plans, identity = self.known, self._connection.identity
        for index, known in enumerate(plans):
            if known.kind is kind and buf.startswith(known.prefix, pos + PREFIX_SIZE):
                if not known.is_valid(identity):
                    del plans[index]
                    break
                if index:
                    plans.insert(0, plans.pop(index))
                return known
        self._topics.renew()
        if self._topics.counts_errors or kind.length_at(buf, pos, end) < 0:
            return None
        plan = self._plan_at(kind, buf, pos, end, now_ns)
        if plan is None:
            return self._topics_plan if kind.version >= FIRST_FLEXIBLE else None
        plans.insert(0, plan)
        del plans[MAX_PLANS:]
        return plan

    def _plan_at(self, kind: Kind, buf: bytearray, pos: int, end: int, now_ns: int) -> PartitionPlan | None:
        """A plan for requests like the one at `pos`. None: it has several partitions, or a long or unknown topic."""
        found = one_partition(buf, pos + kind.header.body_offset, end, kind.version)
        if found is None:
            return None
        topic, prefix_end = found
        start = pos + PREFIX_SIZE
        charges = self._topics.lasting(topic, now_ns)
        if charges is None or prefix_end - start > MAX_PREFIX:
            return None
        return PartitionPlan(self._connection, self._in_flight, kind, bytes(buf[start:prefix_end]), topic, charges)
