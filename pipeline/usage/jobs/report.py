"""The sources (records, snapshots, brokers' counts) to every other table, for the dates that changed since the last
run; a rerun changes nothing.

Each step replaces whole dates. What has been read up to is noted last, so a run that was killed is simply run again.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Final, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.usage.jobs import closing
from pipeline.usage.owners import Rule, team_of
from pipeline.usage.price_list import PriceList
from pipeline.usage.schemas import KINDS, LOOKBACK_DAYS, TABLES, THROTTLE_KIND, USAGE_KIND, Kind
from pipeline.usage.tables import Warehouse, in_dates
from pipeline.usage.transforms.bypass import bypass_check, from_offsets
from pipeline.usage.transforms.chargeback import chargeback_daily, quantities
from pipeline.usage.transforms.deltas import dates_to_compute, deltas, samples, series_daily
from pipeline.usage.transforms.hourly import FROM_PROXY, throttling_hourly, usage_hourly
from pipeline.usage.transforms.neighbours import noisy_neighbours
from pipeline.usage.transforms.recommendations import quota_recommendations, rates

T = TypeVar("T")
SOURCES: Final = tuple(table.name for table in TABLES.values() if table.is_source)
"""What the report reads; `report_runs` notes their versions in this order."""


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
    versions = {name: warehouse.version(name) for name in SOURCES}
    changed = _changed(warehouse, versions, since)
    touched: set[date] = set()
    if changed["records"]:
        touched = set().union(
            *at_once([partial(compute_deltas, warehouse, kind, changed["records"]) for kind in KINDS])
        )
    steps = _from_deltas(warehouse, sorted(touched), rules) if touched else []
    # A zone's day overlaps two dates of UTC.
    priced = _around(touched | set(changed["storage_snapshots"]))
    if priced:
        steps.append(partial(charge, warehouse, rules, sorted(priced)))
    at_once(steps)
    counted = touched | set(changed["broker_topic_hourly"]) | _around(changed["storage_snapshots"])
    if counted:
        _check_bypass(warehouse, sorted(counted))
    computed = sorted(touched.union(*changed.values()))
    if computed:
        _note(warehouse, versions, computed)
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
    warehouse.replace_dates(sampled, samples(warehouse.read_dates("records", changed), kind), changed)
    warehouse.replace_dates(daily, series_daily(warehouse.read_dates(sampled, changed), kind), changed)
    later = warehouse.read(daily).where(f.col("date") >= min(changed))
    ends = sorted(row["date"] for row in dates_to_compute(later, kind, changed).collect())  # one row for each date
    dates = sorted({*ends, *changed})
    found = deltas(warehouse.read_dates(sampled, dates), _known(warehouse, kind, dates), kind)
    warehouse.replace_dates(computed, found, dates, "source_date")
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
    if old.limit(1).count() == 0:
        return recent
    earlier = recent.where(f.col("date") < min(dates))
    # Joined null-safe: a topic may be null.
    same = [old[name].eqNullSafe(earlier[name]) for name in kind.series]
    return daily if old.join(earlier, same, "left_anti").limit(1).count() else recent


def _attributed_to(warehouse: Warehouse, computed: str, dates: Sequence[date]) -> DataFrame:
    """Deltas of these dates. A delta ends at most LOOKBACK_DAYS after the time it is attributed to."""
    last = max(dates) + timedelta(days=LOOKBACK_DAYS + 1)
    rows = warehouse.read(computed).where(f.col("source_date").between(min(dates), last))
    return rows.where(f.to_date("time").isin(list(dates)))


def _from_deltas(warehouse: Warehouse, dates: Sequence[date], rules: Rules) -> list[Callable[[], None]]:
    """The steps that need no other table than the deltas."""
    team = team_of(rules.owners)
    usage = _attributed_to(warehouse, "usage_deltas", dates)
    throttled = _attributed_to(warehouse, "throttle_deltas", dates)
    # Imported history of the same dates stays.
    own = f"{in_dates(dates)} and source = '{FROM_PROXY}'"
    return [
        lambda: warehouse.replace_where("usage_hourly", usage_hourly(usage, team), own),
        lambda: warehouse.replace_dates("throttling_hourly", throttling_hourly(throttled, team), dates),
        lambda: warehouse.replace_dates("noisy_neighbours", noisy_neighbours(usage, throttled, team), dates),
        lambda: _recommend(warehouse, rules, max(dates)),
    ]


def _check_bypass(warehouse: Warehouse, dates: Sequence[date]) -> None:
    offsets = from_offsets(warehouse.read_dates("storage_snapshots", _around(dates))).where(f.col("date").isin(dates))
    brokers = warehouse.read_dates("broker_topic_hourly", dates).unionByName(offsets)
    if not brokers.isEmpty():
        found = bypass_check(warehouse.read_dates("usage_hourly", dates), brokers)
        warehouse.replace_dates("bypass_check", found, dates)


def charge(warehouse: Warehouse, rules: Rules, days: Sequence[date]) -> None:
    """chargeback_daily of these days; days of closed periods get corrections only."""
    closed = closing.closed_periods(warehouse)
    if rules.prices is not None:
        # An invoice is shared out over all its days, so one of them concerns all.
        wanted = set(days)
        for invoice in rules.prices.invoices:
            if any(invoice.first <= day < invoice.until for day in days):
                wanted |= {invoice.first + timedelta(days=n) for n in range((invoice.until - invoice.first).days)}
        still_open = sorted(day for day in wanted if not any(each.contains(day) for each in closed))
        if still_open:
            # Read by the sum of each day, by the cents of each team, and by each invoice.
            measured = _measured(warehouse, rules.owners, rules.prices.zone, still_open).persist()
            rows = chargeback_daily(measured, rules.prices).where(f.col("date").isin(still_open))
            condition = f"{in_dates(still_open)} and closed_period is null"
            warehouse.replace_where("chargeback_daily", rows, condition)
            measured.unpersist()
    for period in closed:
        if any(period.contains(day) for day in days):
            closing.correct(warehouse, period)


def _measured(warehouse: Warehouse, owners: Sequence[Rule], zone: str, days: Sequence[date]) -> DataFrame:
    around = sorted(_around(days))
    return quantities(
        _attributed_to(warehouse, "usage_deltas", around),
        warehouse.read_dates("storage_snapshots", around),
        team_of(owners),
        zone,
    ).where(f.col("date").isin(list(days)))


def _around(days: Iterable[date]) -> set[date]:
    return {day + timedelta(days=shift) for day in days for shift in (-1, 0, 1)}


def _recommend(warehouse: Warehouse, rules: Rules, newest: date) -> None:
    recent = f.col("source_date") > newest - timedelta(days=rules.recommend_days)
    usage, throttled = (warehouse.read(f"{kind.name}_deltas").where(recent) for kind in (USAGE_KIND, THROTTLE_KIND))
    # Read three times: as a whole, by rate, by hour of day.
    sampled = rates(usage, throttled, team_of(rules.owners)).persist()
    warehouse.replace("quota_recommendations", quota_recommendations(sampled))
    sampled.unpersist()


def _changed(warehouse: Warehouse, versions: Mapping[str, int], since: date | None) -> dict[str, list[date]]:
    """The dates of each source with rows that no run has read; with `since` all its dates from then on."""
    if since is not None:
        recent = {
            name: warehouse.read(name).where(f.col("date") >= since).select("date").distinct() for name in SOURCES
        }
        return {name: sorted(row["date"] for row in rows.collect()) for name, rows in recent.items()}
    last = warehouse.read("report_runs").agg(*(f.max(f"{name}_version").alias(name) for name in SOURCES)).first()
    read = {name: -1 if last[name] is None else last[name] for name in SOURCES}
    return {
        name: warehouse.dates_changed_since(name, read[name]) if version > read[name] else []
        for name, version in versions.items()
    }


def _note(warehouse: Warehouse, versions: Mapping[str, int], dates: Sequence[date]) -> None:
    row = (str(uuid.uuid4()), datetime.now(UTC), *versions.values(), min(dates), max(dates), len(dates))
    warehouse.append("report_runs", warehouse.spark.createDataFrame([row], TABLES["report_runs"].columns))
