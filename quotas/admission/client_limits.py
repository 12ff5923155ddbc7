"""The limits of one client and of one topic, looked up once and shared by all sessions."""

from __future__ import annotations

from quotas.admission.limit import Limit
from quotas.admission.limit_set import NO_LIMITS, LimitSet
from quotas.algorithms.producer_ids import ProducerIdQuota


class ClientLimits:
    """The limits of one (user, client id), with those of its resource groups and of the total.

    produce       charged with the bytes of Produce requests
    fetch         charged with the bytes of Fetch and ShareFetch responses
    requests      charged with 1 for each request of any kind; holds only data
    mutations     charged with partitions created and deleted
    producer_ids  charged with new producer ids; None without such a limit
    bytes_in, messages_in
                  of its resource groups, charged with record bytes and records of any topic
    walks         whether Produce requests must be parsed for their topics, records or producer ids
    decides_each  whether limits of different units apply to a Produce request, so that each needs its own decision
    fetches       a slot for the proxy's ledger of this client's fetches; not read here
    """

    __slots__ = (
        "bytes_in",
        "client_id",
        "decides_each",
        "fetch",
        "fetches",
        "generation",
        "messages_in",
        "mutations",
        "produce",
        "producer_ids",
        "requests",
        "user",
        "walks",
    )

    def __init__(self, user: str, client_id: str) -> None:
        self.user = user
        self.client_id = client_id
        self.produce: LimitSet = NO_LIMITS
        self.fetch: LimitSet = NO_LIMITS
        self.requests: LimitSet = NO_LIMITS
        self.mutations: LimitSet = NO_LIMITS
        self.producer_ids: ProducerIdLimit | None = None
        self.bytes_in: tuple[Limit, ...] = ()
        self.messages_in: tuple[Limit, ...] = ()
        self.walks = False
        self.decides_each = False
        self.generation = -1
        self.fetches: object | None = None


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
