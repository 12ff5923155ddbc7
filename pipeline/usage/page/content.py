"""What the HTML report shows: each figure from one small aggregate, at most a few hundred rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pipeline.usage.page.charts import COLOURS, bars, duration_text, line, number_text, stacked_bars
from pipeline.usage.page.layout import page, section, table
from pipeline.usage.tables import Warehouse
from pipeline.usage.transforms.sums import named, total

_REST: Final = "all others"
_LOST: Final = "missing_records > 0 or ended_cleanly = false"
_WIDTH: Final = {"day": 10, "hour": 16}
"""Characters of "2026-01-31 13:00" that name a time."""
ROWS: Final = 15
MIN_INTERVALS: Final = 4
"""Quarter hours with usage that a recommendation is shown from."""


@dataclass(frozen=True, slots=True)
class Axes:
    """How figures are drawn. times: all days or hours from the first usage to the last, as `_time` has them; a single
    one is no axis. by: `team`, or `client_id` where there is only one team. largest: the first of these by bytes, with
    the same colour in each figure.
    """

    bucket: str
    times: Sequence[str]
    by: str
    largest: Sequence[str]

    @property
    def by_name(self) -> str:
        return self.by.replace("_", " ")


def render(warehouse: Warehouse, since: date | None = None, until: date | None = None) -> str:
    """The report over the dates from `since` to before `until`, by default over all of the warehouse. Tables that do
    not exist yet are shown as empty. Quotas and runs of proxies are those of all dates.
    """

    def read(name: str) -> DataFrame:
        rows = warehouse.read(name)
        rows = rows if since is None else rows.where(f.col("date") >= f.lit(since))
        return rows if until is None else rows.where(f.col("date") < f.lit(until))

    hourly, throttling, charges = (read(name) for name in ("usage_hourly", "throttling_hourly", "chargeback_daily"))
    runs = warehouse.read("sidecars")
    # A series that is idle has rows of 0 bytes.
    used = f.when(f.col("bytes") > 0, f.col("hour"))
    totals = hourly.agg(
        _time(f.min(used), "hour"), _time(f.max(used), "hour"), total("bytes"), f.countDistinct("client_id")
    ).first()
    first, last = totals[0], totals[1]
    waited = throttling.agg(total("throttled_ms")).first()[0] or 0
    # So many hours had traffic of so many clients.
    busy = hourly.where("bytes > 0").select("cluster", "user", "client_id", "hour").distinct().count()
    lost, every = (each.select("cluster", "sidecar").distinct().count() for each in (runs.where(_LOST), runs))
    money = charges.groupBy("currency").agg(f.sum("amount")).orderBy("currency").collect()
    tiles = [
        (number_text(totals[2] or 0, "B"), "passed the sidecars"),
        (f"{totals[3]:,}", "client id" if totals[3] == 1 else "client ids"),
        (duration_text(waited / 1000), f"that clients waited, in {duration_text(3600 * busy)} of traffic"),
        *((f"{row[1]:,} {row[0]}", "charged") for row in money),
        (f"{lost:,} of {every:,}", "proxies with missing records") if lost else ("complete", "records of proxies"),
    ]
    axes = _axes(hourly, first, last)
    sections = [
        _usage(hourly, axes),
        _throttling(throttling, axes),
        _neighbours(read("noisy_neighbours"), read("waiting_cost")),
        _charges(charges, axes),
        _months(warehouse.read("team_months"), since, until),
        _recommendations(warehouse.read("quota_recommendations")),
        _bypass(read("bypass_check")),
        _missing(runs, warehouse.read("topic_holes")),
    ]
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    return page("Kafka usage", f"{_between(first, last)}; made {made}; times are UTC", tiles, sections)


def _between(first: str | None, last: str | None) -> str:
    if first is None or last is None:
        return "no usage yet"
    end = datetime.fromisoformat(last) + timedelta(hours=1)
    return f"{first} to {end:%H:%M}" if first[:10] == f"{end:%Y-%m-%d}" else f"{first} to {end:%Y-%m-%d %H:%M}"


def _axes(hourly: DataFrame, first: str | None, last: str | None) -> Axes:
    by = "team" if hourly.select("team").distinct().limit(2).count() > 1 else "client_id"
    largest = [row[0] for row in _top(hourly.where(f.col(by).isNotNull()), [by], total("bytes"))[: COLOURS - 1]]
    if first is None or last is None:
        return Axes("hour", (), by, largest)
    days = _times(first[:10], last[:10], "day")
    if len(days) > 2:
        return Axes("day", days, by, largest)
    return Axes("hour", _times(first, last, "hour"), by, largest)


def _times(first: str, last: str, bucket: str) -> list[str]:
    """All days or hours from the first to the last."""
    begin, end = datetime.fromisoformat(first), datetime.fromisoformat(last)
    step = timedelta(days=1) if bucket == "day" else timedelta(hours=1)
    times = [begin + number * step for number in range((end - begin) // step + 1)]
    return [time.isoformat(" ", "minutes")[: _WIDTH[bucket]] for time in times]


def _usage(hourly: DataFrame, axes: Axes) -> str:
    parts = []
    for direction, title in (("produce", "Produced"), ("fetch", "Fetched")):
        parts.append(_amounts(hourly.where(f.col("direction") == direction), total("bytes"), "B", title, axes))
    keys = ["cluster", "team", "user", "client_id", "direction"]
    inspected = total("inspected_requests")
    facts = [
        total(name) / f.when(of > 0, of)
        for name, of in (
            ("bytes", total("requests")),
            ("unanswered_requests", total(f.when(f.col("unanswered_requests").isNotNull(), f.col("requests")))),
            ("idempotent_requests", inspected),
            ("uncompressed_requests", inspected),
        )
    ]
    top = _top(hourly, keys, total("bytes"), _trend(axes), *facts)
    rows = [
        [*row[:5], number_text(row[5], "B"), _change(row[6]), _size(row[7]), *map(_percent, row[8:])] for row in top
    ]
    headers = "cluster | team | user | client id | direction | bytes | trend"
    headers += " | bytes per request | acks=0 | idempotent | uncompressed"
    found = table(headers, rows, "No usage.")
    return section("Usage", "Who used what?", *parts, found)


def _trend(axes: Axes) -> Column:
    """Bytes in the second half of the times over those in the first half, without the last one, which may not be over;
    null without a first half.
    """
    times, time = axes.times[:-1], _time(f.col("hour"), axes.bucket)
    half = len(times) // 2
    if not half:
        return f.lit(None).cast("double")
    late, early = (
        f.sum(f.when(is_in, f.col("bytes").cast("double")))
        for is_in in (time.between(times[-half], times[-1]), time < times[half])
    )
    return f.coalesce(late, f.when(early > 0, 0.0)) / f.when(early > 0, early)


def _change(ratio: float | None) -> str:
    return "" if ratio is None else f"{round(100 * (ratio - 1)):+,} %"


def _size(size: float | None) -> str:
    return "" if size is None else number_text(size, "B")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _throttling(throttling: DataFrame, axes: Axes) -> str:
    hours = f.countDistinct("hour")
    top = _top(throttling, ["cluster", "team", "client_id", "limit", "entity"], total("throttled_ms"), hours)
    rows = [[*row[:5], duration_text(row[5] / 1000), row[6]] for row in top]
    headers = "cluster | team | client id | limit | entity | waited | in how many hours"
    found = table(headers, rows, "Nothing was throttled.")
    figure = ""
    if rows and len(axes.times) > 1:
        by_time = throttling.groupBy(_time(f.col("hour"), axes.bucket).alias("time")).agg(total("throttled_ms"))
        seconds = {row[0]: row[1] / 1000 for row in by_time.collect()}  # one row for each time of the axis
        values = [seconds.get(time, 0.0) for time in axes.times]
        figure = line(axes.times, values, "s", f"Throttled time by {axes.bucket}")
    return section("Throttling", "Who was throttled, and by which limit?", figure, found)


def _neighbours(noisy: DataFrame, waiting: DataFrame) -> str:
    by_team = _top(noisy, ["team"], f.sum("caused_throttled_ms"))
    seconds = [row[1] / 1000 for row in by_team]
    names = [row[0] for row in by_team]
    figure = bars(names, seconds, [*map(duration_text, seconds)], "Waiting, by the team that caused it")
    top = (
        noisy.groupBy("cluster", "limit", "entity", "team", "client_id")
        .agg(f.sum("caused_throttled_ms").alias("caused"), f.avg("share"), f.max("victims"), total("own_throttled_ms"))
        .where("caused > 0")
        .orderBy(f.desc("caused"))
        .limit(ROWS)
    )
    rows = [
        [*row[:5], f"{100 * row[6]:.0f} %", row[7], duration_text(row[5] / 1000), duration_text(row[8] / 1000)]
        for row in top.collect()
    ]
    headers = "cluster | limit | entity | team | client id | mean share | others delayed | they waited | waited itself"
    found = table(headers, rows, "No shared limit delayed anyone.")
    others = waiting.where("caused_by <> team").groupBy("caused_by", "team", "limit", "entity", "currency")
    pairs = others.agg(f.sum("waited_ms").alias("ms"), f.sum("cost").alias("cost")).orderBy(f.desc("ms")).limit(ROWS)
    by_pair = [
        [*row[:4], duration_text(row["ms"] / 1000), _money(row["cost"], after=f" {row['currency']}")]
        for row in pairs.collect()
    ]
    if by_pair:
        found += table("caused by | who waited | limit | entity | waited | cost", by_pair, "")
    return section("Noisy neighbours", "Who delayed whom on a shared limit?", figure if by_team else "", found)


def _charges(charges: DataFrame, axes: Axes) -> str:
    summed = charges.groupBy("cluster", "team", "axis", "currency").agg(f.sum("amount").alias("amount"))
    rows = [
        [*row[:3], f"{row['amount']:,}", row["currency"]]
        for row in summed.where("amount != 0").orderBy(f.desc("amount")).limit(2 * ROWS).collect()
    ]
    found = table("cluster | team | axis | amount | currency", rows, "No price list was given, or all amounts are 0.")
    # Days of the price list's zone.
    days = charges.agg(*(_time(each("date"), "day") for each in (f.min, f.max))).first()
    by_day = replace(axes, bucket="day", times=_times(days[0], days[1], "day") if rows else ())
    currencies = {row[4] for row in rows}
    figure = ""
    if len(by_day.times) > 1 and len(currencies) == 1:
        dated = charges.withColumn("hour", f.col("date"))
        figure = _amounts(dated, f.sum("amount"), currencies.pop(), "Charges", by_day)
    return section("Chargeback", "What did it cost?", figure, found)


def _months(found: DataFrame, since: date | None, until: date | None) -> str:
    found = found if since is None else found.where(f.col("month") >= f.lit(since.replace(day=1)))
    found = found if until is None else found.where(f.col("month") < f.lit(until))
    rows = [
        [
            f"{row['month']:%Y-%m}",
            *(row["cluster"], row["team"], _money(row["amount"]), row["currency"], _money(row["cost_per_gb"], 4)),
            _change(float(row["amount"] / row["month_before"]) if row["month_before"] else None),
            *(_money(row["run_rate"]), _money(row["budget"]), "over" if row["over_budget"] else ""),
        ]
        for row in found.where("amount > 0").orderBy(f.desc("month"), f.desc("amount")).limit(2 * ROWS).collect()
    ]
    headers = "month | cluster | team | so far | currency | per GB | against the month before"
    headers += " | expected for the month, all clusters | budget for it | over budget"
    return section("Teams by month", "What does a GB cost, and is it in budget?", table(headers, rows, "No charges."))


def _recommendations(found: DataFrame) -> str:
    enough = found.where(f.col("intervals") >= MIN_INTERVALS)
    # All clients of an entity have its proposal: it is shown once, with the largest of them.
    entity = Window.partitionBy("cluster", "limit", "entity")
    rank = f.row_number().over(entity.orderBy(f.desc("part"), "user", "client_id"))
    each = enough.withColumns({"rank": rank, "clients": f.count("*").over(entity)}).where("rank = 1")
    top = each.orderBy(f.desc("throttled_intervals"), f.desc("demand_p99")).limit(ROWS).collect()
    empty = f"No client has {MIN_INTERVALS} quarter hours of usage yet."
    if not top and found.isEmpty():
        empty = "No limit was reported."
    rows = [
        [
            *(row[name] for name in ("cluster", "entity", "limit", "clients", "client_id")),
            f"{100 * row['part']:.0f} %",
            *(_rate(row[name]) for name in ("current_limit", "peak", "proposed")),
            f"{100 * row['throttled_intervals'] / row['intervals']:.0f} %",
            row["confidence"],
            ("≥ " if row["demand_is_lower_bound"] else "") + _rate(row["need"]),
            *(_rate(row[name]) for name in ("used_p50", "used_p99")),
            f"{row['first_day']} to {row['last_day']}" if row["last_day"] else "",
        ]
        for row in top
    ]
    headers = "cluster | entity | limit | clients | largest | its part | limit now | peak | proposed | throttled"
    headers += " | confidence | need | used p50 | used p99 | seen"
    return section("Quotas", "What should each quota be?", table(headers, rows, empty))


def _bypass(found: DataFrame) -> str:
    certain = found.where(f.coalesce("is_certain", f.lit(True))).groupBy("cluster", "topic", "measure")
    top = certain.agg(*named(total, "broker_count", "seen_count", "unseen_count"))
    rows = [
        [*row[:3], *(number_text(each) for each in row[3:6]), f"{100 * row[5] / row[3]:.1f} %" if row[3] else ""]
        for row in top.where("unseen_count > 0").orderBy(f.desc("unseen_count")).limit(ROWS).collect()
    ]
    headers = "cluster | topic | measure | brokers | sidecars | unseen | share"
    empty = "No broker counts were given, or sidecars saw all of them."
    return section("Bypass", "Which topics get data round the proxy?", table(headers, rows, empty))


def _missing(sidecars: DataFrame, holes: DataFrame) -> str:
    lost = sidecars.where(_LOST).orderBy(f.desc("last_record")).limit(ROWS)
    columns = ("cluster", "sidecar", "incarnation", "state", "missing_records", "estimated_missing_bytes")
    shown = lost.select(_time(f.col("last_record"), "hour").alias("last"), *columns).collect()
    rows = [[*row[1:5], f"{row[5]:,}", number_text(row[6], "B"), row["last"]] for row in shown]
    headers = "cluster | sidecar | run | state | records missing | bytes missing, about | last record"
    parts = [table(headers, rows, "All records arrived.")]
    deleted = holes.drop("found_at").orderBy("kafka_partition", "first_offset").limit(ROWS).collect()
    if deleted:
        parts.append(table("partition of the usage topic | first offset never read | last", deleted, ""))
    return section("Data quality", "Which records are missing?", *parts)


def _amounts(rows: DataFrame, amount: Column, unit: str, title: str, axes: Axes) -> str:
    """Amounts by team or client: the largest, and the rest as one. Stacked bars over time, or one bar for each without
    a time axis; nothing without amounts. rows: with the columns `hour` and `axes.by`.
    """
    name = f.when(f.col(axes.by).isin(list(axes.largest)), f.col(axes.by)).otherwise(_REST)
    summed = rows.groupBy(_time(f.col("hour"), axes.bucket).alias("time"), name.alias("name")).agg(amount)
    found = {(row[0], row[1]): float(row[2] or 0) for row in summed.collect()}  # at most COLOURS for each time
    amounts = {
        each: [found.get((time, each), 0.0) for time in axes.times]
        for each in (*axes.largest, _REST)
        if any(found.get((time, each)) for time in axes.times)
    }
    if not amounts:
        return ""
    if len(axes.times) > 1:
        colours = [COLOURS - 1 if each == _REST else axes.largest.index(each) for each in amounts]
        return stacked_bars(axes.times, amounts, unit, f"{title} by {axes.by_name} and {axes.bucket}", colours)
    values = [each[0] for each in amounts.values()]
    texts = [number_text(each, unit) for each in values]
    return bars(list(amounts), values, texts, f"{title} by {axes.by_name}", 0)


def _time(column: Column, bucket: str) -> Column:
    """A time as text in UTC, which is the session's zone: Python would make it the machine's."""
    return f.substring(f.date_format(column, "yyyy-MM-dd HH:mm"), 1, _WIDTH[bucket])


def _top(rows: DataFrame, keys: Sequence[str], amount: Column, *more: Column) -> list[Any]:
    grouped = rows.groupBy(*keys).agg(amount.alias("amount"), *more).where(f.col("amount") > 0)
    return list(grouped.orderBy(f.desc("amount"), *keys).limit(ROWS).collect())


def _rate(value: float | None) -> str:
    return "" if value is None else number_text(value, "B/s")


def _money(value: Any, places: int = 2, *, after: str = "") -> str:
    return "" if value is None else f"{value:,.{places}f}{after}"
