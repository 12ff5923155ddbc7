"""Quantities to decimal costs, and costs to cents that add up to the whole.

Decimals from end to end. A row's cost has 10 places; what is billed has 2, by largest remainders in three steps: the
cents of a month and axis go to teams, a team's cents to days, a day's cents to its rows. So the month of a team is its
exact share to the cent, each sum of a month is the rounded sum of its costs, and an invoice's total is reached.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pipeline.usage.price_list import Invoice, Price, PriceList
from pipeline.usage.schemas import AMOUNT, COST, UNALLOCATED, UNIT_PRICE
from pipeline.usage.transforms.members import cluster
from pipeline.usage.transforms.sums import MOST, named, total
from pipeline.usage.transforms.topics import split_totals

ROW = ("team", "user", "client_id", "topic", "labels", "cluster")
FIXED = "fixed"
IDLE = "idle"
"""The team of capacity that was paid for and not used."""
CORRECTION = "Correction"
SIZE = "decimal(13,0)"
"""Of the unit of a price."""
_QUANTITY = "decimal(19,0)"
"""Up to `MOST`: sums are bounded."""
_MOST_COST = 9 * 10**15
"""Of one row: what no cluster costs in a day, with a price that is absurd."""


def quantities(usage: DataFrame, storage: DataFrame, team: Column, zone: str) -> DataFrame:
    """usage_deltas and storage_snapshots to one row for each date (of the zone), ROW and axis: quantity.

    Units: bytes, requests, byte-hours, partition-hours. A day of storage is the mean of its snapshots over the day's 23
    to 25 hours.
    """

    def by_axis(rows: DataFrame, amounts: dict[str, Column]) -> DataFrame:
        bounded = (_bounded(amount).alias(axis) for axis, amount in amounts.items())
        return rows.groupBy("date", *ROW).agg(*bounded).unpivot(["date", *ROW], [*amounts], "axis", "quantity")

    ways = {"network_in": "produce", "network_out": "fetch"}
    moved = {axis: f.when(f.col("direction") == way, f.col("bytes")) for axis, way in ways.items()}
    sums = {axis: f.sum(each.cast(_QUANTITY)) for axis, each in (moved | {"requests": f.col("requests")}).items()}
    used = by_axis(_by_day(usage, zone).withColumns({"team": team, "cluster": cluster()}), sums)
    nothing = f.lit(None).cast("string")
    stored = {"user": nothing, "client_id": nothing, "labels": f.lit("{}"), "date": _date(zone)}
    # The owner is the one at noon: a date of the zone has parts of two dates of UTC, and is charged once.
    noon = f.to_timestamp("date") + f.expr("interval 12 hours")
    means = {"storage": f.avg(f.col("size_bytes").cast("decimal(20,0)"))}
    means["partitions"] = f.avg(f.col("partitions").cast("decimal(20,0)"))
    held = {axis: f.round(mean * _hours("date", zone)) for axis, mean in means.items()}
    kept = by_axis(storage.withColumns(stored).withColumn("time", noon).withColumn("team", team), held)
    return used.unionByName(kept).where(f.col("quantity") > 0)


def chargeback_daily(measured: DataFrame, prices: PriceList, others: DataFrame | None = None) -> DataFrame:
    """`quantities` to chargeback_daily, by the price list's prices and invoices. Rows without a price cost nothing.

    others: chargeback_daily of the other days of the same months: their cents are dealt again with those of `measured`.
    """
    rows = _priced(measured, prices.prices)
    if others is not None:
        rows = rows.unionByName(others.where(f.col("source") == "price").select(rows.columns))
    # The cents of a month and axis: the rounded sum of its costs.
    group = ["month", "axis", "source"]
    rows = rows.withColumn("month", f.trunc("date", "month"))
    wholes = rows.groupBy(*group).agg(f.least(f.round(f.sum("cost"), 2), f.lit(_MOST_COST)).cast(AMOUNT).alias("whole"))
    # Few rows. A shuffle by these keys would put all rows of an axis and a month into one task.
    rows = in_cents(rows.join(f.broadcast(wholes), group), group).drop("month")
    for invoice in prices.invoices:
        rows = rows.unionByName(_shared_out(measured, invoice))
    of_corrections = {name: f.lit(None).cast("string") for name in ("charge_class", "closed_period")}
    of_corrections["billed_month"] = f.lit(None).cast("date")
    return rows.withColumns({"currency": f.lit(prices.currency), **of_corrections})


def in_cents(rows: DataFrame, group: Sequence[str]) -> DataFrame:
    """Add `amount`: each `whole` (the same in all rows of a group, with 2 places) shared out by largest remainders.

    The costs of a group add up to its whole, but for rounding. The cents go to its teams, then to their days, then to
    rows, so that no window holds more than the rows of one team and day. Ties go by name. Drops `whole`.
    """
    wholes = rows.select(*group, "whole").distinct()
    inner = [*group]
    for name in ("team", "date"):
        outer, inner = inner, [*inner, name]
        costs = rows.groupBy(*inner).agg(f.sum("cost").cast(COST).alias("cost"))
        dealt = _largest_remainders(costs.join(f.broadcast(wholes), outer), outer, [name])
        wholes = dealt.select(*inner, f.col("amount").alias("whole"))
    shared = rows.drop("whole").join(f.broadcast(wholes), inner)
    return _largest_remainders(shared, inner, [*ROW[1:]]).drop("whole")


def _largest_remainders(rows: DataFrame, group: list[str], ties: list[str]) -> DataFrame:
    window = Window.partitionBy(*group)
    down = f.floor(f.col("cost") * 100)
    missing = (f.col("whole") * 100).cast("bigint") - f.try_sum("down").over(window)
    rest = f.col("cost") * 100 - f.col("down")
    rank = f.row_number().over(window.orderBy(f.desc(rest), *(f.asc_nulls_first(each) for each in ties)))
    count = f.count("*").over(window)
    each = f.floor(f.col("missing") / f.col("rows")).cast("bigint")
    extra = each + (f.col("rank") <= f.col("missing") - each * f.col("rows")).cast("bigint")
    cents = (f.col("down") + extra).cast("decimal(18,0)")
    return (
        rows.withColumn("down", down.cast("bigint"))
        .withColumns({"missing": missing, "rank": rank, "rows": count})
        .withColumn("amount", (cents / 100).cast(AMOUNT))
        .drop("down", "missing", "rank", "rows")
    )


def billing_month() -> Column:
    """The month whose invoice a charge is on: that of its day, except for a correction of a closed month."""
    return f.coalesce("billed_month", f.trunc("date", "month"))


def corrections(frozen: DataFrame, now: DataFrame, period: str, billed_month: date) -> DataFrame:
    """Rows of class Correction: what a closed period would cost by now, minus what has been billed of it.

    frozen, now: chargeback_daily rows of the period's days. Only rows whose amount or quantity changed.
    billed_month: the month that the difference is invoiced with.
    """
    keys = ["date", *ROW, "axis", "source", "currency"]
    values = ("quantity", "cost", "amount")
    both = frozen.withColumns({name: -f.col(name) for name in values}).select(*keys, *values)
    changed = both.unionByName(now.select(*keys, *values)).groupBy(*keys).agg(*named(f.sum, *values))
    return changed.where((f.col("amount") != 0) | (f.col("quantity") != 0)).withColumns(
        {"charge_class": f.lit(CORRECTION), "closed_period": f.lit(period), "billed_month": f.lit(billed_month)}
    )


def folded(charges: DataFrame) -> DataFrame:
    """The rows of 0.00 of a day, cluster, team and axis as one row, of no client, topic and labels."""
    kept = {name: f.when(f.col("amount") != 0, f.col(name)) for name in ("user", "client_id", "topic", "labels")}
    sums = ("quantity", "cost", "amount")
    keys = [name for name in charges.columns if name not in sums]
    return charges.withColumns(kept).groupBy(*keys).agg(*named(f.sum, *sums))


def team_months(charges: DataFrame, prices: PriceList) -> DataFrame:
    """chargeback_daily of whole months to team_months. The first month has none before it to be compared with.

    run_rate: what the team's month comes to, over all clusters, if its days go on as those until the newest charge of
    all; invoices are of the whole month already, and corrections are not repeated.
    """
    size = f.when(f.col("axis").isin("network_in", "network_out"), f.col("quantity").cast("double") / 1e9)
    is_running = (f.col("source") == "price") & f.col("charge_class").isNull()
    rows = charges.groupBy(billing_month().alias("month"), "cluster", "team", "currency").agg(
        f.sum("amount").alias("amount"),
        f.sum(size).alias("gigabytes"),
        f.sum(f.when(is_running, f.col("amount")).otherwise(0)).alias("priced"),
        f.max("date").alias("newest"),
    )
    end = f.last_day("month")
    days = f.dayofmonth(end) / f.dayofmonth(f.least(end, f.max("newest").over(Window.partitionBy(f.lit(0)))))
    rows = rows.withColumn("rate", f.col("amount") + f.col("priced") * (days - 1))
    earlier = Window.partitionBy("cluster", "team", "currency").orderBy("month")
    is_next = f.lag("month").over(earlier) == f.add_months("month", -1)
    budgets = [f.when(f.col("team") == team, f.lit(amount)) for team, amount in prices.budgets.items()]
    rows = rows.withColumns(
        {
            "cost_per_gb": f.try_divide(f.col("amount").cast("double"), "gigabytes"),
            "month_before": f.when(is_next, f.lag("amount").over(earlier)),
            "run_rate": f.sum("rate").over(Window.partitionBy("month", "team", "currency")).cast(AMOUNT),
            "budget": f.coalesce(*budgets, f.lit(None)).cast(AMOUNT),
        }
    )
    return rows.withColumn("over_budget", f.col("run_rate") > f.col("budget"))


def _bounded(amount: Column, kind: str = _QUANTITY) -> Column:
    """At most `MOST`: a sum that no input can make fail. Null stays null, which least() skips."""
    return f.when(amount > MOST, f.lit(MOST)).otherwise(amount).cast(kind)


def _by_day(usage: DataFrame, zone: str) -> DataFrame:
    """Bytes and requests of each date of the zone (and day of UTC, for owners), each byte once."""
    keys = ("date", "time", "labels", "user", "client_id", "direction")
    dated = usage.withColumn("date", _date(zone)).withColumn("time", f.date_trunc("day", "time"))
    return split_totals(dated.groupBy(*keys, "topic", "has_total").agg(*named(total, "bytes", "requests")), keys)


def _date(zone: str) -> Column:
    return f.to_date(f.from_utc_timestamp("time", zone))


def _hours(day: str, zone: str) -> Column:
    """How many hours a day of the zone has: 23 to 25 where clocks change."""
    midnights = (f.to_utc_timestamp(each.cast("timestamp"), zone) for each in (f.date_add(day, 1), f.col(day)))
    end, start = (f.unix_seconds(each) for each in midnights)
    return f.round((end - start) / 3600).cast("int")


def _priced(measured: DataFrame, prices: Sequence[Price]) -> DataFrame:
    """Add cost. Rows without a price cost 0 and stay: the quantities add up to what was measured.

    quantity(19,0) x amount(14,6) is exact in 34 digits; divided by the unit's size it is rounded at 10 places.
    """
    amount = f.coalesce(of_price(prices, lambda price: f.lit(price.amount).cast(UNIT_PRICE)), f.lit(0).cast(UNIT_PRICE))
    size = f.coalesce(of_price(prices, lambda price: f.lit(price.size).cast(SIZE)), f.lit(1).cast(SIZE))
    cost = f.least(f.col("quantity").cast(_QUANTITY) * amount / size, f.lit(_MOST_COST)).cast(COST)
    return measured.withColumns({"cost": cost, "source": f.lit("price")})


def of_price(prices: Iterable[Price], value: Callable[[Price], Column], axis: Column | None = None) -> Column:
    """Of the price that applies to a row's date and axis (by default that of the row); null without one."""
    found, axis = f.lit(None), f.col("axis") if axis is None else axis
    for price in prices:
        applies = (axis == price.axis) & _within(price.first, price.until)
        found = f.when(applies, value(price)).otherwise(found)
    return found


def _shared_out(measured: DataFrame, invoice: Invoice) -> DataFrame:
    """An invoice by measured shares, its fixed part evenly; all of it to `unallocated` where nothing was measured.

    Of an invoice with a capacity the part that was not used stands apart, as `invoice ID idle`: for the team IDLE, or
    by measured shares.
    """
    own = measured.where((f.col("axis") == invoice.axis) & _within(invoice.first, invoice.until))
    source = f.lit(f"invoice {invoice.id}")
    variable = invoice.total - invoice.fixed
    nobody, idle = (
        own.sparkSession.range(1).select(
            f.lit(invoice.first).alias("date"),
            f.lit(team).alias("team"),
            *(f.lit(None).cast("string").alias(name) for name in ROW[1:]),
            f.lit(invoice.axis).alias("axis"),
            f.lit(0).cast(_QUANTITY).alias("quantity"),
        )
        for team in (UNALLOCATED, IDLE)
    )
    used = own.unionByName(nobody.join(own.select(f.lit(1).alias("any")).limit(1), how="left_anti", on=f.lit(True)))
    weight = f.greatest(f.col("quantity"), f.lit(1)).cast(_QUANTITY)
    summed = used.agg(_bounded(f.sum(weight), "decimal(20,0)").alias("total"))
    part = f.least(f.col("total").cast("double") / max(1, invoice.capacity), f.lit(1.0))
    paid = f.round(f.lit(float(variable)) * part, 2) if invoice.capacity else f.lit(variable)
    whole = f.broadcast(summed.withColumn("paid", paid.cast("decimal(10,2)")))
    unused = f.lit(variable).cast("decimal(10,2)") - f.col("paid")

    def by_use(amount: Column, name: Column) -> DataFrame:
        # 19 digits x 10 digits / 20 digits keeps 10 places.
        share = (weight * amount.cast("decimal(10,2)") / f.col("total")).cast(COST)
        return used.crossJoin(whole).withColumns({"cost": share, "source": name, "whole": amount.cast(AMOUNT)})

    # Each team the same, over the days on which it used anything.
    days = f.count("*").over(Window.partitionBy("team"))
    teams = f.size(f.collect_set("team").over(Window.partitionBy(f.lit(0))))
    part = f.lit(invoice.fixed).cast("decimal(10,2)") / (days * teams).cast("decimal(10,0)")
    evenly = used.groupBy("date", "team").agg(f.lit(0).cast(_QUANTITY).alias("quantity"))
    evenly = evenly.withColumns(
        {name: f.lit(None).cast("string") for name in ROW[1:]}
        | {"axis": f.lit(FIXED), "source": source, "whole": f.lit(invoice.fixed).cast(AMOUNT), "cost": part.cast(COST)}
    )
    shares = [by_use(f.col("paid"), source)]
    if invoice.capacity:
        name = f.concat(source, f.lit(" idle"))
        apart = idle.crossJoin(whole).withColumns(
            {"cost": unused.cast(COST), "source": name, "whole": unused.cast(AMOUNT)}
        )
        shares.append(apart if invoice.idle == "apart" else by_use(unused, name))
    parts = [in_cents(each.drop("total", "paid"), ["axis", "source"]) for each in shares]
    if invoice.fixed:
        parts.append(in_cents(evenly, ["axis", "source"]))
    rows = reduce(DataFrame.unionByName, parts)
    # An invoice's row costs what it is billed with.
    # Its quantity stands in the row that has the price, or none: the quantities add up to what was measured.
    return rows.withColumns({"cost": f.col("amount").cast(COST), "quantity": f.lit(0).cast(_QUANTITY)})


def _within(first: object, until: object) -> Column:
    return (f.col("date") >= f.lit(first)) & (f.col("date") < f.lit(until))
