"""Money: costs are decimals, cents add up, invoices are reached to the cent, FOCUS 1.2 is met."""

import csv
import json
import re
from collections import defaultdict
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from demo.fleet import EXAMPLE_PRICES
from pipeline.failures import InputError
from pipeline.usage import price_list
from pipeline.usage.jobs.export import _write
from pipeline.usage.transforms.chargeback import chargeback_daily, corrections, folded, quantities, team_months
from pipeline.usage.transforms.focus import focus
from tests.pipeline.usage.focus_columns import MANDATORY

SPARK = settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
MEASURED = "date date, team string, user string, client_id string, topic string, axis string, quantity decimal(18,0)"
INVOICE = """
[[invoice]]
id = "INV-1"
axis = "network_in"
total = "1000.01"
fixed = "100.00"
from = 2026-01-01
until = 2026-02-01
"""
EUR = 'currency = "EUR"\n'
PRICE = f'{EUR}[[price]]\naxis = "requests"\namount = "1"\nper = "request"\nfrom = 2020-01-01\n'
BUDGET = '[[budget]]\nteam = "a"\namount = "1"\n'


def measured(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    """rows: (day of January, team, client id, topic, axis, quantity)."""
    columns = MEASURED.replace("date date", "day int").replace("decimal(18,0)", "bigint").replace("user string, ", "")
    frame = spark.createDataFrame(rows, columns).withColumn("date", f.make_date(f.lit(2026), f.lit(1), "day"))
    frame = frame.withColumns({"user": f.lit("u"), "quantity": f.col("quantity").cast("decimal(18,0)")})
    frame = frame.withColumns({"labels": f.lit('{"app":"a"}'), "cluster": f.lit("")})
    return frame.select("date", "team", "user", "client_id", "topic", "labels", "cluster", "axis", "quantity")


ROW = st.tuples(
    st.integers(1, 31),
    st.sampled_from(["a", "b", "unallocated"]),
    st.sampled_from(["c1", "c2", "c3"]),
    st.sampled_from(["t1", None]),
    st.sampled_from(["network_in", "network_in", "network_out", "requests", "storage"]),
    st.one_of(st.integers(1, 10**6), st.integers(1, 10**15)),
)


@pytest.mark.timeout(300)
@SPARK
@given(rows=st.lists(ROW, min_size=1, max_size=60, unique_by=lambda row: row[:5]))
def test_amounts_add_up_to_the_cent_and_quantities_to_the_byte(spark: SparkSession, rows: list[Any]) -> None:
    found = chargeback_daily(measured(spark, rows), price_list.parse(EXAMPLE_PRICES + INVOICE)).collect()
    invoice = [row["amount"] for row in found if row["source"] == "invoice INV-1"]
    assert sum(invoice) == Decimal("1000.01")
    assert min(invoice) >= 0
    for axis in {row[4] for row in rows}:
        priced = [row for row in found if (row["source"], row["axis"]) == ("price", axis)]
        assert abs(sum(row["amount"] - row["cost"] for row in priced)) <= Decimal("0.005"), axis
        kept = sum(row["quantity"] for row in found if row["axis"] == axis)
        assert kept == sum(row[5] for row in rows if row[4] == axis)


def test_no_task_has_all_rows_of_an_axis(spark: SparkSession) -> None:
    """Rows meet the sums of their day and axis by broadcast, whatever Spark guesses of sizes."""
    unsure = spark.newSession()
    unsure.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    unsure.conf.set("spark.sql.optimizer.disableHints", "false")  # as in a report of many rows
    rows = measured(unsure, [(1, "a", "c", None, "network_in", 10**9)])
    found = chargeback_daily(rows, price_list.parse(EXAMPLE_PRICES + INVOICE))
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert "BroadcastHashJoin" in plan
    assert "SortMergeJoin" not in plan


def test_a_team_pays_its_exact_share_of_a_month(spark: SparkSession) -> None:
    """Eight days of 0.0045 EUR each for ten teams: 0.036 a team. By day, cents were off by up to 4."""
    rows = [(day, f"t{n}", "c", None, "network_in", 50_000_000) for day in range(1, 9) for n in range(10)]
    prices = price_list.parse(EXAMPLE_PRICES)
    found = chargeback_daily(measured(spark, rows), prices).groupBy("team").agg(f.sum("amount").alias("amount"))
    assert {str(row["amount"]) for row in found.collect()} <= {"0.03", "0.04"}
    # New usage of one day deals the cents of all days of its month again.
    others = chargeback_daily(measured(spark, rows[10:]), prices)
    again = chargeback_daily(measured(spark, rows[:10]), prices, others)
    at_once = chargeback_daily(measured(spark, rows), prices)
    dealt = [sorted(each.select("date", "team", "amount").collect()) for each in (again, at_once)]
    assert dealt[0] == dealt[1]


def test_a_cost_is_exact_where_a_double_is_not(spark: SparkSession) -> None:
    rows = measured(spark, [(1, "a", "c", None, "network_in", 12_345_678_901_234_567)])
    prices = price_list.parse(f'{EUR}[[price]]\naxis = "network_in"\namount = "0.1"\nper = "B"\nfrom = 2026-01-01')
    assert chargeback_daily(rows, prices).first()["cost"] == Decimal("1234567890123456.7")


def test_the_largest_price_is_charged(spark: SparkSession) -> None:
    """In some currencies a terabyte costs millions."""
    text = 'currency = "IDR"\n[[price]]\naxis = "network_in"\namount = "99999999.999999"\nper = "TB"\nfrom = 2026-01-01'
    prices = price_list.parse(text)
    charges = chargeback_daily(measured(spark, [(1, "a", "c", None, "network_in", 10**13)]), prices)
    (row,) = focus(charges, prices).collect()
    assert (row["ListCost"], row["ListUnitPrice"]) == (Decimal("999999999.99999"), Decimal("99999999.999999"))


def test_an_invoice_without_any_use_is_unallocated(spark: SparkSession) -> None:
    prices = price_list.parse(EUR + INVOICE)
    found = chargeback_daily(measured(spark, [(1, "a", "c", None, "requests", 5)]), prices)
    rows = found.where("source <> 'price'").collect()
    assert {row["team"] for row in rows} == {"unallocated"}
    assert sum(row["amount"] for row in rows) == Decimal("1000.01")


def test_the_fixed_part_is_the_same_for_each_team(spark: SparkSession) -> None:
    rows = [(day, "a", "c", None, "network_in", 10**9) for day in range(1, 8)] + [(3, "b", "c", None, "network_in", 1)]
    found = chargeback_daily(measured(spark, rows), price_list.parse(EUR + INVOICE))
    fixed = found.where("axis = 'fixed'").groupBy("team").agg(f.sum("amount").alias("amount")).collect()
    assert {row["team"]: row["amount"] for row in fixed} == {"a": Decimal("50.00"), "b": Decimal("50.00")}


@pytest.mark.parametrize(("idle", "teams"), [("apart", {"a", "b", "idle"}), ("by use", {"a", "b"})])
def test_unused_capacity_is_shown_apart_and_paid_by_rule(spark: SparkSession, idle: str, teams: set[str]) -> None:
    """25 of 100 GB were used: a quarter of 900.01 EUR is use, the rest is idle."""
    invoice = INVOICE + f'capacity = "100"\nper = "GB"\nidle = "{idle}"\n'
    prices = price_list.parse(EUR + invoice)
    rows = [(2, "a", "c", None, "network_in", 20 * 10**9), (9, "b", "c", None, "network_in", 5 * 10**9)]
    found = chargeback_daily(measured(spark, rows), prices).where("source <> 'price' and axis <> 'fixed'").collect()
    summed: dict[str, Decimal] = defaultdict(Decimal)
    for row in found:
        summed[row["source"]] += row["amount"]
    assert summed == {"invoice INV-1": Decimal("225.00"), "invoice INV-1 idle": Decimal("675.01")}
    assert {row["team"] for row in found} == teams
    of_a = sum(row["amount"] for row in found if row["team"] == "a")
    assert of_a == (Decimal("180.00") if idle == "apart" else Decimal("720.01"))


CHARGE = "day string, cluster string, team string, axis string, source string, quantity bigint, amount string"
BILLED = "cast(null as string) charge_class", "cast(null as date) billed_month"
CHARGES = [
    ("2026-01-05", "east", "a", "network_in", "price", 40 * 10**9, "60.00"),
    ("2026-01-20", "east", "a", "network_out", "price", 10 * 10**9, "40.00"),
    ("2026-02-01", "east", "a", "network_in", "price", 30 * 10**9, "30.00"),
    ("2026-02-07", "west", "a", "requests", "price", 7, "12.00"),
    ("2026-02-03", "east", "a", "network_in", "invoice I", 0, "90.00"),
    ("2026-02-07", "east", "b", "network_in", "price", 10**9, "25.00"),
]


def test_a_team_is_compared_with_its_month_before_and_with_its_budget(spark: SparkSession) -> None:
    """On the 7th of 28 days, 42 EUR of prices become 168, and an invoice of 90 stays: 258. b comes to 100.

    January, without a charge after the 20th, is over: it comes to what it was.
    """
    more = ("date(day) date", "cast(amount as decimal(18,2)) amount_", "'EUR' currency")
    charges = spark.createDataFrame(CHARGES, CHARGE).selectExpr("*", *more, *BILLED)
    budgets = "".join(f'[[budget]]\nteam = "{t}"\namount = "{n}"\n' for t, n in (("a", "257.99"), ("b", "100.00")))
    prices = price_list.parse(EUR + budgets)
    rows = team_months(charges.drop("amount").withColumnRenamed("amount_", "amount"), prices).collect()
    found = {(str(row["month"])[:7], row["cluster"], row["team"]): row for row in rows}
    shown = ("amount", "cost_per_gb", "month_before", "run_rate", "over_budget")

    def expected(amount: str, per_gb: float | None, before: str | None, rate: str, is_over: bool) -> tuple[Any, ...]:
        return Decimal(amount), per_gb, None if before is None else Decimal(before), Decimal(rate), is_over

    assert {key: tuple(row[name] for name in shown) for key, row in found.items()} == {
        ("2026-01", "east", "a"): expected("100.00", 2.0, None, "100.00", False),
        ("2026-02", "east", "a"): expected("120.00", 4.0, "100.00", "258.00", True),
        ("2026-02", "west", "a"): expected("12.00", None, None, "258.00", True),
        ("2026-02", "east", "b"): expected("25.00", 25.0, None, "100.00", False),
    }


def test_rows_of_no_cents_are_one_row(spark: SparkSession) -> None:
    """Two clients of 0.001 EUR each and one of 9 EUR: nothing is lost but the names of the small ones."""
    sizes = {"c0": 11_111_111, "c1": 11_111_111, "big": 10**11}
    rows = [(1, "a", name, "t", "network_in", size) for name, size in sizes.items()]
    charges = chargeback_daily(measured(spark, rows), price_list.parse(EXAMPLE_PRICES))
    found = {row["client_id"]: row for row in folded(charges).collect()}
    assert {name: (row["amount"], row["quantity"]) for name, row in found.items()} == {
        "big": (Decimal("9.00"), 10**11),
        None: (Decimal("0.00"), 22_222_222),
    }
    assert (found[None]["topic"], found["big"]["topic"]) == (None, "t")


@pytest.mark.nightly
def test_corrections_are_what_changed(spark: SparkSession) -> None:
    prices = price_list.parse(EXAMPLE_PRICES)
    before = [(1, "a", "c", "t", "network_in", 10**9), (1, "b", "c", "t", "network_in", 10**9)]
    frozen = chargeback_daily(measured(spark, before), prices)
    now = chargeback_daily(measured(spark, [(1, "a", "c", "t", "network_in", 3 * 10**9), before[1]]), prices)
    (row,) = corrections(frozen, now, "2026-01", date(2026, 3, 1)).collect()
    assert (row["team"], row["amount"], row["quantity"]) == ("a", Decimal("0.18"), 2 * 10**9)
    assert (row["charge_class"], row["closed_period"]) == ("Correction", "2026-01")
    assert row["billed_month"] == date(2026, 3, 1)
    assert corrections(frozen, frozen, "2026-01", date(2026, 3, 1)).count() == 0


def produced(spark: SparkSession, sizes: dict[str, int]) -> DataFrame:
    """Deltas of one client: bytes by the time in UTC."""
    deltas = spark.createDataFrame(list(sizes.items()), "at string, bytes bigint")
    return deltas.selectExpr(
        "timestamp(at) as time", "'u' as user", "'c' as client_id", "'t' as topic", "'{}' as labels",
        "cast(null as boolean) as has_total", "'produce' as direction", "bytes", "0L as requests",
    )  # fmt: skip


def test_a_day_is_one_of_the_zone_even_of_half_an_hour(spark: SparkSession) -> None:
    """In India, UTC+5:30, 18:30 UTC is midnight."""
    usage = produced(spark, {"2026-01-05 18:15:00": 1, "2026-01-05 18:30:00": 2})
    columns = "current_timestamp() as time, '' as cluster, 't' as topic, 1L as partitions, 1L as size_bytes"
    storage = spark.sql(f"select {columns}").limit(0)
    found = quantities(usage, storage, f.lit("a"), "Asia/Kolkata").collect()
    assert {(str(row["date"]), int(row["quantity"])) for row in found} == {("2026-01-05", 1), ("2026-01-06", 2)}


def test_a_day_of_storage_has_as_many_hours_as_its_zone_gives_it(spark: SparkSession) -> None:
    """Berlin's clocks go forward on 2026-03-29 and back on 2026-10-25."""
    days = ("2026-03-28", "2026-03-29", "2026-10-25")
    columns = "at string, topic string, partitions bigint, size_bytes bigint"
    storage = spark.createDataFrame([(f"{day} 12:00:00", "t", 1, 1_000) for day in days], columns)
    storage = storage.withColumns({"time": f.to_timestamp("at"), "cluster": f.lit("")})
    found = quantities(produced(spark, {}), storage, f.lit("a"), "Europe/Berlin")
    rows = {(str(row["date"]), row["axis"]): int(row["quantity"]) for row in found.collect()}
    assert [rows[day, "partitions"] for day in days] == [24, 23, 25]
    assert [rows[day, "storage"] for day in days] == [24_000, 23_000, 25_000]


def test_a_topic_that_changes_its_owner_is_charged_once_a_day(spark: SparkSession) -> None:
    """In Berlin the 1st of March begins at 23:00 UTC; rules change at midnight of UTC."""
    storage = spark.sql(
        "select at as time, '' as cluster, 't' as topic, 1L as partitions, 0L as size_bytes from values "
        "(timestamp'2026-02-28 23:30:00'), (timestamp'2026-03-01 08:00:00') as t(at)"
    )
    team = f.when(f.to_date("time") < "2026-03-01", "old").otherwise("new")
    rows = quantities(produced(spark, {}), storage, team, "Europe/Berlin").collect()
    assert [(str(row["date"]), row["team"], int(row["quantity"])) for row in rows] == [("2026-03-01", "new", 24)]


def test_no_client_id_adds_columns_to_a_csv(spark: SparkSession, tmp_path: Path) -> None:
    """Of those who invent their names: other tools read quotes by RFC 4180."""
    names = ['x",0,"', 'y\\",0', "z\\", 'a"b', "c,d"]
    rows = spark.createDataFrame([(name, [name]) for name in names], "client_id string, topics array<string>")
    _write(rows, str(tmp_path), "t", "csv")
    found = []
    for file in (tmp_path / "t.csv").glob("*.csv"):
        with file.open(encoding="utf-8", newline="") as lines:
            found += [(row["client_id"], *json.loads(row["topics"])) for row in csv.DictReader(lines)]
    assert sorted(found) == sorted((name, name) for name in names)


def test_the_export_has_every_mandatory_column_of_focus_1_2(spark: SparkSession) -> None:
    prices = price_list.parse(EXAMPLE_PRICES + INVOICE)
    rows = [(1, "a", "c", "t", "network_in", 10**9), (2, "unallocated", "d", None, "requests", 7)]
    found = focus(chargeback_daily(measured(spark, rows), prices), prices)
    types = {field.name: field.dataType.typeName() for field in found.schema}
    exported = found.collect()
    assert exported
    for column in MANDATORY:
        assert types[column.name] == ("decimal" if column.kind == "Decimal" else "string"), column
        values = [row[column.name] for row in exported]
        assert column.nullable or None not in values, column
        if column.kind == "Date/Time":
            assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", value) for value in values), column
        if column.values:
            assert {value for value in values if value is not None} <= set(column.values), column
    # FOCUS: usage has a priced quantity; what has none is no usage.
    for row in exported:
        assert (row["ChargeCategory"] == "Usage") == (row["PricingQuantity"] is not None), row
        assert (row["PricingUnit"] is None) == (row["PricingQuantity"] is None), row
        # A list cost is the list price times the quantity; what is billed is rounded to cents.
        if row["PricingQuantity"] is not None:
            assert abs(row["ListUnitPrice"] * row["PricingQuantity"] - row["ListCost"]) < Decimal("1e-9"), row
            assert (row["PricingCategory"], row["SkuId"]) == ("Standard", f"kafka/{row['x_Axis']}"), row
    assert {row["Tags"] for row in exported if row["x_ClientId"]} == {'{"app":"a"}'}
    billed = next(row for row in exported if row["x_Axis"] == "network_in" and row["PricingQuantity"])
    assert (billed["PricingUnit"], billed["PricingQuantity"], billed["ListUnitPrice"]) == ("GB", 1, Decimal("0.09"))
    assert billed["SkuPriceId"] == "network_in/GB/2020-01-01"
    assert all(name.startswith("x_") or name[0].isupper() for name in types)
    assert {column.name for column in MANDATORY} <= set(types)
    first = next(row for row in exported if row["x_Axis"] == "network_in" and row["x_Source"] == "price")
    # Midnight in Berlin, in winter.
    assert (first["ChargePeriodStart"], first["ChargePeriodEnd"]) == ("2025-12-31T23:00:00Z", "2026-01-01T23:00:00Z")
    assert (first["BillingPeriodStart"], first["BillingPeriodEnd"]) == ("2025-12-31T23:00:00Z", "2026-01-31T23:00:00Z")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('currency = "euro"', "currency: three capital letters"),
        (EUR + 'zone = "Mars"', "zone: there is no time zone 'Mars'"),
        (EUR + "colour = 1", "colour: unknown key"),
        (EUR + '[[price]]\naxis = "air"', "price[0].axis: 'air' is none"),
        (EXAMPLE_PRICES.replace('"0.09"', "0.09"), "price[0].amount: write the amount in quotes"),
        (EXAMPLE_PRICES.replace('"0.09"', '"0.0000001"'), "price[0].amount: '0.0000001' has more than 6"),
        (EXAMPLE_PRICES.replace('"0.09"', '"100000000"'), "price[0].amount: '100000000' is negative or too large"),
        (EXAMPLE_PRICES.replace('"GB"', '"stone"'), "price[0].per: 'stone' is no unit"),
        (EUR + INVOICE.replace("02-01", "02-02"), "invoice[0]: from 2026-01-01 until 2026-02-02 is more"),
        (EUR + INVOICE.replace("until", "#"), "invoice[0]: from 2026-01-01 until 9999-01-01 is more"),
        (EUR + INVOICE + 'capacity = "1"', "invoice[0].per: None is no unit of network_in"),
        (EUR + INVOICE + 'idle = "lost"', "invoice[0].idle: 'lost' is none; allowed: apart, by use"),
        (EUR + '[[budget]]\nteam = "a"', "budget[0].amount: write the amount in quotes"),
        (EXAMPLE_PRICES + EXAMPLE_PRICES.split("\n\n", 1)[1], "price: network_in has two prices"),
        (EUR + INVOICE.replace('"100.00"', '"2000"'), "invoice[0].fixed: 2000 is more"),
        (EXAMPLE_PRICES.replace("[[price]]", "[price]", 1).split("[[price]]")[0], "price: write [[price]], with two"),
        (EUR + 'price = "0.09"', "price: write [[price]], with two"),
        (EUR + "budget = [1]", "budget: write [[budget]], with two"),
        (EUR + "provider = 7", "provider: expected text in quotes"),
        (EUR + 'zone = ["UTC"]', "zone: expected text in quotes"),
        (EXAMPLE_PRICES.replace("from =", "form =", 1), "price[0].from: expected a day"),
        (PRICE + "untill = 2026-01-01", "price[0].untill: unknown key; did you mean 'until'? allowed:"),
        (PRICE + "until = 2019-01-01", "until: 2019-01-01 is not after 2020-01-01"),
        (PRICE + 'until = "2026-01-01"', "until: expected a day such as 2026-01-31, without quotes"),
        (PRICE + "until = 2026-01-01T00:00:00Z", "until: expected a day such as 2026-01-31, without quotes"),
        (EUR + INVOICE + 'per = "GB"', "invoice[0].capacity: write the amount in quotes"),
        (EUR + INVOICE + 'idel = "apart"', "invoice[0].idel: unknown key; did you mean 'idle'?"),
        (EUR + INVOICE * 2, "invoice: two invoices have the id 'INV-1'"),
        (EUR + BUDGET * 2, "budget[1].team: 'a' has another budget above"),
        (EUR + BUDGET + "amount_ = 1", "budget[0].amount_: unknown key; did you mean 'amount'?"),
        ("currency = EUR", "not TOML: "),
    ],
)
def test_a_wrong_price_list_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        price_list.parse(text)
    assert message in str(raised.value)
