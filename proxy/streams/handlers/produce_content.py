"""The content of one Produce request, which is read while it arrives: topics, records, producer ids."""

from collections.abc import Callable
from typing import Final, final

from protocol.produce_partitions import PartitionData, ProducePartitionsWalk
from protocol.produce_walk import FIRST_WITH_TOPIC_IDS, ProduceRequestWalk, TopicUsage
from protocol.topics import Topic
from proxy.enforcement.identity import Identity
from proxy.streams.connection import Connection
from proxy.streams.request import Kind
from proxy.streams.sent_records import SentPartition, most_kept
from proxy.streams.topic_charges import PIECES, TopicChargesCache, Traffic
from quotas.admission.client_limits import ProducerIdLimit
from quotas.admission.frame import Charge, in_order
from quotas.admission.limit import Limit


def topics_of(connection: Connection) -> TopicChargesCache:
    """The charges of a connection's topics, for the current limits."""
    topics = connection.topics
    if topics is None:
        context, by_topic = connection.context, connection.context.config.usage.by_topic
        topics = TopicChargesCache(connection.identity, context.topics, context.actions, counts_topics=by_topic)
        connection.topics = topics
    topics.renew()
    return topics


@final
class Refusal:
    """A refused request.

    error        the error code for each of its partitions
    message      the message for the client's log
    limit        the limit that is exceeded; None: the request is refused to keep the order, or for an unknown topic
    wait_ns      how long it takes until that limit has room
    partitions   the partitions that have been found
    correlation_id   the correlation id of the request
    """

    __slots__ = ("correlation_id", "error", "limit", "message", "partitions", "wait_ns")

    def __init__(self, error: int, message: str, limit: Limit | None = None, wait_ns: int = 0) -> None:
        self.error = error
        self.message = message
        self.limit = limit
        self.wait_ns = wait_ns
        self.partitions: list[tuple[Topic, int]] = []
        self.correlation_id = 0


@final
class ProduceContent:
    """The content of one request.

    walk        parses it
    found       what the latest read contained, by topic
    partitions  what it contained by partition, if `lists_partitions`, because the request may be refused
    new_ids     the producer ids in the latest read that count as new
    refusal     how the request is answered, if it is refused
    spared      a limit that does not hold it; None: there is no such limit
    counted     the first usages, which wait for the response; None: no threshold counts accepted records
    spend_rest  charges a read of a request that began to pass in a batch, far from any limit; None: it did not
    sent, traffic
                its partitions, and where their records were counted by topic, for the response
    """

    def __init__(
        self,
        kind: Kind,
        length: int,
        *,
        lists_partitions: bool,
        most_sent: int = 0,
        rest: ProduceRequestWalk | None = None,
    ) -> None:
        """rest: the walk over the rest of a request that has begun to pass."""
        made = ProducePartitionsWalk if lists_partitions or most_sent else ProduceRequestWalk
        self.walk: Final = rest or made(kind.version, length, kind.header.body_offset - 4)
        self.lists_partitions: Final = lists_partitions
        self.found: list[TopicUsage] = []
        self.partitions: list[PartitionData] = []
        self.new_ids: tuple[int, ...] = ()
        self.refusal: Refusal | None = None
        self.spared: Limit | None = None
        self.counted: list[TopicUsage] | None = None
        self._most_counted = 0
        self.spend_rest: Callable[[Identity, int, list[TopicUsage], int], int] | None = None
        self.sent: list[SentPartition] = []
        self.traffic: Traffic = {}
        self._most_sent: Final = most_sent

    def read(self, buf: bytearray, pos: int, end: int) -> int:
        """Read more. Returns where reading ended, and sets `found` and `partitions`. Raises MalformedFrame."""
        walk = self.walk
        walk.work_left = PIECES
        read_to = walk.advance(buf, pos, end)
        self.found = walk.take()
        if isinstance(walk, ProducePartitionsWalk):
            found = walk.take_partitions()
            self.sent += found[: max(0, self._most_sent - len(self.sent))]
            if self.lists_partitions:
                self.partitions += found
        return read_to

    @property
    def knows_first_topic(self) -> bool:
        """Whether the first topic has been read, or the request has no topic."""
        return bool(self.walk.topic) or self.walk.is_over

    def has_unknown_topic(self, topics: TopicChargesCache) -> bool:
        """Whether the latest read has a topic whose name is not known although a limit needs it."""
        if not self.walk.by_id:
            return False
        is_unknown = topics.is_unknown
        return any(is_unknown(usage.topic) for usage in self.found) or is_unknown(self.walk.topic)

    # ---- charges

    def add_to(
        self, charges: list[Charge], topics: TopicChargesCache, producer_ids: ProducerIdLimit | None, now_ns: int
    ) -> list[Charge]:
        """Add the charges of the latest read in the order of the limits. `charges`: those for its bytes."""
        amounts = dict(charges)
        if self.spared is not None:
            amounts.pop(self.spared, None)
        topics.add_records(amounts, self.found, now_ns)
        if producer_ids is not None:
            seen = {each for usage in self.found for each in usage.producer_ids}
            self.new_ids = producer_ids.known.unknown(seen, now_ns) if seen else ()
            if self.new_ids:
                amounts[producer_ids.limit] = len(self.new_ids)
        return in_order(amounts)

    def recount_ids(self, charges: list[Charge], producer_ids: ProducerIdLimit | None, now_ns: int) -> list[Charge]:
        """The charges of the latest read after a hold, when another request may have used its new producer ids."""
        if producer_ids is None or not self.new_ids:
            return charges
        self.new_ids = producer_ids.known.unknown(self.new_ids, now_ns)
        number = len(self.new_ids)
        counted = [(limit, number if limit is producer_ids.limit else units) for limit, units in charges]
        return [each for each in counted if number or each[0] is not producer_ids.limit]

    def topics_at(self, limit: Limit, topics: TopicChargesCache, now_ns: int) -> tuple[str, ...]:
        """The topics of the latest read whose records count for this limit. None if one is not known."""
        charges = [topics.of(usage.topic, now_ns) for usage in self.found]
        names = tuple(dict.fromkeys(each.topic.name for each in charges if each.has_any_of({limit})))
        return () if "" in names else names

    # ---- what passes

    def count_accepted(self, in_flight: int, *, answered: bool) -> None:
        """Keep what a threshold counts once the broker accepts it. The request follows `in_flight` others."""
        self.counted = []
        self._most_counted = most_kept(in_flight) if answered else 0

    def passed(self, connection: Connection, topics: TopicChargesCache, now_ns: int) -> None:
        """Count the latest read, which passes. All records count as accepted if there will be no response, or if they
        belong to more topics than are kept for it.
        """
        found, self.found = self.found, []
        topics.count_traffic(found, self.traffic, self._most_sent)
        producer_ids = connection.identity.limits.producer_ids
        if self.new_ids and producer_ids is not None:
            producer_ids.known.remember(self.new_ids, now_ns)
            self.new_ids = ()
        if self.counted is not None:
            for usage in found:
                self._count(self.counted, usage, connection, now_ns)

    def _count(self, counted: list[TopicUsage], usage: TopicUsage, connection: Connection, now_ns: int) -> None:
        if counted and counted[-1].topic == usage.topic:  # more of the same topic
            record_bytes, messages = counted[-1].record_bytes, counted[-1].messages
            counted[-1] = TopicUsage(usage.topic, record_bytes + usage.record_bytes, messages + usage.messages, ())
        elif len(counted) < self._most_counted:
            counted.append(usage)
        else:
            name = connection.context.topics.name_of(usage.topic)
            if name is not None:
                connection.context.registry.topics.accepted(name, usage.record_bytes, usage.messages, now_ns)

    # ---- partitions, for requests that may be refused

    @property
    def topics(self) -> tuple[Topic, ...]:
        """All topics of the request, after the first read. Empty while some have not been read."""
        if self.walk.topics_left and not self.walk.is_over:
            return ()
        found = dict.fromkeys(data.topic for data in self.partitions)
        if not self.walk.is_over:
            found[self.walk.topic] = None
        return tuple(found)

    def take_partitions(self) -> list[PartitionData]:
        """The partitions that were found since the last call."""
        found, self.partitions = self.partitions, []
        return found

    @property
    def partitions_left(self) -> int:
        """How many partitions of the current topic have not been found, or one more."""
        return self.walk.partitions_left if isinstance(self.walk, ProducePartitionsWalk) else 0


def needs_first_topic(kind: Kind, connection: Connection) -> bool:
    """Whether the first topic must be read before a request passes, because a limit needs the name of its id."""
    return kind.version >= FIRST_WITH_TOPIC_IDS and connection.context.registry.limits_topics
