"""Shared limits: who took more than its fair share, whom that delayed, and what the waiting cost.

Max-min fairness, by quarter hour and sidecar (each sidecar has buckets of its own). What the members of a limit used
is shared out anew: a member that did not wait gets at most what it used, since it wanted no more; a member that waited
wanted more than it got. All get up to the same level, the fair share. The waiting of members up to the fair share was
caused by those above it, in proportion to their excess. The waiting of a member above it is its own, and so is all
waiting where none is above.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pipeline.usage.price_list import WAITING, Price, PriceList
from pipeline.usage.schemas import COST
from pipeline.usage.transforms.members import cluster, members
from pipeline.usage.transforms.rates import of_clients
from pipeline.usage.transforms.sums import total

TOLERANCE: Final = 1.01
"""A member is above its fair share from 1 % on: it has to be more than rounding."""
_LIMIT = ("time", "cluster", "sidecar", "limit", "entity")
_MEMBER = ("team", "user", "client_id")


def noisy_neighbours(waiting: DataFrame) -> DataFrame:
    """`shared_waiting` to noisy_neighbours, by hour.

    victims: the largest number of members that one of its quarter hours delayed.
    """
    return (
        waiting.withColumn("hour", f.date_trunc("hour", "time"))
        .groupBy("date", "hour", "cluster", "limit", "entity", "sidecar", "team", "user", "client_id")
        .agg(
            total("bytes").alias("bytes"),
            (f.sum(f.col("bytes").cast("double")) / f.greatest(f.sum("all_bytes"), f.lit(1.0))).alias("share"),
            f.sum("fair_bytes").alias("fair_bytes"),
            total("own_throttled_ms").alias("own_throttled_ms"),
            f.max(f.when(f.col("caused_share") > 0, f.col("victims")).otherwise(0)).alias("victims"),
            f.sum("victim_ms").alias("victims_throttled_ms"),
            f.sum(f.col("caused_share") * f.col("victim_ms")).alias("caused_throttled_ms"),
        )
    )  # fmt: skip


def waiting_cost(waiting: DataFrame, prices: PriceList | None) -> DataFrame:
    """`shared_waiting` to waiting_cost: by date, limit, team that caused it and team that waited."""
    keys = ["date", *_LIMIT]
    causing = (
        waiting.where(f.col("caused_share") > 0)
        .groupBy(*keys, f.col("team").alias("caused_by"))
        .agg(f.sum("caused_share").alias("part"))
    )
    waited = waiting.where(f.col("own_throttled_ms") > 0)
    suffered = waited.where("is_victim").groupBy(*keys, "team").agg(f.sum("own_throttled_ms").alias("ms"))
    by_others = suffered.join(causing, keys).select(
        "date", "cluster", "limit", "entity", "caused_by", "team", (f.col("ms") * f.col("part")).alias("waited_ms")
    )
    own = waited.where(~f.col("is_victim")).select(
        "date", "cluster", "limit", "entity", f.col("team").alias("caused_by"), "team",
        f.col("own_throttled_ms").cast("double").alias("waited_ms"),
    )  # fmt: skip
    summed = by_others.unionByName(own).groupBy("date", "cluster", "limit", "entity", "caused_by", "team")
    rows = summed.agg(f.sum("waited_ms").alias("waited_ms"))
    return rows.withColumns(
        {
            "cost": _cost([] if prices is None else [each for each in prices.prices if each.axis == WAITING]),
            "currency": f.lit(None if prices is None else prices.currency).cast("string"),
        }
    )


def shared_waiting(
    usage: DataFrame, throttled: DataFrame, team: Column, in_force: DataFrame | None = None
) -> DataFrame:
    """usage_deltas and throttle_deltas of the same dates to one row for each member of a shared limit and quarter hour
    in which one of them waited.

    A member is a client of one team, whatever its labels: pods of a job are one member.
    Columns: all_bytes and fair_bytes (of all members, and the fair share), is_victim (it waited, and others caused it),
    victims and victim_ms (how many members of the limit, and their waiting), caused_share (its part of that: 0 to 1).
    """
    waits, used = (
        rows.withColumns({"cluster": cluster(), "topic": f.lit(None).cast("string")}).withColumn("team", team)
        for rows in (throttled, of_clients(usage))
    )
    waits = waits.groupBy(*_LIMIT, *_MEMBER).agg(total("throttled_ms").alias("own_throttled_ms"))
    used = used.groupBy("time", "cluster", "sidecar", *_MEMBER, "direction").agg(total("bytes").alias("bytes"))
    known = members(usage, throttled, in_force)
    rows = (
        used.join(f.broadcast(known), ["cluster", "user", "client_id", "direction"])
        .join(waits, [*_LIMIT, *_MEMBER], "left")
        .fillna(0, ["own_throttled_ms"])
    )
    group = Window.partitionBy(*_LIMIT)
    waited = f.col("own_throttled_ms") > 0
    rows = (
        rows.withColumns(
            {
                "waiting": f.sum(waited.cast("int")).over(group),
                "members": f.count("*").over(group),
                "all_bytes": f.sum(f.col("bytes").cast("double")).over(group),
            }
        )
        .where((f.col("waiting") > 0) & (f.col("members") > 1))
        .withColumn("level", _level(waited))
        .withColumn("fair_bytes", f.max("level").over(group))
    )
    excess = f.when(f.col("bytes") > f.col("fair_bytes") * TOLERANCE, f.col("bytes") - f.col("fair_bytes")).otherwise(
        0.0
    )
    rows = rows.withColumn("excess", excess)
    rows = rows.withColumn("all_excess", f.sum("excess").over(group))
    rows = rows.withColumn("is_victim", waited & (f.col("excess") == 0) & (f.col("all_excess") > 0))
    return rows.withColumns(
        {
            "date": f.to_date("time"),
            "victims": f.sum(f.col("is_victim").cast("int")).over(group),
            "victim_ms": f.coalesce(
                f.sum(f.when(f.col("is_victim"), f.col("own_throttled_ms").cast("double"))).over(group), f.lit(0.0)
            ),
            "caused_share": f.when(f.col("all_excess") > 0, f.col("excess") / f.col("all_excess")).otherwise(0.0),
        }
    )


def _level(waited: Column) -> Column:
    """Of a member that is not satisfied: the largest one of a limit is the level of max-min fairness.

    Members in rising order of demand: number k of n, with s bytes taken by those before it, is satisfied if it wants at
    most (all - s) / (n - k + 1). The first one that is not has the level; those after it got more of the rest. A member
    that did not wait wants what it used; one that waited wants any amount, and comes last.
    """
    group = Window.partitionBy(*_LIMIT)
    wants = f.when(waited, f.lit(float("inf"))).otherwise(f.col("bytes").cast("double"))
    ordered = group.orderBy(wants, *_MEMBER)
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    satisfied = f.coalesce(f.sum(f.when(~waited, f.col("bytes").cast("double"))).over(before), f.lit(0.0))
    number = f.when(waited, f.rank().over(group.orderBy(wants))).otherwise(f.row_number().over(ordered))
    left = (f.col("all_bytes") - satisfied) / (f.col("members") - number + 1)
    return f.when(wants > left * (1 + 1e-9), left)


def _cost(prices: list[Price]) -> Column:
    """waited_ms in money; null without a price for the day."""
    cost = f.lit(None).cast(COST)
    for price in prices:
        hours = f.least(f.col("waited_ms"), f.lit(1e15)).cast("decimal(22,6)") / f.lit(price.size)
        within = (f.col("date") >= f.lit(price.first)) & (f.col("date") < f.lit(price.until))
        cost = f.when(within, (hours * f.lit(price.amount)).cast(COST)).otherwise(cost)
    return cost
