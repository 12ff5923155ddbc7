"""How fast clients and limits really are: rates between two records, not means of quarter hours.

Between two records of a series its rate is constant, as far as anyone knows; where the largest second of that time is
known, its bytes came at that rate, in as many seconds as they need. The rate of an entity (the scope of a limit, or one
client) is the sum over its members in each slot of 10 s. So members that send at different times do not add up to a
peak that never was. What members have above their rates in their largest seconds adds up as the root of squares, since
independent bursts seldom meet. The sidecars of a fleet that carry the same client are executors of one job, whose
micro-batches may run in phase. Slots do not show the phase, so n such sidecars count n times in the sum of squares, and
their bursts add up to at most their sum: exactly that, if they are equal.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pipeline.usage.schemas import QUARTER_MS, SLOT_MS, USAGE_KIND, RecordKind
from pipeline.usage.transforms.deltas import slot, steps, time_of
from pipeline.usage.transforms.members import DIRECTIONS, cluster, entity
from pipeline.usage.transforms.sums import named

SNAPSHOT_MS: Final = 600_000
"""A sidecar sends each live series at least this often."""
LATEST_READING: Final = 1.25
"""The longest time between two readings of a series that changes, as a multiple of the usual one."""
STEP: Final = 1.05
"""Rates are counted in bins; each bin's upper edge is this times its lower edge."""
_SCOPE = ("cluster", "limit", "entity")
_QUARTER = ("date", "quarter", "sidecar", *_SCOPE)
_SLOTS = QUARTER_MS // SLOT_MS
_P99_S = QUARTER_MS / 1000 * 0.01
_USED = ("cluster", "user", "client_id", "direction")


def of_clients(usage: DataFrame) -> DataFrame:
    """The rows that count each byte of a client once, and at each interval: no split by topic of a total."""
    return usage.where(~(f.coalesce(f.col("has_total"), f.lit(False)) & f.col("topic").isNotNull()))


def pace(sampled: DataFrame) -> DataFrame:
    """usage_samples to the time between two readings of an incarnation: sidecar, incarnation, of_topic, pace_ms.

    The shortest one that is usual for a series in a quarter hour: its median. No row where none has four records.
    """
    earlier, later = (f.slice(f.col("points")["ms"], start, f.size("points") - 1) for start in (1, 2))
    gaps = f.sort_array(f.zip_with(later, earlier, lambda until, begin: until - begin))
    usual = f.get(gaps, f.floor(f.size("points") / 2 - 1).cast("int"))
    rows = sampled.where(f.size("points") >= 4).withColumn("of_topic", f.col("topic").isNotNull())
    return rows.groupBy("sidecar", "incarnation", "of_topic").agg(f.min(usual).cast("bigint").alias("pace_ms"))


def paced(sampled: DataFrame, kind: RecordKind, paces: DataFrame) -> DataFrame:
    """usage_samples or throttle_samples of some dates to the rows of `deltas.steps`, with pace_ms; null: not known."""
    is_topic = f.col("topic").isNotNull() if kind is USAGE_KIND else f.lit(False)
    rows, keys = steps(sampled, None, kind).withColumn("of_topic", is_topic), ["sidecar", "incarnation", "of_topic"]
    return rows.join(f.broadcast(paces), keys, "left").drop("of_topic")


def spans(found: DataFrame, kind: RecordKind) -> DataFrame:
    """`paced` to a row for each time from one record to the next one, in milliseconds since 1970, all else repeated.

    since_ms: when the reading before was, until_ms: of the record. What is new came between them: amount, at the rate
    in units per second, at most at the peak; second: units in the largest second, or null. Nothing came from begin_ms,
    the record before, to since_ms: a series that does not change is sent every 10 minutes only. A point stands for all
    readings of its slot, so what is new came in as many intervals. The first span of a date is left out if it began
    before.
    """
    # Rows, not arrays: Spark compiles expressions over columns, and interprets those of lambdas.
    rows = found.withColumn("records", f.size("points")).select("*", f.posexplode("points").alias("index", "point"))
    value, base, before = kind.counters[0], f.col("quarter") * QUARTER_MS, f.get("points", f.col("index") - 1)
    is_known = f.col("previous_ms") >= f.unix_millis(f.col("date").cast("timestamp"))
    reached = f.greatest(f.coalesce(before["value"], f.lit(0)), f"reached_{value}")
    first = f.when(is_known, f.col("previous_ms"))
    rows = rows.withColumns(
        {
            "begin_ms": f.when(f.col("index") == 0, first).otherwise(base + before["ms"]),
            "until_ms": base + f.col("point.ms"),
            "amount": f.greatest(f.col("point.value") - reached, f.lit(0)),
            "second": f.col("point.second").cast("double"),
            # Points of tables that were written before they had a number stand for one reading each.
            "readings": f.coalesce(f.col("point.nth") - f.coalesce(before["nth"], f.lit(-1)), f.lit(1)),
        }
    ).where("begin_ms < until_ms")
    begin, until = f.col("begin_ms"), f.col("until_ms")
    pace_ms = f.col("pace_ms") * f.col("readings")
    # A sidecar reads after 80 to 100 % of its interval: a longer time ends with one, and was quiet before.
    was_quiet = (until - begin > pace_ms * LATEST_READING) & (until - begin <= SNAPSHOT_MS + pace_ms)
    since = f.when(was_quiet, until - pace_ms).otherwise(begin)
    rows = rows.withColumn("since_ms", since).drop("points", "index", "point", "readings")
    rows = rows.withColumn("rate", f.col("amount") * 1000 / (until - f.col("since_ms")))
    return rows.withColumn("peak", f.greatest("rate", "second"))


def profiles(found: DataFrame) -> DataFrame:
    """`spans` by quarter hour, as slots: idle from `begin` to `since`, then at the rate to `until`."""
    own, earlier = f.col("quarter"), f.floor(f.col("begin_ms") / QUARTER_MS)
    # A span that began with the last record of an earlier quarter hour is known there, too.
    crosses = (earlier < own) & (f.col("begin_ms") > f.col("start_time_ms"))
    rows = found.withColumn("quarter", f.explode(f.when(crosses, f.array(earlier, own)).otherwise(f.array(own))))
    base, names = f.col("quarter") * QUARTER_MS, ("begin", "since", "until")
    rows = rows.withColumns({name: slot(f.col(f"{name}_ms") - base) for name in names})
    # What came within one slot has it for itself.
    rows = rows.withColumn("since", f.greatest(f.least("since", f.col("until") - 1), "begin"))
    within = {name: f.greatest(f.least(name, f.lit(_SLOTS)), f.lit(0)) for name in names}
    return rows.withColumns(within).where("begin < until")


def rates_quarterly(sampled: DataFrame, paces: DataFrame, members: DataFrame) -> DataFrame:
    """usage_samples of some dates, their `pace` and `members` to rates_quarterly.

    One row for each sidecar, entity and quarter hour; of a limit that a fleet shares, one for all of its sidecars, by
    the fleet's name. A client without a limit is an entity by itself. Rates are bytes per second: mean over the seconds
    that records cover, p99 (above it for at most 9 s), peak. bins: seconds and bytes by rate, each with its highest
    rate, the idle seconds first. independent: the peak if a client's bursts at several sidecars meet by chance only.
    has_seconds: of each member that sent anything, the largest seconds are known.
    """
    rows = paced(of_clients(sampled), USAGE_KIND, paces).withColumn("cluster", cluster())
    rows = by_entity(rows, members, "date")
    same = Window.partitionBy("fleet", "quarter", *_SCOPE, "user", "client_id")
    copies = f.when(f.col("fleet").isNull(), 1).otherwise(f.size(f.collect_set("sidecar").over(same)))
    rows = rows.withColumn("copies", copies).withColumn("sidecar", f.coalesce("fleet", "sidecar"))
    burst = f.col("peak") - f.col("rate")
    rows = profiles(spans(rows, USAGE_KIND)).select(
        *_QUARTER,
        f.xxhash64(*_QUARTER).alias("hash"),
        "begin",
        "since",
        "until",
        "rate",
        burst.alias("together"),
        f.pow(burst, f.lit(2.0)).alias("squares"),
        (f.pow(burst, f.lit(2.0)) * f.col("copies")).alias("in_phase"),
        (f.coalesce("pace_ms", QUARTER_MS / f.col("records")) / 1000).alias("interval_s"),
        ((f.col("amount") == 0) | f.col("second").isNotNull()).alias("has_seconds"),
    )
    group = ("hash", *_QUARTER)
    sums = [*named(f.sum, "seconds", "bytes", "idle_s"), *_of_all()]
    by_step = _pieces(rows, group).groupBy(*group, "step").agg(*sums, *named(f.max, "top", "independent"))
    fastest = Window.partitionBy(*group).orderBy(f.desc("step")).rowsBetween(Window.unboundedPreceding, 0)
    by_step = by_step.withColumn("exceeded_s", f.sum("seconds").over(fastest))
    p99 = f.coalesce(f.max(f.when(f.col("exceeded_s") > _P99_S, f.col("top"))), f.lit(0.0))
    used = f.when(f.col("bytes") > 0, f.struct("step", "seconds", "bytes", "top"))
    bins, peak = f.sort_array(f.collect_list(used)), f.coalesce(f.max("top"), f.lit(0.0))
    found = by_step.groupBy(*group).agg(
        *sums, *named(f.max, "independent"), bins.alias("bins"), peak.alias("peak"), p99.alias("p99")
    )
    idle = {"step": f.lit(-1), "seconds": f.col("idle_s"), "bytes": f.lit(0.0), "top": f.lit(0.0)}
    first = f.array(f.struct(*(value.alias(name) for name, value in idle.items())))
    return found.withColumn("bins", f.concat(first, "bins")).select(
        "*",
        time_of().alias("time"),
        (f.col("bytes") / (f.col("seconds") + f.col("idle_s"))).alias("mean"),
    )


def _of_all() -> list[Column]:
    """What holds for all members of a group."""
    return [*named(f.min, "interval_s"), *named(f.bool_and, "has_seconds")]


def _pieces(rows: DataFrame, group: Sequence[str]) -> DataFrame:
    """Spans of several members to the times between two changes: what all of them send together.

    seconds: that the bytes need at their largest rate (top), counted at its step; idle_s: the rest.
    """
    amounts = ("rate", "together", "squares", "in_phase")

    def change(at: str, known: int, used: int) -> Column:
        of_use = [(f.col(name) * used).alias(name) for name in amounts]
        members = (f.col("rate") > 0).cast("int") * used
        return f.struct(f.col(at).alias("at"), f.lit(known).alias("known"), members.alias("members"), *of_use)

    changes = f.when(f.col("begin") == f.col("since"), f.array(change("begin", 1, 1), change("until", -1, -1)))
    changes = changes.otherwise(f.array(change("begin", 1, 0), change("since", 0, 1), change("until", -1, -1)))
    sums, rest = ("known", "members", *amounts), ("interval_s", "has_seconds")
    each = rows.select(*group, *rest, f.explode(changes).alias("change")).select(*group, *rest, "change.*")
    # Most spans begin where one before them ended, and the members of a sidecar are read at the same time.
    each = each.groupBy(*group, "at").agg(*named(f.sum, *sums), *_of_all())
    ordered = Window.partitionBy(*group).orderBy("at")
    until_now = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    slots = f.lead("at").over(ordered) - f.col("at")
    each = each.withColumns({"slots": slots, **{name: f.sum(name).over(until_now) for name in sums}})
    each = each.where("slots > 0 and known > 0").withColumn("all_s", f.col("slots") * (SLOT_MS / 1000))
    # Counted, since differences of rates do not come to 0 again.
    is_busy = f.col("members") > 0
    together, apart, in_phase = (f.greatest(name, f.lit(0.0)) for name in amounts[1:])
    tops = {"top": f.least(together, f.sqrt(in_phase)), "independent": f.sqrt(apart)}
    each = each.withColumns({name: f.when(is_busy, f.col("rate") + burst) for name, burst in tops.items()})
    each = each.withColumn("bytes", f.when(is_busy, f.col("all_s") * f.col("rate")).otherwise(0.0))
    each = each.withColumn("seconds", f.when(is_busy, f.col("bytes") / f.col("top")).otherwise(0.0))
    step = f.when(f.col("top") >= 1, f.floor(f.log("top") / f.log(f.lit(STEP)))).otherwise(-1).cast("int")
    return each.withColumns({"step": step, "idle_s": f.col("all_s") - f.col("seconds")})


def by_entity(rows: DataFrame, members: DataFrame, time: str) -> DataFrame:
    """Rows of clients with `limit`, `entity` and `fleet`: once for each limit of the client, or once as its own entity.

    time: the column with their time: a limit is one of the client until its last day (`members`).
    """
    others = {name: f"of_{name}" for name in _USED}
    known = members.where(f.col("limit").isin(*DIRECTIONS)).select(*_USED, "limit", "entity", "until", "fleet")
    same = [f.col(name) == f.col(other) for name, other in others.items()]
    same.append(f.to_date(time) <= f.col("until"))
    rows = rows.join(f.broadcast(known.withColumnsRenamed(others)), same, "left").drop(*others.values(), "until")
    names = f.create_map(*(f.lit(each) for limit, way in DIRECTIONS.items() for each in (way, limit)))
    own = {"limit": f.coalesce("limit", names[f.col("direction")]), "entity": f.coalesce("entity", own_entity())}
    return rows.withColumns(own)


def own_entity() -> Column:
    """The entity of one client as quotas name it: its client id, of its user if clients are authenticated."""
    client, user = entity("client-id", "client_id"), entity("user", "user")
    is_user = ~f.col("user").isin("", "ANONYMOUS")
    both = f.when(f.col("client_id") == "", user).otherwise(f.concat_ws(",", user, client))
    return f.when(is_user, both).otherwise(client)
