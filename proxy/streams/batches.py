"""Requests of one kind that pass together, without a decision for each.

Decisions one by one would have the same result, while the limits have room for all of them. Where records are charged
or counted by topic, a `BatchPlan` finds the requests of a batch.
"""

from typing import Final, final

from protocol.produce_walk import Announced
from protocol.request_header import PREFIX_SIZE, unpack_prefix
from proxy.streams.batch_plan import BatchPlan, BatchPlans
from proxy.streams.connection import Connection, InFlight, RequestKind, Requests
from proxy.streams.handlers.produce import Produce
from proxy.streams.memory import READ_SIZE


@final
class Batches:
    """The batches of one connection.

    longest        length of the longest request that is accepted
    max_in_flight  see `Connection`
    """

    __slots__ = ("_max_in_flight", "_most", "_plans", "longest")

    def __init__(self, longest: int, max_in_flight: int) -> None:
        self.longest: Final = longest
        self._max_in_flight: Final = max_in_flight
        self._plans: BatchPlans | None = None
        #: Requests that the next batch may have: fewer after there was no room for one.
        self._most = max_in_flight

    def take(self, requests: Requests, kind: RequestKind, pos: int, end: int, now_ns: int) -> int:
        """Pass the requests from `pos` on that are of `kind`, if the limits have room for all of them together.

        Returns where the last of them ends, which may be after `end`; `pos` where none passes this way.
        """
        connection, buf = requests.connection, requests.buf
        in_flight = connection.in_flight
        limits = connection.identity.limits
        most = min(self._most, self._max_in_flight - len(in_flight))
        is_produce = type(kind.handler) is Produce
        plan: BatchPlan | None = None
        if is_produce and limits.walks:
            plan = self._plan_at(connection, kind, pos, end, now_ns)
            if plan is None:
                return pos
            passed_to = plan.scan(kind, buf, pos, end, most, self.longest, in_flight, now_ns)
            if passed_to == pos and plan.fit(buf, pos):
                passed_to = plan.scan(kind, buf, pos, end, most, self.longest, in_flight, now_ns)
            count = plan.count
        else:
            passed_to, count = self._scan(kind, buf, pos, end, most, in_flight)
        if not count:
            return pos
        size = passed_to - pos - 4 * count
        if plan is not None:
            left = plan.spend(connection.identity, size, now_ns)
        else:
            left = limits.spend(size, count, now_ns) if is_produce else limits.requests.spend(count, now_ns)
        if left < 0:
            self._give_up(kind, count, in_flight)
            return pos
        self._most = min(2 * self._most, self._max_in_flight)
        if is_produce:
            requests.near_limit = left < READ_SIZE
            entity = connection.identity.entity
            entity.produce_bytes += size
            entity.produce_requests += count
            if not kind.answered:
                connection.sent_unanswered = True
        kind.counter.value += count
        return passed_to

    @property
    def cut(self) -> Announced | None:
        """The records of the last request of a batch, which has not arrived whole, where they are charged."""
        plan = None if self._plans is None else self._plans.latest
        return None if plan is None else plan.cut

    def _scan(
        self, kind: RequestKind, buf: bytearray, pos: int, end: int, most: int, in_flight: InFlight
    ) -> tuple[int, int]:
        """Find the requests from `pos` on that are of `kind`, `most` at most, and add them to those in flight.

        Returns where the last of them ends, and their number. This is the hot path: its loop makes no decision, since
        decisions one by one would have the same result.
        """
        startswith, append = buf.startswith, in_flight.append
        key, tail, needed, shortest, answered = kind.key, kind.tail, kind.needed, kind.shortest, kind.answered
        longest = self.longest
        count = 0
        while end - pos >= needed and count < most:
            length, seen, correlation_id = unpack_prefix(buf, pos)
            if seen != key or not shortest <= length <= longest or not startswith(tail, pos + PREFIX_SIZE):
                break
            if answered:
                append((correlation_id, kind))
            count += 1
            pos += 4 + length
        return pos, count

    def _plan_at(self, connection: Connection, kind: RequestKind, pos: int, end: int, now_ns: int) -> BatchPlan | None:
        """The plan of the requests from `pos` on; None: the first of them is decided alone."""
        usage, identity, plans = connection.usage, connection.identity, self._plans
        if usage is None or usage.has_late:
            return None
        if plans is None:
            plans = self._plans = BatchPlans(usage)
        buf, plan = connection.context.memory.data, plans.latest
        if (
            plan is None
            or plan.kind is not kind
            or plan.generation != identity.generation
            or not buf.startswith(plan.prefix, pos + PREFIX_SIZE)
        ):
            return plans.find(kind, identity, buf, pos, end, now_ns)
        return plan

    def _give_up(self, kind: RequestKind, count: int, in_flight: InFlight) -> None:
        """There was no room for so many requests: the next one is decided alone, and then half as many are tried."""
        self._most = max(1, count >> 1)
        if kind.answered:
            for _ in range(count):
                in_flight.pop()
