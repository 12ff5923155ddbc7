"""Closing a billing period: its charges stay as they were billed, and what arrives later becomes corrections.

A closed period notes the versions of the tables, the price list and the owners it was computed with. `recompute` gives
the same rows from these, bit by bit; `correct` writes the difference to what is known now.
"""

import calendar
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pipeline.usage import owners, price_list
from pipeline.usage.schemas import LOOKBACK_DAYS
from pipeline.usage.tables import Warehouse
from pipeline.usage.transforms.chargeback import chargeback_daily, corrections, quantities


class ClosingError(Exception):
    """A period cannot be closed, or one that is closed cannot be computed again."""


@dataclass(frozen=True, slots=True)
class ClosedPeriod:
    """One row of closed_periods, as Python values. The period's days are those from `first` to before `end`."""

    period: str
    first: date
    end: date
    usage_version: int
    storage_version: int
    price_list: str
    owners: str
    fingerprint: int

    def contains(self, day: date) -> bool:
        return self.first <= day < self.end


def month(text: str) -> tuple[date, date]:
    """ "2026-01" → its first day and the day after its last. Raises ClosingError."""
    try:
        first = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).date()
    except ValueError as error:
        raise ClosingError(f"{text!r} is no month such as 2026-01") from error
    return first, first + timedelta(days=calendar.monthrange(first.year, first.month)[1])


def closed_periods(warehouse: Warehouse) -> list[ClosedPeriod]:
    names = ["period", "first_day", "end_day", "usage_deltas_version", "storage_version", "price_list", "owners"]
    rows = warehouse.read("closed_periods").select(*names, "fingerprint").orderBy("period").collect()
    return [ClosedPeriod(*row) for row in rows]


def close(warehouse: Warehouse, period: str, prices: price_list.PriceList, owners_text: str) -> ClosedPeriod:
    """Close a month with the tables as they are. Run the report before. Raises ClosingError."""
    first, end = month(period)
    if any(each.period == period for each in closed_periods(warehouse)):
        raise ClosingError(f"{period} is closed already")
    made = ClosedPeriod(
        period,
        first,
        end,
        warehouse.version("usage_deltas"),
        warehouse.version("storage_snapshots"),
        prices.text,
        owners_text,
        0,
    )
    rows = recompute(warehouse, made)
    warehouse.replace_where(
        "chargeback_daily", rows, f"date >= date'{first}' and date < date'{end}' and closed_period is null"
    )
    row = rows.agg(f.sum("amount").alias("total"), f.count("*").alias("rows"), fingerprint()).select(
        f.lit(period).alias("period"),
        f.lit(first).alias("first_day"),
        f.lit(end).alias("end_day"),
        f.lit(made.usage_version).alias("usage_deltas_version"),
        f.lit(made.storage_version).alias("storage_version"),
        f.lit(prices.text).alias("price_list"),
        f.lit(owners_text).alias("owners"),
        "total",
        "rows",
        "fingerprint",
        f.current_timestamp().alias("closed_at"),
    )
    warehouse.append("closed_periods", row)
    return next(each for each in closed_periods(warehouse) if each.period == period)


def recompute(warehouse: Warehouse, period: ClosedPeriod, *, as_of_now: bool = False) -> DataFrame:
    """chargeback_daily of a period from the versions that are pinned, or with as_of_now from the newest ones."""
    usage_version = None if as_of_now else period.usage_version
    storage_version = None if as_of_now else period.storage_version
    prices = price_list.parse(period.price_list)
    first, end = period.first - timedelta(days=1), period.end + timedelta(days=LOOKBACK_DAYS + 2)
    measured = quantities(
        warehouse.read("usage_deltas", usage_version).where(f.col("source_date").between(first, end)),
        warehouse.read("storage_snapshots", storage_version).where(f.col("date").between(first, end)),
        owners.team_of(owners.parse(period.owners)),
        prices.zone,
    )
    inside = (f.col("date") >= f.lit(period.first)) & (f.col("date") < f.lit(period.end))
    return chargeback_daily(measured.where(inside), prices).where(inside)


def correct(warehouse: Warehouse, period: ClosedPeriod) -> None:
    """Write what arrived since the period was closed as rows of class Correction, in place of earlier ones."""
    rows = corrections(recompute(warehouse, period), recompute(warehouse, period, as_of_now=True), period.period)
    warehouse.replace_where(
        "chargeback_daily",
        rows,
        f"date >= date'{period.first}' and date < date'{period.end}' and closed_period = '{period.period}'",
    )


def fingerprint() -> Column:
    """A hash over all rows, whatever their order."""
    columns = ("date", "team", "user", "client_id", "topic", "axis", "quantity", "cost", "amount", "source")
    return f.bit_xor(f.xxhash64(*columns)).alias("fingerprint")
