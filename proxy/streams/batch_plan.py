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
from itertools import islice
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
from quotas.admission.client_limits import ClientLimits, TopicCharges
from quotas.admission.limit_set import MESSAGES, RECORD_BYTES, spend_all, spend_charges
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
def _layout(prefix_size: int, width: int) -> tuple[Callable[[bytearray, int], tuple[Any, ...]], int, int]:
    """A function that unpacks a request of a plan, the mask of the records' length, and the number of bytes before the
    batch.

    The fields are length, API key and version, correlation id, prefix; the length of the records, in the last `width`
    of four bytes; size, magic and attributes of the batch, producer id and number of records.
    """
    unpack = Struct(f">iii{prefix_size}s{width}xI8xi4xb4xh20xq6xi").unpack_from
    return unpack, (1 << 8 * width) - 1, PREFIX_SIZE + prefix_size + _INDEX + width


class BatchPlan:
    """Finds requests that pass together, and charges them.

    count        how many requests `scan` has found
    producer_id  the producer id of all of them; -1: none
    rest         the walk over the rest of the last one, if it has not arrived completely
    """

    def __init__(self, connection: Connection, in_flight: InFlight) -> None:
        self._in_flight: Final = in_flight
        #: The longest request that is accepted.
        self._longest: Final = connection.context.config.security.max_request_bytes
        self.count = 0
        self.producer_id = -1
        self.rest: LastBatchWalk | None = None
        #: A producer id, the time until which it counts as known, and the limit that knows it.
        self._known: tuple[int, int, ProducerIdQuota | None] = (-1, 0, None)

    @abstractmethod
    def scan(self, kind: Kind, buf: bytearray, pos: int, end: int, most: int, now_ns: int) -> int:
        """Find at most `most` requests of `kind`, starting at `pos`, and put them in flight. Returns where the last one
        ends, which is after `end` if there is a `rest` of it.
        """

    def fit(self, buf: bytearray, pos: int) -> bool:
        """Adapt to the request at `pos`. Returns whether `scan` may now find requests that it did not find before."""
        return False

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
        """Charge a further chunk of the request whose `rest` this was, in which it found these records, if there is
        room for it in all limits, and these have not changed: like `spend`.
        """
        return -1

    def is_known(self, client: ClientLimits, now_ns: int) -> bool:
        """Whether no limit counts the producer id as new. All requests of a batch have that of the first."""
        producer_ids, producer_id = client.producer_ids, self.producer_id
        if producer_ids is None or producer_id < 0:
            return True
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
        #: The topic; None if a request must arrive completely before it is charged.
        self._name: Final = topic if connection.identity.entity.topics is None else None
        self._topic: Final = charges.topic
        records = [(limit, RECORD_BYTES) for limit in charges.bytes_in]
        records += [(limit, MESSAGES) for limit in charges.messages_in]
        self._units: Final = [*client.units, *records]
        #: The bytes at the end of each request.
        self._tags: Final = _NO_TAGS if kind.version >= FIRST_FLEXIBLE else b""
        #: The size of the length of the records, and the layout of requests with that size.
        self._width = PLAIN_WIDTH
        self._layout = _layout(len(prefix), PLAIN_WIDTH)
        #: The latest size of records, and the length field that encodes it.
        self._field = (-1, -1)
        #: The bytes of records and the messages of each request found, and the attributes of the last batch seen.
        self._records: tuple[list[int], list[int], int] = ([], [], 0)

    def scan(self, kind: Kind, buf: bytearray, pos: int, end: int, most: int, now_ns: int) -> int:
        """A request is found if it has exactly one batch, and no tags. The records of the last one may be incomplete,
        unless usage is counted by topic.
        """
        key, prefix, answered, tags = kind.key, self.prefix, kind.answered, self._tags
        unpack, mask, before = self._layout
        in_flight, longest = self._in_flight, self._longest
        known_size, field = self._field
        last = end - before - BATCH_HEADER
        around = before + len(tags) - 4
        parts_end = UNBOUNDED if self._name is None else end + len(tags)
        producer_id = -1
        count = attributes = 0
        sizes: list[int] = []
        messages: list[int] = []
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
                self._field = known_size, field = size, length_field(size, self._width, longest - around)
            if written & mask != field or (seen_id != producer_id and count):
                break
            frame_end = pos + 4 + length
            if frame_end < parts_end if frame_end > end else not buf.startswith(tags, frame_end - len(tags)):
                break
            if answered:
                in_flight.append((correlation_id, kind))
            count += 1
            sizes.append(size)
            # A false count could charge a year's worth of messages to a topic for one small batch.
            if not 0 <= claimed <= size - BATCH_HEADER >> 3:  # true of few real batches
                claimed = claimed_messages(claimed, attributes, size)
            messages.append(claimed)
            producer_id = seen_id
            pos = frame_end
        self.count, self.producer_id, self._records = count, producer_id, (sizes, messages, attributes)
        self.rest = self._rest_of_last(around, pos - end)
        return pos

    def _rest_of_last(self, around: int, missing: int) -> LastBatchWalk | None:
        """If `missing` bytes of the last request have not arrived, count only the others. Returns the rest's walk."""
        if missing <= 0 or self._name is None:
            return None
        sizes, messages, _ = self._records
        size, number = sizes[-1], messages[-1]
        rest = LastBatchWalk(self.kind.version, size + around, missing, self._name, size, number)
        late_bytes, late_messages = rest.late
        sizes[-1], messages[-1] = size - late_bytes, number - late_messages
        return rest

    def is_valid(self, identity: Identity) -> bool:
        """Whether the limits still apply to this client."""
        return self.client is identity.limits and self.generation == identity.generation

    def spend_rest(self, identity: Identity, chunk: int, found: Sequence[TopicUsage], now_ns: int) -> int:
        if not self.is_valid(identity):
            return -1
        self._topic.last_ns = now_ns
        record_bytes, messages = sum([each.record_bytes for each in found]), sum([each.messages for each in found])
        sums = (chunk, 0, record_bytes, messages, *[chunk for _ in self.client.costs])
        return spend_all(self._units, sums, chunk, now_ns)

    def fit(self, buf: bytearray, pos: int) -> bool:
        if not self._tags:
            return False
        length: int = unpack_prefix(buf, pos)[0]
        width = width_of(length + 4 - PREFIX_SIZE - len(self.prefix) - _INDEX - len(_NO_TAGS))
        if width == self._width:
            return False
        self._width, self._layout, self._field = width, _layout(len(self.prefix), width), (-1, -1)
        return True

    def spend(self, client: ClientLimits, size: int, surcharges: Sequence[int], now_ns: int) -> int:
        self._topic.last_ns = now_ns
        sizes, messages, _ = self._records
        sums = (size, self.count, sum(sizes), sum(messages), *[size + more for more in surcharges])
        return spend_all(self._units, sums, size, now_ns)

    def count_facts(self, facts: RequestFacts) -> None:
        facts.inspected += self.count
        facts.idempotent += self.count if self.producer_id >= 0 else 0
        facts.uncompressed += 0 if self._records[2] & CODEC else self.count

    def count_topics(self, traffic: dict[str, TopicTraffic]) -> tuple[list[SentRequest], Traffic]:
        counted, (sizes, messages, _) = traffic[self._topic.name], self._records
        counted.add_produced(sum(sizes), sum(messages))
        newest = islice(reversed(self._in_flight), self.count if self.kind.answered else 0)
        each = zip(newest, reversed(sizes), reversed(messages), strict=False)
        sent: list[SentRequest] = [(request[0], [(None, 0, size, number)]) for request, size, number in each]
        return sent, {None: counted}


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
