"""A client's total and its split by topic, which arrives later: what is not split yet has no topic.

Both are counters of their own, read at different times, so the parts of an hour may be more than its total. Then they
are cut down to it in proportion. The total always counts.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f


def split_totals(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Rows of a time, client and direction (`keys`), by topic and has_total: each byte in one row only.

    Rows without `has_total` stay as they are: their proxies count each byte once. One row for each topic of the keys.
    """
    is_split = f.coalesce(f.col("has_total"), f.lit(False))
    client = Window.partitionBy(*keys, "has_total")
    of_topics = f.when(f.col("topic").isNotNull(), f.col("bytes").cast("double"))
    of_total = f.when(f.col("topic").isNull(), f.col("bytes").cast("double"))
    bytes_of = {
        "split": f.coalesce(f.sum(of_topics).over(client), f.lit(0.0)),
        "whole": f.coalesce(f.sum(of_total).over(client), f.lit(0.0)),
        "until": f.coalesce(f.sum(of_topics).over(client.orderBy(f.asc_nulls_first("topic"))), f.lit(0.0)),
    }  # fmt: skip
    rest = f.floor(f.greatest(f.col("whole") - f.col("split"), f.lit(0.0))).cast("bigint")
    own = f.when(f.col("split") <= f.col("whole"), f.col("bytes")).otherwise(
        _cut(f.col("until")) - _cut(f.col("until") - f.col("bytes"))
    )
    found = f.when(~is_split, f.col("bytes")).when(f.col("topic").isNull(), rest).otherwise(own)
    return rows.withColumns(bytes_of).withColumn("bytes", found).drop(*bytes_of)


def _cut(until: Column) -> Column:
    """Bytes of the topics up to one, cut down to the total: a rising function, so parts add up to the total."""
    part = f.floor(until * (f.col("whole") / f.col("split"))).cast("bigint")
    return f.when(until >= f.col("split"), f.col("whole").cast("bigint")).otherwise(part)
