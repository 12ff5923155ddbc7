"""Replays recorded usage against a quotas file through the proxy's own engine: the waits of each client.

The recorded volume of a client in one quarter hour (or one record's interval) is offered evenly over it, as requests of
its mean size. Bursts within an interval are not seen. A sidecar has buckets of its own, so each sidecar is replayed by
itself; within it, clients that share a limit are one group, and a group is replayed in order of time by one task. A
limit of the total makes one group of all clients of a sidecar.

The only module of `pipeline.usage` that imports `quotas`; the package has to be there on every executor.
"""

import heapq
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.usage.schemas import QUARTER_MS
from quotas.admission.limit_set import LimitSet
from quotas.entry import QuotaEntry
from quotas.parsing.parse import load_quotas
from quotas.registry.registry import Registry

NS_PER_MS: Final = 1_000_000
MAX_REQUESTS: Final = 30
"""Of one client and interval: a quarter hour is replayed in steps of 30 seconds or longer."""
MAX_WAIT_MS: Final = 86_400_000
"""A request that would wait for longer is dropped: its client offers more than its limit for days."""
RESULT: Final = (
    "hour timestamp, sidecar string, user string, client_id string, direction string, limit string, entity string, "
    "offered_bytes bigint, throttled_ms bigint, delayed_bytes bigint"
)


class QuotasError(Exception):
    """A proposed quotas file has errors; the text lists them."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What one client wants to send or to fetch in one interval."""

    start_ms: int
    user: str
    client_id: str
    direction: str
    size: int


def load(text: str) -> tuple[QuotaEntry, ...]:
    """The entries of a quotas file's text. Raises QuotasError."""
    try:
        found = load_quotas(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise QuotasError(f"not TOML: {error}") from error
    if found.errors:
        raise QuotasError("; ".join(str(error) for error in found.errors))
    return tuple(placed.entry for placed in found.placed if placed.entry is not None)


def simulate(usage_deltas: DataFrame, quotas_text: str) -> DataFrame:
    """usage_deltas to one row for each hour, client and limit that would have held it: columns of RESULT.

    Raises QuotasError. The rows of a group are sorted by Spark and streamed through Python: memory is bounded by the
    clients of a group.
    """
    load(quotas_text)  # errors here, not in a task
    spark = usage_deltas.sparkSession
    offers = usage_deltas.groupBy("time", "sidecar", "user", "client_id", "direction").agg(
        f.sum("bytes").alias("bytes")
    )
    offers = offers.where(f.col("bytes") > 0)
    grouped = offers.join(f.broadcast(_groups(spark, offers, quotas_text)), ["user", "client_id"])
    ordered = grouped.repartition("sidecar", "group").sortWithinPartitions(
        "sidecar", "group", "time", "user", "client_id"
    )
    columns = ("sidecar", "group", f.unix_millis("time").alias("ms"), "user", "client_id", "direction", "bytes")
    rows = ordered.select(*columns).rdd.mapPartitions(lambda part: _replay_part(part, quotas_text))
    return spark.createDataFrame(rows, RESULT)


def replay(offers: Iterable[Offer], entries: Iterable[QuotaEntry]) -> Iterator[tuple[Any, ...]]:
    """Offers of one group, sorted by start, through one set of limits.

    Yields (hour_ms, user, client_id, direction, limit, entity, offered_bytes, throttled_ms, delayed_bytes) for each
    hour, client and limit that held it.
    """
    registry = Registry(entries)
    limits: dict[tuple[str, str, str], LimitSet] = {}
    busy_until_ns: dict[tuple[str, str, str], int] = {}
    found: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    queue: list[tuple[int, int, int, tuple[str, str, str], int]] = []
    number = 0
    for offer in offers:
        start_ns = offer.start_ms * NS_PER_MS
        yield from _serve(queue, start_ns, limits, busy_until_ns, found)
        client = (offer.user, offer.client_id, offer.direction)
        if client not in limits:
            own = registry.resolve(offer.user, offer.client_id)
            limits[client] = own.produce if offer.direction == "produce" else own.fetch
        count = min(MAX_REQUESTS, offer.size)
        for part in range(count):
            size = offer.size * (part + 1) // count - offer.size * part // count
            due_ns = start_ns + part * QUARTER_MS * NS_PER_MS // count
            heapq.heappush(queue, (due_ns, number, due_ns, client, size))
            number += 1
    yield from _serve(queue, None, limits, busy_until_ns, found)
    yield from _rows(found, None)


def _serve(
    queue: list[tuple[int, int, int, tuple[str, str, str], int]],
    before_ns: int | None,
    limits: dict[tuple[str, str, str], LimitSet],
    busy_until_ns: dict[tuple[str, str, str], int],
    found: dict[tuple[Any, ...], list[int]],
) -> Iterator[tuple[Any, ...]]:
    """Let requests pass or wait, in order of time, up to `before_ns`; yields the hours that are complete."""
    while queue and (before_ns is None or queue[0][0] < before_ns):
        now_ns, number, offered_ns, client, size = heapq.heappop(queue)
        free_ns = busy_until_ns.get(client, 0)
        if free_ns > now_ns:  # the client's earlier request is held: first come, first served
            heapq.heappush(queue, (free_ns, number, offered_ns, client, size))
            continue
        decision = limits[client].admit(size, now_ns)
        if decision.limit is None:
            continue
        waits_ns = max(decision.wait_ns, NS_PER_MS)
        if not decision.admitted and now_ns + waits_ns - offered_ns < MAX_WAIT_MS * NS_PER_MS:
            busy_until_ns[client] = now_ns + waits_ns
            heapq.heappush(queue, (now_ns + waits_ns, number, offered_ns, client, size))
        if not decision.admitted:
            entry = found[now_ns // (3_600_000 * NS_PER_MS), *client, decision.limit.name, str(decision.limit.entity)]
            entry[1] += waits_ns // NS_PER_MS
            if now_ns == offered_ns:
                entry[0] += size
                entry[2] += size
    if before_ns is not None:
        yield from _rows(found, before_ns // (3_600_000 * NS_PER_MS))


def _rows(found: dict[tuple[Any, ...], list[int]], before_hour: int | None) -> Iterator[tuple[Any, ...]]:
    done = [key for key in found if before_hour is None or key[0] < before_hour]
    for key in done:
        hour, *names = key
        yield (hour * 3_600_000, *names, *found.pop(key))


def _replay_part(part: Iterable[Any], quotas_text: str) -> Iterator[tuple[Any, ...]]:
    """The rows of one Spark partition: some groups, one after the other, each sorted by time."""
    from datetime import UTC, datetime
    from itertools import groupby

    entries = load(quotas_text)
    for (sidecar, _), rows in groupby(part, key=lambda row: (row[0], row[1])):
        offers = (Offer(row[2], row[3], row[4], row[5], row[6]) for row in rows)
        for hour_ms, *rest in replay(offers, entries):
            yield (datetime.fromtimestamp(hour_ms / 1000, UTC), sidecar, *rest)


def _groups(spark: SparkSession, offers: DataFrame, quotas_text: str) -> DataFrame:
    """user, client_id, group: clients that share a limit, directly or through others, have the same group."""
    registry = Registry(load(quotas_text))
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
