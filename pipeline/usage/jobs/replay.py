"""Replays recorded traffic through the proxy's own limits, in virtual time and without Spark: how long each is held.

Frames pass limit by limit, as `quotas.admission.frame` decides, and wait in the limit's fair queue. What a client
counted between two records is offered evenly over that time, as requests of its mean size but at most `MAX_REQUESTS`:
other bursts between two records are not seen. A client is one connection of each direction, so while one of its
requests is held the later ones queue behind it. What `action=reject` refuses is held instead, until it would pass.
"""

import heapq
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, count
from random import Random
from typing import Any, Final, TypeAlias

from quotas.admission.client_limits import BYTES, FIRST_COST, REQUESTS, TopicCharges, Unit
from quotas.admission.frame import Charge, decide, in_order, next_number
from quotas.admission.limit import Limit
from quotas.admission.topic_thresholds import TopicThreshold
from quotas.algorithms.algorithm import AlgorithmSettings
from quotas.algorithms.token_bucket import TokenBucket
from quotas.entry import QuotaEntry
from quotas.registry.configured import Configured
from quotas.registry.registry import Registry

NS_PER_MS: Final = 1_000_000
NS_PER_HOUR: Final = 3_600_000 * NS_PER_MS
MAX_REQUESTS: Final = 100
"""Of one client and interval."""
MAX_WAIT_NS: Final = 24 * NS_PER_HOUR
"""A request that would wait for longer is dropped then: its client offers more than its limit for days."""
FLEET_BURST_NS: Final = 100_000_000
"""The burst of a limit that a fleet shares, as in the proxy."""
Row: TypeAlias = tuple[int, str, str, str, str, str, str, int, int]
"""hour_ms, sidecar, user, client_id, direction, limit, entity, throttled_ms, delayed_bytes."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What one client wants to send or to fetch from start_ms to end_ms.

    fleet: whose members share the limits; None: the sidecar has its own. topic: this is the part of the client's
    offers until end_ms that goes to one topic, and is not offered once more.
    """

    start_ms: int
    end_ms: int
    user: str
    client_id: str
    direction: str
    size: int
    requests: int = MAX_REQUESTS
    sidecar: str = ""
    fleet: str | None = None
    topic: str | None = None
    record_bytes: int = 0
    messages: int = 0


class Limits:
    """The limits of each sidecar, and those that the members of a fleet share. counts_records: whether some limit of
    the quotas does.
    """

    def __init__(self, entries: Iterable[QuotaEntry]) -> None:
        entries = tuple(entries)
        self._configured = Configured({"": entries})
        self.counts_records = self._configured.counts_records
        self._per_process = {each.entity for each in entries if each.options.is_per_process}
        self._registries: dict[tuple[str, str | None], Registry] = {}
        self._shared: dict[Hashable, Limit] = {}

    def registry(self, sidecar: str, fleet: str | None) -> Registry:
        """The quotas of one sidecar."""
        if (sidecar, fleet) not in self._registries:
            settings = AlgorithmSettings() if fleet is None else AlgorithmSettings(burst_ns=FLEET_BURST_NS)
            self._registries[sidecar, fleet] = Registry(self._configured, settings=settings)
        return self._registries[sidecar, fleet]

    def of_client(self, sidecar: str, fleet: str | None, user: str, client_id: str, direction: str) -> list[Unit]:
        """What its requests are charged to: `REQUESTS` by number, others by bytes, from `FIRST_COST` on at least their
        `request_cost`.
        """
        own = self.registry(sidecar, fleet).resolve(user, client_id)
        units = own.units if direction == "produce" else [(each, BYTES) for each in own.fetch.limits]
        more = [] if direction == "produce" else [(each, REQUESTS) for each in own.requests.limits]
        return [(self._shared_one(fleet, limit), unit) for limit, unit in (*units, *more)]

    def of_topic(self, sidecar: str, fleet: str | None, user: str, client_id: str, topic: str) -> list[Unit]:
        """What its records of a topic are charged to: 0 by record bytes, 1 by number."""
        registry = self.registry(sidecar, fleet)
        own = TopicCharges(registry.resolve(user, client_id), registry.topic(topic, 0, exists=True))
        found = [(each, 0) for each in own.bytes_in] + [(each, 1) for each in own.messages_in]
        return [(self._shared_one(fleet, limit), unit) for limit, unit in found]

    def of(self, sidecar: str, fleet: str | None, user: str, client_id: str, topic: str | None) -> list[Limit]:
        """All limits of a client, with those of its records of this topic."""
        own = (sidecar, fleet, user, client_id)
        units = [each for way in ("produce", "fetch") for each in self.of_client(*own, way)]
        return [limit for limit, _ in (units if topic is None else units + self.of_topic(*own, topic))]

    def _shared_one(self, fleet: str | None, limit: Limit) -> Limit:
        if fleet is None or not isinstance(limit.algorithm, TokenBucket) or limit.origin in self._per_process:
            return limit
        return self._shared.setdefault((fleet, limit.name, limit.entity), limit)


def groups(
    entries: Iterable[QuotaEntry], members: Iterable[tuple[str, str | None, str, str, str | None]]
) -> list[tuple[str, str, str, str | None, int]]:
    """(sidecar, fleet, user, client_id, topic or None) to (sidecar, user, client_id, fleet, group): clients that share
    a limit, directly or through others, have the same group. Those without a limit are left out.
    """
    limits, parents = Limits(entries), dict[Hashable, Hashable]()

    def root(each: Hashable) -> Hashable:
        while parents.setdefault(each, each) != each:
            parents[each] = parents[parents[each]]
            each = parents[each]
        return each

    limited: dict[tuple[str, str, str], str | None] = {}
    for sidecar, fleet, user, client_id, topic in members:
        for limit in limits.of(sidecar, fleet, user, client_id, topic):
            limited[sidecar, user, client_id] = fleet
            algorithm = limit.algorithm
            # Thresholds of topics have their total in common.
            shared = algorithm.thresholds if isinstance(algorithm, TopicThreshold) else limit
            parents[root(shared)] = root((sidecar, user, client_id))
    numbers: dict[Hashable, int] = {}
    return [(*name, fleet, numbers.setdefault(root(name), len(numbers))) for name, fleet in limited.items()]


class Engine:
    """Limits and queues of one group of clients."""

    def __init__(self, entries: Iterable[QuotaEntry]) -> None:
        self._limits = Limits(entries)
        self._clients: dict[tuple[str, ...], _Client] = {}
        self._events: list[tuple[int, int, _Client | Limit]] = []
        self._armed: set[Limit] = set()
        self._found: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
        self._numbers = count()
        self._random = Random(0)  # noqa: S311 - the same each time
        self._hour = 0

    def add(self, offer: Offer) -> Iterator[Row]:
        """Offers come in order of start_ms; the parts by topic before those that they are parts of. Yields the hours
        that are complete.
        """
        client = self._client(offer)
        if offer.topic is not None:
            if offer.topic not in client.topics:
                names = (offer.sidecar, offer.fleet, offer.user, offer.client_id, offer.topic)
                client.topics[offer.topic] = _Topic(offer, self._limits.of_topic(*names))
            client.topics[offer.topic].offer = offer
            return
        start_ns = offer.start_ms * NS_PER_MS
        self._serve(start_ns)
        yield from self._rows(start_ns // NS_PER_HOUR)
        mix = client.mix(offer.start_ms)
        if not client.units and not mix:
            return
        parts = max(1, min(MAX_REQUESTS, offer.requests, offer.size))
        amounts, length_ns = (offer.size, max(parts, offer.requests)), (offer.end_ms - offer.start_ms) * NS_PER_MS
        # Requests come at random times, as of many connections; several of them are offered as one, when the last is
        # there. At even times, clients that are read together would meet each time.
        gap = self._random.gammavariate
        ends = list(accumulate([*(gap(amounts[1] / parts, 1.0) for _ in range(parts)), gap(1.0, 1.0)]))
        for part in range(parts):
            offered_ns = start_ns + int(length_ns * ends[part] / ends[-1])
            size, requests = (each * (part + 1) // parts - each * part // parts for each in amounts)
            heapq.heappush(client.queue, (offered_ns, next(self._numbers), size, requests, mix))
        if client.limit is None:
            self._schedule(client, 0)

    def end(self) -> Iterator[Row]:
        """Serve what is queued. Yields the hours that are left."""
        self._serve(None)
        yield from self._rows(None)

    def _client(self, offer: Offer) -> "_Client":
        key = (offer.sidecar, offer.user, offer.client_id, offer.direction)
        if key not in self._clients:
            names = (offer.sidecar, offer.fleet, offer.user, offer.client_id, offer.direction)
            self._clients[key] = _Client(key, self._limits.of_client(*names))
        return self._clients[key]

    # ---- events

    def _push(self, due_ns: int, what: "_Client | Limit") -> None:
        heapq.heappush(self._events, (due_ns, next(self._numbers), what))

    def _schedule(self, client: "_Client", now_ns: int) -> None:
        """Its oldest request is next when it is offered."""
        due_ns = max(client.queue[0][0], now_ns) if client.queue else 0
        if client.queue and due_ns != client.due_ns:
            client.due_ns = due_ns
            self._push(due_ns, client)

    def _serve(self, before_ns: int | None) -> None:
        """Let requests pass or wait, in order of time."""
        while self._events and (before_ns is None or self._events[0][0] < before_ns):
            now_ns, _, what = heapq.heappop(self._events)
            if isinstance(what, Limit):
                self._pass(what, now_ns)
            elif what.due_ns == now_ns and what.limit is None:
                what.due_ns = -1
                self._advance(what, now_ns)
            elif what.expires_ns == now_ns:
                self._expire(what, now_ns)

    def _pass(self, limit: Limit, now_ns: int) -> None:
        """Its debt should be paid: release waiters until there is debt again, as `proxy.sessions.wakeups` does."""
        while limit.waiters.waiting and not limit.debt_ns(now_ns):
            has_room = limit.has_room_for_all(now_ns)
            client = limit.waiters.pop()
            self._end_hold(client, now_ns)
            # It is back in the queue before the next waiter is released, unless there is room for all.
            self._advance(client, now_ns, limit, is_one=has_room)
        self._armed.discard(limit)
        self._arm(limit, now_ns)

    def _arm(self, limit: Limit, now_ns: int) -> None:
        if limit.waiters.waiting and limit not in self._armed:
            self._armed.add(limit)
            self._push(now_ns + max(limit.debt_ns(now_ns), NS_PER_MS), limit)

    def _expire(self, client: "_Client", now_ns: int) -> None:
        """Drop the request that is held, if it has waited for too long."""
        client.expires_ns = 0
        if client.limit is not None and client.offered_ns + MAX_WAIT_NS > now_ns:
            self._watch(client)
        elif client.limit is not None:
            client.limit.waiters.discard(client)
            self._end_hold(client, now_ns)
            client.charges = []
            self._advance(client, now_ns)

    def _watch(self, client: "_Client") -> None:
        if not client.expires_ns:
            client.expires_ns = client.offered_ns + MAX_WAIT_NS
            self._push(client.expires_ns, client)

    # ---- requests

    def _advance(self, client: "_Client", now_ns: int, turn: Limit | None = None, *, is_one: bool = False) -> None:
        """Let its requests pass until one is held, or the next one is offered later. turn: see `decide`."""
        while client.charges or self._begins(client, now_ns):
            if not self._passes(client, turn, now_ns):
                return
            turn = None
            if is_one:
                break
        self._schedule(client, now_ns)

    def _begins(self, client: "_Client", now_ns: int) -> bool:
        """Begin with the oldest request. False: none is offered yet."""
        while client.queue and client.queue[0][0] <= now_ns:
            client.begin(*heapq.heappop(client.queue))
            if client.offered_ns < client.free_ns:
                self._note_late(client, now_ns)
            if now_ns - client.offered_ns < MAX_WAIT_NS:
                return True
        client.charges = []
        return False

    def _passes(self, client: "_Client", turn: Limit | None, now_ns: int) -> bool:
        """Charge the request limit by limit. False: it waits for one."""
        passed, limit, _ = decide(client.charges, client.number, turn, now_ns)
        for each, units in client.charges[:passed]:
            each.last_charged_by = client.number
            each.algorithm.record(units, now_ns)
        client.charges = client.charges[passed:]
        if limit is None:
            for threshold, units in client.accepted:
                threshold.record_accepted(units, now_ns)
            return True
        client.limit = client.held_by = limit
        client.since_ns = now_ns
        self._note_late(client, now_ns)
        limit.enqueue(client, client.charges[0][1])
        self._arm(limit, now_ns)
        self._watch(client)
        return False

    # ---- results

    def _cell(self, client: "_Client", at_ns: int) -> list[int]:
        limit = client.held_by
        assert limit is not None  # noqa: S101 - it was held
        return self._found[at_ns // NS_PER_HOUR, *client.key, limit.name, str(limit.entity)]

    def _note_late(self, client: "_Client", now_ns: int) -> None:
        """Count the oldest request once, if it is held or was queued after one that was."""
        if not client.is_late:
            client.is_late = True
            self._cell(client, now_ns)[1] += client.size

    def _end_hold(self, client: "_Client", now_ns: int) -> None:
        self._count_hold(client, now_ns)
        client.limit, client.free_ns = None, now_ns

    def _count_hold(self, client: "_Client", now_ns: int) -> None:
        """Count the hold up to now, hour by hour."""
        while client.since_ns < now_ns:
            until_ns = min(now_ns, (client.since_ns // NS_PER_HOUR + 1) * NS_PER_HOUR)
            self._cell(client, client.since_ns)[0] += until_ns - client.since_ns
            client.since_ns = until_ns

    def _rows(self, before_hour: int | None) -> Iterator[Row]:
        if before_hour is not None and before_hour > self._hour:
            self._hour = before_hour
            for client in self._clients.values():
                if client.limit is not None:
                    self._count_hold(client, before_hour * NS_PER_HOUR)
        elif before_hour is not None:
            return
        for key in [key for key in self._found if before_hour is None or key[0] < before_hour]:
            held_ns, late = self._found.pop(key)
            yield (key[0] * 3_600_000, *key[1:], held_ns // NS_PER_MS, late)


@dataclass(slots=True, eq=False)
class _Topic:
    """The records of one client for one topic, as last known. rest: of record bytes and records that are no whole."""

    offer: Offer
    units: list[Unit]
    rest: list[float] = field(default_factory=lambda: [0.0, 0.0])


_Mix: TypeAlias = list[tuple[_Topic, tuple[float, float]]]
"""Topics, and how many record bytes and records of each come with a byte of their client."""


class _Client:
    """One connection: the request in hand, and those behind it.

    limit      where it waits, since_ns; held_by: where it did last, until free_ns
    due_ns     of its event; expires_ns: of the one that drops what is held
    charges    that the request has not passed yet; accepted: what thresholds count when it has
    """

    __slots__ = (
        "accepted", "charges", "due_ns", "expires_ns", "free_ns", "held_by", "is_late", "key", "limit", "number",
        "offered_ns", "queue", "since_ns", "size", "topics", "units",
    )  # fmt: skip

    def __init__(self, key: tuple[str, ...], units: list[Unit]) -> None:
        self.key, self.units = key, units
        self.queue: list[tuple[int, int, int, int, _Mix]] = []  # offered_ns, number, bytes, requests
        self.topics: dict[str, _Topic] = {}
        self.limit: Limit | None = None
        self.held_by: Limit | None = None
        self.charges: list[Charge] = []
        self.accepted: list[tuple[TopicThreshold, int]] = []
        self.number = self.size = self.offered_ns = self.since_ns = self.free_ns = self.expires_ns = 0
        self.due_ns = -1
        self.is_late = False

    def mix(self, at_ms: int) -> _Mix:
        """Its topics at this time; where none is known, those before."""
        latest_ms = max((each.offer.end_ms for each in self.topics.values()), default=0)
        now = [each for each in self.topics.values() if each.offer.end_ms > min(at_ms, latest_ms - 1)]
        parts = [(each, each.offer, 1 / max(1, each.offer.end_ms - each.offer.start_ms)) for each in now]
        rate = sum(offer.size * per_ms for _, offer, per_ms in parts) or 1.0
        return [
            (each, (offer.record_bytes * per_ms / rate, offer.messages * per_ms / rate))
            for each, offer, per_ms in parts
            if each.units
        ]

    def begin(self, offered_ns: int, _: int, size: int, requests: int, mix: _Mix) -> None:
        self.number, self.offered_ns, self.size, self.is_late = next_number(), offered_ns, size, False
        amounts: dict[Limit, int] = defaultdict(int)
        for limit, unit in self.units:
            # The sizes of single requests are not in the records: those that are offered together have their mean.
            least = requests * limit.request_cost if unit >= FIRST_COST else 0
            amounts[limit] += requests if unit == REQUESTS else max(size, least)
        for topic, per_byte in mix:
            sums = [rest + each * size for rest, each in zip(topic.rest, per_byte, strict=True)]
            topic.rest = [each % 1 for each in sums]
            for limit, unit in topic.units:
                amounts[limit] += int(sums[unit])
        self.charges = in_order({limit: units for limit, units in amounts.items() if units})
        self.accepted = [(each.algorithm, n) for each, n in self.charges if isinstance(each.algorithm, TopicThreshold)]
