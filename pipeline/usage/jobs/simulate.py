"""Replays recorded usage against a quotas file through the proxy's own engine: the waits of each client.

What a client counted between two records is offered evenly over that time, or at the rate of its largest second where
that is known, as requests of its mean size: other bursts between two records are not seen. A sidecar has buckets of its
own, so each sidecar is replayed by itself; within it, clients that share a limit are one group, and a group is replayed
in order of time by one task. A limit of the total makes one group of all clients of a sidecar.

Spark sorts the rows of a group and streams them through Python: memory is bounded by the clients of a group.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.functions import udtf

from pipeline.usage.quotas_in_force import load
from pipeline.usage.schemas import USAGE_KIND
from pipeline.usage.transforms.deltas import samples
from pipeline.usage.transforms.rates import of_clients, pace, paced, spans
from quotas.admission.limit_set import LimitSet
from quotas.entry import QuotaEntry
from quotas.registry.registry import Registry

_Name: TypeAlias = tuple[str, str, str]
"""User, client id, direction."""
NS_PER_MS: Final = 1_000_000
NS_PER_HOUR: Final = 3_600_000 * NS_PER_MS
MAX_REQUESTS: Final = 30
"""Of one client and interval."""
MAX_WAIT_MS: Final = 86_400_000
"""A request that would wait for longer is dropped then: its client offers more than its limit for days."""
RESULT: Final = (
    "hour timestamp, sidecar string, user string, client_id string, direction string, limit string, entity string, "
    "offered_bytes bigint, throttled_ms bigint, delayed_bytes bigint"
)


@dataclass(frozen=True, slots=True)
class Offer:
    """What one client wants to send or to fetch from start_ms to end_ms."""

    start_ms: int
    end_ms: int
    user: str
    client_id: str
    direction: str
    size: int
    requests: int = MAX_REQUESTS


def simulate(records: DataFrame, quotas_text: str) -> DataFrame:
    """`records` of some dates to one row for each hour, client and limit that would have held it: columns of RESULT.

    throttled_ms: time for which the client's oldest request was held. delayed_bytes: of all requests that were held or
    queued. Raises QuotasError.
    """
    entries = load(quotas_text)  # errors here, not in a task
    keys = ["sidecar", "user", "client_id", "direction"]
    sampled = samples(of_clients(records), USAGE_KIND)
    each = spans(paced(sampled, USAGE_KIND, pace(sampled)), USAGE_KIND).where("amount > 0")
    length_ms = f.ceil(f.col("amount") * 1000 / f.col("peak"))
    share = f.col("amount") / (f.col("between_bytes") + f.col("within_bytes"))
    offers = each.select(
        *keys,
        f.col("since_ms").alias("start_ms"),
        (f.col("since_ms") + length_ms).alias("end_ms"),
        f.col("amount").alias("bytes"),
        f.round((f.col("between_requests") + f.col("within_requests")) * share).cast("bigint").alias("requests"),
    )
    grouped = offers.join(f.broadcast(_groups(records.sparkSession, offers, entries)), ["user", "client_id"])
    rows = grouped.select("group", "start_ms", "end_ms", *keys, "bytes", "requests")
    replayed = udtf(_replayer(quotas_text), returnType=RESULT)
    return replayed(
        rows.asTable().partitionBy("sidecar", "group").orderBy("start_ms", "user", "client_id", "direction")
    )


def replay(offers: Iterable[Offer], entries: Iterable[QuotaEntry]) -> Iterator[tuple[Any, ...]]:
    """Offers of one group, sorted by start, through one set of limits.

    Yields (hour_ms, user, client_id, direction, limit, entity, offered_bytes, throttled_ms, delayed_bytes) for each
    hour, client and limit that held it.
    """
    engine = Engine(entries)
    for offer in offers:
        yield from engine.add(offer)
    yield from engine.end()


class Engine:
    """Limits and queues of one group of clients."""

    def __init__(self, entries: Iterable[QuotaEntry]) -> None:
        self._registry = Registry(entries)
        self._clients: dict[_Name, _Client] = {}
        self._events: list[tuple[int, int, _Client]] = []
        self._found: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
        self._numbers = count()

    def add(self, offer: Offer) -> Iterator[tuple[Any, ...]]:
        """Offers come in order of start_ms. Yields the hours that are complete."""
        start_ns = offer.start_ms * NS_PER_MS
        self._serve(start_ns)
        yield from self._rows(start_ns // NS_PER_HOUR)
        name = (offer.user, offer.client_id, offer.direction)
        client = self._clients.get(name)
        if client is None:
            own = self._registry.resolve(offer.user, offer.client_id)
            client = self._clients[name] = _Client(name, own.produce if offer.direction == "produce" else own.fetch)
        if not client.limits.limits:
            return
        requests = max(1, min(MAX_REQUESTS, offer.requests, offer.size))
        length_ns = (offer.end_ms - offer.start_ms) * NS_PER_MS
        for part in range(requests):
            size = offer.size * (part + 1) // requests - offer.size * part // requests
            heapq.heappush(client.queue, (start_ns + part * length_ns // requests, next(self._numbers), size))
        self._schedule(client)

    def end(self) -> Iterator[tuple[Any, ...]]:
        """Serve what is queued. Yields the hours that are left."""
        self._serve(None)
        yield from self._rows(None)

    def _schedule(self, client: "_Client") -> None:
        """The client's oldest request is next when it is offered and no earlier one is held."""
        due_ns = max(client.queue[0][0], client.held_until_ns)
        if client.due_ns is None or due_ns < client.due_ns:
            client.due_ns = due_ns
            heapq.heappush(self._events, (due_ns, next(self._numbers), client))

    def _serve(self, before_ns: int | None) -> None:
        """Let requests pass or wait, in order of time."""
        while self._events and (before_ns is None or self._events[0][0] < before_ns):
            now_ns, _, client = heapq.heappop(self._events)
            if client.due_ns != now_ns:  # an earlier event replaced it
                continue
            client.due_ns = None
            self._serve_one(client, now_ns)
            if client.queue:
                self._schedule(client)

    def _serve_one(self, client: "_Client", now_ns: int) -> None:
        offered_ns, _, size = client.queue[0]
        decision = client.limits.admit(size, now_ns)
        if decision.limit is not None and not decision.admitted:
            ready_ns = now_ns + max(decision.wait_ns, NS_PER_MS)
            client.held_until_ns = min(ready_ns, offered_ns + MAX_WAIT_MS * NS_PER_MS)
            client.held_by = (*client.name, decision.limit.name, str(decision.limit.entity))
            held_ms = max(0, client.held_until_ns - now_ns) // NS_PER_MS
            self._found[now_ns // NS_PER_HOUR, *client.held_by][1] += held_ms
            self._note_late(client, now_ns)
            if client.held_until_ns == ready_ns:
                return
        self._note_late(client, now_ns)
        heapq.heappop(client.queue)
        client.noted = -1

    def _note_late(self, client: "_Client", now_ns: int) -> None:
        """Count the oldest request once, if it is held or was queued after one that was."""
        offered_ns, number, size = client.queue[0]
        is_held = client.held_until_ns > now_ns
        if client.noted != number and (is_held or offered_ns < client.held_until_ns):
            client.noted = number
            entry = self._found[now_ns // NS_PER_HOUR, *client.held_by]
            entry[0] += size
            entry[2] += size

    def _rows(self, before_hour: int | None) -> Iterator[tuple[Any, ...]]:
        done = [key for key in self._found if before_hour is None or key[0] < before_hour]
        for key in done:
            hour, *names = key
            yield (hour * 3_600_000, *names, *self._found.pop(key))


class _Client:
    """due_ns: of its event. noted: the number of the request that was counted as late."""

    __slots__ = ("due_ns", "held_by", "held_until_ns", "limits", "name", "noted", "queue")

    def __init__(self, name: _Name, limits: LimitSet) -> None:
        self.name = name
        self.limits = limits
        self.queue: list[tuple[int, int, int]] = []  # offered_ns, number, size
        self.held_until_ns = 0
        self.held_by: tuple[str, ...] = ()
        self.due_ns: int | None = None
        self.noted = -1


def _replayer(quotas_text: str) -> type:
    """The table function for Spark: one instance for each group, its rows in order."""

    class Replayer:
        def __init__(self) -> None:
            self._engine = Engine(load(quotas_text))
            self._sidecar = ""

        def eval(self, row: Any) -> Iterator[tuple[Any, ...]]:
            self._sidecar = row["sidecar"]
            offer = Offer(
                row["start_ms"], row["end_ms"], row["user"], row["client_id"], row["direction"], row["bytes"],
                row["requests"] or MAX_REQUESTS,
            )  # fmt: skip
            yield from self._named(self._engine.add(offer))

        def terminate(self) -> Iterator[tuple[Any, ...]]:
            yield from self._named(self._engine.end())

        def _named(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
            for hour_ms, *rest in rows:
                yield (datetime.fromtimestamp(hour_ms / 1000, UTC), self._sidecar, *rest)

    return Replayer


def _groups(spark: SparkSession, offers: DataFrame, entries: Iterable[QuotaEntry]) -> DataFrame:
    """user, client_id, group: clients that share a limit, directly or through others, have the same group."""
    registry = Registry(entries)
    clients = [(row[0], row[1]) for row in offers.select("user", "client_id").distinct().collect()]  # a row a client
    parents: dict[Any, Any] = {}

    def root(each: Any) -> Any:
        while parents.setdefault(each, each) != each:
            parents[each] = parents[parents[each]]
            each = parents[each]
        return each

    for user, client_id in clients:
        own = registry.resolve(user, client_id)
        for limit in (*own.produce.limits, *own.fetch.limits):
            parents[root(("limit", limit.name, str(limit.entity)))] = root(("client", user, client_id))
    rows = [(user, client_id, "|".join(map(str, root(("client", user, client_id))))) for user, client_id in clients]
    return spark.createDataFrame(rows, "user string, client_id string, `group` string")
