"""The limits that the records of a topic are charged to. Each connection keeps them, because it writes to few topics.

This is needed only for clients with a limit on topics, records or producer ids, or if usage is counted by topic.
"""

from collections.abc import Iterable, Iterator
from typing import Final, final

from protocol.produce_walk import TopicUsage
from protocol.topics import NO_TOPIC_ID, Topic
from proxy.brokers.topics import Topics
from proxy.enforcement.identity import Identity
from proxy.enforcement.throttle_actions import ThrottleActions
from proxy.observability.tallies import TopicTraffic
from proxy.observability.topic_traffic import OTHER_TOPICS
from quotas.admission.client_limits import ClientLimits, TopicCharges, TopicLimits
from quotas.admission.limit import Limit

#: The most topics, partitions and batches that one step reads. A new topic costs up to 20 us, a known one 5 us.
PIECES: Final = 200
#: For how many topics a connection keeps the limits, which takes 50 to 80 KB with the longest names.
MAX_KEPT: Final = 100

Traffic = dict[Topic | None, TopicTraffic]
"""Where the records of each topic were counted; of None: of a request's only partition."""


@final
class TopicChargesCache:
    """The `TopicCharges` of one connection, by topic, for its current client and limits.

    counts_topics   usage is counted by topic
    counts_errors   a threshold counts accepted records, so the response to each request must be parsed
    """

    def __init__(self, identity: Identity, names: Topics, actions: ThrottleActions, *, counts_topics: bool) -> None:
        self._identity: Final = identity
        self._registry: Final = identity.registry
        self._names: Final = names
        self._actions: Final = actions
        self.counts_topics: Final = counts_topics
        self._charges: dict[Topic, TopicCharges] = {}
        #: The ones that `lasting` has returned.
        self._lasting: dict[Topic, TopicCharges] = {}
        self._client: ClientLimits | None = None
        self._generation = -1
        self.counts_errors = False

    def renew(self) -> None:
        """Forget what was looked up before the limits changed. Call this before the other methods."""
        identity = self._identity
        if self._generation != identity.generation or self._client is not identity.limits:
            self._generation, self._client = identity.generation, identity.limits
            self._charges.clear()
            self._lasting.clear()
            thresholds = self._registry.topics.thresholds.values()
            self.counts_errors = any(each.total is not None for each in thresholds)

    def of(self, topic: Topic, now_ns: int) -> TopicCharges:
        """What the records of a topic are charged to, in addition to the limits on the client's requests."""
        charges = self._charges.get(topic)
        if charges is None:
            charges = self._look_up(topic, now_ns)
        elif charges.topic.last_ns < now_ns:
            charges.topic.last_ns = now_ns
        return charges

    def _look_up(self, topic: Topic, now_ns: int) -> TopicCharges:
        registry, client = self._registry, self._identity.limits
        name = self._names.name_of(topic)
        if name is None:
            return TopicCharges(client, registry.topics.unknown_topic())
        exists = self._names.partitions_of(name) is not None
        charges = TopicCharges(client, registry.topic(name, now_ns, exists=exists))
        if charges.topic.name:  # otherwise there are too many topics for now
            if len(self._charges) >= MAX_KEPT:
                self._charges.clear()
            self._charges[topic] = charges
        return charges

    def limits(self) -> Iterator[Limit]:
        """The limits of the topics that are kept."""
        for charges in {**self._charges, **self._lasting}.values():
            yield from (*charges.topic.bytes_in, *charges.topic.messages_in)

    # ---- the topics of requests

    def add_records(self, amounts: dict[Limit, int], usages: Iterable[TopicUsage], now_ns: int) -> None:
        """Add what the records of `usages` are charged."""
        if self._registry.learns_topics:
            for usage in usages:
                self.of(usage.topic, now_ns).add_to(amounts, usage.record_bytes, usage.messages)

    def count_traffic(self, usages: Iterable[TopicUsage], counted: Traffic, most: int) -> None:
        """Count forwarded records by topic, if that is on. `counted`: where the records of the same request were
        counted, for at most `most` topics.
        """
        traffic = self._identity.entity.topics
        if traffic is not None:
            for usage in usages:
                found = counted.get(usage.topic)
                if found is None:
                    found = traffic[self._names.name_of(usage.topic) or OTHER_TOPICS]
                    if len(counted) < most:
                        counted[usage.topic] = found
                found.add_produced(usage.record_bytes, usage.messages)

    def is_unknown(self, topic: Topic) -> bool:
        """Whether a limit needs the name of this topic, but its id is not known. Always False in a dry run, which
        refuses nothing. `NO_TOPIC_ID` is the id of no topic.
        """
        if not self._registry.limits_topics or topic == NO_TOPIC_ID or not self._actions.enforces:
            return False
        return self._names.name_of(topic) is None

    # ---- batches

    def lasting(self, topic: Topic, now_ns: int) -> TopicCharges | None:
        """What the records of a topic are charged to until the limits change. None: it may change earlier. The caller
        must set `TopicLimits.last_ns` at each use.
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
        if not self._registry.learns_topics:
            name = self._names.name_of(topic) if self.counts_topics else OTHER_TOPICS
            return TopicCharges(self._identity.limits, TopicLimits(name)) if name else None
        charges = self.of(topic, now_ns)
        return charges if charges.topic.name and not self._may_reject(charges) else None

    def _may_reject(self, charges: TopicCharges) -> bool:
        """Whether a batch for this topic may be refused because of `action=reject`."""
        return bool(charges.rejecting) and self._identity.refusal_error > 0
