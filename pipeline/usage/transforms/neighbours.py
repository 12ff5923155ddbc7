"""Shared limits: the share of each client, the delays of others, and their cost by the team that caused them.

A limit is shared where one entity has throttle records of more than one client in the same sidecar (each sidecar has
buckets of its own). In a quarter hour, the waiting of all clients of the limit, W, was caused by each in proportion to
its share of the bytes: client c caused share(c) x (W - own waiting of c) to others. No join of pairs is needed.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

_FETCH_LIMITS = ("consumer_byte_rate",)
_WINDOW = ("time", "sidecar", "limit", "entity")


def noisy_neighbours(usage: DataFrame, throttled: DataFrame, team: Column) -> DataFrame:
    """usage_deltas and throttle_deltas of the same dates to noisy_neighbours, by hour.

    Clients of a limit are those with a throttle record of it on the date. An entity `total` has all clients.
    Columns: victims counts clients that waited in the hour, other than this one.
    """
    waits = throttled.groupBy(*_WINDOW, "user", "client_id", "labels").agg(
        f.sum("throttled_ms").alias("own_throttled_ms")
    )
    members = _members(usage, throttled)
    used = (
        _bytes_by_client(usage)
        .join(members, ["date", "sidecar", "user", "client_id", "labels", "direction"])
        .join(waits, [*_WINDOW, "user", "client_id", "labels"], "left")
        .fillna(0, ["own_throttled_ms"])
    )
    window = Window.partitionBy(*_WINDOW)
    shared = (
        used.withColumns(
            {
                "all_bytes": f.sum("bytes").over(window),
                "all_ms": f.sum("own_throttled_ms").over(window),
                "waiting": f.sum((f.col("own_throttled_ms") > 0).cast("int")).over(window),
                "clients": f.count("*").over(window),
            }
        )
        .where((f.col("all_ms") > 0) & (f.col("clients") > 1))
        .withColumn("topic", f.lit(None).cast("string"))
    )
    others_ms = f.col("all_ms") - f.col("own_throttled_ms")
    others = f.col("waiting") - (f.col("own_throttled_ms") > 0).cast("int")
    share = f.col("bytes") / f.greatest(f.col("all_bytes"), f.lit(1))
    hour = f.date_trunc("hour", "time")
    return (
        shared.withColumns({"share": share, "others_ms": others_ms, "others": others, "caused": share * others_ms})
        .groupBy("date", hour.alias("hour"), "limit", "entity", "sidecar", team.alias("team"), "user", "client_id")
        .agg(
            f.sum("bytes").alias("bytes"),
            (f.sum("bytes") / f.greatest(f.sum("all_bytes"), f.lit(1))).alias("share"),
            f.sum("own_throttled_ms").alias("own_throttled_ms"),
            f.max("others").alias("victims"),
            f.sum("others_ms").alias("victims_throttled_ms"),
            f.sum("caused").alias("caused_throttled_ms"),
        )
    )


def _bytes_by_client(usage: DataFrame) -> DataFrame:
    return usage.groupBy(
        f.to_date("time").alias("date"), "time", "sidecar", "user", "client_id", "labels", "direction"
    ).agg(f.sum("bytes").alias("bytes"))


def _members(usage: DataFrame, throttled: DataFrame) -> DataFrame:
    direction = f.when(f.col("limit").isin(*_FETCH_LIMITS), "fetch").otherwise("produce")
    keys = ["date", "sidecar", "user", "client_id", "labels", "direction", "limit", "entity"]
    limits = throttled.withColumns({"date": f.to_date("time"), "direction": direction})
    named = limits.where(f.col("entity") != "total").select(*keys)
    totals = (
        limits.where(f.col("entity") == "total").select("date", "sidecar", "direction", "limit", "entity").distinct()
    )
    clients = usage.select(f.to_date("time").alias("date"), "sidecar", "user", "client_id", "labels", "direction")
    everyone = clients.distinct().join(totals, ["date", "sidecar", "direction"]).select(*keys)
    return named.unionByName(everyone).distinct()
