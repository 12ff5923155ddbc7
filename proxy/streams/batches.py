"""Requests of one kind that pass together, without a decision for each.

Decisions one by one would have the same result, while the limits have room for all of them. Where records are charged,
`plan` finds the requests of a batch; where they are counted for usage alone, `usage_plan`.
"""

from typing import Final, final

from protocol.produce_walk import Announced
from protocol.request_header import PREFIX_SIZE, unpack_prefix
from proxy.streams.connection import Connection, InFlight, RequestKind, Requests
from proxy.streams.handlers.produce import Produce
from proxy.streams.memory import READ_SIZE
from proxy.streams.plan import Runs
from proxy.streams.runs import NO_RUN, Run
from proxy.streams.usage_plan import UsagePlans


@final
class Batches:
    """The batches of one connection.

    longest        length of the longest request that is accepted
    max_in_flight  see `Connection`
    """

    __slots__ = ("_max_in_flight", "_most", "_runs", "_usage_plans", "_usage_run", "longest")

    def __init__(self, longest: int, max_in_flight: int, usage_plans: UsagePlans) -> None:
        self.longest: Final = longest
        self._max_in_flight: Final = max_in_flight
        self._runs: Runs | None = None
        self._usage_plans: Final = usage_plans
        #: What has found the latest run that is counted for usage alone.
        self._usage_run = NO_RUN
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
        if run is not None:
            left = run.spend(connection.identity, size, now_ns)
        else:
            left = limits.spend(size, count, now_ns) if is_produce else limits.requests.spend(count, now_ns)
        if left < 0:
            self._give_up(kind, count, in_flight)
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

    @property
    def cut(self) -> Announced | None:
        """The records of the last request of a batch, which has not arrived whole, where they are charged."""
        plan = None if self._runs is None else self._runs.latest
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

    def _give_up(self, kind: RequestKind, count: int, in_flight: InFlight) -> None:
        """There was no room for so many requests: the next one is decided alone, and then half as many are tried."""
        self._most = max(1, count >> 1)
        if kind.answered:
            for _ in range(count):
                in_flight.pop()
