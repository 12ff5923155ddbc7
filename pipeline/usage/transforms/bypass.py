"""Which topics get data that no sidecar saw: the brokers' own counts minus those of the sidecars, by hour."""

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pipeline.usage.transforms.sums import named, total


def bypass_check(usage_hourly: DataFrame, brokers: DataFrame, lost: DataFrame) -> DataFrame:
    """usage_hourly, broker_topic_hourly and `sidecars.lost_hours` to bypass_check.

    In an hour of which records of sidecars are missing, what they did not count is no traffic round the proxy:
    is_certain is false.

    Compares record bytes (batches as in the log, on both sides) and messages where both are known. A negative
    unseen_count means that sidecars counted more: appends that brokers refused, or clocks apart at the hour's end.
    """
    sums = [total(name).alias(f"seen_{name}") for name in ("record_bytes", "messages")]
    used = usage_hourly.where((f.col("direction") == "produce") & f.col("topic").isNotNull())
    seen = used.groupBy("cluster", "hour", "topic").agg(*sums)
    known = brokers.groupBy("date", "cluster", "hour", "topic").agg(*named(total, "record_bytes", "messages"))
    both = known.join(seen, ["cluster", "hour", "topic"], "left").join(f.broadcast(lost), ["cluster", "hour"], "left")
    both = both.fillna(0, ["lost_sidecars"])
    return reduce(DataFrame.unionByName, [_compared(both, measure) for measure in ("record_bytes", "messages")])


def _compared(both: DataFrame, measure: str) -> DataFrame:
    broker, seen = f.col(measure), f.coalesce(f.col(f"seen_{measure}"), f.lit(0))
    return both.where(broker.isNotNull()).withColumns(
        {
            "measure": f.lit(measure),
            "broker_count": broker,
            "seen_count": seen,
            "unseen_count": broker - seen,
            "unseen_share": f.when(broker > 0, (broker - seen) / broker),
            "is_certain": f.col("lost_sidecars") == 0,
        }
    )


def from_offsets(snapshots: DataFrame) -> DataFrame:
    """storage_snapshots to broker_topic_hourly: growth of the log end offsets between two snapshots, as messages, split
    over hours in proportion to time.

    Offsets that fall began again at 0 (a topic was made anew). The first snapshot is where they start. The markers of
    transactions have offsets, too: one for each partition and transaction.
    """
    window = Window.partitionBy("cluster", "topic").orderBy("time")
    now, before, since = f.col("end_offsets"), f.lag("end_offsets").over(window), f.lag("time").over(window)
    growth = f.when(now >= before, now - before).otherwise(now)
    grown = snapshots.withColumns({"since": since, "growth": growth}).where("since is not null")
    first, last = (f.date_trunc("hour", each) for each in ("since", "time"))
    hour = f.expr("interval 1 hour")
    spread = grown.withColumn("hour", f.explode(f.sequence(first, last, hour)))
    part = (_until(f.col("hour") + hour) - _until(f.col("hour"))).alias("messages")
    hours = spread.groupBy(f.to_date("hour").alias("date"), "hour", "cluster", "topic")
    return hours.agg(total(part).alias("messages"), f.lit(None).cast("bigint").alias("record_bytes"))


def _until(boundary: Column) -> Column:
    """How much of the growth over (since, time] came before a boundary: a rising function, so parts add up."""
    elapsed_ms, length_ms = (
        (f.unix_millis(end) - f.unix_millis("since")).cast("double") for end in (boundary, f.col("time"))
    )
    return (
        f.when(boundary <= f.col("since"), f.lit(0).cast("bigint"))
        .when(boundary >= f.col("time"), f.col("growth"))
        .otherwise(f.floor(f.col("growth") * elapsed_ms / length_ms).cast("bigint"))
    )
