"""Records to samples, samples to deltas by quarter hour.

Counters are cumulative within a series, and a series begins at 0. So of each series and quarter hour only the smallest
and the largest counter matter. A lost record is made up for by the next one. A repeated record, or one out of order,
changes nothing. A restart or a reset makes another series. Whatever arrives, the deltas of a series add up to its
largest counter, to the byte.

A delta that crosses quarter hours is split in proportion to time. The parts are differences of one rising step
function, so they add up to the delta.
"""

from collections.abc import Sequence
from datetime import date

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pipeline.usage.schemas import DAY_MS, LOOKBACK_DAYS, QUARTER_MS, SLOT_MS, USAGE_KIND, RecordKind
from pipeline.usage.transforms.sums import named, total

_MAX_SPLIT_MS = LOOKBACK_DAYS * DAY_MS
_BLOCK_BITS = 17
"""Offsets of Kafka whose records one row has at most: bounds the points that are in memory at once."""


def samples(records: DataFrame, kind: RecordKind) -> DataFrame:
    """One row for each series and quarter hour: when its first and last record were, its smallest and largest counters,
    and its points. All that the report knows of usage and throttling comes from here: the records are read once.

    points: of each slot the last record, in order: ms (since the quarter hour began), value (its first counter), second
    (max_second_bytes) and nth (how many records of the row came before it; a slot often has two, since a sidecar reads
    every 8 to 10 s). Several rows where records of a quarter hour are far apart in Kafka.
    A hash aggregation: no sort of the records, partial before the shuffle, so a series with many records makes no task
    longer than others.
    """
    quarter = f.floor(f.col("time_ms") / QUARTER_MS).cast("bigint")
    block = f.shiftright("kafka_offset", _BLOCK_BITS)
    second = f.col("max_second_bytes") if kind is USAGE_KIND else f.lit(None).cast("bigint")
    point = f.struct(
        (f.col("time_ms") % QUARTER_MS).cast("int").alias("ms"),
        f.col(kind.counters[0]).alias("value"),
        second.alias("second"),
    )
    rows = records.where(f.col("kind") == kind.name)
    found = rows.groupBy("date", quarter.alias("quarter"), *kind.series, block.alias("block")).agg(
        f.min("time_ms").alias("first_ms"),
        f.max("time_ms").alias("last_ms"),
        *(f.min(counter).alias(f"first_{counter}") for counter in kind.counters),
        *(f.max(counter).alias(f"last_{counter}") for counter in kind.counters),
        *named(f.max, *kind.gauges),
        f.sort_array(f.collect_set(point)).alias("points"),
    )
    return found.withColumn("points", _last_of_slots(f.col("points"))).drop("block")


def _last_of_slots(points: Column) -> Column:
    """The last point of each slot, with the larger second of the last two."""

    def is_last(point: Column, index: Column) -> Column:
        return f.coalesce(slot(f.get(points, index + 1)["ms"]) != slot(point["ms"]), f.lit(True))

    def merged(point: Column, index: Column) -> Column:
        before = f.get(points, index - 1)
        is_same = slot(before["ms"]) == slot(point["ms"])
        larger = f.when(is_same, f.greatest(before["second"], point["second"])).otherwise(point["second"])
        values = {"ms": point["ms"], "value": point["value"], "second": larger, "nth": index}
        return f.struct(*(value.alias(name) for name, value in values.items()))

    return f.filter(f.transform(points, merged), is_last)


def time_of(quarter: str = "quarter") -> Column:
    """When a quarter hour began."""
    return f.timestamp_millis(f.col(quarter) * QUARTER_MS)


def slot(ms: Column) -> Column:
    """The number of the slot that ends at or after so many milliseconds of a quarter hour; 0: at its beginning."""
    return f.ceil(ms / SLOT_MS).cast("int")


def series_daily(sampled: DataFrame, kind: RecordKind) -> DataFrame:
    """One row for each series and date: where it ended that day."""
    lasts = named(f.max, "last_ms", *(f"last_{counter}" for counter in kind.counters))
    return sampled.groupBy("date", *kind.series).agg(*named(f.min, "first_ms"), *lasts)


def dates_to_compute(daily: DataFrame, kind: RecordKind, changed: Sequence[date]) -> DataFrame:
    """`date`: the changed dates, and for each series of them the next date on which it has a record.

    Late data of a date moves the start of the delta that ends on the series' next date. start_time_ms: the oldest one
    of all series of that date.
    """
    has_changed = f.col("date").isin(changed)
    before = f.lag(has_changed, 1, False).over(Window.partitionBy(*kind.series).orderBy("date"))
    of_date = daily.withColumn("is", has_changed | before).groupBy("date")
    return of_date.agg(f.bool_or("is").alias("is"), f.min("start_time_ms").alias("start_time_ms")).where("is")


def deltas(sampled: DataFrame, daily: DataFrame | None, kind: RecordKind) -> DataFrame:
    """One row for each quarter hour and what a delta keeps of its series: `kind.delta_keys`.

    sampled: the samples of the dates to compute, all of each date. daily: `series_daily` of other dates, from which
    their first deltas start; None for no other dates.
    Columns: source_date (date of the sample that ended the delta), time (start of the quarter hour, UTC), the keys,
    the counters' deltas, split_<first counter> (the part that was split over quarter hours), longest_gap_ms.
    """
    end = f.col("first_ms")
    # Bounds the number of rows that one sample can become; a clock set back makes a span of nothing.
    start = f.greatest(f.least(f.col("previous_ms"), end), end - _MAX_SPLIT_MS)
    spread = (
        steps(sampled, daily, kind)
        .withColumn("from_ms", start)
        .withColumn("from_quarter", f.floor(f.col("from_ms") / QUARTER_MS).cast("bigint"))
        .withColumn("each", f.explode(f.sequence("from_quarter", "quarter")))
        .withColumns(_shares())
    )
    is_last = f.col("each") == f.col("quarter")
    parts = {}
    for counter in kind.counters:
        between = f.col(f"between_{counter}")
        parts[counter] = f.floor(between * f.col("share_after")) - f.floor(between * f.col("share_before"))
    first = kind.counters[0]
    split = f.when(f.col("from_quarter") != f.col("quarter"), parts[first])
    pieces = spread.select(
        f.col("date").alias("source_date"),
        time_of("each").alias("time"),
        *kind.delta_keys,
        *((part + f.when(is_last, f.col(f"within_{name}")).otherwise(0)).alias(name) for name, part in parts.items()),
        f.coalesce(split, f.lit(0)).alias("split"),
        (end - f.col("from_ms")).alias("gap_ms"),
        *kind.gauges,
    )
    return pieces.groupBy("source_date", "time", *kind.delta_keys).agg(
        *named(total, *kind.counters),
        total("split").alias(f"split_{first}"),
        f.max("gap_ms").alias("longest_gap_ms"),
        *named(f.max, *kind.gauges),
    )


def steps(sampled: DataFrame, daily: DataFrame | None, kind: RecordKind) -> DataFrame:
    """Of each sample: when the previous one was (previous_ms), each counter then (reached_), the delta since then
    (between_), and the delta within (within_). Arguments as for `deltas`.
    """
    # The hash first: rows of different series are told apart by one number in the sort, and no two series are mixed.
    window = Window.partitionBy("series_hash", *kind.series).orderBy("quarter", "first_ms")
    before = window.rowsBetween(Window.unboundedPreceding, -1)
    reached = {f"reached_{each}": f.coalesce(f.max(f"last_{each}").over(before), f.lit(0)) for each in kind.counters}
    previous = f.coalesce(f.max("last_ms").over(before), f.col("start_time_ms"))
    rows = sampled.withColumn("is_known", f.lit(False))
    if daily is not None:
        # The days before, as samples that have no delta of their own.
        quarter = f.floor(f.col("last_ms") / QUARTER_MS).cast("bigint")
        firsts = {f"first_{counter}": f.col(f"last_{counter}") for counter in kind.counters}
        known = daily.withColumns({"quarter": quarter, **firsts, "is_known": f.lit(True)})
        rows = rows.unionByName(known, allowMissingColumns=True)
    # Distributed by the delta's keys, which are some of the series' keys: the only shuffle of rows that the window over
    # a series and the sums by quarter hour need.
    rows = rows.repartition(*kind.delta_keys).withColumn("series_hash", f.xxhash64(*kind.series))
    rows = rows.withColumns({"previous_ms": previous, **reached}).where(~f.col("is_known"))
    parts = {}
    for counter in kind.counters:
        first, last, so_far = f.col(f"first_{counter}"), f.col(f"last_{counter}"), f.col(f"reached_{counter}")
        # A clock that was set back puts a later counter into an earlier quarter: then nothing is counted twice.
        # greatest() skips nulls, but a counter that is not measured has to stay null.
        parts[f"between_{counter}"] = f.when(last.isNotNull(), f.greatest(first - so_far, f.lit(0)))
        parts[f"within_{counter}"] = f.when(last.isNotNull(), f.greatest(last - f.greatest(first, so_far), f.lit(0)))
    return rows.withColumns(parts)


def _shares() -> dict[str, Column]:
    """The part of a delta over (from_ms, first_ms] that came before a quarter hour began, and before it ended: 0 to 1.

    The end of one quarter hour is the beginning of the next, in the same arithmetic, so rounded down to bytes the
    differences add up to the delta. A counter is below 2^53, so as a double it is exact.
    """

    def share(quarter: Column) -> Column:
        return (quarter * QUARTER_MS - f.col("from_ms")) / (f.col("first_ms") - f.col("from_ms"))

    each = f.col("each")
    return {
        "share_before": f.when(each == f.col("from_quarter"), 0.0).otherwise(share(each)),
        "share_after": f.when(each == f.col("quarter"), 1.0).otherwise(share(each + 1)),
    }
