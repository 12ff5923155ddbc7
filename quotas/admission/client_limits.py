"""The limits of one client and of one topic, looked up once and shared by all sessions."""

from collections.abc import Sequence
from typing import Final, final

from quotas.admission.frame import Charge
from quotas.admission.limit import Limit, limits_for
from quotas.admission.limit_set import NO_LIMITS, LimitSet, Sum
from quotas.algorithms.producer_ids import ProducerIdQuota

Unit = tuple[Limit, int]
"""A limit, and the place of its unit among the sums of some requests."""
BYTES: Final = 0
REQUESTS: Final = 1
FIRST_COST: Final = 2
"""The places; the last one, and those after it, are of bytes with a `request_cost`."""


class ClientLimits:
    """The limits of one (user, client id), with those of its resource groups and of the total.

    key           its user and client id: one object, shared with the table of clients
    produce       charged with the bytes of Produce requests
    fetch         charged with the bytes of Fetch and ShareFetch responses
    costs         what limits of `produce` charge for a request at least (`request_cost`), each value once
    mixed         `units` if some limits of a Produce request, besides those of its records, are not charged its bytes;
                  else empty: few clients need a list of their own
    requests      charged with 1 for each request of any kind; holds only data
    mutations     charged with partitions created and deleted
    producer_ids  charged with new producer ids; None without such a limit
    bytes_in, messages_in
                  of its resource groups, charged with record bytes and records of any topic
    walks         whether Produce requests must be parsed: a limit counts topics, records or producer ids, or for
                  `reads_topics` or `rejects` of `Registry`
    fetches       open fetches of the client and those that wait, counted by the proxy; not read here
    """

    __slots__ = (
        "bytes_in",
        "costs",
        "fetch",
        "fetches",
        "generation",
        "key",
        "messages_in",
        "mixed",
        "mutations",
        "produce",
        "producer_ids",
        "requests",
        "walks",
    )

    def __init__(self, key: tuple[str, str]) -> None:
        self.key: Final = key
        self.produce: LimitSet = NO_LIMITS
        self.costs: tuple[int, ...] = ()
        self.mixed: Sequence[Unit] = ()
        self.fetch: LimitSet = NO_LIMITS
        self.requests: LimitSet = NO_LIMITS
        self.mutations: LimitSet = NO_LIMITS
        self.producer_ids: ProducerIdLimit | None = None
        self.bytes_in: tuple[Limit, ...] = ()
        self.messages_in: tuple[Limit, ...] = ()
        self.walks = False
        self.generation = -1
        self.fetches = 0

    def set_produce(self, produce: LimitSet, requests: LimitSet) -> None:
        """Set the limits of Produce requests."""
        self.produce, self.requests = produce, requests
        own = [limit.request_cost for limit in produce.limits]
        costs = self.costs = tuple(dict.fromkeys(filter(None, own)))
        places = [FIRST_COST + costs.index(cost) if cost else BYTES for cost in own]
        units = [*zip(produce.limits, places, strict=True), *((limit, REQUESTS) for limit in requests.limits)]
        self.mixed = sorted(units, key=_rank) if requests.limits or costs else ()

    @property
    def units(self) -> Sequence[Unit]:
        """Of Produce requests, in the order in which a frame passes them: each limit of `produce` (`BYTES`, or with a
        `request_cost` from `FIRST_COST` on) and of `requests` (`REQUESTS`).
        """
        return self.mixed or [(limit, BYTES) for limit in self.produce.limits]

    def surcharges(self, lengths: Sequence[int]) -> list[int]:
        """For each of `costs`, what requests of these lengths are charged besides their bytes. That is due with the
        first byte of a request, like its place among those that are counted: so it does not depend on how it arrives.
        """
        return [sum([cost - length for length in lengths if length < cost]) for cost in self.costs]

    def all(self) -> list[Limit]:
        """Every limit of this client."""
        sets = self.produce, self.fetch, self.requests, self.mutations
        found = [limit for each in sets for limit in each.limits] + [*self.bytes_in, *self.messages_in]
        return found if self.producer_ids is None else [*found, self.producer_ids.limit]

    def charges_of(self, size: int, requests: int, surcharges: Sequence[int] = ()) -> list[Charge]:
        """The charges of this number of Produce requests, of which `size` bytes together have arrived, besides their
        records; `surcharges`: see there. 0 requests: what more bytes of a request that has begun are charged.
        """
        if not self.mixed or not requests:
            return [(limit, size) for limit in self.produce.limits]
        sums = (size, requests, *[size + more for more in surcharges])
        return [(limit, sums[at]) for limit, at in self.mixed]

    def sums_of(self, size: int, requests: int, surcharges: Sequence[int] = ()) -> list[Sum]:
        """Like `charges_of`, for `spend_all`: limits in the same unit together, in any order."""
        if surcharges:
            return [((limit,), units) for limit, units in self.charges_of(size, requests, surcharges)]
        return [(self.produce.limits, size), (self.requests.limits, requests)]


def _rank(unit: Unit) -> int:
    return unit[0].rank


class ProducerIdLimit:
    """The `producer_ids_rate` of a user: the limit, and the known ids, which are its algorithm."""

    __slots__ = ("known", "limit")

    def __init__(self, limit: Limit, known: ProducerIdQuota) -> None:
        self.limit = limit
        self.known = known


class TopicLimits:
    """The limits of records produced to one topic: its own, those of its resource groups, the total's.

    bytes_in      charged with record bytes
    messages_in   charged with records
    last_ns       when it was last used
    """

    __slots__ = ("bytes_in", "generation", "last_ns", "messages_in", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.bytes_in: tuple[Limit, ...] = ()
        self.messages_in: tuple[Limit, ...] = ()
        self.generation = -1
        self.last_ns = 0


@final
class TopicCharges:
    """What records of one client for one topic are charged to. A limit of both, of a resource group, counts them once.

    topic         `TopicLimits.last_ns` is to be set at each use
    bytes_in      charged with record bytes
    messages_in   charged with records
    rejecting     those of them with `Limit.rejects`
    """

    __slots__ = ("bytes_in", "messages_in", "rejecting", "topic")

    def __init__(self, client: ClientLimits, topic: TopicLimits) -> None:
        self.topic: Final = topic
        user, client_id = client.key
        self.bytes_in: Final = tuple(dict.fromkeys(limits_for(user, client_id, topic.bytes_in) + client.bytes_in))
        self.messages_in: Final = tuple(
            dict.fromkeys(limits_for(user, client_id, topic.messages_in) + client.messages_in)
        )
        self.rejecting: Final = tuple([limit for limit in self.bytes_in + self.messages_in if limit.rejects])

    def add_to(self, amounts: dict[Limit, int], record_bytes: int, messages: int) -> None:
        """Add these records to what each limit is charged."""
        for limit in self.bytes_in:
            amounts[limit] = amounts.get(limit, 0) + record_bytes
        for limit in self.messages_in:
            amounts[limit] = amounts.get(limit, 0) + messages

    def has_any_of(self, limits: set[Limit]) -> bool:
        """Whether records are charged to one of these limits."""
        return not limits.isdisjoint(self.bytes_in) or not limits.isdisjoint(self.messages_in)
