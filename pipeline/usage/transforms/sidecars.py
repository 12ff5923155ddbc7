"""What did not arrive: records that a run of a proxy numbered and nobody read, runs that ended without a last record.

Numbers (`seq`, offsets of the topic) are collected as bits of words of 64: one hash aggregation, no sort of records.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pipeline.usage.records import IDLE
from pipeline.usage.schemas import KEPT_DAYS
from pipeline.usage.transforms.members import cluster
from pipeline.usage.transforms.rates import of_clients
from pipeline.usage.transforms.sums import named, total

SILENT_MS: Final = 1_200_000
"""A proxy that writes idle records writes something every 5 minutes."""
SNAPSHOT_MS: Final = 600_000
"""The longest time between two readings."""
MAX_GAPS: Final = 100
"""That are named, of a run and day."""
_RUN = ("sidecar", "incarnation")


def sidecar_days(records: DataFrame, usage: DataFrame, paces: DataFrame) -> DataFrame:
    """`records` and usage_deltas of some dates, and `rates.pace`, to sidecar_days.

    least_lag_ms: Kafka's time minus that of the record, at least; negative where the sidecar's clock is ahead.
    """
    keys = ["date", *_RUN]
    lag = f.unix_millis("kafka_time") - f.col("time_ms")
    words = _words(records, keys, "seq").agg(
        _bits("seq"),
        f.count("*").alias("arrived"),
        *(f.min(name).alias(f"first_{short}") for name, short in (("seq", "seq"), ("time_ms", "ms"))),
        *(f.max(name).alias(f"last_{short}") for name, short in (("seq", "seq"), ("time_ms", "ms"))),
        f.min(lag).alias("least_lag_ms"),
        f.max(lag).alias("most_lag_ms"),
        f.bool_or("final").alias("final"),
        f.count_if(f.col("kind") == IDLE).alias("idle"),
        # The largest text as such, or of the label of each record, would be a sort of the records.
        f.collect_set("labels").alias("labels"),
    )
    before = Window.partitionBy(*keys).orderBy("word")
    since = f.coalesce(f.lag("last_seq").over(before) + 1, f.col("first_seq"))
    missing = f.col("last_seq") + 1 - since - f.bit_count("bits")
    from_ms = f.coalesce(f.lag("last_ms").over(before), f.col("first_ms"))
    gap = f.struct(from_ms.alias("from_ms"), f.col("last_ms").alias("until_ms"), missing.alias("records"))
    gaps = f.sort_array(f.collect_list(f.when(f.col("missing") > 0, f.col("gap"))))
    numbers = f.sum(f.bit_count("bits").cast("bigint"))
    of_word = {"missing": missing, "gap": gap, "cluster": f.array_max(f.transform("labels", cluster))}
    by_run = words.withColumns(of_word).groupBy(*keys)
    days = by_run.agg(
        *named(f.max, "cluster", "most_lag_ms", "last_ms", "last_seq"),
        *named(f.min, "least_lag_ms", "first_ms", "first_seq"),
        *named(f.bool_or, "final"),
        *named(f.sum, "idle"),
        numbers.alias("records"),
        (f.sum("arrived") - numbers).alias("repeated"),
        f.slice(gaps, 1, MAX_GAPS).alias("gaps"),
    )
    used = of_clients(usage).groupBy(f.col("source_date").alias("date"), *_RUN).agg(*named(total, "bytes"))
    pace = paces.groupBy(*_RUN).agg(*named(f.min, "pace_ms"))
    return days.join(used, keys, "left").join(pace, list(_RUN), "left").fillna(0, ["bytes"])


def sidecars(days: DataFrame) -> DataFrame:
    """sidecar_days of all dates to sidecars.

    state: running; ended (it wrote a last record); replaced (a newer run of the sidecar began after its last record);
    silent (no record for SILENT_MS, and others wrote). Times are compared by Kafka's clock. ended_cleanly: null where
    that is not known: a proxy without idle records may have had nothing to write, also at its end.
    estimated_missing_bytes: of one interval at its last day's mean rate, or of the time until the next run. The
    interval of a run that is too short to show it is that of the other runs of the sidecar, or of the cluster.
    """
    # Of a run that is older than what is kept, the first days are gone.
    is_old = f.datediff(f.max("date").over(Window.partitionBy(f.lit(0))), "date") > KEPT_DAYS - 31
    # By number, not by date: a clock that was set back writes later records into an earlier day.
    by_seq = Window.partitionBy(*_RUN).orderBy("first_seq")
    before = f.max("last_seq").over(by_seq.rowsBetween(Window.unboundedPreceding, -1)) + 1
    begin = f.coalesce(before, f.when(is_old, f.col("first_seq")), f.lit(0))
    numbers = f.greatest(f.col("last_seq") + 1, begin) - begin
    rows = days.withColumns({"numbers": numbers, "has_gap": numbers > f.col("records")})
    missing = f.greatest(f.sum("numbers") - f.sum("records"), f.lit(0))
    last = f.max_by(f.struct("bytes", "first_ms", "last_ms", "pace_ms"), "date")
    runs = rows.groupBy(*_RUN).agg(
        *named(f.max, "cluster", "last_ms"),
        *named(f.min, "first_ms"),
        *named(f.sum, "records", "repeated"),
        *named(f.bool_or, "final"),
        *named(total, "bytes"),
        missing.alias("missing_records"),
        f.max(f.when(f.col("has_gap"), f.col("date"))).alias("last_gap"),
        f.min("least_lag_ms").alias("offset_ms"),
        f.max("most_lag_ms").alias("lag_ms"),
        (f.sum("idle") > 0).alias("writes_idle"),
        last.alias("last"),
    )
    began, ended = (f.col(name) + f.coalesce("offset_ms", f.lit(0)) for name in ("first_ms", "last_ms"))
    runs = runs.withColumns({"began": began, "ended": ended})
    of_sidecar = Window.partitionBy("cluster", "sidecar")
    newest = f.max("ended").over(Window.partitionBy(f.lit(0)))
    state = (
        f.when(f.col("final"), "ended")
        .when(f.max("began").over(of_sidecar) > f.col("ended"), "replaced")
        .when(f.col("ended") < newest - SILENT_MS, "silent")
        .otherwise("running")
    )
    following = f.min("began").over(of_sidecar.orderBy("began").rowsBetween(1, Window.unboundedFollowing))
    until = f.coalesce(f.when(following > f.col("ended"), following), newest)
    runs = runs.withColumns({"state": state, "gap_ms": until - f.col("ended")})
    # Without idle records, only a proxy that had clients shortly before the next run would have written a last record.
    had_clients = (f.col("state") == "replaced") & f.col("final").isNotNull() & (f.col("gap_ms") <= SILENT_MS)
    is_lost = f.when(f.col("writes_idle"), f.col("state").isin("replaced", "silent")).otherwise(had_clients)
    cleanly = f.when(f.col("state") == "ended", True).when(is_lost, False)
    # A run of a few records shows no pace. Other runs have the same options; its records were at most that far apart.
    paces = [f.min("last.pace_ms").over(each) for each in (of_sidecar, Window.partitionBy("cluster"))]
    read_ms = f.col("last.last_ms") - f.col("last.first_ms")
    pace = f.coalesce("last.pace_ms", *paces, f.when(read_ms > 0, read_ms), f.lit(SNAPSHOT_MS))
    interval = f.greatest(f.least(pace, "gap_ms"), f.lit(1))
    lived_ms = f.greatest(read_ms, f.lit(0)) + interval  # what the first record has came before it
    estimate = f.floor(f.least(f.col("last.bytes") * (interval / lived_ms), f.lit(2.0**53))).cast("bigint")
    runs = runs.withColumns({"ended_cleanly": cleanly, "estimate": estimate})
    return runs.withColumns(
        {
            "first_record": f.timestamp_millis("first_ms"),
            "last_record": f.timestamp_millis("last_ms"),
            "last_gap": f.when(f.col("missing_records") > 0, f.col("last_gap")),
            "clock_offset_ms": f.col("offset_ms"),
            "estimated_missing_bytes": f.when(~f.col("ended_cleanly"), f.col("estimate")).otherwise(0),
        }
    )


def lost_hours(days: DataFrame, runs: DataFrame) -> DataFrame:
    """The hours in which records of sidecars are missing: cluster, hour, lost_sidecars."""
    hour_ms = f.lit(3_600_000)
    gaps = days.select("cluster", "sidecar", f.explode("gaps").alias("gap")).select("*", "gap.from_ms", "gap.until_ms")
    at_end = f.unix_millis("last_record")
    ends = runs.where("ended_cleanly = false").select(
        "cluster", "sidecar", at_end.alias("from_ms"), (at_end + hour_ms).alias("until_ms")
    )
    hours = f.sequence(
        f.date_trunc("hour", f.timestamp_millis("from_ms")), f.timestamp_millis("until_ms"), f.expr("interval 1 hour")
    )
    rows = gaps.drop("gap").unionByName(ends).select("cluster", "sidecar", f.explode(hours).alias("hour"))
    return rows.groupBy("cluster", "hour").agg(f.countDistinct("sidecar").alias("lost_sidecars"))


def topic_holes(read: DataFrame, known: DataFrame) -> DataFrame:
    """Offsets that were not read, between those that were: kafka_partition, first_offset, last_offset.

    read: kafka_partition, kafka_offset of what was read since the last time, in any order. known: kafka_partition,
    last_offset, up to which was read before.
    """
    fresh = read.join(f.broadcast(known), "kafka_partition", "left")
    fresh = fresh.where(f.col("kafka_offset") > f.coalesce("last_offset", f.lit(-1)))
    words = _words(fresh, ["kafka_partition", "last_offset"], "kafka_offset").agg(_bits("kafka_offset"))
    base = f.col("word") * 64

    def span(first: Column, last: Column) -> Column:
        return f.struct(first.alias("first"), last.alias("last"))

    numbers = f.sequence(f.lit(0), f.lit(63))
    each = f.transform(numbers, lambda n: f.when(f.getbit("bits", n) == 1, span(base + n, base + n)))
    # Full words are one range; only the others are looked at bit by bit.
    ranges = f.when(f.bit_count("bits") == 64, f.array(span(base, base + 63))).otherwise(f.array_compact(each))
    rows = words.select("kafka_partition", "last_offset", f.inline(ranges))
    window = Window.partitionBy("kafka_partition").orderBy("first")
    before = f.coalesce(f.lag("last").over(window), f.col("last_offset"))
    hole = ((before + 1).alias("first_offset"), (f.col("first") - 1).alias("last_offset"))
    return rows.select("kafka_partition", *hole).where("first_offset <= last_offset")


def _words(rows: DataFrame, keys: list[str], number: str):  # type: ignore[no-untyped-def]  # GroupedData
    return rows.groupBy(*keys, f.floor(f.col(number) / 64).cast("bigint").alias("word"))


def _bits(number: str) -> Column:
    return f.bit_or(f.expr(f"shiftleft(1L, cast({number} % 64 as int))")).alias("bits")
