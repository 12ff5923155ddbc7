"""What a session's Produce requests carry, asked of the walk over them, and what that draws on.

Only for sessions that some limit of topics, records or producer ids concerns. A request is decided upon when its first
64 KiB have come, or all of it: what they tell of is checked together with everything else. What a longer request tells
of later is charged when it comes, while its bytes stream by; if that leaves debt, the session's next Produce request
waits for it, so a limit that stands late in long requests is overdrawn by one of them at most.

One turn of the loop looks at so many topics, partitions and requests at most (`WORK_AT_ONCE`), however many a client
puts into the bytes of one read: what it has seen by then is what a request is decided upon, and what comes behind is
charged in the turns that follow.
"""

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from protocol.produce_errors import refused_shares
from protocol.produce_walk import ProduceRequestWalk, TopicUsage, usual_usage
from protocol.topics import Topic
from proxy.sessions.request_kind import RequestKind
from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.demand import Demand
from quotas.admission.limit import Limit, Ticket

if TYPE_CHECKING:
    from proxy.sessions.session import Session

#: So much of a request is looked at before it is decided upon.
LOOKAHEAD = 65_536
#: Pieces of requests that one turn of the loop looks at. A topic that nobody has heard of costs up to 20 us, one that
#: is known 5 us, and 512 KiB have room for 45,000.
WORK_AT_ONCE = 1_000
#: Of so many topics of a request something is remembered when it has passed, whatever a client puts into it; and of as
#: many more that it left in debt.
MAX_REMEMBERED = 1_000


class ProduceUsage:
    """Walks the Produce requests of one session, one after the other."""

    __slots__ = (
        "_counted",
        "_demand",
        "_late",
        "_late_producer_ids",
        "_new_producer_ids",
        "_passed",
        "_seen",
        "_session",
        "_walk",
        "is_dense",
        "walked_to",
        "work_left",
    )

    def __init__(self, session: "Session") -> None:
        self._session = session
        #: The walk over the request that streams by.
        self._walk: ProduceRequestWalk | None = None
        #: What the request that is looked at carries, as far as it can be seen.
        self._seen: list[TopicUsage] = []
        self._demand = Demand()
        #: Those of its producer ids that were new when it was asked about.
        self._new_producer_ids: tuple[int, ...] = ()
        #: What the last request turned out to carry when it had begun to pass: topics, and whether new producer ids.
        self._late: set[Topic] = set()
        self._late_producer_ids = False
        #: What was forwarded and not answered yet, for `answered`, by its correlation id.
        self._passed: deque[tuple[int, list[TopicUsage]]] = deque()
        #: That of the request that streams by, where it is one of those.
        self._counted: list[TopicUsage] | None = None
        #: Up to where the request's bytes have been walked; those behind must be shown again.
        self.walked_to = 0
        #: Of `WORK_AT_ONCE`, in this turn.
        self.work_left = WORK_AT_ONCE
        #: The request that was looked at last has more in it than one turn looks at.
        self.is_dense = False

    @property
    def awaits_answers(self) -> bool:
        """What the broker answers to requests that have passed must be shown to `answered`."""
        return bool(self._passed)

    @property
    def is_walking(self) -> bool:
        """A request streams by whose end has not been seen."""
        return self._walk is not None

    @property
    def has_done_enough(self) -> bool:
        """This turn has looked at as much as it may: what comes behind is for the next one."""
        return self.work_left <= 0

    def begin_turn(self) -> None:
        """A new turn of the loop: as much as before may be looked at again."""
        self.work_left = WORK_AT_ONCE

    def admit(
        self, kind: RequestKind, length: int, buf: bytearray, pos: int, end: int, now_ns: int, ticket: Ticket | None
    ) -> Decision:
        """Ask the limits about the request of ``length`` bytes at ``pos``, and charge them. Its bytes up to ``end`` are
        there.
        """
        self._see(kind, buf, pos, end, length)
        limits = self._session.limits
        demand = self._demand = Demand()
        demand.add(limits.produce.limits, length)
        demand.add(limits.requests.limits, 1)
        self._new_producer_ids = self._add_records(demand, self._seen, now_ns)
        self._add_late(demand, now_ns)
        decision = demand.admit(now_ns, ticket)
        if not decision.admitted and ticket is None:
            self._count_refused(decision, now_ns)
        return decision

    @property
    def amounts(self) -> Mapping[Limit, int]:
        """What the request that was asked about last draws on."""
        return self._demand.amounts

    def held(self) -> None:
        """The request that was asked about last does not pass now; it will be asked about anew."""
        self._walk = None

    def passed(self, kind: RequestKind, correlation_id: int, now_ns: int) -> None:
        """The request that was asked about last is forwarded."""
        self._late.clear()
        self._late_producer_ids = False
        self._remember_producer_ids(self._new_producer_ids, now_ns)
        self._counted = None
        if kind.expects_response and self._counts_errors():
            self._counted = self._seen[:MAX_REMEMBERED]
            self._passed.append((correlation_id, self._counted))

    def walk_on(self, buf: bytearray, pos: int, end: int, now_ns: int) -> Decision:
        """More of the request that passes has come: charge what it tells of. Sets ``walked_to``."""
        walk = self._walk
        if walk is None:
            self.walked_to = end
            return ADMITTED
        seen = self._advance(walk, buf, pos, end)
        if self.has_done_enough:
            self.is_dense = True
        if walk.is_over:
            self._walk = None
        if not seen:
            return ADMITTED
        demand = Demand()
        new = self._add_records(demand, seen, now_ns)
        self._remember_producer_ids(new, now_ns)
        self._late.update(usage.topic for usage in seen[: max(0, MAX_REMEMBERED - len(self._late))])
        self._late_producer_ids |= bool(new)
        if self._counted is not None:
            self._counted.extend(seen[: MAX_REMEMBERED - len(self._counted)])
        decision = demand.charge(now_ns)
        if decision.exceeded:  # these hold the next request, however many topics stand before them
            self._late.update(demand.topics_of(decision.exceeded)[: 2 * MAX_REMEMBERED - len(self._late)])
        return decision

    def answered(self, version: int, response: memoryview, now_ns: int) -> None:
        """The broker has answered the oldest request that is not answered: what it refused did not get into the log.

        ``response``: from its correlation id on. How much of a long one is looked at is bounded there too.
        """
        if not self._passed or self._passed[0][0] != int.from_bytes(response[:4], "big", signed=True):
            return  # of a request that was not walked
        usages = self._passed.popleft()[1]
        refused = refused_shares(version, response)
        registry = self._session.shared.registry
        for usage in usages:
            share = refused.of(usage.topic)
            if not share:
                continue
            name = self._name_of(usage.topic)
            if name is not None:
                registry.records_refused(name, int(usage.record_bytes * share), int(usage.messages * share), now_ns)

    # ---- inside

    def _see(self, kind: RequestKind, buf: bytearray, pos: int, end: int, length: int) -> None:
        body = pos + kind.header.body_offset
        frame_end = pos + 4 + length
        self._walk = None
        self.is_dense = False
        self.work_left -= 1
        usual = usual_usage(buf, body, frame_end, kind.version) if frame_end <= end else None
        if usual is not None:
            self._seen = [usual]
            self.walked_to = frame_end
            return
        walk = ProduceRequestWalk(kind.version, length, kind.header.body_offset - 4)
        self._seen = self._advance(walk, buf, body, min(end, frame_end))
        if not walk.is_over:
            self._walk = walk
            self.is_dense = self.has_done_enough

    def _advance(self, walk: ProduceRequestWalk, buf: bytearray, pos: int, end: int) -> list[TopicUsage]:
        """Walk on as far as this turn may; returns what was found. Sets ``walked_to``."""
        walk.work_left = max(1, self.work_left)
        self.walked_to = walk.advance(buf, pos, end)
        self.work_left = walk.work_left
        return walk.take()

    def _add_records(self, demand: Demand, usages: list[TopicUsage], now_ns: int) -> tuple[int, ...]:
        """Add what these draw on; the producer ids among them that are new, where those are limited."""
        registry = self._session.shared.registry
        limits = self._session.limits
        if registry.learns_topics:
            for usage in usages:
                name = self._name_of(usage.topic)
                topic = registry.records_of_nobody() if name is None else registry.topic(name, now_ns)
                demand.add_records(limits, topic, usage)
        if limits.producer_ids is None:
            return ()
        new = limits.producer_ids.known.unknown({each for usage in usages for each in usage.producer_ids}, now_ns)
        if new:
            demand.add((limits.producer_ids.limit,), len(new))
        return new

    def _add_late(self, demand: Demand, now_ns: int) -> None:
        """What the request before drew on late, as it is limited now, is checked, and charged nothing more."""
        self._add_records(demand, [TopicUsage(topic, 0, 0, ()) for topic in self._late], now_ns)
        producer_ids = self._session.limits.producer_ids
        if self._late_producer_ids and producer_ids is not None:
            demand.add((producer_ids.limit,), 0)

    def _remember_producer_ids(self, new: tuple[int, ...], now_ns: int) -> None:
        producer_ids = self._session.limits.producer_ids
        if producer_ids is not None:
            producer_ids.known.remember(new, now_ns)

    def _name_of(self, topic: str | bytes) -> str | None:
        return topic if isinstance(topic, str) else self._session.shared.topics.name_of(topic)

    def _counts_errors(self) -> bool:
        return any(thresholds.total is not None for thresholds in self._session.shared.registry.thresholds.values())

    def _count_refused(self, decision: Decision, now_ns: int) -> None:
        """The request is held for the first time: what a threshold refuses of it is throttled."""
        thresholds_by_name = self._session.shared.registry.thresholds
        for limit in decision.exceeded:
            thresholds = thresholds_by_name.get(limit.name)
            if thresholds is not None:
                thresholds.record_throttled(self._demand.amounts[limit], now_ns)
