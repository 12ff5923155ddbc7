"""Requests of one kind that pass together, without a decision for each.

A decision for each of them would have the same result as long as the limits have room for all. If records are charged,
or counted by topic, a `BatchPlan` finds the requests of a batch.
"""

from typing import Final, final

from protocol.produce_walk import LastBatchWalk
from protocol.request_header import unpack_prefix
from proxy.observability.tallies import TopicTraffic
from proxy.streams.batch_plan import BatchPlan, BatchPlans, PartitionPlan
from proxy.streams.handlers.produce import ProduceRequest, notify_early
from proxy.streams.handlers.produce_content import ProduceContent, topics_of
from proxy.streams.handlers.reject.refusals import waits_for_refused
from proxy.streams.memory import READ_SIZE
from proxy.streams.pending import Responses
from proxy.streams.request import Kind, Requests
from quotas.admission.client_limits import ClientLimits
from quotas.admission.limit_set import spend_all


@final
class Batches:
    """The batches of one connection. `longest`: the length of the longest request that is accepted."""

    __slots__ = ("_arriving", "_latest", "_length", "_most", "_plans", "longest")

    def __init__(self, longest: int, max_in_flight: int) -> None:
        self.longest: Final = longest
        self._plans: BatchPlans | None = None
        #: The plan for one partition that was used last.
        self._latest: PartitionPlan | None = None
        #: How many requests the next batch may have, which is fewer after the limits had no room for one.
        self._most = max_in_flight
        #: The length of the latest request that was found.
        self._length = 0
        #: If its records count, and it has not arrived completely: its plan, and the walk over its rest.
        self._arriving: tuple[BatchPlan, LastBatchWalk] | None = None

    def pass_together(self, requests: Requests, kind: Kind, pos: int, end: int, most: int, now_ns: int) -> int:
        """Pass at most `most` requests of `kind`, starting at `pos`, if the limits have room for all of them together.

        Returns where the last of them ends, or `pos` if none passes this way and nothing was charged. The last one may
        be incomplete, so that it ends after `end`. If its rest must be charged, it becomes `requests.current`.

            requests  |──────A──────|──────B──────|──────C──────|──────D─ ─ ─ ─ ─|
                      ▲ pos                                            ▲ end     ▲ returned
            found     count = 4, and `missing`, the bytes of D that have not arrived
            charged   one sum for A, B and C, and for the part of D that has arrived
            room      what the tightest limit has left afterwards, in bytes
        """
        # After a batch that did not fit, half as many are tried, and then twice as many each time. So close to a limit,
        # few requests are found in vain.
        if self._most < most:
            most = self._most
            self._most *= 2
        if kind.produce_version < 0:
            return self._pass_others(requests, kind, pos, end, most, now_ns)
        identity = requests.connection.identity
        limits = identity.limits
        # `count` requests have been found, which end at `passed_to`, and what has arrived of them has been charged.
        # `room` is -1 if they did not fit; then nothing was charged.
        if limits.walks:
            passed_to, count, room = self._spend_records(requests, kind, pos, end, most, now_ns)
            size = min(passed_to, end) - pos - 4 * count
        else:
            passed_to, count = self._scan(requests, kind, pos, end, most)
            size = (passed_to if passed_to < end else end) - pos - 4 * count
            if limits.mixed:
                surcharges = _surcharges(limits, requests.buf, pos, count) if limits.costs else ()
                room = spend_all(limits.sums_of(size, count, surcharges), size, now_ns)
            else:
                room = limits.produce.spend(size, now_ns)
        if not count:
            return pos
        if room < 0:
            requests.room = 0  # the stream must decide the next request alone
            return self._undo(requests, kind, pos, count)
        requests.room = room
        entity = identity.entity
        entity.produce_bytes += size
        entity.produce_requests += count
        # If the last one is incomplete, its notice is sent when it is complete, because it may leave debt by then.
        if passed_to > end:
            self._go_on(requests, kind, passed_to - end)
        elif room < READ_SIZE:
            notify_early(requests.connection, kind, now_ns)
        requests.on_passed(kind, count)
        return passed_to

    def _pass_others(self, requests: Requests, kind: Kind, pos: int, end: int, most: int, now_ns: int) -> int:
        """Pass requests without data, which are only counted: see `pass_together`."""
        passed_to, count = self._scan(requests, kind, pos, end, most)
        if requests.connection.identity.limits.requests.spend(count, now_ns) < 0:
            return self._undo(requests, kind, pos, count)
        if count:
            requests.on_passed(kind, count)
        return passed_to

    def _spend_records(
        self, requests: Requests, kind: Kind, pos: int, end: int, most: int, now_ns: int
    ) -> tuple[int, int, int]:
        """Find and charge requests whose records are read. Returns where the last of them ends, their number, and how
        many more bytes would fit; -1 if nothing was charged.
        """
        identity = requests.connection.identity
        plan, passed_to = self._scan_records(requests, kind, pos, end, most, now_ns)
        if plan is None or not plan.count:
            return pos, 0, -1
        limits, entity, count = identity.limits, identity.entity, plan.count
        producer_ids = limits.producer_ids if plan.producer_id >= 0 else None
        if producer_ids is not None and not plan.is_known(plan.producer_id, producer_ids, now_ns):
            return passed_to, count, -1
        size = passed_to - pos - 4 * count
        if passed_to > end:
            size -= passed_to - end
            self._arriving = plan, plan.begin_rest(passed_to - end)
        surcharges = _surcharges(limits, requests.buf, pos, count) if limits.costs else ()
        room = plan.spend(limits, size, surcharges, now_ns)
        if room >= 0:
            plan.count_facts(entity.facts)
            if entity.topics is not None:
                self._count_topics(requests.responses, plan, entity.topics)
        return passed_to, count, room

    def _count_topics(self, responses: Responses, plan: BatchPlan, traffic: dict[str, TopicTraffic]) -> None:
        """Count the requests found by topic, and keep their records until they are answered."""
        sent, counted = plan.count_topics(traffic)
        if sent and (records := responses.answers.sent_records) is not None:
            records.extend((correlation_id, partitions, counted) for correlation_id, partitions in sent)
            while len(records) > len(responses.in_flight):  # forget the oldest, which have been answered
                records.popleft()

    def _go_on(self, requests: Requests, kind: Kind, missing: int) -> None:
        """Turn the last request found, which is incomplete, into an object, in flight as well."""
        client, in_flight = requests.connection.identity.client, requests.responses.in_flight
        arriving, self._arriving = self._arriving, None
        size = self._length if arriving is None else arriving[1].frame_length
        requests.current = request = ProduceRequest(kind, client, size, missing)
        if arriving is not None:
            plan, rest = arriving
            request.content = ProduceContent(kind, size, lists_partitions=False, rest=rest)
            request.content.spend_rest = plan.spend_rest
        if kind.answered:
            in_flight[-1] = (in_flight[-1][0], request)

    def _scan(self, requests: Requests, kind: Kind, pos: int, end: int, most: int) -> tuple[int, int]:
        """Find at most `most` requests of `kind`, starting at `pos`, and put them in flight.

        Returns where the last of them ends, and their number. This is the hot path: the loop makes no decision, because
        a decision for each request would have the same result.
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
        """Like `_scan`, with a plan for the requests that start at `pos`. None: the first is decided alone."""
        connection, buf, latest = requests.connection, requests.buf, self._latest
        if connection.refused is not None and waits_for_refused(connection):  # the refused ones must pass first
            return None, pos
        # Try the latest plan before searching, because the topic is nearly always the same as before.
        if latest is not None and latest.kind is kind and latest.is_valid(connection.identity):
            passed_to = latest.scan(kind, buf, pos, end, most, now_ns)
            if passed_to > pos:
                return latest, passed_to
        if self._plans is None:
            self._plans = BatchPlans(connection, requests.responses.in_flight, topics_of(connection))
        plan = self._plans.find(kind, buf, pos, end, now_ns)
        if plan is None:
            return None, pos
        if isinstance(plan, PartitionPlan):
            self._latest = plan
        passed_to = plan.scan(kind, buf, pos, end, most, now_ns)
        if passed_to == pos and plan.fit(buf, pos):
            passed_to = plan.scan(kind, buf, pos, end, most, now_ns)
        return plan, passed_to

    def _undo(self, requests: Requests, kind: Kind, pos: int, count: int) -> int:
        """Take the requests back, because they did not fit. The next is decided alone, then half as many are tried."""
        self._most = max(1, count >> 1)
        self._arriving = None
        if kind.answered:
            for _ in range(count):
                requests.responses.in_flight.pop()
        return pos


def _surcharges(limits: ClientLimits, buf: bytearray, pos: int, count: int) -> list[int]:
    """`ClientLimits.surcharges` of the `count` requests that start at `pos`."""
    lengths = []
    for _ in range(count):
        length: int = unpack_prefix(buf, pos)[0]
        lengths.append(length)
        pos += 4 + length
    return limits.surcharges(lengths)
