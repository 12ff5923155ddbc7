"""Which topics get data that no sidecar saw: the brokers' own counts minus those of the sidecars, by hour."""

from functools import reduce

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f


def bypass_check(usage_hourly: DataFrame, brokers: DataFrame) -> DataFrame:
    """usage_hourly and broker_topic_hourly to bypass_check.

    Compares record bytes (batches as in the log, on both sides) and messages where both are known. A negative
    unseen_count means that sidecars counted more: appends that brokers refused, or clocks apart at the hour's end.
    """
    seen = (
        usage_hourly.where(
            (f.col("direction") == "produce") & f.col("topic").isNotNull() & (f.col("source") == "proxy")
        )
        .groupBy("hour", "topic")
        .agg(f.sum("record_bytes").alias("seen_record_bytes"), f.sum("messages").alias("seen_messages"))
    )
    known = brokers.groupBy("date", "hour", "topic").agg(
        f.sum("record_bytes").alias("record_bytes"), f.sum("messages").alias("messages")
    )
    both = known.join(seen, ["hour", "topic"], "left")
    return reduce(DataFrame.unionByName, [_compared(both, measure) for measure in ("record_bytes", "messages")])


def _compared(both: DataFrame, measure: str) -> DataFrame:
    broker, seen = f.col(measure), f.coalesce(f.col(f"seen_{measure}"), f.lit(0))
    return both.where(broker.isNotNull()).select(
        "date",
        "hour",
        "topic",
        f.lit(measure).alias("measure"),
        broker.alias("broker_count"),
        seen.alias("seen_count"),
        (broker - seen).alias("unseen_count"),
        f.when(broker > 0, (broker - seen) / broker).alias("unseen_share"),
    )


def from_counters(samples: DataFrame) -> DataFrame:
    """Samples of brokers' cumulative counters (time, broker, topic, bytes) to broker_topic_hourly, as record bytes.

    A counter that falls began again at 0 (a broker restarted). The first sample of each counter is where it starts.
    """
    window = Window.partitionBy("broker", "topic").orderBy("time")
    before = f.lag("bytes").over(window)
    growth = f.when(f.col("bytes") >= before, f.col("bytes") - before).when(before.isNotNull(), f.col("bytes"))
    return (
        samples.withColumn("growth", growth)
        .where(f.col("growth").isNotNull())
        .groupBy(f.to_date("time").alias("date"), f.date_trunc("hour", "time").alias("hour"), "topic")
        .agg(f.sum(f.col("growth").cast("bigint")).alias("record_bytes"))
        .withColumn("messages", f.lit(None).cast("bigint"))
    )
