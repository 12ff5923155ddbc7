"""The sources (records, snapshots, brokers' counts) to every other table, for the dates that changed since the last
run; a rerun changes nothing.

Each step replaces whole dates. What has been read up to is noted last, so a run that was killed, or of which a table
failed, is simply run again.
Of two runs at once, each table has what the later one wrote.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pipeline.usage.isolation import CLIENT, ENTITY, attempt, computed_once, isolate
from pipeline.usage.jobs import closing, runs
from pipeline.usage.owners import Rule, team_of
from pipeline.usage.price_list import PriceList
from pipeline.usage.quotas_in_force import in_force
from pipeline.usage.schemas import KEPT_DAYS, KINDS, LOOKBACK_DAYS, RecordKind
from pipeline.usage.tables import Warehouse, in_dates
from pipeline.usage.transforms.bypass import bypass_check, from_offsets
from pipeline.usage.transforms.chargeback import billing_month, chargeback_daily, quantities, team_months
from pipeline.usage.transforms.deltas import dates_to_compute, deltas, samples, series_daily
from pipeline.usage.transforms.hourly import throttling_hourly, usage_hourly
from pipeline.usage.transforms.members import members
from pipeline.usage.transforms.neighbours import noisy_neighbours, shared_waiting, waiting_cost
from pipeline.usage.transforms.rates import pace, rates_quarterly
from pipeline.usage.transforms.recommendations import parts, quota_recommendations
from pipeline.usage.transforms.sidecars import lost_hours, sidecar_days, sidecars

T = TypeVar("T")
SHOWN: Final = 20
"""Lines printed of one kind of warning; the rest is in its table."""


@dataclass(frozen=True, slots=True)
class Deltas:
    """usage_deltas and throttle_deltas that the steps of a run need, read once. limits: `members.IN_FORCE`.

    first: of the days that quotas are recommended from. Of the dates with new records, computed once: usage_samples,
    `rates.pace` and `members`.
    """

    usage: DataFrame
    throttled: DataFrame
    limits: DataFrame | None
    first: date
    sampled: DataFrame
    paces: DataFrame
    members: DataFrame


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
    fresh = changed["records"]
    touched: set[date] = set()
    if fresh:
        each = [partial(compute_deltas, fenced, kind, fresh) for kind in KINDS]
        touched = set().union(*at_once(each))
    # A zone's day overlaps two dates of UTC.
    priced = _around(touched | set(changed["storage_snapshots"]))
    counted = touched | set(changed["broker_topic_hourly"]) | _around(changed["storage_snapshots"])
    deltas = _kept(fenced, rules, priced | counted, fresh)
    steps = _from_deltas(fenced, sorted(touched), fresh, rules, deltas) if touched else {}
    steps["chargeback_daily"] = partial(charge, fenced, rules, sorted(priced), deltas)
    last: dict[str, Callable[[], None]] = {"bypass_check": partial(_check_bypass, fenced, sorted(counted))}
    if touched:
        last["quota_recommendations"] = partial(_recommend, fenced, rules, deltas)
    done = [
        is_done
        for each in (steps, last)
        for is_done in at_once([partial(attempt, fenced, *step) for step in each.items()])
    ]
    computed = sorted(touched.union(*changed.values()))
    # Else what was read is not noted: the next report computes these dates again, with the table that failed.
    if all(done):
        runs.note(fenced, found, computed, since, rules.fingerprint)
    return computed


def at_once(steps: Sequence[Callable[[], T]]) -> list[T]:
    """Run steps that do not depend on each other: while one plans or commits, tasks of another use the cores."""
    with ThreadPoolExecutor(max(1, len(steps))) as pool:
        return [future.result() for future in [pool.submit(step) for step in steps]]


def compute_deltas(warehouse: Warehouse, kind: RecordKind, fresh: Sequence[date]) -> set[date]:
    """Samples, series_daily and deltas of the dates with new records, and of dates whose deltas start in one of them.

    Returns the dates that usage is attributed to. Records are never removed, and one more of them only adds to these
    dates, so they contain those of the run before.
    """
    sampled, daily, computed = (f"{kind.name}_{name}" for name in ("samples", "series_daily", "deltas"))
    _replace(warehouse, sampled, warehouse.read_dates("records", fresh), lambda rows: samples(rows, kind), fresh)
    warehouse.replace_dates(daily, series_daily(warehouse.read_dates(sampled, fresh), kind), fresh)
    later = warehouse.read(daily).where(f.col("date") >= min(fresh))
    found = dates_to_compute(later, kind, fresh).collect()  # one row for each date
    dates = sorted({*fresh, *(row["date"] for row in found)})
    known = _known(warehouse, kind, dates, min((row["start_time_ms"] for row in found), default=2**63))
    rows = warehouse.read_dates(sampled, dates)
    _replace(warehouse, computed, rows, lambda rows: deltas(rows, known, kind), dates, column="source_date")
    attributed = warehouse.read_dates(computed, dates, "source_date").select(f.to_date("time").alias("date")).distinct()
    return {row["date"] for row in attributed.collect()}  # one row for each date


def _replace(
    warehouse: Warehouse,
    name: str,
    rows: DataFrame,
    make: Callable[[DataFrame], DataFrame],
    dates: Sequence[date],
    *,
    column: str = "date",
    keys: Sequence[str] = CLIENT,
) -> None:
    """Put what `make` makes of the rows in place of the dates of a table, without the clients that it fails for."""
    isolate(warehouse, name, rows, lambda kept: warehouse.replace_dates(name, make(kept), dates, column), keys)


def _known(warehouse: Warehouse, kind: RecordKind, dates: Sequence[date], oldest_ms: int) -> DataFrame:
    """series_daily of other dates before the last of these: LOOKBACK_DAYS of it, or all of it if a series may have been
    quiet for longer. oldest_ms: when the first series of these dates began.
    """
    daily, is_one = warehouse.read(f"{kind.name}_series_daily"), f.col("date").isin(list(dates))
    others = daily.where((f.col("date") <= max(dates)) & ~is_one)
    first = min(dates) - timedelta(days=LOOKBACK_DAYS)
    recent = others.where(f.col("date") >= first)
    first_ms = int(datetime.combine(first, datetime.min.time(), UTC).timestamp() * 1000)
    if oldest_ms >= first_ms:
        return recent
    old = daily.where(is_one & (f.col("start_time_ms") < first_ms))
    earlier = recent.where(f.col("date") < min(dates))
    # Joined null-safe: a topic may be null.
    same = [old[name].eqNullSafe(earlier[name]) for name in kind.series]
    return recent if old.join(earlier, same, "left_anti").isEmpty() else others


def _kept(warehouse: Warehouse, rules: Rules, days: Iterable[date], fresh: Sequence[date]) -> Deltas:
    """Deltas of the months of these days, and of the newest weeks, for recommendations. fresh: with new records."""
    found = warehouse.read("rates_quarterly").agg(f.max("date")).first()[0]
    newest = max([*(fresh or days), *([found] if found else [])])
    first = newest - timedelta(days=rules.recommend_days - 1)
    # An invoice is shared out by all days of its month.
    start, last = min(days).replace(day=1), max(days) + timedelta(days=31)
    around = f.col("source_date").between(start - timedelta(LOOKBACK_DAYS), last + timedelta(LOOKBACK_DAYS + 1))
    is_kept = around | (f.col("source_date") >= first)
    usage, throttled = (computed_once(warehouse.read(f"{kind.name}_deltas").where(is_kept)) for kind in KINDS)
    limits = in_force(usage, rules.quotas) if rules.quotas else None
    sampled, ended = warehouse.read_dates("usage_samples", fresh), f.col("source_date")
    # Limits are those of throttle records of the last weeks, too.
    before = f.lit(min(fresh, default=first) - timedelta(days=LOOKBACK_DAYS))
    recent = throttled.where(ended.between(before, f.lit(max(fresh, default=first))))
    known = computed_once(members(usage.where(ended.isin(list(fresh))), recent, limits))
    return Deltas(usage, throttled, limits, first, sampled, computed_once(pace(sampled)), known)


def _attributed_to(rows: DataFrame, dates: Sequence[date]) -> DataFrame:
    """Deltas of these dates. A delta ends at most LOOKBACK_DAYS after the time it is attributed to."""
    last = max(dates) + timedelta(days=LOOKBACK_DAYS + 1)
    return rows.where(f.col("source_date").between(min(dates), last) & f.to_date("time").isin(list(dates)))


def _from_deltas(
    warehouse: Warehouse, dates: Sequence[date], fresh: Sequence[date], rules: Rules, deltas: Deltas
) -> dict[str, Callable[[], None]]:
    """The steps that need no other table than samples, deltas and records, by name."""
    team = team_of(rules.owners)
    usage, throttled = (_attributed_to(each, dates) for each in (deltas.usage, deltas.throttled))
    held = warehouse.read_dates("throttle_samples", fresh)

    def write_waiting(rows: DataFrame) -> None:
        waiting = shared_waiting(deltas.sampled, rows, deltas.paces, deltas.members, team).localCheckpoint()
        warehouse.replace_dates("noisy_neighbours", noisy_neighbours(waiting), fresh)
        warehouse.replace_dates("waiting_cost", waiting_cost(waiting, rules.prices), fresh)

    def write_rates(rows: DataFrame) -> None:
        warehouse.replace_dates("rates_quarterly", rates_quarterly(rows, deltas.paces, deltas.members), fresh)

    def hourly(name: str, rows: DataFrame, make: Callable[[DataFrame, Column], DataFrame]) -> Callable[[], None]:
        return partial(_replace, warehouse, name, rows, lambda kept: make(kept, team), dates)

    return {
        "usage_hourly": hourly("usage_hourly", usage, usage_hourly),
        "throttling_hourly": hourly("throttling_hourly", throttled, throttling_hourly),
        "noisy_neighbours": partial(isolate, warehouse, "noisy_neighbours", held, write_waiting),
        "rates_quarterly": partial(isolate, warehouse, "rates_quarterly", deltas.sampled, write_rates),
        "sidecars": partial(_note_sidecars, warehouse, fresh, deltas.usage, deltas.paces),
    }


def _note_sidecars(warehouse: Warehouse, fresh: Sequence[date], usage: DataFrame, paces: DataFrame) -> None:
    usage = usage.where(f.col("source_date").isin(list(fresh)))
    records = warehouse.read_dates("records", fresh)
    _replace(warehouse, "sidecar_days", records, lambda rows: sidecar_days(rows, usage, paces), fresh)
    runs_of, name = warehouse.read("sidecar_days"), "sidecars"
    isolate(warehouse, name, runs_of, lambda rows: warehouse.replace(name, sidecars(rows)), ("sidecar",))


def _check_bypass(warehouse: Warehouse, dates: Sequence[date]) -> None:
    offsets = from_offsets(warehouse.read_dates("storage_snapshots", _around(dates))).where(f.col("date").isin(dates))
    brokers = warehouse.read_dates("broker_topic_hourly", dates).unionByName(offsets)
    if not brokers.isEmpty():
        lost = lost_hours(warehouse.read("sidecar_days"), warehouse.read("sidecars"))
        seen = warehouse.read_dates("usage_hourly", dates)
        _replace(
            warehouse, "bypass_check", brokers, lambda rows: bypass_check(seen, rows, lost), dates, keys=("topic",)
        )


def charge(warehouse: Warehouse, rules: Rules, days: Sequence[date], deltas: Deltas) -> None:
    """chargeback_daily of these days; days of closed periods get corrections only, for about a year."""
    closed = closing.closed_periods(warehouse)
    if rules.prices is not None:
        # Cents are dealt over a month, and an invoice over its days, which are of one month.
        wanted = set(days)
        for invoice in rules.prices.invoices:
            if any(invoice.first.replace(day=1) == day.replace(day=1) for day in days):
                wanted |= {invoice.first + timedelta(days=n) for n in range((invoice.until - invoice.first).days)}
        still_open = sorted(day for day in wanted if not any(each.contains(day) for each in closed))
        if still_open:
            _charge_open(warehouse, rules, rules.prices, still_open, deltas.usage)
    # Deltas of older months are deleted, day by day: that is no refund.
    kept = deltas.first + timedelta(days=rules.recommend_days + 31 - KEPT_DAYS)
    for period in closed:
        if period.first_day >= kept and any(period.contains(day) for day in days):
            closing.correct(warehouse, period)
    if rules.prices is not None and days:
        first = min(days).replace(day=1)
        before = (first - timedelta(days=1)).replace(day=1)
        found = team_months(warehouse.read("chargeback_daily").where(billing_month() >= f.lit(before)), rules.prices)
        condition = f"month >= date'{first}'"
        warehouse.replace_where("team_months", found.where(condition), condition)


def _charge_open(warehouse: Warehouse, rules: Rules, prices: PriceList, days: Sequence[date], usage: DataFrame) -> None:
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
        measured = measured.localCheckpoint()
        charges = chargeback_daily(measured, prices, others).where(condition)
        warehouse.replace_where("chargeback_daily", charges, condition)

    isolate(warehouse, "chargeback_daily", _attributed_to(usage, around), write)


def _around(days: Iterable[date]) -> set[date]:
    return {day + timedelta(days=shift) for day in days for shift in (-1, 0, 1)}


def _recommend(warehouse: Warehouse, rules: Rules, deltas: Deltas) -> None:
    """From the newest days of all usage, also where a run computes old days only."""
    usage, throttled = (each.where(f.col("source_date") >= deltas.first) for each in (deltas.usage, deltas.throttled))
    of_clients = parts(usage, members(usage, throttled, deltas.limits), team_of(rules.owners))

    def write(rows: DataFrame) -> None:
        warehouse.replace("quota_recommendations", quota_recommendations(rows, throttled, of_clients, deltas.limits))

    rates = warehouse.read("rates_quarterly").where(f.col("date") >= deltas.first).localCheckpoint()
    isolate(warehouse, "quota_recommendations", rates, write, ENTITY)


def warnings(warehouse: Warehouse, dates: Sequence[date]) -> list[str]:
    """What is missing in the data of these dates, or was found so since the first of them, one line each."""
    first, end = min(dates), max(dates) + timedelta(days=1)
    lines = []
    seen = warehouse.read("sidecars").where(f"last_record >= timestamp'{first}' and first_record < timestamp'{end}'")
    lossy = seen.where(f"ended_cleanly = false or last_gap >= date'{first}'").orderBy("sidecar", "first_record")
    for row in lossy.collect():
        count = row["missing_records"]
        missing = f"{count:,} {'record is' if count == 1 else 'records are'} missing" if count else ""
        lost = (
            f"it ended without a final record at {row['last_record']:%Y-%m-%d %H:%M} UTC ({row['state']}), about "
            f"{row['estimated_missing_bytes']:,} bytes are missing"
            if row["ended_cleanly"] is False
            else ""
        )
        lines.append(f"sidecar {row['sidecar']}, run {row['incarnation']}: {'; '.join(filter(None, (missing, lost)))}")
    holes = warehouse.read("topic_holes").where(f.col("found_at") >= f.lit(first))
    of_holes = [
        f"usage topic, partition {row['kafka_partition']}: offsets {row['first_offset']} to {row['last_offset']} were "
        "deleted before ingest read them"
        for row in holes.orderBy("kafka_partition", "first_offset").limit(SHOWN + 1).collect()
    ]
    isolated = warehouse.read("isolated").where(f.col("at") >= f.lit(first))
    left_out = [
        f"{row['step']}: left out {_named(row.asDict()) or 'as a whole, until the next report'}: {row['reason']}"
        for row in isolated.orderBy("at").limit(SHOWN + 1).collect()
    ]
    return lines + _shown(of_holes, "topic_holes") + _shown(left_out, "isolated")


def _shown(lines: list[str], table: str) -> list[str]:
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"and more: see the table {table}"]


def over_budget(warehouse: Warehouse, dates: Sequence[date]) -> list[str]:
    """Teams of which the run rate of a month of these dates is above the budget, one line each."""
    months = {day.replace(day=1) for day in dates}
    over = warehouse.read("team_months").where(f.col("over_budget") & f.col("month").isin(sorted(months)))
    found = over.groupBy("month", "team", "run_rate", "budget", "currency").agg(f.sum("amount").alias("amount"))
    return [
        f"team {row['team']}: {row['amount']:,} {row['currency']} in {row['month']:%Y-%m}, {row['run_rate']:,} at this "
        f"rate; its budget is {row['budget']:,}"
        for row in found.orderBy("month", "team").collect()  # one row for each team
    ]


def _named(row: dict[str, Any]) -> str:
    shown = ("client_id", "user", "sidecar", "limit", "entity", "topic")
    return ", ".join(f"{name} {row[name]!r}" for name in shown if row[name] is not None)
