"""What each quota should be, from what was used and from what throttling hid.

A sample is a client's mean rate over a quarter hour: bursts within it are not seen. A quarter hour in which the client
was throttled says only that its demand was at least what it used: it is right-censored. Percentiles of demand are
Kaplan-Meier's: at each uncensored rate, in rising order, the share that survives is multiplied by 1 - 1 / (samples at
or above it). Leaving the censored samples out, or taking them as they are, would propose too little.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pipeline.usage.schemas import QUARTER_MS, THROTTLE_KIND

HEADROOM = 1.2
"""Proposed is the demand's 99th percentile times this."""
ACCURACY = 10_000
"""Of `percentile_approx`: the rank is off by at most 1 / 10,000 of the samples."""
TRIGGER_S = 60
"""Seconds between two micro-batches, for `maxOffsetsPerTrigger`."""
BUFFER_MEMORY = 33_554_432
DELIVERY_TIMEOUT_S = 120
"""Defaults of Kafka's Java producer."""
_LIMITS = {"producer_byte_rate": "produce", "consumer_byte_rate": "fetch"}
_ROUNDING = 1e-9
"""Of a product of doubles."""
_CLIENT = ("team", "user", "client_id", "limit", "entity")
_QUARTERS_PER_DAY = 86_400_000 // QUARTER_MS


def quota_recommendations(sampled: DataFrame) -> DataFrame:
    """`rates` of some weeks to quota_recommendations: one row for each client and byte rate."""
    summary = sampled.groupBy(*_CLIENT).agg(
        # The last one that is known: a quarter hour without a record of the throttle has none.
        f.max_by("limit_value", f.when(f.col("limit_value").isNotNull(), f.col("time"))).alias("current_limit"),
        *_percentiles("used"),
        f.count("*").alias("intervals"),
        f.sum("censored").alias("throttled_intervals"),
        f.countDistinct(f.to_date("time")).alias("days"),
        (f.sum("record_bytes") / f.sum("messages")).alias("mean_record_bytes"),
    )
    joined = summary.join(demand(sampled), list(_CLIENT), "left").join(_by_hour(sampled), list(_CLIENT))
    return _proposals(joined)


def rates(usage: DataFrame, throttled: DataFrame, team: Column) -> DataFrame:
    """usage_deltas and throttle_deltas to one row for each client, limit and quarter hour: rate (bytes/s), censored (0
    or 1).

    A sidecar has buckets of its own, so a sample is the busiest sidecar's rate, against the limit of one sidecar.
    """
    direction = f.create_map(*(f.lit(each) for pair in _LIMITS.items() for each in pair))
    keys = ["time", "sidecar", "user", "client_id", "labels", "direction"]
    used = usage.groupBy(*keys).agg(*(f.sum(name).alias(name) for name in ("bytes", "record_bytes", "messages")))
    held = (
        throttled.where(f.col("limit").isin(*_LIMITS))
        .withColumn("direction", direction[f.col("limit")])
        .groupBy(*keys, *THROTTLE_KIND.own)
        .agg(f.sum("throttled_ms").alias("throttled_ms"), f.max("limit_value").alias("limit_value"))
    )
    known = held.select("user", "client_id", "labels", "direction", "limit", "entity").distinct()
    joined = (
        used.join(f.broadcast(known), ["user", "client_id", "labels", "direction"])
        .join(held, [*keys, *THROTTLE_KIND.own], "left")
        .withColumn("topic", f.lit(None).cast("string"))
    )
    return joined.groupBy("time", team.alias("team"), "user", "client_id", *THROTTLE_KIND.own).agg(
        (f.max("bytes") * 1000 / QUARTER_MS).alias("rate"),
        f.max((f.coalesce(f.col("throttled_ms"), f.lit(0)) > 0).cast("int")).alias("censored"),
        f.max("limit_value").alias("limit_value"),
        f.sum("record_bytes").alias("record_bytes"),
        f.sum("messages").alias("messages"),
    )


def demand(sampled: DataFrame) -> DataFrame:
    """Kaplan-Meier's 99th percentile of demand: the smallest rate at which at most 1 % of the demand is above.

    Where censoring leaves more than 1 % above the largest uncensored rate, demand_p99 is the largest rate seen, and
    demand_is_lower_bound is true: demand is at least that.
    """
    by_rate = sampled.groupBy(*_CLIENT, "rate").agg(
        f.sum(1 - f.col("censored")).alias("events"), f.count("*").alias("samples")
    )
    client = Window.partitionBy(*_CLIENT)
    upwards = client.orderBy("rate")
    at_risk = f.sum("samples").over(client.orderBy(f.desc("rate")))
    rows = by_rate.withColumn("at_risk", at_risk)
    left = 1 - f.col("events") / f.col("at_risk")
    # A product of shares as a sum of logarithms; a share of 0 ends it.
    survives = f.when(f.min(left).over(upwards) <= 0, 0.0).otherwise(
        f.exp(f.sum(f.log(f.greatest(left, f.lit(1e-300)))).over(upwards))
    )
    reached = (
        rows.withColumn("survives", survives)
        .groupBy(*_CLIENT)
        .agg(
            f.min(f.when(f.col("survives") <= 0.01 + _ROUNDING, f.col("rate"))).alias("reached"),
            f.max("rate").alias("largest"),
        )
    )
    return reached.select(
        *_CLIENT,
        f.coalesce("reached", "largest").alias("demand_p99"),
        f.col("reached").isNull().alias("demand_is_lower_bound"),
    )


def _percentiles(prefix: str) -> list[Column]:
    return [
        f.percentile_approx("rate", share, ACCURACY).alias(f"{prefix}_{name}")
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    ]


def _by_hour(sampled: DataFrame) -> DataFrame:
    hours = sampled.groupBy(*_CLIENT, f.hour("time").alias("hour")).agg(
        *_percentiles("used"), f.avg("censored").alias("throttled_share")
    )
    entry = f.struct(
        "hour",
        f.col("used_p50").alias("p50"),
        f.col("used_p95").alias("p95"),
        f.col("used_p99").alias("p99"),
        "throttled_share",
    )
    return hours.groupBy(*_CLIENT).agg(f.sort_array(f.collect_list(entry)).alias("by_hour"))


def _proposals(joined: DataFrame) -> DataFrame:
    wanted = f.col("demand_p99") * HEADROOM
    # Two significant digits, rounded up.
    step = f.pow(f.lit(10.0), f.floor(f.log10(f.greatest(wanted, f.lit(1.0)))) - 1)
    proposed = f.greatest(f.ceil(wanted / step) * step, f.lit(1.0))
    # Measured only below the limit: the demand may be anything above, so go up in steps.
    at_least = f.greatest(proposed, f.col("current_limit") * 1.5)
    rows = joined.withColumn("proposed", f.when(f.col("demand_is_lower_bound"), at_least).otherwise(proposed))
    rate = f.col("proposed")
    drain = BUFFER_MEMORY / rate
    is_produce = f.col("limit") == "producer_byte_rate"
    offsets = f.floor(rate * TRIGGER_S / f.col("mean_record_bytes")).cast("bigint")
    return rows.withColumns(
        {
            "headroom": f.when(f.col("current_limit") > 0, 1 - f.col("demand_p99") / f.col("current_limit")),
            "why": _why(),
            "confidence": _confidence(),
            "max_offsets_per_trigger": f.when(~is_produce & (f.col("mean_record_bytes") > 0), offsets),
            "buffer_drain_s": f.when(is_produce, drain),
            "buffer_fits": f.when(is_produce, drain < DELIVERY_TIMEOUT_S),
        }
    )


def _why() -> Column:
    share = f.format_number(100 * f.col("throttled_intervals") / f.col("intervals"), 1)
    text = f.concat(share, f.lit(" % of the quarter hours were throttled; demand p99 "))
    bound = f.when(f.col("demand_is_lower_bound"), f.lit("≥ ")).otherwise(f.lit(""))
    return f.concat(text, bound, f.format_number(f.col("demand_p99"), 0), f.lit(" bytes/s"))


def _confidence() -> Column:
    """high: a week or more, demand known; medium: two days or more; low: less, or the demand is a lower bound."""
    return (
        f.when(f.col("demand_is_lower_bound") | (f.col("intervals") < 2 * _QUARTERS_PER_DAY), "low")
        .when(f.col("days") >= 7, "high")
        .otherwise("medium")
    )
