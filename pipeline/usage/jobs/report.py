"""The sources (records, snapshots, brokers' counts) to every other table, for the dates that changed since the last
run; a rerun changes nothing.

Each step replaces whole dates. What has been read up to is noted last, so a run that was killed is simply run again.
Of two runs at once, each table has what the later one wrote.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.usage.isolation import ENTITY, isolate
from pipeline.usage.jobs import closing, runs
from pipeline.usage.owners import Rule, team_of
from pipeline.usage.price_list import PriceList
from pipeline.usage.quotas_in_force import in_force
from pipeline.usage.schemas import KINDS, LOOKBACK_DAYS, Kind
from pipeline.usage.tables import Warehouse, in_dates
from pipeline.usage.transforms.bypass import bypass_check, from_offsets
from pipeline.usage.transforms.chargeback import chargeback_daily, quantities
from pipeline.usage.transforms.deltas import dates_to_compute, deltas, samples, series_daily
from pipeline.usage.transforms.hourly import throttling_hourly, usage_hourly
from pipeline.usage.transforms.members import members
from pipeline.usage.transforms.neighbours import noisy_neighbours, shared_waiting, waiting_cost
from pipeline.usage.transforms.rates import pace, rates_quarterly
from pipeline.usage.transforms.recommendations import parts, quota_recommendations
from pipeline.usage.transforms.sidecars import lost_hours, sidecar_days, sidecars

T = TypeVar("T")
SMALL_RECORDS: Final = 1_000_000
"""Of the dates to compute. For fewer, compiling the queries takes longer than it saves."""
SHOWN: Final = 20
"""Warnings of one kind."""
_SMALL: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """What people configure. recommend_days: how many days before the newest one quotas are recommended from.

    quotas: the text of the quotas file in force, "" where only throttle records show limits.
    """

    owners: Sequence[Rule] = ()
    prices: PriceList | None = None
    recommend_days: int = 28
    quotas: str = ""

    @property
    def fingerprint(self) -> str:
        """The same for the same rules."""
        prices = "" if self.prices is None else self.prices.text
        text = repr(([*self.owners], prices, self.recommend_days, self.quotas))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def report(warehouse: Warehouse, rules: Rules, *, since: date | None = None) -> list[date]:
    """Bring all tables up to date; returns the dates that were computed, sorted.

    since: compute every date from this one on again, whatever changed (new owners or prices for the past, say).
    """
    found = runs.news(warehouse, since)
    changed = found.dates
    if not any(changed.values()):
        return []
    fenced = runs.begin(warehouse)
    with _settings(fenced.spark, _is_small(fenced, changed["records"])):
        touched: set[date] = set()
        if changed["records"]:
            each = [partial(compute_deltas, fenced, kind, changed["records"]) for kind in KINDS]
            touched = set().union(*at_once(each))
        steps = _from_deltas(fenced, sorted(touched), changed["records"], rules) if touched else []
        # A zone's day overlaps two dates of UTC.
        priced = _around(touched | set(changed["storage_snapshots"]))
        steps.append(partial(charge, fenced, rules, sorted(priced)))
        at_once(steps)
        counted = touched | set(changed["broker_topic_hourly"]) | _around(changed["storage_snapshots"])
        last = [partial(_check_bypass, fenced, sorted(counted))]
        if touched:
            last.append(partial(_recommend, fenced, rules))
        at_once(last)
        computed = sorted(touched.union(*changed.values()))
        runs.note(fenced, found, computed, since, rules.fingerprint)
    return computed


def at_once(steps: Sequence[Callable[[], T]]) -> list[T]:
    """Run steps that do not depend on each other: while one plans or commits, tasks of another use the cores."""
    with ThreadPoolExecutor(max(1, len(steps))) as pool:
        return [future.result() for future in [pool.submit(step) for step in steps]]


def compute_deltas(warehouse: Warehouse, kind: Kind, changed: Sequence[date]) -> set[date]:
    """Samples, series_daily and deltas of the dates that changed, and of dates with deltas that start in one of them.

    Returns the dates that usage is attributed to. Records are never removed, and one more of them only adds to these
    dates, so they contain those of the run before.
    """
    sampled, daily, computed = (f"{kind.name}_{name}" for name in ("samples", "series_daily", "deltas"))
    records = warehouse.read_dates("records", changed)

    def write_samples(rows: DataFrame) -> None:
        warehouse.replace_dates(sampled, samples(rows, kind), changed)

    isolate(warehouse, sampled, records, write_samples)
    warehouse.replace_dates(daily, series_daily(warehouse.read_dates(sampled, changed), kind), changed)
    later = warehouse.read(daily).where(f.col("date") >= min(changed))
    ends = sorted(row["date"] for row in dates_to_compute(later, kind, changed).collect())  # one row for each date
    dates = sorted({*ends, *changed})
    known = _known(warehouse, kind, dates)

    def write_deltas(rows: DataFrame) -> None:
        warehouse.replace_dates(computed, deltas(rows, known, kind), dates, "source_date")

    isolate(warehouse, computed, warehouse.read_dates(sampled, dates), write_deltas)
    attributed = warehouse.read_dates(computed, dates, "source_date").select(f.to_date("time").alias("date")).distinct()
    return {row["date"] for row in attributed.collect()}  # one row for each date


def _known(warehouse: Warehouse, kind: Kind, dates: Sequence[date]) -> DataFrame:
    """series_daily before the dates: LOOKBACK_DAYS of it, or all of it if a series may have been quiet for longer."""
    daily = warehouse.read(f"{kind.name}_series_daily").where(f.col("date") <= max(dates))
    recent = daily.where(f.col("date") >= min(dates) - timedelta(days=LOOKBACK_DAYS))
    oldest_start = datetime.combine(min(dates) - timedelta(days=LOOKBACK_DAYS), datetime.min.time(), UTC)
    old = recent.where(
        f.col("date").isin(list(dates)) & (f.col("start_time_ms") < int(oldest_start.timestamp() * 1000))
    )
    if old.isEmpty():
        return recent
    earlier = recent.where(f.col("date") < min(dates))
    # Joined null-safe: a topic may be null.
    same = [old[name].eqNullSafe(earlier[name]) for name in kind.series]
    return recent if old.join(earlier, same, "left_anti").isEmpty() else daily


def _attributed_to(warehouse: Warehouse, computed: str, dates: Sequence[date]) -> DataFrame:
    """Deltas of these dates. A delta ends at most LOOKBACK_DAYS after the time it is attributed to."""
    last = max(dates) + timedelta(days=LOOKBACK_DAYS + 1)
    rows = warehouse.read(computed).where(f.col("source_date").between(min(dates), last))
    return rows.where(f.to_date("time").isin(list(dates)))


def _from_deltas(
    warehouse: Warehouse, dates: Sequence[date], changed: Sequence[date], rules: Rules
) -> list[Callable[[], None]]:
    """The steps that need no other table than the deltas and the records. changed: the dates of new records."""
    team = team_of(rules.owners)
    usage = _attributed_to(warehouse, "usage_deltas", dates)
    throttled = _attributed_to(warehouse, "throttle_deltas", dates)
    limits = _in_force(warehouse, rules, dates)

    def write_usage(rows: DataFrame) -> None:
        warehouse.replace_dates("usage_hourly", usage_hourly(rows, team), dates)

    def write_throttling(rows: DataFrame) -> None:
        warehouse.replace_dates("throttling_hourly", throttling_hourly(rows, team), dates)

    def write_waiting(rows: DataFrame) -> None:
        waiting = shared_waiting(usage, rows, team, limits).persist()
        warehouse.replace_dates("noisy_neighbours", noisy_neighbours(waiting), dates)
        warehouse.replace_dates("waiting_cost", waiting_cost(waiting, rules.prices), dates)
        waiting.unpersist()

    return [
        partial(isolate, warehouse, "usage_hourly", usage, write_usage),
        partial(isolate, warehouse, "throttling_hourly", throttled, write_throttling),
        partial(isolate, warehouse, "noisy_neighbours", throttled, write_waiting),
        partial(_compute_rates, warehouse, changed, limits),
        partial(_note_sidecars, warehouse, changed),
    ]


def _compute_rates(warehouse: Warehouse, changed: Sequence[date], limits: DataFrame | None) -> None:
    """rates_quarterly of the dates with new records. Limits are those of throttle records of the last weeks, too."""
    first = min(changed) - timedelta(days=LOOKBACK_DAYS)
    throttled = warehouse.read("throttle_deltas").where(f.col("source_date").between(first, max(changed)))
    usage = warehouse.read_dates("usage_deltas", changed, "source_date")
    known = members(usage, throttled, limits)

    def write(rows: DataFrame) -> None:
        warehouse.replace_dates("rates_quarterly", rates_quarterly(rows, known), changed)

    isolate(warehouse, "rates_quarterly", warehouse.read_dates("records", changed), write)


def _note_sidecars(warehouse: Warehouse, changed: Sequence[date]) -> None:
    usage = warehouse.read_dates("usage_deltas", changed, "source_date")

    def write(rows: DataFrame) -> None:
        warehouse.replace_dates("sidecar_days", sidecar_days(rows, usage, pace(rows)), changed)

    def write_runs(rows: DataFrame) -> None:
        warehouse.replace("sidecars", sidecars(rows))

    isolate(warehouse, "sidecar_days", warehouse.read_dates("records", changed), write)
    isolate(warehouse, "sidecars", warehouse.read("sidecar_days"), write_runs, ("sidecar",))


def _in_force(warehouse: Warehouse, rules: Rules, dates: Sequence[date]) -> DataFrame | None:
    if not rules.quotas:
        return None
    first = max(dates) - timedelta(days=rules.recommend_days)
    recent = warehouse.read("usage_deltas").where(f.col("source_date") >= min(first, *dates))
    return in_force(recent, rules.quotas)


def _check_bypass(warehouse: Warehouse, dates: Sequence[date]) -> None:
    offsets = from_offsets(warehouse.read_dates("storage_snapshots", _around(dates))).where(f.col("date").isin(dates))
    brokers = warehouse.read_dates("broker_topic_hourly", dates).unionByName(offsets)
    if not brokers.isEmpty():
        lost = lost_hours(warehouse.read("sidecar_days"), warehouse.read("sidecars"))
        seen = warehouse.read_dates("usage_hourly", dates)

        def write(rows: DataFrame) -> None:
            warehouse.replace_dates("bypass_check", bypass_check(seen, rows, lost), dates)

        isolate(warehouse, "bypass_check", brokers, write, ("topic",))


def charge(warehouse: Warehouse, rules: Rules, days: Sequence[date]) -> None:
    """chargeback_daily of these days; days of closed periods get corrections only."""
    closed = closing.closed_periods(warehouse)
    if rules.prices is not None:
        # Cents are dealt over a month, and an invoice over its days, which are of one month.
        wanted = set(days)
        for invoice in rules.prices.invoices:
            if any(invoice.first.replace(day=1) == day.replace(day=1) for day in days):
                wanted |= {invoice.first + timedelta(days=n) for n in range((invoice.until - invoice.first).days)}
        still_open = sorted(day for day in wanted if not any(each.contains(day) for each in closed))
        if still_open:
            _charge_open(warehouse, rules, rules.prices, still_open)
    for period in closed:
        if any(period.contains(day) for day in days):
            closing.correct(warehouse, period)


def _charge_open(warehouse: Warehouse, rules: Rules, prices: PriceList, days: Sequence[date]) -> None:
    around = sorted(_around(days))
    storage = warehouse.read_dates("storage_snapshots", around)
    # The cents of a month are dealt over all its days.
    months = {day.replace(day=1) + timedelta(days=n) for day in days for n in range(31)}
    month_days = {each for each in months if each.replace(day=1) in {day.replace(day=1) for day in days}}
    condition = f"{in_dates(month_days)} and closed_period is null"
    others = warehouse.read("chargeback_daily").where(condition).where(f"not ({in_dates(days)})")

    def write(rows: DataFrame) -> None:
        # Read by the sum of each day, by the cents of each team, and by each invoice.
        measured = quantities(rows, storage, team_of(rules.owners), prices.zone).where(f.col("date").isin(list(days)))
        measured = measured.persist()
        warehouse.replace_where(
            "chargeback_daily", chargeback_daily(measured, prices, others).where(condition), condition
        )
        measured.unpersist()

    isolate(warehouse, "chargeback_daily", _attributed_to(warehouse, "usage_deltas", around), write)


def _around(days: Iterable[date]) -> set[date]:
    return {day + timedelta(days=shift) for day in days for shift in (-1, 0, 1)}


def _recommend(warehouse: Warehouse, rules: Rules) -> None:
    """From the newest days of all usage, also where a run computes old days only."""
    newest = warehouse.read("rates_quarterly").agg(f.max("date")).first()[0]
    if newest is None:
        return
    first = newest - timedelta(days=rules.recommend_days - 1)
    usage, throttled = (warehouse.read(f"{kind.name}_deltas").where(f.col("source_date") >= first) for kind in KINDS)
    limits = in_force(usage, rules.quotas) if rules.quotas else None
    known = members(usage, throttled, limits)
    of_clients = parts(usage, known, team_of(rules.owners))

    def write(rows: DataFrame) -> None:
        warehouse.replace("quota_recommendations", quota_recommendations(rows, throttled, of_clients, limits))

    rates = warehouse.read("rates_quarterly").where(f.col("date") >= first)
    isolate(warehouse, "quota_recommendations", rates, write, ENTITY)


def warnings(warehouse: Warehouse, dates: Sequence[date]) -> list[str]:
    """What is missing in the data of these dates, one line each; empty for complete data."""
    first, end = min(dates), max(dates) + timedelta(days=1)
    lines = []
    seen = warehouse.read("sidecars").where(f"last_record >= timestamp'{first}' and first_record < timestamp'{end}'")
    for row in seen.where("ended_cleanly = false or missing_records > 0").orderBy("sidecar", "first_record").collect():
        missing = f"{row['missing_records']:,} records are missing" if row["missing_records"] else ""
        lost = (
            f"it ended without a last record at {row['last_record']:%Y-%m-%d %H:%M} UTC ({row['state']}), about "
            f"{row['estimated_missing_bytes']:,} bytes are missing"
            if row["ended_cleanly"] is False
            else ""
        )
        lines.append(f"sidecar {row['sidecar']}, run {row['incarnation']}: {'; '.join(filter(None, (missing, lost)))}")
    lines += [
        f"usage topic, partition {row['kafka_partition']}: offsets {row['first_offset']} to {row['last_offset']} were "
        "deleted before ingest read them"
        for row in warehouse.read("topic_holes").orderBy("kafka_partition", "first_offset").limit(SHOWN).collect()
    ]
    lines += [
        f"{row['step']}: left out {_named(row.asDict())}: {row['reason']}"
        for row in warehouse.read("isolated").orderBy("at").limit(SHOWN).collect()
    ]
    return lines


def _named(row: dict[str, Any]) -> str:
    shown = ("client_id", "user", "sidecar", "limit", "entity", "topic")
    return ", ".join(f"{name} {row[name]!r}" for name in shown if row[name] is not None)


def _is_small(warehouse: Warehouse, changed: Sequence[date]) -> bool:
    return bool(warehouse.read_dates("records", changed).count() < SMALL_RECORDS)


@contextmanager
def _settings(spark: SparkSession, is_small: bool) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in _SMALL}
    try:
        for name, value in _SMALL.items() if is_small else ():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
