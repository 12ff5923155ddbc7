"""Sums that no input can make fail, and aggregates under the names of their columns."""

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f

MOST: Final = 2**63 - 1


def total(column: str | Column) -> Column:
    """The sum of a bigint column; `MOST` where it is larger. Null without values."""
    return f.coalesce(f.try_sum(column), f.when(f.count(column) > 0, f.lit(MOST)))


def named(how: Callable[[str], Column], *columns: str) -> list[Column]:
    """Each column aggregated by `how`, under its own name."""
    return [how(each).alias(each) for each in columns]
