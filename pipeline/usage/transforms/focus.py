"""chargeback_daily to FOCUS 1.2, the FinOps Open Cost and Usage Specification.

Column ids, feature levels and types are those of the specification's tag v1.2. Our own columns begin with `x_`.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pipeline.usage.price_list import PriceList
from pipeline.usage.schemas import COST, UNALLOCATED, UNIT_PRICE
from pipeline.usage.transforms.chargeback import SIZE, billing_month, of_price

_UNITS: Final = {
    "network_in": "Bytes",
    "network_out": "Bytes",
    "requests": "Requests",
    "storage": "Byte-Hours",
    "partitions": "Partition-Hours",
}


def focus(charges: DataFrame, prices: PriceList) -> DataFrame:
    """chargeback_daily to FOCUS 1.2. Days and months are those of the price list's zone, written in UTC.

    Teams are sub accounts, topics are resources. A correction's billing period is the month that it is invoiced in, its
    charge period the day that it corrects.
    """
    zone = prices.zone
    month = billing_month()
    amount = f.col("amount").cast(COST)
    # A share of an invoice has no quantity of its own: FOCUS allows that for adjustments, not for usage.
    is_usage = f.col("source") == "price"
    per = f.coalesce(of_price(prices.prices, lambda price: f.lit(price.per)), _unit())
    size = f.coalesce(of_price(prices.prices, lambda price: f.lit(price.size).cast(SIZE)), f.lit(1))
    priced = (f.col("quantity").cast("decimal(19,0)") / size).cast(COST)
    list_price = f.coalesce(of_price(prices.prices, lambda price: f.lit(price.amount)), f.lit(0)).cast(UNIT_PRICE)
    sku = of_price(prices.prices, lambda price: f.lit(f"{price.axis}/{price.per}/{price.first}"))
    return charges.select(
        amount.alias("BilledCost"),
        *(f.lit(prices.account).alias(f"BillingAccount{each}") for each in ("Id", "Name")),
        f.col("currency").alias("BillingCurrency"),
        _instant(f.add_months(month, 1), zone).alias("BillingPeriodEnd"),
        _instant(month, zone).alias("BillingPeriodStart"),
        f.when(is_usage, "Usage").otherwise("Adjustment").alias("ChargeCategory"),
        f.col("charge_class").alias("ChargeClass"),
        f.concat_ws(" ", f.lit("Kafka"), "axis", f.concat(f.lit("by "), "client_id")).alias("ChargeDescription"),
        f.lit("Usage-Based").alias("ChargeFrequency"),
        _instant(f.date_add("date", 1), zone).alias("ChargePeriodEnd"),
        _instant(f.col("date"), zone).alias("ChargePeriodStart"),
        f.when(is_usage, f.col("quantity")).alias("ConsumedQuantity"),
        f.when(is_usage, _unit()).alias("ConsumedUnit"),
        f.when(is_usage, f.col("cost")).otherwise(amount).alias("ContractedCost"),
        amount.alias("EffectiveCost"),
        f.when(~is_usage, f.regexp_extract("source", "^invoice (.*?)( idle)?$", 1)).alias("InvoiceId"),
        f.lit(prices.provider).alias("InvoiceIssuerName"),
        f.when(is_usage, f.col("cost")).otherwise(amount).alias("ListCost"),
        f.when(is_usage, list_price).alias("ListUnitPrice"),
        f.when(is_usage, "Standard").alias("PricingCategory"),
        f.when(is_usage, priced).alias("PricingQuantity"),
        f.when(is_usage, per).alias("PricingUnit"),
        f.lit(prices.provider).alias("ProviderName"),
        f.lit(prices.provider).alias("PublisherName"),
        *(f.col("topic").alias(f"Resource{each}") for each in ("Id", "Name")),
        f.when(f.col("topic").isNotNull(), "Topic").alias("ResourceType"),
        f.lit("Integration").alias("ServiceCategory"),
        f.lit("Apache Kafka").alias("ServiceName"),
        f.lit("Messaging").alias("ServiceSubcategory"),
        f.when(is_usage, f.concat(f.lit("kafka/"), "axis")).alias("SkuId"),
        f.when(is_usage, sku).alias("SkuPriceId"),
        *(f.when(f.col("team") != UNALLOCATED, f.col("team")).alias(f"SubAccount{each}") for each in ("Id", "Name")),
        f.coalesce("labels", f.lit("{}")).alias("Tags"),
        f.col("axis").alias("x_Axis"),
        f.col("user").alias("x_User"),
        f.col("client_id").alias("x_ClientId"),
        f.col("source").alias("x_Source"),
        f.col("cost").alias("x_UnroundedCost"),
        f.col("closed_period").alias("x_CorrectsPeriod"),
    )


def _unit() -> Column:
    units = f.create_map(*(f.lit(each) for pair in _UNITS.items() for each in pair))
    return units[f.col("axis")]


def _instant(day: Column, zone: str) -> Column:
    """Midnight of a day in the zone, as FOCUS writes times: UTC, to the second, with Z."""
    return f.date_format(f.to_utc_timestamp(day.cast("timestamp"), zone), "yyyy-MM-dd'T'HH:mm:ss'Z'")
