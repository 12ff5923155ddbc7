"""Sums that no input can make fail."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f

MOST: Final = 2**63 - 1


def total(column: str | Column) -> Column:
    """The sum of a bigint column; `MOST` where it is larger. Null without values."""
    return f.coalesce(f.try_sum(column), f.when(f.count(column) > 0, f.lit(MOST)))
