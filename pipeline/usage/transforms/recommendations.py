"""What each quota should be, from what was used and from what throttling hid. One proposal for each entity.

The need is the lowest limit that would hold the entity back for at most `HELD_SHARE` of the time. Of all seconds, let A
be those in which the rate is above a limit R, B the bytes of these seconds, and m the mean rate of the others. At R, a
queue begins when the rate is above it, and drains with R - m: it holds for A + (B - A R) / (R - m) seconds. Between two
rates that occurred A, B and m are constant, so the smallest R is a quotient.

A quarter hour in which a client of the entity was throttled says only that its demand was at least what it used: it is
right-censored. The 99th percentile of the quarter hours' demand is Kaplan-Meier's: at each uncensored rate, in rising
order, the share that survives is multiplied by 1 - 1 / (samples at or above it). If censoring hides it, the demand is a
lower bound, and the proposal goes up in steps.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pipeline.usage.schemas import QUARTER_MS
from pipeline.usage.transforms.members import cluster
from pipeline.usage.transforms.rates import by_entity, of_clients
from pipeline.usage.transforms.sums import named, total

HEADROOM: Final = 1.2
"""Proposed is the need times this."""
HELD_SHARE: Final = 0.006
"""Of the time. The promise is 1 %: the rest is for bursts between two records."""
CENSORED_MS: Final = QUARTER_MS // 100
"""A quarter hour in which a client was throttled for longer is censored."""
FINE_S: Final = 15.0
COARSE_S: Final = 90.0
"""Records that are this far apart do not show bursts."""
ASSUMED: Final = "; bursts of one client at several sidecars are taken to meet, which records do not show"
_ROUNDING = 1e-9
"""Of a product of doubles."""
_ENTITY = ("cluster", "limit", "entity")
_QUARTERS_PER_DAY = 86_400_000 // QUARTER_MS


def quota_recommendations(
    rates: DataFrame, throttled: DataFrame, parts: DataFrame, in_force: DataFrame | None = None
) -> DataFrame:
    """rates_quarterly and throttle_deltas of some weeks, and `parts`, to quota_recommendations.

    One row for each client of each entity; all rows of an entity have its proposal. in_force: the limits of a quotas
    file (`members.IN_FORCE`), which replace those of throttle records.
    """
    sampled = samples(rates, throttled)
    summary = sampled.groupBy(*_ENTITY).agg(
        f.max_by("limit_value", f.when(f.col("limit_value").isNotNull(), f.col("time"))).alias("current_limit"),
        *named(f.max, "independent"),
        f.count("*").alias("intervals"),
        f.sum("censored").alias("throttled_intervals"),
        f.countDistinct(f.to_date("time")).alias("days"),
        f.countDistinct(f.when(f.col("has_seconds"), f.to_date("time"))).alias("seconds_days"),
        f.to_date(f.min("time")).alias("first_day"),
        f.to_date(f.max("time")).alias("last_day"),
        f.percentile_approx("interval_s", 0.5, 100).alias("interval_s"),
    )
    found = summary.join(demand(sampled), list(_ENTITY)).join(needs(rates), list(_ENTITY))
    if in_force is not None:
        known = in_force.groupBy(*_ENTITY).agg(f.max("limit_value").alias("in_force"))
        found = found.join(known, list(_ENTITY), "left").withColumn(
            "current_limit", f.coalesce("in_force", "current_limit")
        )
    # An entity of which no client is left has no parts.
    return _proposals(found).join(parts, list(_ENTITY))


def samples(rates: DataFrame, throttled: DataFrame) -> DataFrame:
    """One row for each entity and quarter hour: rate (p99 of its busiest sidecar), censored (0 or 1), limit_value.

    A sidecar has buckets of its own, so a sample is the busiest sidecar's rate, against the limit of one sidecar. Of
    a limit that a fleet shares, `rates` has all sidecars together.
    """
    scope = ["time", "sidecar", *_ENTITY]
    held = throttled.withColumns({"cluster": cluster(), "sidecar": f.coalesce("fleet", "sidecar")}).groupBy(*scope)
    rows = rates.join(held.agg(*named(f.max, "throttled_ms", "limit_value")), scope, "left")
    return rows.groupBy("time", *_ENTITY).agg(
        f.max("p99").alias("rate"),
        f.max((f.coalesce("throttled_ms", f.lit(0)) > CENSORED_MS).cast("int")).alias("censored"),
        *named(f.max, "limit_value", "independent"),
        *named(f.min, "interval_s"),
        *named(f.bool_and, "has_seconds"),
    )


def parts(usage: DataFrame, members: DataFrame, team: Column) -> DataFrame:
    """usage_deltas to each client of each entity: part (its share of the entity's bytes)."""
    keys = ["cluster", "user", "client_id", "direction"]
    usage = usage.withColumn("cluster", cluster())
    used = of_clients(usage).groupBy(*keys, "labels").agg(*named(total, "bytes"), *named(f.max, "time"))
    # The owner is the one of the newest use.
    both = by_entity(used, members, "time").withColumn("topic", f.lit(None).cast("string"))
    rows = both.groupBy(team.alias("team"), *keys, *_ENTITY).agg(f.sum(f.col("bytes").cast("double")).alias("bytes"))
    whole = f.sum("bytes").over(Window.partitionBy(*_ENTITY))
    share = f.when(whole > 0, f.col("bytes") / whole).otherwise(0.0)
    return rows.withColumn("part", share)


def needs(rates: DataFrame) -> DataFrame:
    """By entity, of its busiest sidecar: need, used_p50, used_p95, used_p99, peak, in bytes per second.

    Percentiles are of seconds, idle ones too.
    """
    each = rates.select("sidecar", *_ENTITY, f.explode("bins").alias("bin")).select("sidecar", *_ENTITY, "bin.*")
    sums = [*named(f.sum, "seconds", "bytes"), *named(f.max, "top")]
    bins = each.groupBy("sidecar", *_ENTITY, "step").agg(*sums)
    scope = Window.partitionBy("sidecar", *_ENTITY)
    above = scope.orderBy(f.desc("step")).rowsBetween(Window.unboundedPreceding, -1)
    rows = bins.withColumns(
        {
            "all_seconds": f.sum("seconds").over(scope),
            "all_bytes": f.sum("bytes").over(scope),
            "a": f.coalesce(f.sum("seconds").over(above), f.lit(0.0)),
            "b": f.coalesce(f.sum("bytes").over(above), f.lit(0.0)),
            "next": f.min("top").over(above),
        }
    )
    allowed = f.col("all_seconds") * HELD_SHARE
    mean = (f.col("all_bytes") - f.col("b")) / (f.col("all_seconds") - f.col("a"))
    limit = f.greatest(f.col("top"), (f.col("b") + (allowed - f.col("a")) * mean) / allowed)
    # Between this bin's rates and those of the next one above it.
    rows = rows.withColumn("fits", f.when((f.col("a") <= allowed) & (limit <= f.coalesce("next", limit)), limit))
    shares, upto = {"used_p50": 0.5, "used_p95": 0.95, "used_p99": 0.99}, f.col("a") + f.col("seconds")
    tops = {name: f.when(upto > f.col("all_seconds") * (1 - share), f.col("top")) for name, share in shares.items()}
    rows = rows.withColumns(tops | {"peak": f.col("top")})
    of_sidecar = rows.groupBy("sidecar", *_ENTITY).agg(f.min("fits").alias("need"), *named(f.max, *shares, "peak"))
    return of_sidecar.groupBy(*_ENTITY).agg(*named(f.max, "need", *shares, "peak"))


def demand(sampled: DataFrame) -> DataFrame:
    """Kaplan-Meier's 99th percentile of demand: the smallest rate at which at most 1 % of the demand is above.

    Where censoring leaves more than 1 % above the largest uncensored rate, demand_p99 is the largest rate seen, and
    demand_is_lower_bound is true: demand is at least that.
    """
    sums = (f.sum(1 - f.col("censored")).alias("events"), f.count("*").alias("samples"))
    scope = Window.partitionBy(*_ENTITY)
    upwards = scope.orderBy("rate")
    at_risk = f.sum("samples").over(scope.orderBy(f.desc("rate")))
    rows = sampled.groupBy(*_ENTITY, "rate").agg(*sums).withColumn("at_risk", at_risk)
    left = 1 - f.col("events") / f.col("at_risk")
    # A product of shares as a sum of logarithms; a share of 0 ends it.
    survives = f.when(f.min(left).over(upwards) <= 0, 0.0).otherwise(
        f.exp(f.sum(f.log(f.greatest(left, f.lit(1e-300)))).over(upwards))
    )
    rows = rows.withColumn("reached", f.when(survives <= 0.01 + _ROUNDING, f.col("rate")))
    reached = f.min("reached")
    return rows.groupBy(*_ENTITY).agg(
        f.coalesce(reached, f.max("rate")).alias("demand_p99"), reached.isNull().alias("demand_is_lower_bound")
    )


def _proposals(found: DataFrame) -> DataFrame:
    # Where more than 1 % was throttled, what was used says less than the demand that other quarter hours show.
    was_held = f.col("throttled_intervals") > 0.01 * f.col("intervals")
    found = found.withColumn("need", f.greatest("need", f.when(was_held, f.col("demand_p99"))))
    wanted = f.greatest(f.col("need") * HEADROOM, f.lit(1.0))
    # Two significant digits, rounded up.
    step = f.pow(f.lit(10.0), f.floor(f.log10(wanted)) - 1)
    proposed = f.greatest(f.ceil(wanted / step) * step, f.lit(1.0))
    # Measured only below the limit: the demand may be anything above, so go up in steps.
    at_least = f.greatest(proposed, f.col("current_limit") * 1.5)
    return found.withColumns(
        {
            "proposed": f.when(f.col("demand_is_lower_bound"), at_least).otherwise(proposed),
            "headroom": f.when(f.col("current_limit") > 0, 1 - f.col("need") / f.col("current_limit")),
            "why": _why(),
            "confidence": _confidence(),
        }
    )


def _why() -> Column:
    share = f.format_number(100 * f.col("throttled_intervals") / f.col("intervals"), 1)
    bound = f.when(f.col("demand_is_lower_bound"), f.lit("≥ ")).otherwise(f.lit(""))
    promised = f.lit(f"throttled below 1 % of the time at {HEADROOM} times that")
    higher = f.lit("the limit hides how much more it needs, so at least 1.5 times the limit is proposed")
    return f.format_string(
        "%s %% of the quarter hours were throttled; needs %s%s bytes/s, peak %s bytes/s; %s; from %d %s, %s to %s%s",
        share, bound, *(f.format_number(name, 0) for name in ("need", "peak")),
        f.when(f.col("demand_is_lower_bound"), higher).otherwise(promised), "days",
        # As text: format_string writes a date as a number of days.
        f.when(f.col("days") == 1, "day").otherwise("days"), f.col("first_day").cast("string"),
        f.col("last_day").cast("string"), f.when(_meets(), ASSUMED).otherwise(""),
    )  # fmt: skip


def _confidence() -> Column:
    """high: a week or more of records at most 15 s apart that have the largest second; medium: two days or more, at
    most 90 s apart; else low, and where the demand is a lower bound, or the need rests on an assumption.
    """
    is_low = f.col("demand_is_lower_bound") | (f.col("intervals") < 2 * _QUARTERS_PER_DAY) | _meets()
    is_low |= f.col("interval_s") > COARSE_S
    is_high = (f.col("seconds_days") >= 7) & (f.col("interval_s") <= FINE_S)
    return f.when(is_low, "low").when(is_high, "high").otherwise("medium")


def _meets() -> Column:
    """Whether the peak is too high by more than the headroom, if bursts that are taken to meet do not."""
    return f.col("peak") > f.coalesce("independent", "peak") * HEADROOM
