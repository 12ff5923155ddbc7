"""Requests of one kind that pass together, without a decision for each.

Decisions one by one would have the same result, while the limits have room for all of them. Where records are charged,
`plan` finds the requests of a batch; where they are counted for usage alone, `usage_plan`.
"""

from typing import Final, final

from protocol.request_header import PREFIX_SIZE, unpack_prefix
from proxy.enforcement.data_frame import DataFrame
from proxy.enforcement.identity import Identity
from proxy.streams.connection import Connection, InFlight, RequestKind, Requests
from proxy.streams.handlers.produce import Produce
from proxy.streams.memory import READ_SIZE
from proxy.streams.plan import Runs
from proxy.streams.runs import NO_RUN, Run, requests_charges
from proxy.streams.usage_plan import UsagePlans
from quotas.admission.limit import Limit
from quotas.admission.limit_set import spend_all
from quotas.admission.passage import Passage


@final
class Batches:
    """The batches of one connection.

    longest        length of the longest request that is accepted
    max_in_flight  see `Connection`
    """

    __slots__ = (
        "_beside",
        "_last_size",
        "_max_in_flight",
        "_missing",
        "_most",
        "_runs",
        "_usage_plans",
        "_usage_run",
        "longest",
    )

    def __init__(self, longest: int, max_in_flight: int, usage_plans: UsagePlans) -> None:
        self.longest: Final = longest
        self._max_in_flight: Final = max_in_flight
        self._runs: Runs | None = None
        self._usage_plans: Final = usage_plans
        #: What has found the latest run that is counted for usage alone.
        self._usage_run = NO_RUN
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
        connection, buf = requests.connection, requests.buf
        in_flight = connection.in_flight
        limits = connection.identity.limits
        most = min(self._most, self._max_in_flight - len(in_flight))
        is_produce = type(kind.handler) is Produce
        run: Run | None = None
        if not is_produce or not limits.walks:
            passed_to, count = self._scan(kind, buf, pos, end, most, in_flight)
        elif limits.counts_records:
            run = self._run_at(connection, kind, pos, end, now_ns)
            passed_to = run.scan(kind, buf, pos, end, most, self.longest, in_flight, now_ns)
            count = run.count
        else:
            run = self._usage_run
            passed_to = run.scan(kind, buf, pos, end, most, self.longest, in_flight, now_ns)
            if passed_to == pos:
                run = self._other_usage_run(kind, buf, pos, end)
                passed_to = run.scan(kind, buf, pos, end, most, self.longest, in_flight, now_ns)
            count = run.count
        if not count:
            return pos
        size = passed_to - pos - 4 * count
        missing = max(0, passed_to - end)
        left = self._spend(connection.identity, run, is_produce, size, missing, count, now_ns)
        if left < 0:
            self._undo(kind, count, in_flight)
            return pos
        if self._most < self._max_in_flight:
            self._most *= 2
        if is_produce:
            requests.near_limit = left < READ_SIZE
            entity = connection.identity.entity
            entity.produce_bytes += size
            entity.produce_requests += count
            if not kind.answered:
                connection.sent_unanswered = True
        kind.counter.value += count
        return passed_to

    def _spend(
        self, identity: Identity, run: Run | None, is_produce: bool, size: int, missing: int, count: int, now_ns: int
    ) -> int:
        """Charge the requests found, without the `missing` bytes of the last one, which `take_frame` reserves.

        Returns as `spend_all`: -1 where nothing was charged.
        """
        limits = identity.limits
        if run is not None:
            if not run.is_known(limits, now_ns):
                return -1
            charges = run.charges(limits, size, missing)
            left = spend_all(charges, size - missing, now_ns)
            traffic = identity.entity.topics
            if left >= 0 and traffic is not None:
                run.count_topics(traffic)
            self._last_size = run.last_size
        elif not is_produce:
            return limits.requests.spend(count, now_ns)
        elif limits.requests.limits:
            charges = requests_charges(limits, size, missing, count)
            left = spend_all(charges, size - missing, now_ns)
        elif missing:
            left = limits.produce.spend(size - missing, now_ns, missing)
            charges = [(limit, 0, missing) for limit in limits.produce.limits]
        else:
            return limits.produce.spend(size, now_ns)
        if missing and left >= 0:
            self._missing = missing
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
        if pos > end:
            self._last_size = length
        return pos, count

    def _run_at(self, connection: Connection, kind: RequestKind, pos: int, end: int, now_ns: int) -> Run:
        """What finds the requests from `pos` on, where records are charged."""
        usage, identity, runs = connection.usage, connection.identity, self._runs
        if usage is None:
            return NO_RUN
        if runs is None:
            runs = self._runs = Runs(usage)
        buf, plan = connection.context.memory.data, runs.latest
        is_latest = plan is not None and plan.kind is kind and plan.generation == identity.generation
        if plan is not None and is_latest and buf.startswith(plan.prefix, pos + PREFIX_SIZE) and not usage.has_late:
            return plan
        return runs.find(kind, identity.limits, identity.generation, buf, pos, end, now_ns) or NO_RUN

    def _other_usage_run(self, kind: RequestKind, buf: bytearray, pos: int, end: int) -> Run:
        """What may find the requests from `pos` on, where `_usage_run` has found none."""
        run = self._usage_run
        if run.fit(buf, pos):
            return run
        found = self._usage_plans.find(kind, buf, pos, end)
        if found is run or found is NO_RUN:
            return NO_RUN
        self._usage_run = found
        return found

    def _undo(self, kind: RequestKind, count: int, in_flight: InFlight) -> None:
        """There was no room for so many requests: the next one is decided alone, and then half as many are tried."""
        self._most = max(1, count >> 1)
        if kind.answered:
            for _ in range(count):
                in_flight.pop()
