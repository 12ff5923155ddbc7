"""How fast clients and limits really are: rates between two records, not means of quarter hours.

Between two records of a series its rate is constant, as far as anyone knows. The rate of an entity (the scope of a
limit, or one client) is the sum over its members at each moment: where one of them changes its rate, a segment ends.
So members that send at different times do not add up to a peak that never was.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pipeline.usage.schemas import QUARTER_MS, USAGE_KIND
from pipeline.usage.transforms.members import DIRECTIONS, cluster

SNAPSHOT_MS: Final = 600_000
"""A sidecar sends each live series at least this often."""
STEP: Final = 1.05
"""Rates are counted in bins; each bin's upper edge is this times its lower edge."""
_SCOPE = ("cluster", "limit", "entity")
_QUARTER = ("date", "quarter", "sidecar", *_SCOPE)
_P99_S = QUARTER_MS / 1000 * 0.01
_USED = ("cluster", "user", "client_id", "direction")


def of_clients(usage: DataFrame) -> DataFrame:
    """The rows that count each byte of a client once, and at each interval: no split by topic of a total."""
    return usage.where(~(f.coalesce(f.col("has_total"), f.lit(False)) & f.col("topic").isNotNull()))


def pace(records: DataFrame) -> DataFrame:
    """`records` to the time between two readings of an incarnation: sidecar, incarnation, of_topic, pace_ms.

    That of the minute of a series with most records, repeated ones counted once; no row where none has four.
    """
    minute = f.floor(f.col("time_ms") / 60_000).alias("minute")
    second = f.expr("shiftleft(1L, cast(floor(time_ms / 1000) % 60 as int))")
    run = ("sidecar", "incarnation", "of_topic")
    by_minute = (
        records.where(f.col("kind") == USAGE_KIND.name)
        .withColumn("of_topic", f.col("topic").isNotNull())
        .groupBy(*run, f.xxhash64(*USAGE_KIND.series).alias("series_hash"), minute)
        .agg(
            f.bit_count(f.bit_or(second)).alias("seconds"),
            f.min("time_ms").alias("first"),
            f.max("time_ms").alias("last"),
        )
    )
    spacing = (f.col("last") - f.col("first")) / (f.col("seconds") - 1)
    return by_minute.where(f.col("seconds") >= 4).groupBy(*run).agg(f.min(spacing).cast("bigint").alias("pace_ms"))


def intervals(records: DataFrame) -> DataFrame:
    """Records to the intervals between two of them: start_ms, end_ms, bytes, requests, with the columns of the series.

    A series that does not change is sent every 10 minutes only. So what is new after at most that came since the
    reading before (`pace`). Give all records of some dates: the first interval of a series on a date is
    left out if it began before. Records that are repeated or out of order change nothing.
    """
    # The hash first, as in `deltas`.
    series = Window.partitionBy("series_hash", "date", *USAGE_KIND.series)
    before = series.orderBy("time_ms").rowsBetween(Window.unboundedPreceding, -1)
    begins_here = f.col("start_time_ms") >= f.unix_millis(f.col("date").cast("timestamp"))
    began = f.when(begins_here, f.col("start_time_ms"))
    rows = (
        of_clients(records.where(f.col("kind") == USAGE_KIND.name))
        .withColumn("series_hash", f.xxhash64(*USAGE_KIND.series))
        .withColumns(
            {
                "start_ms": f.coalesce(f.max("time_ms").over(before), began),
                **{
                    f"new_{name}": f.col(name) - f.coalesce(f.max(name).over(before), f.lit(0))
                    for name in ("bytes", "requests")
                },
            }
        )
    )
    rows = rows.withColumn("of_topic", f.col("topic").isNotNull()).join(
        f.broadcast(pace(records)), ["sidecar", "incarnation", "of_topic"], "left"
    )
    was_idle = f.col("time_ms") - f.col("start_ms") <= SNAPSHOT_MS + f.col("pace_ms")
    read_before = f.when(was_idle, f.col("time_ms") - f.col("pace_ms"))
    return rows.where(f.col("start_ms") < f.col("time_ms")).select(
        *USAGE_KIND.series,
        f.greatest("start_ms", read_before).alias("start_ms"),
        f.col("time_ms").alias("end_ms"),
        *(f.greatest(f"new_{name}", f.lit(0)).alias(name) for name in ("bytes", "requests")),
    )


def rates_quarterly(records: DataFrame, members: DataFrame) -> DataFrame:
    """`records` of some dates and `members` to rates_quarterly.

    One row for each sidecar, entity and quarter hour. A client without a limit is an entity by itself. Rates are bytes
    per second: mean over the seconds that records cover, p99 (above it for at most 9 s), peak. bins: seconds and bytes
    by rate, each with its highest rate.
    """
    found = by_entity(intervals(records).withColumn("cluster", cluster()), members)
    return _quarters(_segments(_by_quarter(found)))


def by_entity(rows: DataFrame, members: DataFrame) -> DataFrame:
    """Rows of clients with `limit` and `entity`: once for each limit of the client, or once as its own entity."""
    known = members.where(f.col("limit").isin(*DIRECTIONS)).select(*_USED, "limit", "entity")
    names = f.create_map(*(f.lit(each) for limit, way in DIRECTIONS.items() for each in (way, limit)))
    own = {"limit": f.coalesce("limit", names[f.col("direction")]), "entity": f.coalesce("entity", own_entity())}
    return rows.join(f.broadcast(known), list(_USED), "left").withColumns(own)


def own_entity() -> Column:
    """The entity of one client as quotas name it: its client id, of its user if clients are authenticated."""
    client = f.concat(f.lit("client-id:"), _quoted("client_id"))
    user = f.concat(f.lit("user:"), _quoted("user"))
    is_user = ~f.col("user").isin("", "ANONYMOUS")
    both = f.when(f.col("client_id") == "", user).otherwise(f.concat_ws(",", user, client))
    return f.when(is_user, both).otherwise(client)


def _quoted(name: str) -> Column:
    """A name as quotas.entity writes it."""
    escaped = f.regexp_replace(name, r'([\\"])', r"\\$1")
    return f.when(f.col(name).rlike(r'^[^\s",\\<>][^\s",\\]*$'), f.col(name)).otherwise(
        f.concat(f.lit('"'), escaped, f.lit('"'))
    )


def _by_quarter(found: DataFrame) -> DataFrame:
    """Intervals, each cut at the boundaries of quarter hours: from_ms, until_ms, rate."""
    first, last = (f.floor(each / QUARTER_MS).cast("bigint") for each in (f.col("start_ms"), f.col("end_ms") - 1))
    cut = found.withColumn("quarter", f.explode(f.sequence(first, last)))
    begin = f.col("quarter") * QUARTER_MS
    return cut.select(
        f.to_date(f.timestamp_millis(begin)).alias("date"),
        "quarter",
        "sidecar",
        *_SCOPE,
        f.greatest("start_ms", begin).alias("from_ms"),
        f.least(f.col("end_ms"), begin + QUARTER_MS).alias("until_ms"),
        (f.col("bytes") * 1000 / (f.col("end_ms") - f.col("start_ms"))).alias("rate"),
        (f.col("end_ms") - f.col("start_ms")).alias("interval_ms"),
    )


def _segments(pieces: DataFrame) -> DataFrame:
    """The rate of each entity from one change to the next: rate, seconds. interval_ms: of its shortest interval."""
    ends = f.array(
        *(
            f.struct(f.col(at).alias("at"), (f.col("rate") * sign).alias("change"))
            for at, sign in (("from_ms", 1), ("until_ms", -1))
        )
    )
    changes = (
        pieces.select(*_QUARTER, "interval_ms", f.inline(ends))
        .groupBy(*_QUARTER, "at")
        .agg(f.sum("change").alias("change"), f.min("interval_ms").alias("interval_ms"))
    )
    ordered = Window.partitionBy(*_QUARTER).orderBy("at")
    rate = f.sum("change").over(ordered)
    seconds = (f.lead("at").over(ordered) - f.col("at")) / 1000
    rows = changes.select(*_QUARTER, rate.alias("rate"), seconds.alias("seconds"), "interval_ms")
    # What is left of sums that should be 0 is rounding.
    return rows.where(f.col("seconds") > 0).withColumn(
        "rate", f.when(f.col("rate") > 1e-3, f.col("rate")).otherwise(0.0)
    )


def _quarters(segments: DataFrame) -> DataFrame:
    step = f.when(f.col("rate") >= 1, f.floor(f.log("rate") / f.log(f.lit(STEP)))).otherwise(-1).cast("int")
    bins = segments.groupBy(*_QUARTER, step.alias("step")).agg(
        f.sum("seconds").alias("seconds"),
        f.sum(f.col("rate") * f.col("seconds")).alias("bytes"),
        f.max("rate").alias("top"),
        f.min("interval_ms").alias("interval_ms"),
    )
    above = f.sum("seconds").over(Window.partitionBy(*_QUARTER).orderBy(f.desc("step")))
    entry = f.struct("step", "seconds", "bytes", "top")
    return (
        bins.withColumn("above", above)
        .groupBy(*_QUARTER)
        .agg(
            (f.sum("bytes") / f.sum("seconds")).alias("mean"),
            f.coalesce(f.max(f.when(f.col("above") > _P99_S, f.col("top"))), f.min("top")).alias("p99"),
            f.max("top").alias("peak"),
            (f.min("interval_ms") / 1000).alias("interval_s"),
            f.collect_list(entry).alias("bins"),
        )
        .withColumn("time", f.timestamp_millis(f.col("quarter") * QUARTER_MS))
    )
