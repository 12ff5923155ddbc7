"""What the records of a topic are charged to: kept for each connection, since it writes to few topics.

Only for clients with a limit on topics, records or producer ids, and where usage is counted by topic.
"""

from collections.abc import Iterable, Iterator
from typing import Final, final

from protocol.produce_walk import TopicUsage
from protocol.topics import NO_TOPIC_ID, Topic
from proxy.enforcement.identity import Identity
from proxy.observability.topic_traffic import OTHER_TOPICS
from proxy.streams.context import Context
from proxy.streams.sent_records import Traffic
from quotas.admission.client_limits import ClientLimits, TopicCharges, TopicLimits
from quotas.admission.limit import Limit

#: Topics of one connection for which the limits are kept: 50 to 80 KB of memory with the longest names.
MAX_KEPT: Final = 100


@final
class TopicChargesCache:
    """The `TopicCharges` of one connection, by topic, for its present client and limits.

    counts_errors   a threshold counts accepted records, so that the response to each request must be parsed
    """

    __slots__ = ("_charges", "_client", "_context", "_generation", "_identity", "_lasting", "counts_errors")

    def __init__(self, context: Context, identity: Identity) -> None:
        self._context: Final = context
        self._identity: Final = identity
        self._charges: dict[Topic, TopicCharges] = {}
        #: Those of `lasting`.
        self._lasting: dict[Topic, TopicCharges] = {}
        self._client: ClientLimits | None = None
        self._generation = -1
        self.counts_errors = False

    def renew(self) -> None:
        """Forget what was looked up for other limits than those of now. Call it before the others."""
        identity = self._identity
        if self._generation != identity.generation or self._client is not identity.limits:
            self._generation, self._client = identity.generation, identity.limits
            self._charges.clear()
            self._lasting.clear()
            thresholds = self._context.registry.topics.thresholds.values()
            self.counts_errors = any(each.total is not None for each in thresholds)

    def of(self, topic: Topic, now_ns: int) -> TopicCharges:
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
        name = self._context.topics.name_of(topic)
        if name is None:
            return TopicCharges(client, registry.topics.unknown_topic())
        exists = self._context.topics.partitions_of(name) is not None
        charges = TopicCharges(client, registry.topic(name, now_ns, exists=exists))
        if charges.topic.name:  # else there are too many topics, for now
            if len(self._charges) >= MAX_KEPT:
                self._charges.clear()
            self._charges[topic] = charges
        return charges

    def limits(self) -> Iterator[Limit]:
        """Of the topics that are kept."""
        for charges in {**self._charges, **self._lasting}.values():
            yield from (*charges.topic.bytes_in, *charges.topic.messages_in)

    # ---- the topics of requests

    def add_records(self, amounts: dict[Limit, int], usages: Iterable[TopicUsage], now_ns: int) -> None:
        """Add what the records of these are charged."""
        if self._context.registry.learns_topics:
            for usage in usages:
                self.of(usage.topic, now_ns).add_to(amounts, usage.record_bytes, usage.messages)

    def count_traffic(self, usages: Iterable[TopicUsage], counted: Traffic, most: int) -> None:
        """These were forwarded: count them by topic, if that is on. `counted`: where those of the same request were, of
        `most` topics.
        """
        traffic = self._identity.entity.topics
        if traffic is not None:
            for usage in usages:
                found = counted.get(usage.topic)
                if found is None:
                    found = traffic[self._context.topics.name_of(usage.topic) or OTHER_TOPICS]
                    if len(counted) < most:
                        counted[usage.topic] = found
                found.add_produced(usage.record_bytes, usage.messages)

    def is_unknown(self, topic: Topic) -> bool:
        """Whether the id of this topic is not known, though some limit needs its name. Not in a dry run, which refuses
        nothing. No topic has `NO_TOPIC_ID`.
        """
        context = self._context
        if not context.registry.limits_topics or topic == NO_TOPIC_ID or not context.measures.enforces:
            return False
        return context.topics.name_of(topic) is None

    # ---- batches

    @property
    def counts_topics(self) -> bool:
        """Whether usage is counted by topic."""
        return self._context.config.usage.by_topic

    def lasting(self, topic: Topic, now_ns: int) -> TopicCharges | None:
        """What the records of a topic are charged to, as long as the limits stay as they are. None: that may change.
        Set `TopicLimits.last_ns` at each use.
        """
        charges = self._lasting.get(topic)
        if charges is None:
            charges = self._find_lasting(topic, now_ns)
            if charges is not None:
                if len(self._lasting) >= MAX_KEPT:
                    self._lasting.clear()
                self._lasting[topic] = charges
        return charges

    def _find_lasting(self, topic: Topic, now_ns: int) -> TopicCharges | None:
        if not self._context.registry.learns_topics:
            name = self._context.topics.name_of(topic) if self.counts_topics else OTHER_TOPICS
            return TopicCharges(self._identity.limits, TopicLimits(name)) if name else None
        charges = self.of(topic, now_ns)
        return charges if charges.topic.name and not self._may_reject(charges) else None

    def _may_reject(self, charges: TopicCharges) -> bool:
        """Whether a batch for this topic may be refused with `action=reject`."""
        return bool(charges.rejecting) and self._identity.refusal_error > 0
