"""Requests of one kind that pass together, without a decision for each.

Decisions one by one would have the same result, while the limits have room for all of them. Where records are charged
or counted by topic, a `BatchPlan` finds the requests of a batch.
"""

from typing import Final, final

from proxy.enforcement.identity import Identity
from proxy.streams.batch_plan import BatchPlan, BatchPlans, Spending
from proxy.streams.connection import Connection, InFlight
from proxy.streams.handler import RequestKind, Requests
from proxy.streams.memory import READ_SIZE
from quotas.admission.limit_set import spend_all
from quotas.admission.passage import Passage


@final
class Batches:
    """The batches of one connection.

    longest    length of the longest request that is accepted
    last_size  of the last request of a batch, if it has not arrived whole
    passage    its reservation for the bytes that are missing; None: no limit counts it
    """

    __slots__ = ("_most", "_plans", "last_size", "longest", "passage")

    def __init__(self, longest: int, max_in_flight: int) -> None:
        self.longest: Final = longest
        self._plans: BatchPlans | None = None
        #: Requests that the next batch may have: fewer after there was no room for one.
        self._most = max_in_flight
        self.last_size = 0
        self.passage: Passage | None = None

    def take(self, requests: Requests, kind: RequestKind, pos: int, end: int, most: int, now_ns: int) -> int:
        """Pass the requests from `pos` on that are of `kind`, `most` at most, if the limits have room for all of them
        together.

        Returns where the last of them ends, which may be after `end`; `pos` where none passes this way.
        """
        connection = requests.connection
        in_flight, identity = connection.in_flight, connection.identity
        limits = identity.limits
        if self._most < most:
            most = self._most
            self._most *= 2
        is_produce = kind.produce_version >= 0
        plan: BatchPlan | None = None
        if is_produce and limits.walks:
            plan, passed_to, count = self._scan_records(connection, kind, pos, end, most, now_ns)
        else:
            passed_to, count = self._scan(kind, requests.buf, pos, end, most, in_flight)
        if not count:
            return pos
        size = passed_to - pos - 4 * count
        if not is_produce:
            left = limits.requests.spend(count, now_ns)
        elif plan is None and passed_to <= end and not limits.requests.limits:
            left = limits.produce.spend(size, now_ns)
        else:
            left = self._spend(identity, plan, size, passed_to - end, count, now_ns)
        if left < 0:
            self._undo(kind, count, in_flight)
            return pos
        if is_produce:
            requests.near_limit = left < READ_SIZE
            entity = identity.entity
            entity.produce_bytes += size
            entity.produce_requests += count
            if not kind.answered:
                connection.sent_unanswered = True
        kind.counter.value += count
        return passed_to

    def _spend(
        self, identity: Identity, plan: BatchPlan | None, size: int, missing: int, count: int, now_ns: int
    ) -> int:
        """Charge the requests found, without the `missing` bytes of the last one, if any, which are reserved.

        Returns as `spend_all`: -1 where nothing was charged.
        """
        limits, missing = identity.limits, missing if missing > 0 else 0
        if plan is None:
            spending: Spending = limits.charges, (size - missing, count), (missing, 0)
        elif plan.is_known(limits, now_ns):
            spending, self.last_size = plan.spending(limits, size, missing, now_ns), plan.last_size
        else:
            return -1
        charges, sums, late = spending
        reserved = {limit: late[unit] for limit, unit in charges if late[unit]} if missing else {}
        self.passage = passage = Passage(reserved, missing) if reserved else None
        left = spend_all(charges, sums, now_ns)
        traffic = identity.entity.topics
        if plan is not None and left >= 0 and traffic is not None:
            plan.count_topics(traffic)
        if left >= 0:
            identity.entity.produce_bytes -= missing  # these count when they pass
        elif passage is not None:
            passage.end()
        return left

    def _scan(
        self, kind: RequestKind, buf: bytearray, pos: int, end: int, most: int, in_flight: InFlight
    ) -> tuple[int, int]:
        """Find the requests from `pos` on that are of `kind`, `most` at most, and add them to those in flight.

        Returns where the last of them ends, and their number. This is the hot path: its loop makes no decision, since
        decisions one by one would have the same result.
        """
        key, tail, needed, shortest, answered = kind.key, kind.tail, kind.needed, kind.shortest, kind.answered
        unpack, longest, count = kind.unpack, self.longest, 0
        while end - pos >= needed and count < most:
            length, seen, correlation_id, head = unpack(buf, pos)
            if seen != key or head != tail or not shortest <= length <= longest:
                break
            if answered:
                in_flight.append((correlation_id, kind))
            count += 1
            pos += 4 + length
        if pos > end:
            self.last_size = length
        return pos, count

    def _scan_records(
        self, connection: Connection, kind: RequestKind, pos: int, end: int, most: int, now_ns: int
    ) -> tuple[BatchPlan | None, int, int]:
        """As `_scan`, by a plan of the requests from `pos` on; None: the first of them is decided alone."""
        usage, plans = connection.usage, self._plans
        if usage is None or usage.late or usage.refused.entries:  # those have to pass first
            return None, pos, 0
        if plans is None:
            plans = self._plans = BatchPlans(connection, usage)
        buf = connection.context.memory.data
        plan = plans.find(kind, buf, pos, end, now_ns)
        if plan is None:
            return None, pos, 0
        passed_to = plan.scan(kind, buf, pos, end, most, now_ns)
        if passed_to == pos and plan.fit(buf, pos):
            passed_to = plan.scan(kind, buf, pos, end, most, now_ns)
        return plan, passed_to, plan.count

    def _undo(self, kind: RequestKind, count: int, in_flight: InFlight) -> None:
        """There was no room for so many requests: the next one is decided alone, and then half as many are tried."""
        self._most = max(1, count >> 1)
        if kind.answered:
            for _ in range(count):
                in_flight.pop()
