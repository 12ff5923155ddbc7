"""Shared limits: who took more than its fair share, whom that delayed, and what the waiting cost.

Max-min fairness, by episode and bucket: a sidecar has buckets of its own, and the sidecars of a fleet share those of
the limits that the fleet shares. An episode is a time in a quarter hour in which a member of a limit waited, without a
longer break than `APART_MS`: what passed apart from it delayed nobody. What the members used then, in the limit's unit,
is shared out anew: a member that did not wait gets at most what it used, since it wanted no more; a member that waited
wanted more than it got. All get up to the same level, the fair share. Of the waiting of members up to the fair share,
each one above it caused its part: its excess, of all that passed. All other waiting is the member's own, as is that at
limits whose use is not counted.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pipeline.usage.price_list import WAITING, Price, PriceList
from pipeline.usage.schemas import COST, QUARTER_MS, SLOT_MS, THROTTLE_KIND, UNALLOCATED, USAGE_KIND, RecordKind
from pipeline.usage.transforms.chargeback import of_price
from pipeline.usage.transforms.deltas import time_of
from pipeline.usage.transforms.members import UNITS, cluster, entity
from pipeline.usage.transforms.rates import paced, profiles, spans
from pipeline.usage.transforms.sums import named, total

TOLERANCE: Final = 0.1
"""A member is above its fair share if it has 10 % of it more than that, and so is each member above it of a team that
together has 10 % more, times the root of its members: what is off by chance adds up like that.
"""
APART_MS: Final = 30_000
_CLIENT = ["cluster", "user", "client_id"]
_LIMIT = ("time", "cluster", "sidecar", "limit", "entity")
_EPISODE = (*_LIMIT, "episode")
_MEMBER = ("team", "user", "client_id")


def noisy_neighbours(waiting: DataFrame) -> DataFrame:
    """`shared_waiting` to noisy_neighbours, by hour.

    victims: the largest number of members that one of its quarter hours delayed.
    """
    rows = waiting.withColumn("hour", f.date_trunc("hour", "time"))
    return rows.groupBy("date", "hour", *_LIMIT[1:], *_MEMBER).agg(
        f.round(f.sum("bytes")).cast("bigint").alias("bytes"),
        (f.sum("bytes") / f.greatest(f.sum("all_bytes"), f.lit(1.0))).alias("share"),
        *named(f.sum, "fair_bytes"),
        *named(total, "own_throttled_ms"),
        f.max(f.when(f.col("caused_share") > 0, f.col("victims")).otherwise(0)).alias("victims"),
        f.sum("victim_ms").alias("victims_throttled_ms"),
        f.sum(f.col("caused_share") * f.col("victim_ms")).alias("caused_throttled_ms"),
    )


def waiting_cost(waiting: DataFrame, prices: PriceList | None) -> DataFrame:
    """`shared_waiting` to waiting_cost: by date, limit, team that caused it and team that waited."""
    keys, scope = ["date", *_EPISODE], ("date", "cluster", "limit", "entity")
    causing = waiting.where(f.col("caused_share") > 0).groupBy(*keys, f.col("team").alias("caused_by"))
    causing = causing.agg(f.sum("caused_share").alias("part"))
    waited = waiting.where(f.col("own_throttled_ms") > 0)
    suffered = waited.where("is_victim").groupBy(*keys, "team").agg(f.sum("own_throttled_ms").alias("ms"))
    by_others = suffered.join(causing, keys).withColumn("waited_ms", f.col("ms") * f.col("part"))
    by_itself = f.when(f.col("is_victim"), 1 - f.col("all_excess") / f.col("all_bytes")).otherwise(1.0)
    own = waited.withColumns({"caused_by": f.col("team"), "waited_ms": f.col("own_throttled_ms") * by_itself})
    columns = (*scope, "caused_by", "team", "waited_ms")
    rows = by_others.select(*columns).unionByName(own.select(*columns))
    rows = rows.groupBy(*columns[:-1]).agg(*named(f.sum, "waited_ms"))

    def cost(price: Price) -> Column:
        hours = f.least(f.col("waited_ms"), f.lit(1e15)).cast("decimal(22,6)") / f.lit(price.size)
        return (hours * f.lit(price.amount)).cast(COST)

    return rows.withColumns(
        {
            "cost": of_price(prices.prices if prices else (), cost, f.lit(WAITING)).cast(COST),
            "currency": f.lit(None if prices is None else prices.currency).cast("string"),
        }
    )


def shared_waiting(sampled: DataFrame, held: DataFrame, paces: DataFrame, known: DataFrame, team: Column) -> DataFrame:
    """usage_samples and throttle_samples of the same dates, `rates.pace` and `members` to one row for each member of a
    shared limit and episode.

    A member is a client of one team, whatever its labels: pods of a job are one member.
    Columns: bytes (in the unit of the limit), all_bytes and fair_bytes (of all members, and the fair share), is_victim
    (it waited, and others caused it), victims and victim_ms (how many members of the limit, and their waiting),
    caused_share (its part of that: 0 to 1).
    """
    limit = Window.partitionBy("cluster", "limit", "entity")
    known = known.withColumn("clients", f.count("*").over(limit)).where("clients > 1")

    def of_members(rows: DataFrame, kind: RecordKind, members: DataFrame, keys: list[str], how: str) -> DataFrame:
        rows = rows.withColumn("cluster", cluster()).join(f.broadcast(members), keys, how)
        return _of_teams(paced(rows, kind, paces), team)

    # A limit is one of its client once, so this join repeats no row; the fleet is that of the limit.
    limit_of = [*_CLIENT, "limit", "entity"]
    waits = of_members(held.drop("fleet"), THROTTLE_KIND, known.select(*limit_of, "fleet"), limit_of, "inner")
    waited = _episodes(spans(waits, THROTTLE_KIND).withColumn("sidecar", _bucket()))
    used = _amounts(of_members(sampled, USAGE_KIND, known, _CLIENT, "left_semi"), waited, known)
    waited = waited.groupBy(*_EPISODE, *_MEMBER).agg(total("amount").alias("own_throttled_ms"))
    rows = used.join(waited, [*_EPISODE, *_MEMBER], "full").fillna(0, ["own_throttled_ms", "bytes"])
    group = Window.partitionBy(*_EPISODE)
    waited = f.col("own_throttled_ms") > 0
    rows = (
        rows.where(waited | (f.col("bytes") > 0))
        .withColumns({"members": f.count("*").over(group), "all_bytes": f.sum("bytes").over(group)})
        .withColumn("level", _level(waited))
        .withColumn("fair_bytes", f.max("level").over(group))
    )
    above, fair = f.col("bytes") - f.col("fair_bytes"), f.col("fair_bytes")
    # Of a member that wanted no more than it used, only what is above its share counts.
    of_team = Window.partitionBy(*_EPISODE, "team")
    together = f.sum(f.when(waited | (above > 0), above)).over(of_team) > fair * TOLERANCE * f.sqrt(
        f.count("*").over(of_team)
    )
    is_above = (above > fair * TOLERANCE) | (together & (f.col("team") != UNALLOCATED))
    rows = rows.withColumn("excess", f.when(is_above, f.greatest(above, f.lit(0.0))).otherwise(0.0))
    rows = rows.withColumn("all_excess", f.sum("excess").over(group))
    rows = rows.withColumn("is_victim", waited & (f.col("excess") == 0) & (f.col("all_excess") > 0))
    of_victims = f.when(f.col("is_victim"), f.col("own_throttled_ms").cast("double"))
    return rows.withColumns(
        {
            "date": f.to_date("time"),
            "victims": f.sum(f.col("is_victim").cast("int")).over(group),
            "victim_ms": f.coalesce(f.sum(of_victims).over(group), f.lit(0.0)),
            "caused_share": f.when(f.col("excess") > 0, f.col("excess") / f.col("all_bytes")).otherwise(0.0),
        }
    )


def _of_teams(rows: DataFrame, team: Column) -> DataFrame:
    """With team and time; the topic is `of_topic`, since teams are those of clients."""
    topic = f.col("topic") if "topic" in rows.columns else f.lit(None).cast("string")
    names = {"of_topic": topic, "topic": f.lit(None).cast("string"), "time": time_of()}
    return rows.withColumns(names).withColumn("team", team)


def _episodes(rows: DataFrame) -> DataFrame:
    """The spans in which members waited, from_ms to until_ms in the quarter hour, numbered by `episode`."""
    base = f.col("quarter") * QUARTER_MS
    # A request that waits for long is counted when it has passed.
    begin = f.least("since_ms", f.col("until_ms") - f.col("amount")) - base
    until = (f.col("until_ms") - base).alias("until_ms")
    each = rows.where("amount > 0").select(*_LIMIT, *_MEMBER, begin.alias("from_ms"), until, "amount")
    ordered = Window.partitionBy(*_LIMIT).orderBy("from_ms", "until_ms")
    before = f.max("until_ms").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    is_apart = (f.col("from_ms") > before + APART_MS).cast("int")
    number = f.sum(f.coalesce(is_apart, f.lit(0))).over(ordered.rowsBetween(Window.unboundedPreceding, 0))
    return each.withColumn("episode", number)


def _amounts(used: DataFrame, waited: DataFrame, known: DataFrame) -> DataFrame:
    """What each member used in each episode, from a slot before it on, in the unit of the limit (`bytes`)."""
    episodes = waited.groupBy(*_EPISODE).agg(
        f.greatest(f.floor(f.min("from_ms") / SLOT_MS) - 1, f.lit(0)).alias("first_slot"),
        f.ceil(f.max("until_ms") / SLOT_MS).alias("last_slot"),
    )
    amounts = {unit: f.col(f"between_{unit}") + f.col(f"within_{unit}") for unit in UNITS.values()}
    counted = f.coalesce(*(f.when(f.col("limit") == limit, amounts[unit]) for limit, unit in UNITS.items()))
    of_records = f.col("limit").isin([limit for limit, unit in UNITS.items() if unit in ("record_bytes", "messages")])
    is_of_topic = (f.col("direction") == "produce") & f.col("of_topic").isNotNull()
    # Only quotas in force have the topics of groups.
    is_named = ~f.col("entity").startswith("topic:") | (f.col("entity") == entity("topic", "of_topic"))
    is_of_topic &= f.coalesce(f.array_contains("topics", f.col("of_topic")), is_named)
    way = f.col("way").isNull() | (f.col("way") == f.col("direction"))
    of_client = ~(f.coalesce(f.col("has_total"), f.lit(False)) & f.col("of_topic").isNotNull())
    rows = used.join(f.broadcast(known.withColumnRenamed("direction", "way")), _CLIENT)
    # `profiles` has an `until` of its own.
    rows = rows.where("date <= until").drop("until").where(f.when(of_records, is_of_topic).otherwise(way & of_client))
    per_byte = f.try_divide(counted, amounts["bytes"])
    rows = profiles(spans(rows.withColumn("per_byte", per_byte), USAGE_KIND).where("amount > 0"))
    rows = rows.withColumns({"time": time_of(), "sidecar": _bucket()}).join(episodes, [*_LIMIT])
    slots = f.least("until", "last_slot") - f.greatest("since", "first_slot")
    size = f.col("rate") * (SLOT_MS / 1000) * f.greatest(slots, f.lit(0)) * f.col("per_byte")
    return rows.groupBy(*_EPISODE, *_MEMBER).agg(f.sum(size).alias("bytes"))


def _bucket() -> Column:
    """Whose bucket of a limit it is: that of a sidecar, or `fleet NAME`."""
    return f.coalesce(f.concat(f.lit("fleet "), "fleet"), "sidecar")


def _level(waited: Column) -> Column:
    """Of a member that is not satisfied: the largest one of a limit is the level of max-min fairness.

    Members in rising order of demand: number k of n, with s bytes taken by those before it, is satisfied if it wants at
    most (all - s) / (n - k + 1). The first one that is not has the level; those after it got more of the rest. A member
    that did not wait wants what it used; one that waited wants any amount, and comes last.
    """
    group = Window.partitionBy(*_EPISODE)
    wants = f.when(waited, f.lit(float("inf"))).otherwise(f.col("bytes"))
    ordered = group.orderBy(wants, *_MEMBER)
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    satisfied = f.coalesce(f.sum(f.when(~waited, f.col("bytes"))).over(before), f.lit(0.0))
    number = f.when(waited, f.rank().over(group.orderBy(wants))).otherwise(f.row_number().over(ordered))
    left = (f.col("all_bytes") - satisfied) / (f.col("members") - number + 1)
    return f.when(wants > left * (1 + 1e-9), left)
