"""`records` to every other table, for the dates that changed since the last run; a rerun changes nothing.

Each step replaces whole dates. What has been read up to is noted last, so a run that was killed is simply run again.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.usage.jobs import closing
from pipeline.usage.owners import Rule, team_of
from pipeline.usage.price_list import PriceList
from pipeline.usage.schemas import KINDS, LOOKBACK_DAYS, THROTTLE_KIND, USAGE_KIND, Kind
from pipeline.usage.tables import Warehouse, in_dates
from pipeline.usage.transforms.bypass import bypass_check
from pipeline.usage.transforms.chargeback import chargeback_daily, quantities
from pipeline.usage.transforms.deltas import dates_to_compute, deltas, samples, series_daily
from pipeline.usage.transforms.hourly import FROM_PROXY, throttling_hourly, usage_hourly
from pipeline.usage.transforms.neighbours import noisy_neighbours
from pipeline.usage.transforms.recommendations import quota_recommendations


@dataclass(frozen=True, slots=True)
class Rules:
    """What people configure. recommend_days: how many days before the newest one quotas are recommended from."""

    owners: Sequence[Rule] = ()
    prices: PriceList | None = None
    recommend_days: int = 28


def report(warehouse: Warehouse, rules: Rules, *, since: date | None = None) -> list[date]:
    """Bring all tables up to date; returns the dates that were computed, sorted.

    since: compute every date from this one on again, whatever changed (new owners or prices for the past, say).
    """
    records_version = warehouse.version("records")
    changed = _changed(warehouse, since)
    if not changed:
        return []
    touched: set[date] = set()
    for kind in KINDS:
        touched |= compute_deltas(warehouse, kind, changed)
    team = team_of(rules.owners)
    _hourly(warehouse, sorted(touched), rules, team)
    # A zone's day overlaps two dates of UTC.
    days = sorted({day + timedelta(days=shift) for day in touched for shift in (-1, 0, 1)})
    charge(warehouse, rules, days)
    _recommend(warehouse, rules, max(touched))
    _note(warehouse, records_version, changed)
    return sorted(touched)


def compute_deltas(warehouse: Warehouse, kind: Kind, changed: Sequence[date]) -> set[date]:
    """Samples, series_daily and deltas of the dates that changed, and of dates with deltas that start in one of them.

    Returns the dates that usage was attributed to, before and after.
    """
    sampled, daily, computed = (f"{kind.name}_{name}" for name in ("samples", "series_daily", "deltas"))
    warehouse.replace_dates(sampled, samples(warehouse.read_dates("records", changed), kind), changed)
    warehouse.replace_dates(daily, series_daily(warehouse.read_dates(sampled, changed), kind), changed)
    later = warehouse.read(daily).where(f.col("date") >= min(changed))
    ends = sorted(row["date"] for row in dates_to_compute(later, kind, changed).collect())  # one row for each date
    dates = sorted({*ends, *changed})
    before = _attributed(warehouse, computed, dates)
    found = deltas(warehouse.read_dates(sampled, dates), _known(warehouse, kind, dates), kind)
    warehouse.replace_dates(computed, found, dates, "source_date")
    return before | _attributed(warehouse, computed, dates)


def _known(warehouse: Warehouse, kind: Kind, dates: Sequence[date]) -> DataFrame:
    """series_daily before the dates: LOOKBACK_DAYS of it, or all of it if a series may have been quiet for longer."""
    daily = warehouse.read(f"{kind.name}_series_daily").where(f.col("date") <= max(dates))
    recent = daily.where(f.col("date") >= min(dates) - timedelta(days=LOOKBACK_DAYS))
    oldest_start = datetime.combine(min(dates) - timedelta(days=LOOKBACK_DAYS), datetime.min.time(), UTC)
    old = recent.where(
        f.col("date").isin(list(dates)) & (f.col("start_time_ms") < int(oldest_start.timestamp() * 1000))
    )
    if old.limit(1).count() == 0:
        return recent
    earlier = recent.where(f.col("date") < min(dates))
    # Joined null-safe: a topic may be null.
    same = [old[name].eqNullSafe(earlier[name]) for name in kind.series]
    return daily if old.join(earlier, same, "left_anti").limit(1).count() else recent


def _attributed(warehouse: Warehouse, computed: str, dates: Sequence[date]) -> set[date]:
    rows = warehouse.read_dates(computed, dates, "source_date").select(f.to_date("time").alias("date")).distinct()
    return {row["date"] for row in rows.collect()}  # one row for each date


def _attributed_to(warehouse: Warehouse, computed: str, dates: Sequence[date]) -> DataFrame:
    """Deltas of these dates. A delta ends at most LOOKBACK_DAYS after the time it is attributed to."""
    last = max(dates) + timedelta(days=LOOKBACK_DAYS + 1)
    rows = warehouse.read(computed).where(f.col("source_date").between(min(dates), last))
    return rows.where(f.to_date("time").isin(list(dates)))


def _hourly(warehouse: Warehouse, dates: Sequence[date], rules: Rules, team: object) -> None:
    usage = _attributed_to(warehouse, "usage_deltas", dates)
    throttled = _attributed_to(warehouse, "throttle_deltas", dates)
    # Imported history of the same dates stays.
    own = f"{in_dates(dates)} and source = '{FROM_PROXY}'"
    warehouse.replace_where("usage_hourly", usage_hourly(usage, team), own)
    warehouse.replace_dates("throttling_hourly", throttling_hourly(throttled, team), dates)
    warehouse.replace_dates("noisy_neighbours", noisy_neighbours(usage, throttled, team), dates)
    brokers = warehouse.read_dates("broker_topic_hourly", dates)
    if not brokers.isEmpty():
        warehouse.replace_dates(
            "bypass_check", bypass_check(warehouse.read_dates("usage_hourly", dates), brokers), dates
        )


def charge(warehouse: Warehouse, rules: Rules, days: Sequence[date]) -> None:
    """chargeback_daily of these days; days of closed periods get corrections only."""
    if rules.prices is None:
        return
    # An invoice is shared out over all its days, so one of them concerns all.
    wanted = set(days)
    for invoice in rules.prices.invoices:
        if any(invoice.first <= day < invoice.until for day in days):
            wanted |= {invoice.first, *_days_with_usage(warehouse, invoice.first, invoice.until)}
    closed = closing.closed_periods(warehouse)
    still_open = sorted(day for day in wanted if not any(each.contains(day) for each in closed))
    if still_open:
        measured = _measured(warehouse, rules, still_open)
        rows = chargeback_daily(measured, rules.prices).where(f.col("date").isin(still_open))
        warehouse.replace_where("chargeback_daily", rows, f"{in_dates(still_open)} and closed_period is null")
    for period in closed:
        if any(period.contains(day) for day in days):
            closing.correct(warehouse, period)


def _measured(warehouse: Warehouse, rules: Rules, days: Sequence[date]) -> DataFrame:
    assert rules.prices is not None  # noqa: S101 - for mypy; `charge` has checked it
    return quantities(
        _attributed_to(warehouse, "usage_deltas", _around(days)),
        warehouse.read_dates("storage_snapshots", _around(days)),
        team_of(rules.owners),
        rules.prices.zone,
    ).where(f.col("date").isin(list(days)))


def _around(days: Sequence[date]) -> list[date]:
    return sorted({day + timedelta(days=shift) for day in days for shift in (-1, 0, 1)})


def _days_with_usage(warehouse: Warehouse, first: date, until: date) -> set[date]:
    rows = warehouse.read("usage_hourly").where(f.col("date").between(first, until)).select("date").distinct().collect()
    return {row["date"] for row in rows if row["date"] < until}


def _recommend(warehouse: Warehouse, rules: Rules, newest: date) -> None:
    recent = f.col("source_date") > newest - timedelta(days=rules.recommend_days)
    usage, throttled = (warehouse.read(f"{kind.name}_deltas").where(recent) for kind in (USAGE_KIND, THROTTLE_KIND))
    found = quota_recommendations(usage, throttled, team_of(rules.owners))
    warehouse.replace("quota_recommendations", found)


def _changed(warehouse: Warehouse, since: date | None) -> list[date]:
    if since is not None:
        rows = warehouse.read("records").where(f.col("date") >= since).select("date").distinct().collect()
        return sorted(row["date"] for row in rows)
    last = warehouse.read("report_runs").agg(f.max("records_version").alias("version")).first()
    return warehouse.dates_changed_since("records", -1 if last["version"] is None else last["version"])


def _note(warehouse: Warehouse, records_version: int, dates: Sequence[date]) -> None:
    row = (str(uuid.uuid4()), datetime.now(UTC), records_version, min(dates), max(dates), len(dates))
    columns = "run_id string, at timestamp, records_version bigint, first_date date, last_date date, dates bigint"
    warehouse.append("report_runs", warehouse.spark.createDataFrame([row], columns))
