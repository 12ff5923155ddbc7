"""How fast clients and limits really are: rates between two records, not means of quarter hours.

Between two records of a series its rate is constant, as far as anyone knows; where the largest second of that time is
known, its bytes came at that rate, in as many seconds as they need. The rate of an entity (the scope of a limit, or one
client) is the sum over its members in each slot of 10 s. So members that send at different times do not add up to a
peak that never was. What members have above their rates in their largest seconds adds up as the root of squares: they
seldom meet.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pipeline.usage.schemas import LOOKBACK_DAYS, QUARTER_MS, SLOT_MS, USAGE_KIND, Kind
from pipeline.usage.transforms.deltas import slot, steps
from pipeline.usage.transforms.members import DIRECTIONS, cluster

SNAPSHOT_MS: Final = 600_000
"""A sidecar sends each live series at least this often."""
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
    gaps = f.array_sort(f.zip_with(later, earlier, lambda until, begin: until - begin))
    usual = f.get(gaps, f.floor(f.size("points") / 2 - 1).cast("int"))
    rows = sampled.where(f.size("points") >= 4).withColumn("of_topic", f.col("topic").isNotNull())
    return rows.groupBy("sidecar", "incarnation", "of_topic").agg(f.min(usual).cast("bigint").alias("pace_ms"))


def spans(sampled: DataFrame, kind: Kind, paces: DataFrame) -> DataFrame:
    """usage_samples or throttle_samples of some dates to the rows of `deltas.steps` with `spans`: from each record to
    the next one, in order, the times in milliseconds since 1970.

    since_ms: when the reading before was, until_ms: of the record. What is new came between them: amount, at the rate
    in units per second, at most at the peak. Nothing came from begin_ms, the record before, to since_ms: a series that
    does not change is sent every 10 minutes only. The first span of a date is left out if it began before.
    """
    rows = steps(sampled, None, kind)
    is_topic = f.col("topic").isNotNull() if kind is USAGE_KIND else f.lit(False)
    rows = rows.withColumn("of_topic", is_topic).join(
        f.broadcast(paces), ["sidecar", "incarnation", "of_topic"], "left"
    )
    value, base = kind.counters[0], f.col("quarter") * QUARTER_MS
    is_known = f.col("previous_ms") >= f.unix_millis(f.col("date").cast("timestamp"))

    # One transform after the other: an expression that a lambda uses twice is computed twice.
    def span(point: Column, index: Column) -> Column:
        before = f.get("points", index - 1)
        begin = f.when(index == 0, f.when(is_known, f.col("previous_ms"))).otherwise(base + before["ms"])
        reached = f.greatest(f.coalesce(before["value"], f.lit(0)), f"reached_{value}")
        return f.struct(
            begin.alias("begin_ms"),
            (base + point["ms"]).alias("until_ms"),
            f.greatest(point["value"] - reached, f.lit(0)).alias("amount"),
            point["second"].cast("double").alias("second"),
        )

    def read(each: Column) -> Column:
        begin, until, pace_ms = each["begin_ms"], each["until_ms"], f.col("pace_ms")
        since = f.when(until - begin <= SNAPSHOT_MS + pace_ms, f.greatest(begin, until - pace_ms)).otherwise(begin)
        return each.withField("since_ms", since)

    def rated(each: Column) -> Column:
        rate = each["amount"] * 1000 / (each["until_ms"] - each["since_ms"])
        return each.withField("rate", rate).withField("peak", f.greatest(rate, each["second"]))

    found = f.filter(f.transform("points", span), lambda each: each["begin_ms"] < each["until_ms"])
    return rows.withColumn("spans", f.transform(f.transform(found, read), rated))


def profiles(found: DataFrame, kind: Kind) -> DataFrame:
    """`spans` to their rows with `runs`: the quarter hour as runs of slots of one rate, in order, idle ones too.

    at: the first slot; n: how many; rate, and burst (how far the largest second is above the rate, squared).
    """
    series = Window.partitionBy("series_hash", *kind.series).orderBy("quarter", "first_ms")
    base = f.col("quarter") * QUARTER_MS
    # Up to the end of the quarter hour it is known from the next one's first span.
    following = f.lead(f.get("spans", f.lit(0))).over(series)
    is_next = following["begin_ms"] == f.col("last_ms")
    rows = found.withColumn("spans", f.concat("spans", f.when(is_next, f.array(following)).otherwise(f.array())))

    def slots(each: Column) -> Column:
        times = [slot(each[f"{name}_ms"] - base).alias(name) for name in ("begin", "since", "until")]
        return f.struct(
            *times, each["rate"].alias("rate"), f.pow(each["peak"] - each["rate"], f.lit(2.0)).alias("burst")
        )

    def cut(each: Column) -> Column:
        since = f.greatest(f.least(each["since"], each["until"] - 1), each["begin"])
        ends = {"begin": each["begin"], "since": since, "until": each["until"]}
        within = [f.greatest(f.least(at, f.lit(_SLOTS)), f.lit(0)).alias(name) for name, at in ends.items()]
        return f.struct(*within, each["rate"].alias("rate"), each["burst"].alias("burst"))

    def runs(each: Column) -> Column:
        begin, since, nothing = each["begin"], each["since"], f.lit(0.0)
        used = _run(since, each["until"] - since, each["rate"], each["burst"])
        return f.array(_run(begin, since - begin, nothing, nothing), used)

    every = f.flatten(f.transform(f.transform(f.transform("spans", slots), cut), runs))
    return rows.withColumn("runs", f.filter(every, lambda run: run["n"] > 0))


def _run(at: Column, n: Column, rate: Column, burst: Column) -> Column:
    return f.struct(at.alias("at"), n.alias("n"), rate.alias("rate"), burst.alias("burst"))


def rates_quarterly(sampled: DataFrame, paces: DataFrame, members: DataFrame) -> DataFrame:
    """usage_samples of some dates, their `pace` and `members` to rates_quarterly.

    One row for each sidecar, entity and quarter hour; of a limit that a fleet shares, one for all of its sidecars, by
    the fleet's name. A client without a limit is an entity by itself. Rates are bytes per second: mean over the seconds
    that records cover, p99 (above it for at most 9 s), peak. bins: seconds and bytes by rate, each with its highest
    rate. has_seconds: of each member that sent anything, the largest seconds are known.
    """
    rows = profiles(spans(of_clients(sampled), USAGE_KIND, paces), USAGE_KIND)
    apart = f.coalesce("pace_ms", QUARTER_MS / f.size("points"))
    is_seen = f.forall("spans", lambda each: (each["amount"] == 0) | each["second"].isNotNull())
    more = {"cluster": cluster(), "apart": apart / 1000, "is_seen": is_seen}
    each = by_entity(
        rows.select(
            "date", "quarter", "sidecar", *_USED[1:], "runs", *(column.alias(name) for name, column in more.items())
        ),
        members,
        "date",
    ).withColumn("sidecar", f.coalesce("fleet", "sidecar"))
    found = each.groupBy(*_QUARTER).agg(
        f.filter(f.collect_list("runs"), lambda runs: f.size(runs) > 0).alias("members"),
        f.min("apart").alias("interval_s"),
        f.bool_and("is_seen").alias("has_seconds"),
    )
    found = found.where(f.size("members") > 0)
    is_one, first = f.size("members") == 1, f.get("members", f.lit(0))
    found = found.withColumns({f"{name}s": f.when(~is_one, _summed(name)) for name in ("rate", "burst")})

    def is_start(index: Column) -> Column:
        same = [f.get(name, index) == f.get(name, index - 1) for name in ("rates", "bursts")]
        return ~f.coalesce(same[0] & same[1], f.lit(False))

    starts = f.filter(f.sequence(f.lit(0), f.size("rates") - 1), is_start)
    found = found.withColumn("starts", f.when(~is_one, starts))
    found = found.withColumn("runs", f.when(is_one, first).otherwise(_runs_of_slots()))
    found = found.withColumn("bins", f.array_sort(_bins(f.col("runs"))))
    return found.select(
        "*",
        f.timestamp_millis(f.col("quarter") * QUARTER_MS).alias("time"),
        (_sum("bins", "bytes") / _sum("bins", "seconds")).alias("mean"),
        f.coalesce(_exceeded_for(_P99_S), f.lit(0.0)).alias("p99"),
        f.get("bins", f.size("bins") - 1)["top"].alias("peak"),
    )


def by_entity(rows: DataFrame, members: DataFrame, time: str) -> DataFrame:
    """Rows of clients with `limit`, `entity` and `fleet`: once for each limit of the client, or once as its own entity.

    time: the column with their time: a limit is one of the client up to LOOKBACK_DAYS after it was seen last.
    """
    others = {name: f"of_{name}" for name in _USED}
    known = members.where(f.col("limit").isin(*DIRECTIONS)).select(*_USED, "limit", "entity", "last", "fleet")
    same = [f.col(name) == f.col(other) for name, other in others.items()]
    same.append(f.to_date(time) <= f.date_add("last", LOOKBACK_DAYS))
    rows = rows.join(f.broadcast(known.withColumnsRenamed(others)), same, "left").drop(*others.values(), "last")
    names = f.create_map(*(f.lit(each) for limit, way in DIRECTIONS.items() for each in (way, limit)))
    own = {"limit": f.coalesce("limit", names[f.col("direction")]), "entity": f.coalesce("entity", own_entity())}
    return rows.withColumns(own)


def own_entity() -> Column:
    """The entity of one client as quotas name it: its client id, of its user if clients are authenticated."""
    client = f.concat(f.lit("client-id:"), _quoted("client_id"))
    user = f.concat(f.lit("user:"), _quoted("user"))
    is_user = ~f.col("user").isin("", "ANONYMOUS")
    both = f.when(f.col("client_id") == "", user).otherwise(f.concat_ws(",", user, client))
    return f.when(is_user, both).otherwise(client)


def entity_of_topic(name: str) -> Column:
    """The entity of a topic as quotas name it."""
    return f.concat(f.lit("topic:"), _quoted(name))


def _quoted(name: str) -> Column:
    """A name as quotas.entity writes it."""
    escaped = f.regexp_replace(name, r'([\\"])', r"\\$1")
    return f.when(f.col(name).rlike(r'^[^\s",\\<>][^\s",\\]*$'), f.col(name)).otherwise(
        f.concat(f.lit('"'), escaped, f.lit('"'))
    )


def _summed(name: str) -> Column:
    """Rates or bursts of several members, added up slot by slot."""

    def slots(runs: Column) -> Column:
        leading = f.array_repeat(f.lit(0.0), f.get(runs, f.lit(0))["at"])
        return f.concat(leading, f.flatten(f.transform(runs, lambda run: f.array_repeat(run[name], run["n"]))))

    def add(left: Column, right: Column) -> Column:
        return f.coalesce(left, f.lit(0.0)) + f.coalesce(right, f.lit(0.0))

    nothing = f.array().cast("array<double>")
    return f.reduce("members", nothing, lambda sums, runs: f.zip_with(sums, slots(runs), add))


def _runs_of_slots() -> Column:
    """The slots `rates` and `bursts` as runs; `starts`: the first slot of each."""
    rate, burst = f.col("rates"), f.col("bursts")

    def run(start: Column, index: Column) -> Column:
        n = f.coalesce(f.get("starts", index + 1), f.size(rate)) - start
        return _run(start, n, f.get(rate, start), f.get(burst, start))

    return f.transform("starts", run)


def _bins(runs: Column) -> Column:
    """Runs as bins: the seconds that the bytes of each need at its largest rate, and one of all idle seconds."""

    def top(run: Column) -> Column:
        return run["rate"] + f.sqrt(run["burst"])

    def busy_s(run: Column) -> Column:
        return run["n"] * (SLOT_MS / 1000) * run["rate"] / top(run)

    def used(run: Column) -> Column:
        step = f.when(top(run) >= 1, f.floor(f.log(top(run)) / f.log(f.lit(STEP)))).otherwise(-1).cast("int")
        return _bin(step, busy_s(run), run["n"] * (SLOT_MS / 1000) * run["rate"], top(run))

    busy = f.filter(runs, lambda run: run["rate"] > 0)
    slots = f.reduce(runs, f.lit(0), lambda sums, run: sums + run["n"])
    idle_s = slots * (SLOT_MS / 1000) - f.reduce(busy, f.lit(0.0), lambda sums, run: sums + busy_s(run))
    return f.concat(f.transform(busy, used), f.array(_bin(f.lit(-1), idle_s, f.lit(0.0), f.lit(0.0))))


def _bin(step: Column, seconds: Column, size: Column, top: Column) -> Column:
    return f.struct(step.alias("step"), seconds.alias("seconds"), size.alias("bytes"), top.alias("top"))


def _sum(bins: str, name: str) -> Column:
    return f.reduce(bins, f.lit(0.0), lambda sums, each: sums + each[name])


def _exceeded_for(seconds: float) -> Column:
    """The lowest top of the fastest bins that are more than so many seconds together."""

    def add(found: Column, each: Column) -> Column:
        above = found["above"] + each["seconds"]
        top = f.coalesce(found["top"], f.when(above > seconds, each["top"]))
        return f.struct(above.alias("above"), top.alias("top"))

    nothing = f.struct(f.lit(0.0).alias("above"), f.lit(None).cast("double").alias("top"))
    return f.reduce(f.reverse("bins"), nothing, add, lambda found: found["top"])
