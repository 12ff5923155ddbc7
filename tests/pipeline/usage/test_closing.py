"""Closed months: what was billed never moves, and each correction is on exactly one invoice."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pyspark.sql import functions as f

from pipeline.failures import InputError
from pipeline.usage import price_list
from pipeline.usage.jobs import closing
from pipeline.usage.tables import Warehouse
from pipeline.usage.transforms.chargeback import team_months
from pipeline.usage.transforms.focus import focus

PRICES = price_list.parse(
    'currency = "EUR"\n[[price]]\naxis = "network_in"\namount = "0.09"\nper = "GB"\nfrom = 2020-01-01'
)
OWNERS = '[[owner]]\nteam = "a"\nclient-id = ".*"\n'
GB = 10**9


def produce(warehouse: Warehouse, gigabytes: int) -> None:
    """So many more gigabytes on 5 January 2026."""
    values = {
        "source_date": f.lit(date(2026, 1, 5)),
        "time": f.lit(datetime(2026, 1, 5, 12, tzinfo=UTC)),
        "labels": f.lit("{}"),
        "user": f.lit("u"),
        "client_id": f.lit("c"),
        "direction": f.lit("produce"),
        "bytes": f.lit(gigabytes * GB),
    }
    warehouse.append("usage_deltas", warehouse.row("usage_deltas", values))


def billed(warehouse: Warehouse) -> dict[date, Decimal]:
    """The amount of each month's invoice."""
    months = team_months(warehouse.read("chargeback_daily"), PRICES)
    return {row["month"]: row["amount"] for row in months.collect()}


def test_late_data_is_billed_with_the_next_open_month_and_then_stays(warehouse: Warehouse) -> None:
    produce(warehouse, 1)
    january = closing.close(warehouse, "2026-01", PRICES, OWNERS)
    produce(warehouse, 2)
    for _ in range(2):  # a repeated report changes nothing
        closing.correct(warehouse, january)
        assert billed(warehouse) == {date(2026, 1, 1): Decimal("0.09"), date(2026, 2, 1): Decimal("0.18")}

    closing.close(warehouse, "2026-02", PRICES, OWNERS)
    totals = warehouse.read("closed_periods").select("period", "total").collect()
    assert {row["period"]: row["total"] for row in totals} == {"2026-01": Decimal("0.09"), "2026-02": Decimal("0.18")}
    produce(warehouse, 1)
    closing.correct(warehouse, january)
    months = {date(2026, 1, 1): Decimal("0.09"), date(2026, 2, 1): Decimal("0.18"), date(2026, 3, 1): Decimal("0.09")}
    assert billed(warehouse) == months

    exported = focus(warehouse.read("chargeback_daily"), PRICES).orderBy("BillingPeriodStart").collect()
    assert [(row["BillingPeriodStart"][:10], row["ChargePeriodStart"][:10]) for row in exported] == [
        ("2026-01-01", "2026-01-05"),
        ("2026-02-01", "2026-01-05"),
        ("2026-03-01", "2026-01-05"),
    ]


def test_a_month_that_is_not_over_cannot_be_closed(warehouse: Warehouse) -> None:
    today = datetime.now(UTC).date()
    with pytest.raises(InputError, match=f"{today:%Y-%m} is not over until "):
        closing.close(warehouse, f"{today:%Y-%m}", PRICES, OWNERS)
    assert not warehouse.exists("closed_periods")
