"""Replays recorded usage against a quotas file through the proxy's own limits (`replay`): the waits of each client.

A sidecar has buckets of its own, so clients are replayed by sidecar; the members of a fleet share theirs. Clients that
share a limit are one group, and a group is replayed in order of time by one task. A limit of the total makes one group
of all clients of a sidecar. Spark sorts the rows of a group and streams them through Python: memory is bounded by the
clients of a group.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.functions import udtf

from pipeline.usage.jobs.replay import MAX_REQUESTS, Engine, Limits, Offer, Row, groups
from pipeline.usage.quotas_in_force import load
from pipeline.usage.records import THROTTLE, USAGE
from pipeline.usage.schemas import SLOT_MS, USAGE_KIND
from pipeline.usage.transforms.deltas import samples
from pipeline.usage.transforms.members import UNITS, cluster
from pipeline.usage.transforms.rates import pace, paced, spans

RESULT: Final = (
    "hour_ms bigint, sidecar string, user string, client_id string, direction string, limit string, entity string, "
    "throttled_ms bigint, delayed_bytes bigint"
)
_OF_RECORDS: Final = {limit for limit, unit in UNITS.items() if unit in ("record_bytes", "messages")}
_CLIENT: Final = ["sidecar", "user", "client_id"]


def simulate(records: DataFrame, quotas_text: str) -> DataFrame:
    """`records` of some dates to one row for each hour, client and limit that would have held it: hour, and RESULT.

    throttled_ms: time for which the client's oldest request was held. delayed_bytes: of all requests that were held or
    queued. Raises InputError.
    """
    entries = load(quotas_text)  # errors here, not in a task
    sampled = samples(records, USAGE_KIND)
    each = spans(paced(sampled, USAGE_KIND, pace(sampled)), USAGE_KIND).where("amount > 0")
    # A topic's part of a total is no offer, but says to which topic that goes; a row of an older proxy is both.
    is_part = f.coalesce(f.col("has_total"), f.lit(False)) & f.col("topic").isNotNull()
    is_of_topic = (f.col("direction") == "produce") & f.col("topic").isNotNull() & f.lit(Limits(entries).counts_records)
    kinds = f.array(f.when(~is_part, ""), f.when(is_of_topic, f.col("topic")))
    each = each.withColumn("of", f.explode(f.array_compact(kinds))).withColumn("topic", f.nullif("of", f.lit("")))
    length_ms = f.ceil(f.col("amount") * 1000 / f.col("peak"))
    share = f.col("amount") / (f.col("between_bytes") + f.col("within_bytes"))
    until = f.when(f.col("topic").isNull(), f.col("since_ms") + length_ms).otherwise(f.col("until_ms"))

    def counted(name: str, default: int) -> Column:
        count = f.round((f.col(f"between_{name}") + f.col(f"within_{name}")) * share)
        return f.coalesce(f.nullif(count, f.lit(0.0)), f.lit(default)).cast("bigint").alias(name)

    offers = each.select(
        *_CLIENT,
        "direction",
        "topic",
        f.when(f.col("topic").isNull(), f.col("since_ms")).otherwise(f.col("since_ms") - SLOT_MS).alias("order_ms"),
        f.col("since_ms").alias("start_ms"),
        until.alias("end_ms"),
        f.col("amount").alias("size"),
        counted("requests", MAX_REQUESTS),
        counted("record_bytes", 0),
        counted("messages", 0),
    )
    fleets = _fleets(records)
    clients = records.where(f.col("kind") == USAGE).select(cluster(), *_CLIENT, "topic").distinct()
    members = [(row[1], fleets.get(row[:2], fleets.get((row[0], ""))), *row[2:]) for row in clients.collect()]
    grouped = records.sparkSession.createDataFrame(
        groups(entries, members), "sidecar string, user string, client_id string, fleet string, `group` int"
    )
    replayed = udtf(_replayer(quotas_text), returnType=RESULT)
    rows = offers.join(f.broadcast(grouped), _CLIENT)
    found = replayed(rows.asTable().partitionBy("group").orderBy("order_ms", *_CLIENT, "direction", "topic"))
    return found.select(f.timestamp_millis("hour_ms").alias("hour"), "*").drop("hour_ms")


def not_replayed(records: DataFrame, quotas_text: str) -> list[str]:
    """What of a quotas file `simulate` leaves out with these records, and why."""
    names = {name for each in load(quotas_text) for name in each.limits}
    found = [f"{name} (records do not have what it counts)" for name in sorted(names - UNITS.keys())]
    of_records = sorted(names & _OF_RECORDS)
    if of_records and records.where("topic is not null and direction = 'produce'").isEmpty():
        found.append(f"{', '.join(of_records)} (needs records by topic: --usage-by-topic)")
    if "request_rate" in names:
        found.append("requests that carry no data, for request_rate (records have only Produce and Fetch requests)")
    return found


def _fleets(records: DataFrame) -> dict[tuple[str, str], str | None]:
    """The fleet of each (cluster, sidecar) whose limits held something, and of ("cluster", ""), for the others."""
    held = records.where((f.col("kind") == THROTTLE) & f.col("limit").endswith("_rate"))
    found = held.groupBy(cluster(), "sidecar").agg(f.max("fleet")).collect()
    fleets = {(row[0], row[1]): f"{row[0]}/{row[2]}" if row[2] else None for row in found}
    return {(place, ""): fleet for (place, _), fleet in fleets.items() if fleet} | fleets


@lru_cache(maxsize=1)
def _loaded(quotas_text: str) -> Any:
    """In a worker, which replays many groups."""
    return load(quotas_text)


def _replayer(quotas_text: str) -> type:
    """The table function for Spark: one instance for each group, its rows in order."""

    class Replayer:
        def __init__(self) -> None:
            self._engine = Engine(_loaded(quotas_text))

        def eval(self, row: Any) -> Iterator[Row]:
            yield from self._engine.add(Offer(**{name: row[name] for name in Offer.__match_args__}))

        def terminate(self) -> Iterator[Row]:
            yield from self._engine.end()

    return Replayer
