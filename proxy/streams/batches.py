"""Requests of one kind that pass together, without a decision for each.

Decisions one by one would have the same result, while the limits have room for all of them. Where records are charged
or counted by topic, a `BatchPlan` finds the requests of a batch.
"""

from typing import Final, final

from protocol.request_header import PREFIX_SIZE, unpack_prefix
from proxy.enforcement.data_frame import DataFrame
from proxy.enforcement.identity import Identity
from proxy.streams.batch_plan import BatchPlan, BatchPlans
from proxy.streams.connection import Connection, InFlight
from proxy.streams.handler import RequestKind, Requests
from proxy.streams.handlers.produce import Produce
from proxy.streams.memory import READ_SIZE
from quotas.admission.limit import Limit
from quotas.admission.limit_set import spend_all
from quotas.admission.passage import Passage


@final
class Batches:
    """The batches of one connection.

    longest        length of the longest request that is accepted
    max_in_flight  see `Connection`
    """

    __slots__ = ("_beside", "_last_size", "_max_in_flight", "_missing", "_most", "_plans", "longest")

    def __init__(self, longest: int, max_in_flight: int) -> None:
        self.longest: Final = longest
        self._max_in_flight: Final = max_in_flight
        self._plans: BatchPlans | None = None
        #: Requests that the next batch may have: fewer after there was no room for one.
        self._most = max_in_flight
        #: Of the last request of a batch that has not arrived whole: its size, the missing bytes, what these reserve.
        self._last_size = 0
        self._missing = 0
        self._beside: dict[Limit, int] = {}

    def take(self, requests: Requests, kind: RequestKind, pos: int, end: int, now_ns: int) -> int:
        """Pass the requests from `pos` on that are of `kind`, if the limits have room for all of them together.

        Returns where the last of them ends, which may be after `end`; `pos` where none passes this way.
        """
        connection = requests.connection
        in_flight, limits = connection.in_flight, connection.identity.limits
        most = self._max_in_flight - len(in_flight)
        if self._most < most:
            most = self._most
            self._most *= 2
        is_produce = type(kind.handler) is Produce
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
        elif plan is None and passed_to <= end:
            left = limits.spend(size, count, now_ns)
        else:
            missing = passed_to - end if passed_to > end else 0
            left = self._spend(connection.identity, plan, size, missing, count, now_ns)
        if left < 0:
            self._undo(kind, count, in_flight)
            return pos
        if is_produce:
            requests.near_limit = left < READ_SIZE
            entity = connection.identity.entity
            entity.produce_bytes += size
            entity.produce_requests += count
            connection.sent_unanswered |= not kind.answered
        kind.counter.value += count
        return passed_to

    def _spend(
        self, identity: Identity, plan: BatchPlan | None, size: int, missing: int, count: int, now_ns: int
    ) -> int:
        """Charge the requests found, without the `missing` bytes of the last one, which `take_frame` reserves.

        Returns as `spend_all`: -1 where nothing was charged.
        """
        limits = identity.limits
        if plan is None:
            charges = limits.charges(size, missing, count)
        elif plan.is_known(limits, now_ns):
            charges, self._last_size = plan.charges(limits, size, missing), plan.last_size
        else:
            return -1
        left = spend_all(charges, size - missing, now_ns)
        traffic = identity.entity.topics
        if plan is not None and left >= 0 and traffic is not None:
            plan.count_topics(traffic)
        if missing and left >= 0:
            self._missing = missing
            identity.entity.produce_bytes -= missing  # these count when they pass
            self._beside = {limit: units for limit, _, units in charges if units}
        return left

    def take_frame(self, *, answered: bool) -> tuple[DataFrame, Passage] | None:
        """The last request of a batch, which has not arrived whole, with the reservation for its rest; None: no limit
        counts it.
        """
        beside, self._beside = self._beside, {}
        if not beside:
            return None
        return DataFrame(self._last_size, answered=answered), Passage(beside, self._missing)

    def _scan(
        self, kind: RequestKind, buf: bytearray, pos: int, end: int, most: int, in_flight: InFlight
    ) -> tuple[int, int]:
        """Find the requests from `pos` on that are of `kind`, `most` at most, and add them to those in flight.

        Returns where the last of them ends, and their number. This is the hot path: its loop makes no decision, since
        decisions one by one would have the same result.
        """
        key, tail, needed, shortest, answered = kind.key, kind.tail, kind.needed, kind.shortest, kind.answered
        longest, count = self.longest, 0
        while end - pos >= needed and count < most:
            length, seen, correlation_id = unpack_prefix(buf, pos)
            if seen != key or not shortest <= length <= longest or not buf.startswith(tail, pos + PREFIX_SIZE):
                break
            if answered:
                in_flight.append((correlation_id, kind))
            count += 1
            pos += 4 + length
        if pos > end:
            self._last_size = length
        return pos, count

    def _scan_records(
        self, connection: Connection, kind: RequestKind, pos: int, end: int, most: int, now_ns: int
    ) -> tuple[BatchPlan | None, int, int]:
        """As `_scan`, by a plan of the requests from `pos` on; None: the first of them is decided alone."""
        usage, identity, plans = connection.usage, connection.identity, self._plans
        if usage is None or usage.has_late:
            return None, pos, 0
        if plans is None:
            plans = self._plans = BatchPlans(usage)
        buf, latest = connection.context.memory.data, plans.latest
        if (
            latest is None
            or latest.kind is not kind
            or latest.generation != identity.generation
            or latest.client is not identity.limits
            or not buf.startswith(latest.prefix, pos + PREFIX_SIZE)
        ):
            plan = plans.find(kind, identity, buf, pos, end, now_ns)
            if plan is None:
                return None, pos, 0
        else:
            plan = latest
        passed_to = plan.scan(kind, buf, pos, end, most, self.longest, connection.in_flight, now_ns)
        if passed_to == pos and plan.fit(buf, pos):
            passed_to = plan.scan(kind, buf, pos, end, most, self.longest, connection.in_flight, now_ns)
        return plan, passed_to, plan.count

    def _undo(self, kind: RequestKind, count: int, in_flight: InFlight) -> None:
        """There was no room for so many requests: the next one is decided alone, and then half as many are tried."""
        self._most = max(1, count >> 1)
        if kind.answered:
            for _ in range(count):
                in_flight.pop()
