"""Requests of one kind that pass together, without a decision for each.

Decisions one by one would have the same result, while the limits have room for all of them. Where records are charged
or counted by topic, a `BatchPlan` finds the requests of a batch.
"""

from typing import Final, final

from proxy.streams.batch_plan import BatchPlan, BatchPlans
from proxy.streams.handlers.produce import ProduceRequest, notify_early
from proxy.streams.handlers.produce_content import topics_of
from proxy.streams.handlers.reject.refusals import waits_for_refused
from proxy.streams.memory import READ_SIZE
from proxy.streams.request import Kind, Requests
from quotas.admission.limit_set import spend_all


@final
class Batches:
    """The batches of one connection. `longest`: length of the longest request that is accepted."""

    __slots__ = ("_length", "_most", "_plans", "longest")

    def __init__(self, longest: int, max_in_flight: int) -> None:
        self.longest: Final = longest
        self._plans: BatchPlans | None = None
        #: Requests that the next batch may have: fewer after there was no room for one.
        self._most = max_in_flight
        #: Length of the latest request that was found.
        self._length = 0

    def take(self, requests: Requests, kind: Kind, pos: int, end: int, most: int, now_ns: int) -> int:
        """Pass the requests from `pos` on that are of `kind`, `most` at most, if the limits have room for all of them
        together. The last one may not have arrived whole: it is `requests.current` then if the rest is charged.

        Returns where the last of them ends, which may be after `end`; `pos` where none passes this way.
        """
        # After a refusal half as many are tried, then twice as many each time: so near a limit few are found in vain.
        if self._most < most:
            most = self._most
            self._most *= 2
        identity = requests.connection.identity
        limits, missing = identity.limits, 0
        if kind.produce_version < 0:
            return self._take_others(requests, kind, pos, end, most, now_ns)
        # Where records count, only whole requests pass this way. Else the last may have arrived in part: what is
        # missing is charged as it arrives.
        if limits.walks:
            passed_to, count, room = self._spend_records(requests, kind, pos, end, most, now_ns)
            size = passed_to - pos - 4 * count
        else:
            passed_to, count = self._scan(requests, kind, pos, end, most)
            if passed_to > end:  # what has not arrived is not charged
                missing = passed_to - end
            size = passed_to - pos - 4 * count - missing
            if limits.requests.limits:
                room = spend_all(limits.charges_of(size, count), size, now_ns)
            else:
                room = limits.produce.spend(size, now_ns)
        if not count:
            return pos
        # Nothing was charged. `room` 0 makes the stream decide the next request alone.
        if room < 0:
            requests.room = 0
            return self._undo(requests, kind, pos, count)
        requests.room = room
        kind.counter.value += count
        entity = identity.entity
        entity.produce_bytes += size
        entity.produce_requests += count
        if not kind.answered:
            requests.connection.sent_unanswered = True
        else:
            self._begin(requests, kind, count)
        # Its notice is sent when it has passed whole: it may leave debt before.
        if missing:
            self._go_on(requests, kind, missing)
        elif room < READ_SIZE:
            notify_early(requests.connection, kind, now_ns)
        return passed_to

    def _take_others(self, requests: Requests, kind: Kind, pos: int, end: int, most: int, now_ns: int) -> int:
        """The same for requests without data, which are only counted."""
        passed_to, count = self._scan(requests, kind, pos, end, most)
        if requests.connection.identity.limits.requests.spend(count, now_ns) < 0:
            return self._undo(requests, kind, pos, count)
        kind.counter.value += count
        if count:
            self._begin(requests, kind, count)
        return passed_to

    def _begin(self, requests: Requests, kind: Kind, count: int) -> None:
        """So many have passed, and are in flight."""
        before = len(requests.responses.in_flight) - count
        if before <= requests.connection.timer.attention:
            requests.begin(kind, before)

    def _spend_records(
        self, requests: Requests, kind: Kind, pos: int, end: int, most: int, now_ns: int
    ) -> tuple[int, int, int]:
        """Find and charge whole requests whose records are read. Returns where the last of them ends, their number, and
        how many bytes more of them fit; -1: they are not charged.
        """
        identity = requests.connection.identity
        plan, passed_to = self._scan_records(requests, kind, pos, end, most, now_ns)
        if plan is None or not plan.count:
            return pos, 0, -1
        room = -1
        if plan.is_known(identity.limits, now_ns):
            size = passed_to - pos - 4 * plan.count
            room = spend_all(plan.charges_of(identity.limits, size, now_ns), size, now_ns)
        traffic = identity.entity.topics
        if room >= 0 and traffic is not None:
            sent, counted = plan.count_topics(traffic)
            if sent and (records := requests.responses.answers.sent_records) is not None:
                records.extend((correlation_id, partitions, counted) for correlation_id, partitions in sent)
                while len(records) > len(requests.responses.in_flight):  # the oldest have been answered
                    records.popleft()
        return passed_to, plan.count, room

    def _go_on(self, requests: Requests, kind: Kind, missing: int) -> None:
        """The last request found has not arrived whole: from now on it is an object, in flight as well."""
        client, in_flight = requests.connection.identity.client, requests.responses.in_flight
        requests.current = request = ProduceRequest(kind, client, self._length, missing)
        if kind.answered:
            in_flight[-1] = (in_flight[-1][0], request)

    def _scan(self, requests: Requests, kind: Kind, pos: int, end: int, most: int) -> tuple[int, int]:
        """Find the requests from `pos` on that are of `kind`, `most` at most, and add them to those in flight.

        Returns where the last of them ends, and their number. This is the hot path: its loop makes no decision, since
        decisions one by one would have the same result.
        """
        key, tail, needed, shortest, answered = kind.key, kind.tail, kind.needed, kind.shortest, kind.answered
        buf, unpack, longest, in_flight = requests.buf, kind.unpack, self.longest, requests.responses.in_flight
        count = 0
        while end - pos >= needed and count < most:
            length, seen, correlation_id, head = unpack(buf, pos)
            if seen != key or head != tail or not shortest <= length <= longest:
                break
            if answered:
                in_flight.append((correlation_id, kind))
            count += 1
            pos += 4 + length
        if pos > end:
            self._length = length
        return pos, count

    def _scan_records(
        self, requests: Requests, kind: Kind, pos: int, end: int, most: int, now_ns: int
    ) -> tuple[BatchPlan | None, int]:
        """As `_scan`, by a plan of the requests from `pos` on; None: the first of them is decided alone."""
        plans, connection = self._plans, requests.connection
        if waits_for_refused(connection):  # those have to pass first
            return None, pos
        if plans is None:
            plans = self._plans = BatchPlans(connection, requests.responses.in_flight, topics_of(connection))
        buf = requests.buf
        plan = plans.find(kind, buf, pos, end, now_ns)
        if plan is None:
            return None, pos
        passed_to = plan.scan(kind, buf, pos, end, most, now_ns)
        if passed_to == pos and plan.fit(buf, pos):
            passed_to = plan.scan(kind, buf, pos, end, most, now_ns)
        return plan, passed_to

    def _undo(self, requests: Requests, kind: Kind, pos: int, count: int) -> int:
        """There was no room for so many requests: the next one is decided alone, and then half as many are tried."""
        self._most = max(1, count >> 1)
        if kind.answered:
            for _ in range(count):
                requests.responses.in_flight.pop()
        return pos
