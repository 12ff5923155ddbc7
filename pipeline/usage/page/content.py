"""What the HTML report shows: each figure from one small aggregate, at most a few hundred rows."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pipeline.usage.page.charts import COLOURS, bars, duration_text, line, number_text, stacked_bars
from pipeline.usage.page.layout import page, section, table
from pipeline.usage.tables import Warehouse

ROWS: Final = 15
HOURS: Final = 24 * 62


def render(warehouse: Warehouse) -> str:
    """The report over all of the warehouse. Tables that do not exist yet are shown as empty."""
    hourly = warehouse.read("usage_hourly")
    throttling = warehouse.read("throttling_hourly")
    charges = warehouse.read("chargeback_daily")
    span = hourly.agg(f.min("hour"), f.max("hour"), f.sum("bytes"), f.countDistinct("client_id")).first()
    waited_s = (throttling.agg(f.sum("throttled_ms")).first()[0] or 0) / 1000
    money = charges.groupBy("currency").agg(f.sum("amount")).orderBy("currency").collect()
    tiles = [
        (f"{number_text(span[2] or 0)}B", "passed the sidecars"),
        (f"{span[3]:,}", "client ids"),
        (duration_text(waited_s), "clients were throttled"),
        *((f"{row[1]:,} {row[0]}", "charged") for row in money),
    ]
    # The same colour for a team in each figure.
    teams = [row[0] for row in _top(hourly, ["team"], f.sum("bytes"))[: COLOURS - 1]]
    sections = [
        _usage(hourly, teams),
        _throttling(throttling),
        _neighbours(warehouse.read("noisy_neighbours")),
        _charges(charges, teams),
        _recommendations(warehouse.read("quota_recommendations")),
        _bypass(warehouse.read("bypass_check")),
    ]
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    between = f"{span[0]:%Y-%m-%d %H:%M} to {span[1]:%Y-%m-%d %H:%M} UTC" if span[0] else "no usage yet"
    return page("Kafka usage", f"{between}; made {made} UTC", tiles, sections)


def _usage(hourly: DataFrame, teams: Sequence[str]) -> str:
    parts = []
    for direction, title in (("produce", "Produced by team and day"), ("fetch", "Fetched by team and day")):
        parts.append(_by_day(hourly.where(f.col("direction") == direction), f.sum("bytes"), "bytes", title, teams))
    top = _top(hourly, ["team", "user", "client_id", "direction"], f.sum("bytes"))
    rows = [[*row[:4], f"{number_text(row[4])}B"] for row in top]
    found = table(["team", "user", "client id", "direction", "bytes"], rows, "No usage.")
    return section("Usage", "Who used what?", *parts, found)


def _throttling(throttling: DataFrame) -> str:
    hours = throttling.groupBy("hour").agg(f.sum("throttled_ms").alias("ms")).orderBy(f.desc("hour")).limit(HOURS)
    points = sorted((row["hour"], row["ms"] / 1000) for row in hours.collect())
    figure = line(
        [f"{hour:%Y-%m-%d %H:%M}" for hour, _ in points], [value for _, value in points], "s", "Throttled time by hour"
    )
    top = _top(throttling, ["team", "client_id", "limit", "entity"], f.sum("throttled_ms"))
    rows = [[*row[:4], f"{row[4] / 1000:,.1f}"] for row in top]
    found = table(["team", "client id", "limit", "entity", "throttled s"], rows, "Nothing was throttled.")
    return section("Throttling", "Who was throttled, and by which limit?", figure, found)


def _neighbours(noisy: DataFrame) -> str:
    by_team = _top(noisy, ["team"], f.sum("caused_throttled_ms"))
    seconds = [row[1] / 1000 for row in by_team]
    names = [row[0] for row in by_team]
    figure = bars(names, seconds, [*map(duration_text, seconds)], "Waiting, by the team that caused it")
    top = (
        noisy.groupBy("limit", "entity", "team", "client_id")
        .agg(f.sum("caused_throttled_ms").alias("caused"), f.avg("share"), f.max("victims"), f.sum("own_throttled_ms"))
        .orderBy(f.desc("caused"))
        .limit(ROWS)
    )
    rows = [
        [*row[:4], f"{100 * row[5]:.0f} %", row[6], f"{row[4] / 1000:,.1f}", f"{row[7] / 1000:,.1f}"]
        for row in top.collect()
    ]
    headers = ["limit", "entity", "team", "client id", "mean share", "others delayed", "caused s", "own s"]
    found = table(headers, rows, "No shared limit delayed anyone.")
    return section("Noisy neighbours", "Who delayed whom on a shared limit?", figure if by_team else "", found)


def _charges(charges: DataFrame, teams: Sequence[str]) -> str:
    figure = _by_day(charges.withColumn("hour", f.col("date")), f.sum("amount"), "", "Charges by team and day", teams)
    rows = [
        [row[0], row[1], f"{row[2]:,}", row[3]]
        for row in charges.groupBy("team", "axis", "currency")
        .agg(f.sum("amount").alias("amount"))
        .orderBy(f.desc("amount"))
        .limit(2 * ROWS)
        .select("team", "axis", "amount", "currency")
        .collect()
    ]
    found = table(["team", "axis", "amount", "currency"], rows, "No price list was given.")
    return section("Chargeback", "What did it cost?", figure if rows else "", found)


def _recommendations(found: DataFrame) -> str:
    top = found.orderBy(f.desc("throttled_intervals"), f.desc("demand_p99")).limit(ROWS).collect()
    rows = [
        [
            row["client_id"],
            row["limit"],
            _rate(row["current_limit"]),
            _rate(row["used_p50"]),
            _rate(row["used_p99"]),
            ("≥ " if row["demand_is_lower_bound"] else "") + _rate(row["demand_p99"]),
            _rate(row["proposed"]),
            row["confidence"],
            row["why"],
        ]
        for row in top
    ]
    headers = ["client id", "limit", "now", "used p50", "used p99", "demand p99", "proposed", "confidence", "why"]
    return section("Quotas", "What should each quota be?", table(headers, rows, "No limit was reported."))


def _bypass(found: DataFrame) -> str:
    top = found.groupBy("topic", "measure").agg(
        f.sum("broker_count").alias("broker"), f.sum("seen_count").alias("seen"), f.sum("unseen_count").alias("unseen")
    )
    rows = [
        [row[0], row[1], *(number_text(each) for each in row[2:5]), f"{100 * row[4] / row[2]:.1f} %" if row[2] else ""]
        for row in top.orderBy(f.desc("unseen")).limit(ROWS).collect()
    ]
    headers = ["topic", "measure", "brokers", "sidecars", "unseen", "share"]
    return section(
        "Bypass", "Which topics get data round the proxy?", table(headers, rows, "No broker counts were given.")
    )


def _by_day(rows: DataFrame, amount: Column, unit: str, title: str, teams: Sequence[str]) -> str:
    """Stacked bars by team: those of `teams` (the largest), and the rest as one."""
    largest = list(teams)
    team = f.when(f.col("team").isin(largest), f.col("team")).otherwise("all others") if largest else f.col("team")
    summed = rows.groupBy(f.to_date("hour").alias("day"), team.alias("team")).agg(amount.alias("amount"))
    found = {(str(row[0]), row[1]): float(row[2]) for row in summed.orderBy("day").limit(HOURS).collect()}
    days = sorted({day for day, _ in found})
    names = [*largest, *(["all others"] if any(name == "all others" for _, name in found) else [])]
    return stacked_bars(days, {name: [found.get((day, name), 0.0) for day in days] for name in names}, unit, title)


def _top(rows: DataFrame, keys: Sequence[str], amount: Column) -> list[Any]:
    grouped = rows.groupBy(*keys).agg(amount.alias("amount")).where(f.col("amount") > 0)
    return list(grouped.orderBy(f.desc("amount"), *keys).limit(ROWS).collect())


def _rate(value: float | None) -> str:
    return "" if value is None else f"{number_text(value)}B/s"
