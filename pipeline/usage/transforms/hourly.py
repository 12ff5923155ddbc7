"""Deltas by quarter hour and sidecar to what people read: by hour and team."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pipeline.usage.schemas import THROTTLE_KIND, USAGE_KIND

FROM_PROXY = "proxy"
FROM_BROKERS = "brokers"


def usage_hourly(deltas: DataFrame, team: Column) -> DataFrame:
    """usage_deltas to usage_hourly. team: an expression over user, client_id, topic, labels and time (`owners`)."""
    return _by_hour(deltas, team, USAGE_KIND.own).agg(
        *(f.sum(counter).alias(counter) for counter in USAGE_KIND.counters),
        f.sum("split_bytes").alias("split_bytes"),
        f.max("longest_gap_ms").alias("longest_gap_ms"),
        f.lit(FROM_PROXY).alias("source"),
    )


def throttling_hourly(deltas: DataFrame, team: Column) -> DataFrame:
    """throttle_deltas to throttling_hourly. limit_value: the highest that was in force in the hour."""
    return _by_hour(deltas, team, THROTTLE_KIND.own).agg(
        *(f.sum(counter).alias(counter) for counter in THROTTLE_KIND.counters),
        f.max("limit_value").alias("limit_value"),
    )


def _by_hour(deltas: DataFrame, team: Column, own: tuple[str, ...]):  # type: ignore[no-untyped-def]  # GroupedData
    return deltas.groupBy(
        f.to_date("time").alias("date"),
        f.date_trunc("hour", "time").alias("hour"),
        team.alias("team"),
        "user",
        "client_id",
        *own,
    )
