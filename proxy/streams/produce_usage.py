"""Topics, records and producer ids of the Produce requests of one connection, and the limits that they draw on.

Only for clients with a limit on topics, records or producer ids, and where usage is counted by topic. The decision uses
the first 64 KiB of a request, or all of a shorter one, together with the other limits. The rest of a longer request is
charged while it streams by; debt that it leaves holds the connection's next Produce request. So one request at most
overdraws a limit on topics late in it. Without such a limit nothing waits for the 64 KiB.

One step parses at most `PIECES` topics, partitions and batches: the decision uses these, and the rest is charged in the
steps that follow.
"""

from collections.abc import Iterable, Sequence
from typing import Final, final

from protocol.produce_partitions import PartitionData, ProducePartitionsWalk
from protocol.produce_walk import ProduceRequestWalk, TopicUsage
from protocol.topics import Topic
from proxy.enforcement.identity import Identity
from proxy.observability.topic_traffic import OTHER_TOPICS
from proxy.streams.context import Context
from quotas.admission.client_limits import ClientLimits, TopicCharges, TopicLimits
from quotas.admission.decision import Decision
from quotas.admission.limit import Limit
from quotas.admission.refused_sequences import RefusedSequences

#: Bytes of a request that the decision uses.
LOOKAHEAD: Final = 65_536
#: Topics, partitions and batches that one step reads. A new topic costs up to 20 us, a known one 5 us.
PIECES: Final = 200
#: Topics kept of one request for its response; and limits that it left in debt.
MAX_REMEMBERED: Final = 1_000
#: Topics kept of one request in flight, times the requests in flight: up to 4 requests keep `MAX_REMEMBERED` each, and
#: 1,000 requests whose broker does not respond keep 26,000 together, 4 MB.
MAX_COUNTED: Final = 4_000
#: Topics of one connection for which the limits are kept: 50 to 80 KB of memory with the longest names.
MAX_CHARGES: Final = 100


@final
class FirstUsages:
    """What the first topics of a request were charged, `most` of them."""

    __slots__ = ("_most", "usages")

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self.usages: list[TopicUsage] = []

    def add(self, seen: list[TopicUsage]) -> list[TopicUsage]:
        """More of the request has been parsed. Returns the usages that are not kept."""
        room = self._most - len(self.usages)
        self.usages += seen[:room]
        return seen[room:]


@final
class Refusal:
    """A refused request: its bytes are discarded as they arrive, and it is answered at its end.

    decision    of the limit with the longest wait; `ADMITTED`: it is refused for the order alone
    partitions  those that have been found
    """

    __slots__ = ("correlation_id", "decision", "partitions", "version")

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.version = self.correlation_id = 0
        self.partitions: list[tuple[Topic, int]] = []


class ProduceUsage:
    """Parses the Produce requests of one connection, one after the other.

    walk        over the current request; None: parsed to its end
    walked_to   position up to which its bytes have been parsed
    counted     usages of the current request, for its response; None where no threshold counts records
    late        limits that the last request left in debt after its decision, or whose producer ids were found then
    partitions  found in the current request and not taken, where it may be refused; else none are found
    refusal     of the current request, if it is refused
    refused     batches of the connection that have not come back since
    """

    __slots__ = (
        "_charges",
        "_client",
        "_context",
        "_counts_errors",
        "_generation",
        "_identity",
        "_listing",
        "_new_producer_ids",
        "_seen",
        "counted",
        "late",
        "partitions",
        "refusal",
        "refused",
        "walk",
        "walked_to",
    )

    def __init__(self, context: Context, identity: Identity) -> None:
        self._context = context
        self._identity = identity
        #: By topic, of the client and the generation of limits below; and whether a threshold counts responses.
        self._charges: dict[Topic, TopicCharges] = {}
        self._counts_errors = False
        self._client: ClientLimits | None = None
        self._generation = -1
        self.walk: ProduceRequestWalk | None = None
        self.walked_to = 0
        #: What has been parsed of the current request.
        self._seen: list[TopicUsage] = []
        #: Its producer ids that were new at the decision.
        self._new_producer_ids: tuple[int, ...] = ()
        self.late: dict[Limit, None] = {}
        self.counted: FirstUsages | None = None
        #: Finds the partitions of the current request; it is `walk`, or is over.
        self._listing: ProducePartitionsWalk | None = None
        self.partitions: list[PartitionData] = []
        self.refusal: Refusal | None = None
        self.refused: Final = RefusedSequences()

    @property
    def counts_topics(self) -> bool:
        """Whether usage is counted by topic."""
        return self._context.config.usage.by_topic

    def read(
        self, version: int, body_offset: int, buf: bytearray, pos: int, end: int, length: int, *, lists_partitions: bool
    ) -> None:
        """Parse the first bytes of the request of `length` bytes whose frame begins at `pos`."""
        body = pos + body_offset
        self.counted = None
        self._listing = listing = ProducePartitionsWalk(version, length, body_offset - 4) if lists_partitions else None
        walk = listing or ProduceRequestWalk(version, length, body_offset - 4)
        walk.work_left = PIECES
        self.walked_to = walk.advance(buf, body, min(end, pos + 4 + length))
        self._seen = walk.take()
        self.walk = None if walk.is_over else walk
        self.partitions = [] if listing is None else listing.take_partitions()
        self.renew()

    @property
    def lists_partitions(self) -> bool:
        """Whether the partitions of the current request are found."""
        return self._listing is not None

    @property
    def topics(self) -> tuple[Topic, ...]:
        """All topics of the request; none while some have not been read."""
        walk = self.walk
        if walk is not None and walk.topics_left:
            return ()
        found = dict.fromkeys(each.topic for each in self.partitions)
        if walk is not None:
            found[walk.topic] = None
        return tuple(found)

    @property
    def partitions_left(self) -> int:
        """Partitions of the topic that is read which have not been found, or one more."""
        return 0 if self.walk is None or self._listing is None else self._listing.partitions_left

    def take_partitions(self) -> list[PartitionData]:
        """The partitions that were found since the last call."""
        found, self.partitions = self.partitions, []
        if self._listing is not None:
            found += self._listing.take_partitions()
        return found

    def charges(self, length: int, now_ns: int) -> dict[Limit, int]:
        """What the request that has been read, of `length` bytes, is charged to each limit. Limits that the request
        before has left in debt are checked as well, without another charge.
        """
        amounts = self._identity.limits.amounts(length, 1)
        self._new_producer_ids = self._add_records(amounts, self._seen, now_ns)
        for limit in self.late:
            if self._context.registry.is_in_use(limit):
                amounts.setdefault(limit, 0)
        return amounts

    def passed(self, now_ns: int, in_flight: int, *, answered: bool) -> None:
        """The request passes, after `in_flight` others. Sets `counted`, which grows while the rest of the request is
        parsed.
        """
        self.count_topics(self._seen)
        self.late.clear()
        self._remember_producer_ids(self._new_producer_ids, now_ns)
        if self._counts_errors:
            self.counted = FirstUsages(min(MAX_REMEMBERED, MAX_COUNTED // (in_flight + 1)) if answered else 0)
        self._count_accepted(self._seen, now_ns)

    def _count_accepted(self, seen: list[TopicUsage], now_ns: int) -> None:
        """Thresholds count what brokers accept: by their response; without one, and of more topics than are kept for
        it, all of it.
        """
        if self.counted is None:
            return
        for usage in self.counted.add(seen):
            name = name_of(self._context, usage.topic)
            if name is not None:
                self._context.registry.topics.accepted(name, usage.record_bytes, usage.messages, now_ns)

    def charges_late(self, seen: list[TopicUsage], now_ns: int) -> dict[Limit, int]:
        """More of the current request has been read: what that is charged."""
        self.count_topics(seen)
        amounts: dict[Limit, int] = {}
        if not self._identity.limits.counts_records:
            return amounts
        new = self._add_records(amounts, seen, now_ns)
        producer_ids = self._identity.limits.producer_ids
        if new and producer_ids is not None:
            self._remember_producer_ids(new, now_ns)
            self.late[producer_ids.limit] = None
        self._count_accepted(seen, now_ns)
        return amounts

    def keep_late(self, exceeded: Sequence[Limit]) -> None:
        """More of the current request has left these limits in debt: the next one waits for them."""
        self.late.update(dict.fromkeys(exceeded[: max(0, MAX_REMEMBERED - len(self.late))]))

    @property
    def counts_errors(self) -> bool:
        """Whether a threshold counts accepted records, so that the response to each request must be parsed."""
        self.renew()
        return self._counts_errors

    def lasting_charges(self, topic: Topic, now_ns: int) -> TopicCharges | None:
        """What the records of a topic are charged to, as long as the limits stay as they are. None: that may change."""
        if not self._context.registry.learns_topics:
            known = name_of(self._context, topic) if self.counts_topics else ""
            return None if known is None else TopicCharges(self._identity.limits, TopicLimits(known))
        charges = self.charges_of(topic, now_ns)
        return charges if charges.topic.name and not self._may_be_refused(charges) else None

    def add(
        self, amounts: dict[Limit, int], usages: list[TopicUsage], producer_ids: tuple[int, ...], now_ns: int
    ) -> bool:
        """Add what these are charged if all have these producer ids, which are not counted; else add nothing."""
        for usage in usages:
            if usage.producer_ids != producer_ids:
                return False
        if self._context.registry.rejects and any(
            self._may_be_refused(self.charges_of(usage.topic, now_ns)) for usage in usages
        ):
            return False
        self.add_topics(amounts, usages, now_ns)
        return bool(usages)

    def count_topics(self, usages: list[TopicUsage]) -> None:
        """These were forwarded: count them by topic, if that is on."""
        traffic = self._identity.entity.topics
        if traffic is not None:
            for usage in usages:
                counters = traffic[name_of(self._context, usage.topic) or OTHER_TOPICS]
                counters.produce_bytes += usage.record_bytes
                counters.produce_messages += usage.messages

    # ---- inside

    def _may_be_refused(self, charges: TopicCharges) -> bool:
        """Whether a batch for this topic may be refused."""
        return bool(charges.rejecting) and self._identity.refusal_error > 0

    def _add_records(self, amounts: dict[Limit, int], usages: list[TopicUsage], now_ns: int) -> tuple[int, ...]:
        """Add what these are charged; returns their new producer ids, where a limit counts those."""
        self.add_topics(amounts, usages, now_ns)
        return self._add_producer_ids(amounts, usages, now_ns)

    def _add_producer_ids(self, amounts: dict[Limit, int], usages: list[TopicUsage], now_ns: int) -> tuple[int, ...]:
        producer_ids = self._identity.limits.producer_ids
        if producer_ids is None:
            return ()
        new = producer_ids.known.unknown({each for usage in usages for each in usage.producer_ids}, now_ns)
        if new:
            amounts[producer_ids.limit] = len(new)
        return new

    def add_topics(self, amounts: dict[Limit, int], usages: Iterable[TopicUsage], now_ns: int) -> None:
        """Add what the records of these are charged to."""
        if self._context.registry.learns_topics:
            for usage in usages:
                self.charges_of(usage.topic, now_ns).add_to(amounts, usage.record_bytes, usage.messages)

    def charges_of(self, topic: Topic, now_ns: int) -> TopicCharges:
        """What the records of a topic are charged to, besides the client's limits of requests."""
        charges = self._charges.get(topic)
        if charges is None:
            charges = self._look_up(topic, now_ns)
        elif charges.topic.last_ns < now_ns:
            charges.topic.last_ns = now_ns
        return charges

    def _look_up(self, topic: Topic, now_ns: int) -> TopicCharges:
        registry = self._context.registry
        client = self._identity.limits
        name = name_of(self._context, topic)
        if name is None:
            return TopicCharges(client, registry.topics.unknown_topic())
        exists = self._context.topics.partitions_of(name) is not None
        charges = TopicCharges(client, registry.topic(name, now_ns, exists=exists))
        if charges.topic.name:  # else there are too many topics, for now
            if len(self._charges) >= MAX_CHARGES:
                self._charges.clear()
            self._charges[topic] = charges
        return charges

    def with_topics(self, refused: Decision, now_ns: int) -> Decision:
        """The decision with the topics that it is about, unless the request would be refused without them too."""
        limits = self._identity.limits
        of_request = {*limits.produce.limits, *limits.requests.limits}
        if limits.producer_ids is not None:
            of_request.add(limits.producer_ids.limit)
        if not of_request.isdisjoint(refused.exceeded):
            return refused
        exceeded = set(refused.exceeded)
        charges = [self.charges_of(usage.topic, now_ns) for usage in self._seen[:PIECES]]
        names = tuple(dict.fromkeys(each.topic.name for each in charges if each.has_any_of(exceeded)))
        return refused if "" in names else refused._replace(topics=names)

    def _remember_producer_ids(self, new: tuple[int, ...], now_ns: int) -> None:
        producer_ids = self._identity.limits.producer_ids
        if producer_ids is not None:
            producer_ids.known.remember(new, now_ns)

    def renew(self) -> None:
        """Forget what was looked up for other limits than those of now."""
        identity = self._identity
        if self._generation != identity.generation or self._client is not identity.limits:
            self._generation, self._client = identity.generation, identity.limits
            self._charges.clear()
            thresholds = self._context.registry.topics.thresholds.values()
            self._counts_errors = any(each.total is not None for each in thresholds)


def name_of(context: Context, topic: Topic) -> str | None:
    """A topic's name; None while its id is not known."""
    return topic if isinstance(topic, str) else context.topics.name_of(topic)
