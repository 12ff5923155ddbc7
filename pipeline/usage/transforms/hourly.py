"""Deltas by quarter hour and sidecar to what people read: by hour and team."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pipeline.usage.schemas import THROTTLE_KIND, USAGE_KIND
from pipeline.usage.transforms.members import cluster
from pipeline.usage.transforms.sums import named, total
from pipeline.usage.transforms.topics import split_totals

_CLIENT: Final = ("time", "labels", "user", "client_id", "direction")


def usage_hourly(deltas: DataFrame, team: Column) -> DataFrame:
    """usage_deltas to usage_hourly. team: an expression over user, client_id, topic, labels and time (`owners`)."""
    sums = [*named(total, *USAGE_KIND.counters, "split_bytes"), *named(f.max, "longest_gap_ms")]
    hours = deltas.withColumn("time", f.date_trunc("hour", "time"))
    by_client = hours.groupBy(*_CLIENT, "topic", "has_total").agg(*sums)
    return _with_team(split_totals(by_client, _CLIENT), team, ("topic", "direction")).agg(*sums)


def throttling_hourly(deltas: DataFrame, team: Column) -> DataFrame:
    """throttle_deltas to throttling_hourly. limit_value: the highest that was in force in the hour."""
    # Owner rules may name a topic, and a throttle has none.
    rows = deltas.withColumn("topic", f.lit(None).cast("string"))
    sums = [*named(total, *THROTTLE_KIND.counters), *named(f.max, "limit_value")]
    return _with_team(rows, team, THROTTLE_KIND.own).agg(*sums)


def _with_team(rows: DataFrame, team: Column, own: tuple[str, ...]):  # type: ignore[no-untyped-def]  # GroupedData
    date, hour = f.to_date("time").alias("date"), f.date_trunc("hour", "time").alias("hour")
    return rows.groupBy(date, hour, cluster(), team.alias("team"), "user", "client_id", "labels", *own)
