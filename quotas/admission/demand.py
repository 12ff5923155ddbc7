"""The amounts of one Produce request for limits of different units: bytes, requests, records, producer ids.

The request as a whole is charged to the limits of the client, each topic's records to those of the topic, of the
topic's and the client's resource groups, and of the total. All are checked before any is charged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from quotas.admission.client_limits import ClientLimits, TopicLimits
from quotas.admission.decision import Decision
from quotas.admission.limit import Limit, Ticket
from quotas.admission.limit_set import admit_all, charge_all
from quotas.admission.topic_thresholds import TopicThreshold


class RecordsOf(Protocol):
    """The records of a request for one topic."""

    @property
    def record_bytes(self) -> int: ...
    @property
    def messages(self) -> int: ...


class Demand:
    """Amounts by limit, and the limits of each topic."""

    __slots__ = ("_by_topic", "_of_no_topic", "amounts")

    def __init__(self) -> None:
        self.amounts: dict[Limit, int] = {}
        self._by_topic: dict[str, list[Limit]] = {}
        self._of_no_topic: set[Limit] = set()

    def add(self, limits: Iterable[Limit], amount: int) -> None:
        """Add `amount` of the request as a whole to each of these limits."""
        for limit in limits:
            self.amounts[limit] = self.amounts.get(limit, 0) + amount
            self._of_no_topic.add(limit)

    def add_records(self, client: ClientLimits, topic: TopicLimits, records: RecordsOf) -> None:
        """Add records of this client for this topic; a group that contains both counts them once."""
        for of_topic, of_client, amount in (
            (topic.bytes_in, client.bytes_in, records.record_bytes),
            (topic.messages_in, client.messages_in, records.messages),
        ):
            limits = of_topic if not of_client else tuple(dict.fromkeys(of_topic + of_client))
            if not topic.name:
                self.add(limits, amount)
                continue
            for limit in limits:
                self.amounts[limit] = self.amounts.get(limit, 0) + amount
            self._by_topic.setdefault(topic.name, []).extend(limits)

    def admit(self, now_ns: int, ticket: Ticket | None = None) -> Decision:
        """See `LimitSet.admit`. If only limits on records refuse, the decision contains their topics."""
        decision = admit_all(self.amounts, now_ns, ticket)
        if decision.admitted or not self._of_no_topic.isdisjoint(decision.exceeded):
            return decision
        return decision._replace(topics=self.topics_of(decision.exceeded))

    def topics_of(self, exceeded: Iterable[Limit]) -> tuple[str, ...]:
        """The topics with one of these limits."""
        of_these = set(exceeded)
        return tuple(topic for topic, limits in self._by_topic.items() if not of_these.isdisjoint(limits))

    def count_throttled(self, refused: Decision, ticket: Ticket, now_ns: int) -> None:
        """Count the records that thresholds (seed 004) refuse: each threshold once per ticket.

        Call it after each refusal: a threshold may refuse only after another limit held the request.
        """
        for limit in refused.exceeded:
            key = limit.name, limit.entity
            if isinstance(limit.algorithm, TopicThreshold) and key not in ticket.reported:
                ticket.reported.add(key)
                limit.algorithm.record_throttled(self.amounts[limit], now_ns)

    def charge(self, now_ns: int) -> Decision:
        """Charge all in any state: for what has already passed."""
        return charge_all(self.amounts, now_ns)
