"""Closing a billing period: its charges stay as they were billed, and what arrives later becomes corrections.

A closed period notes the price list and the owners it was computed with. Its rows of chargeback_daily are not written
any more; `correct` writes what is known now, minus what has been billed, as charges of the next month that is still
open. When that month is closed, these corrections are billed too, and stay.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.failures import InputError
from pipeline.usage import owners, price_list
from pipeline.usage.schemas import LOOKBACK_DAYS
from pipeline.usage.tables import Warehouse
from pipeline.usage.transforms.chargeback import billing_month, chargeback_daily, corrections, quantities


@dataclass(frozen=True, slots=True)
class ClosedPeriod:
    """One row of closed_periods, as Python values. The period's days are those from first_day to before end_day."""

    period: str
    first_day: date
    end_day: date
    price_list: str
    owners: str

    def contains(self, day: date) -> bool:
        return self.first_day <= day < self.end_day


def month(text: str) -> tuple[date, date]:
    """ "2026-01" → its first day and the day after its last. Raises InputError."""
    try:
        first = date.fromisoformat(f"{text}-01")
    except ValueError as error:
        raise InputError(f"{text!r} is no month such as 2026-01") from error
    return first, (first + timedelta(days=31)).replace(day=1)


def closed_periods(warehouse: Warehouse) -> list[ClosedPeriod]:
    rows = warehouse.read("closed_periods").select("period", "first_day", "end_day", "price_list", "owners")
    return [ClosedPeriod(*row) for row in rows.orderBy("period").collect()]


def is_open(warehouse: Warehouse) -> str:
    """The SQL condition for dates of no closed month."""
    return " and ".join(["true", *(f"not ({_days(period)})" for period in closed_periods(warehouse))])


def close(warehouse: Warehouse, period: str, prices: price_list.PriceList, owners_text: str) -> ClosedPeriod:
    """Close a month with the tables as they are. Run the report before. Raises InputError."""
    first, end = month(period)
    today = datetime.now(ZoneInfo(prices.zone)).date()
    if end > today:
        raise InputError(f"{period} is not over until {end} ({prices.zone}, where it is {today}): close it then")
    if any(each.period == period for each in closed_periods(warehouse)):
        raise InputError(f"{period} is closed already")
    made = ClosedPeriod(period, first, end, prices.text, owners_text)
    warehouse.replace_where("chargeback_daily", _charges(warehouse, made), f"{_days(made)} and closed_period is null")
    billed = warehouse.read("chargeback_daily").where(billing_month() == f.lit(first))
    closed = billed.agg(f.sum("amount").alias("total"), f.count("*").alias("rows"))
    row = {name: f.lit(value) for name, value in asdict(made).items()}
    warehouse.append("closed_periods", closed.withColumns(row | {"closed_at": f.current_timestamp()}))
    return made


def correct(warehouse: Warehouse, period: ClosedPeriod) -> None:
    """Write what arrived since the period was closed as rows of class Correction, in place of those not yet billed."""
    billed_month = _next_open(period, closed_periods(warehouse))
    # A correction without a month was written before corrections had one.
    is_open = f"closed_period = '{period.period}' and (billed_month is null or billed_month = date'{billed_month}')"
    billed = warehouse.read("chargeback_daily").where(_days(period)).where(f"not coalesce({is_open}, false)")
    rows = corrections(billed, _charges(warehouse, period), period.period, billed_month)
    warehouse.replace_where("chargeback_daily", rows, f"{_days(period)} and {is_open}")


def _next_open(period: ClosedPeriod, closed: Sequence[ClosedPeriod]) -> date:
    """The first day of the first month after the period that is not closed."""
    day, ends = period.end_day, {each.first_day: each.end_day for each in closed}
    while day in ends:
        day = ends[day]
    return day


def _charges(warehouse: Warehouse, period: ClosedPeriod) -> DataFrame:
    """chargeback_daily of a period by what is known now, with its own prices and owners."""
    prices = price_list.parse(period.price_list)
    first, end = period.first_day - timedelta(days=1), period.end_day + timedelta(days=LOOKBACK_DAYS + 2)
    measured = quantities(
        warehouse.read("usage_deltas").where(f.col("source_date").between(first, end)),
        warehouse.read("storage_snapshots").where(f.col("date").between(first, end)),
        owners.team_of(owners.parse(period.owners)),
        prices.zone,
    )
    return chargeback_daily(measured.where(_days(period)), prices).where(_days(period))


def _days(period: ClosedPeriod) -> str:
    return f"date >= date'{period.first_day}' and date < date'{period.end_day}'"
