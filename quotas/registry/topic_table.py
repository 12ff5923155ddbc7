"""The limits of records of each topic: its own rates, its groups', the total's, and seed 004's thresholds."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Final

from quotas.admission.client_limits import TopicLimits
from quotas.admission.limit import Limit
from quotas.admission.topic_thresholds import Thresholds, TopicThreshold, check_thresholds
from quotas.entity import TOTAL, EntityKind, Named
from quotas.limit_kinds import BYTES_IN_RATE, BYTES_THRESHOLD, MESSAGES_IN_RATE, MESSAGES_THRESHOLD, THRESHOLDS
from quotas.registry.configured import Configured
from quotas.registry.idle import IDLE_NS, Idle
from quotas.registry.limit_store import LimitStore
from quotas.registry.override import Applies

MAX_TOPICS: Final = 100_000
"""More than clusters have: some of them are invented. Further names count for the total only, unless they have an entry
or are known to exist, until others have been idle for an hour. 85 to 125 MB with names of 249 bytes and limits."""


class TopicTable:
    """The topics with records within the last hour. Raises ThresholdError as `check`.

    thresholds   by the name of the topic's limit
    """

    def __init__(self, store: LimitStore) -> None:
        self._store = store
        self._topics: dict[str, TopicLimits] = {}
        self._idle: Idle[TopicLimits] = Idle()
        self.thresholds = {name: Thresholds(name) for name in THRESHOLDS}
        self.replace()

    # ---- looking up

    def get(self, name: str, generation: int, now_ns: int, exists: bool) -> TopicLimits:
        """The limits of this topic, looked up again for another generation; see `Registry.topic`."""
        topic = self._topics.get(name)
        if topic is None:
            is_kept = (
                exists or len(self._topics) < MAX_TOPICS or self._store.configured.limits_of(EntityKind.TOPIC, name)
            )
            if not is_kept:
                return self.unknown_topic()
            topic = self._topics[name] = TopicLimits(name)
            self._idle.watch(topic)
        topic.last_ns = max(topic.last_ns, now_ns)
        if topic.generation != generation:
            configured = self._store.configured
            groups = configured.groups.groups_of_topic(name)
            own, get_all = configured.find(EntityKind.TOPIC, name), self._store.get_all
            found = [own, *configured.of_groups(groups), configured.of_total]
            topic.bytes_in = get_all(BYTES_IN_RATE, found) + self._threshold(BYTES_THRESHOLD, name, own)
            topic.messages_in = get_all(MESSAGES_IN_RATE, found) + self._threshold(MESSAGES_THRESHOLD, name, own)
            topic.generation = generation
        if exists:
            self.confirm(name)
        return topic

    def confirm(self, name: str) -> None:
        """A broker has reported this topic, or accepted records for it: it has a share of the thresholds from now on,
        if it is in use.
        """
        for thresholds in self.thresholds.values():
            thresholds.confirm(name)

    def unknown_topic(self) -> TopicLimits:
        """The limits of records of an unknown topic: the total's."""
        limits = TopicLimits("")
        found = [self._store.configured.of_total]
        limits.bytes_in = self._store.get_all(BYTES_IN_RATE, found)
        limits.messages_in = self._store.get_all(MESSAGES_IN_RATE, found)
        return limits

    def accepted(self, topic: str, record_bytes: int, messages: int, now_ns: int) -> None:
        """Count records that a broker's response accepts, or that passed with acks=0: what thresholds measure."""
        for known, amount in self._known(topic, record_bytes, messages):
            known.record_accepted(amount, now_ns)

    def refused(self, topic: str, record_bytes: int, messages: int, now_ns: int) -> None:
        """Count records that a broker's response refuses as erroneous."""
        for known, amount in self._known(topic, record_bytes, messages):
            known.thresholds.erroneous.record(amount, now_ns)

    def _known(self, topic: str, record_bytes: int, messages: int) -> Iterator[tuple[TopicThreshold, int]]:
        """The thresholds of a topic that is in use, with the amount for each."""
        for name, amount in ((BYTES_THRESHOLD, record_bytes), (MESSAGES_THRESHOLD, messages)):
            limit = self._store.find(name, Named(EntityKind.TOPIC, topic))
            if limit is not None and isinstance(limit.algorithm, TopicThreshold):
                yield limit.algorithm, amount

    def _threshold(self, name: str, topic: str, own: Mapping[str, Applies]) -> tuple[Limit, ...]:
        thresholds = self.thresholds[name]
        if thresholds.total is None:
            return ()
        entity = Named(EntityKind.TOPIC, topic)
        algorithm = thresholds.topic(topic)
        limit = self._store.find(name, entity)
        if limit is None or limit.algorithm is not algorithm:  # the topic was forgotten and used again
            limit = self._store.add(Limit(name, entity, algorithm, origin=TOTAL))
        of_total = self._store.configured.of_total[THRESHOLDS[name]]
        entry = own.get(name, of_total)
        both = [each.options for each in ((entry, of_total) if name in own else (of_total,))]
        exempt = [each.exempt for each in both if each.exempt]
        limit.options = replace(
            entry.options,
            exempt=reduce(or_, exempt) if exempt else None,
            rejects=next((each.rejects for each in both if each.rejects is not None), True),
        )
        return (limit,)

    # ---- changing

    def check(self, configured: Configured) -> None:
        """Raises ThresholdError if thresholds of topics do not fit under their totals."""
        for name, total_name in THRESHOLDS.items():
            check_thresholds(
                name, configured.limits_of(EntityKind.TOTAL).get(total_name), dict(configured.topics_with(name))
            )

    def replace(self) -> None:
        """Apply the present configuration."""
        configured, scaled = self._store.configured, self._store.scaled
        for name, total_name in THRESHOLDS.items():
            total = configured.limits_of(EntityKind.TOTAL).get(total_name)
            explicit = {topic: scaled(rate) for topic, rate in configured.topics_with(name)}
            self.thresholds[name].replace(None if total is None else scaled(total), explicit)

    def expire(self, now_ns: int) -> int:
        """Forget the topics without records for an hour; returns how many."""
        forgotten = 0
        for topic in self._idle.due(now_ns):
            if topic.last_ns + IDLE_NS > now_ns:
                self._idle.check_at(topic, topic.last_ns + IDLE_NS)
                continue
            del self._topics[topic.name]
            forgotten += 1
            for thresholds in self.thresholds.values():
                thresholds.forget(topic.name)
        return forgotten
