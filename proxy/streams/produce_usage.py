"""Topics, records and producer ids of the Produce requests of one connection, and the limits that they draw on.

Only for clients with a limit on topics, records or producer ids. The decision uses the first 64 KiB of a request, or
all of a shorter one, together with the other limits. The rest of a longer request is charged while it streams by; debt
that it leaves holds the connection's next Produce request. So one request at most overdraws a limit on topics late in
it.

One step parses at most `PIECES` topics, partitions and batches: the decision uses these, and the rest is charged in the
steps that follow.
"""

from collections.abc import Mapping
from typing import Final

from protocol.produce_walk import ProduceRequestWalk, TopicUsage, usual_usage
from protocol.topics import Topic
from proxy.enforcement.identity import Identity
from proxy.streams.context import Context
from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.demand import Demand
from quotas.admission.limit import Limit, Ticket

#: Bytes of a request that the decision uses.
LOOKAHEAD: Final = 65_536
#: Topics, partitions and batches that one step reads. A new topic costs up to 20 us, a known one 5 us.
PIECES: Final = 200
#: Topics kept of one request after it was forwarded; and as many more that it left in debt.
MAX_REMEMBERED: Final = 1_000


class ProduceUsage:
    """Parses the Produce requests of one connection, one after the other.

    walk        over the current request; None: parsed to its end
    walked_to   position up to which its bytes have been parsed
    amounts     what the current request asks of each limit
    """

    __slots__ = (
        "_context",
        "_demand",
        "_identity",
        "_late",
        "_late_producer_ids",
        "_new_producer_ids",
        "_seen",
        "counted",
        "walk",
        "walked_to",
    )

    def __init__(self, context: Context, identity: Identity) -> None:
        self._context = context
        self._identity = identity
        self.walk: ProduceRequestWalk | None = None
        self.walked_to = 0
        #: What has been parsed of the current request.
        self._seen: list[TopicUsage] = []
        self._demand = Demand()
        #: Its producer ids that were new at the decision.
        self._new_producer_ids: tuple[int, ...] = ()
        #: Content of the last request after its decision: topics, and whether there were new producer ids.
        self._late: set[Topic] = set()
        self._late_producer_ids = False
        #: Usages of the current request, for its response; None where no threshold counts responses.
        self.counted: list[TopicUsage] | None = None

    @property
    def amounts(self) -> Mapping[Limit, int]:
        return self._demand.amounts

    def read(self, version: int, body_offset: int, buf: bytearray, pos: int, end: int, length: int) -> None:
        """Parse the first bytes of the request of `length` bytes whose frame begins at `pos`."""
        body = pos + body_offset
        frame_end = pos + 4 + length
        self.walk = None
        self.counted = None
        if frame_end <= end:
            usual = usual_usage(buf, body, frame_end, version)
            if usual is not None:
                self._seen = [usual]
                self.walked_to = frame_end
                return
        walk = ProduceRequestWalk(version, length, body_offset - 4)
        walk.work_left = PIECES
        self.walked_to = walk.advance(buf, body, min(end, frame_end))
        self._seen = walk.take()
        if not walk.is_over:
            self.walk = walk

    def admit(self, length: int, now_ns: int, ticket: Ticket | None) -> Decision:
        """Ask the limits about the request that has been parsed, and charge them if it passes."""
        limits = self._identity.limits
        demand = self._demand = Demand()
        demand.add(limits.produce.limits, length)
        demand.add(limits.requests.limits, 1)
        self._new_producer_ids = self._add_records(demand, self._seen, now_ns)
        self._add_late(demand, now_ns)
        return demand.admit(now_ns, ticket)

    def count_throttled(self, decision: Decision, ticket: Ticket, now_ns: int) -> None:
        """The request was refused: what a threshold refuses of it is throttled, once."""
        self._demand.count_throttled(decision, ticket, now_ns)

    def passed(self, now_ns: int, *, answered: bool) -> None:
        """The request passes. Sets `counted`, which grows while the rest of the request is parsed."""
        self._late.clear()
        self._late_producer_ids = False
        self._remember_producer_ids(self._new_producer_ids, now_ns)
        if answered and self._counts_errors():
            self.counted = self._seen[:MAX_REMEMBERED]

    def charge_late(self, seen: list[TopicUsage], now_ns: int) -> Decision:
        """More of the current request has been parsed: charge what it contains."""
        if not seen:
            return ADMITTED
        demand = Demand()
        new = self._add_records(demand, seen, now_ns)
        self._remember_producer_ids(new, now_ns)
        self._late.update(usage.topic for usage in seen[: max(0, MAX_REMEMBERED - len(self._late))])
        self._late_producer_ids |= bool(new)
        if self.counted is not None:
            self.counted.extend(seen[: MAX_REMEMBERED - len(self.counted)])
        decision = demand.charge(now_ns)
        if decision.exceeded:  # these hold the next request, however many topics come before them
            self._late.update(demand.topics_of(decision.exceeded)[: 2 * MAX_REMEMBERED - len(self._late)])
        return decision

    # ---- inside

    def _add_records(self, demand: Demand, usages: list[TopicUsage], now_ns: int) -> tuple[int, ...]:
        """Add what these ask of limits; returns their new producer ids, where a limit counts those."""
        registry = self._context.registry
        limits = self._identity.limits
        if registry.learns_topics:
            for usage in usages:
                name = name_of(self._context, usage.topic)
                topic = registry.records_of_unknown_topic() if name is None else registry.topic(name, now_ns)
                demand.add_records(limits, topic, usage)
        if limits.producer_ids is None:
            return ()
        new = limits.producer_ids.known.unknown({each for usage in usages for each in usage.producer_ids}, now_ns)
        if new:
            demand.add((limits.producer_ids.limit,), len(new))
        return new

    def _add_late(self, demand: Demand, now_ns: int) -> None:
        """Check, without another charge, the limits of what the request before contained late."""
        if self._late:
            self._add_records(demand, [TopicUsage(topic, 0, 0, ()) for topic in self._late], now_ns)
        producer_ids = self._identity.limits.producer_ids
        if self._late_producer_ids and producer_ids is not None:
            demand.add((producer_ids.limit,), 0)

    def _remember_producer_ids(self, new: tuple[int, ...], now_ns: int) -> None:
        producer_ids = self._identity.limits.producer_ids
        if producer_ids is not None:
            producer_ids.known.remember(new, now_ns)

    def _counts_errors(self) -> bool:
        return any(thresholds.total is not None for thresholds in self._context.registry.thresholds.values())


def name_of(context: Context, topic: Topic) -> str | None:
    """A topic's name; None while its id is not known."""
    return topic if isinstance(topic, str) else context.topics.name_of(topic)
