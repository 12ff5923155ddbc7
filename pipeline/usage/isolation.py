"""A step that fails for the values of a client is computed without it, and the client is named."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pipeline.failures import reason
from pipeline.usage.tables import Warehouse

KEYS: Final = ("sidecar", "user", "client_id")
MOST: Final = 8
"""Clients that are left out of one step; with more the step fails."""
_HASHES: Final = 2**32


def isolate(warehouse: Warehouse, step: str, rows: DataFrame, run: Callable[[DataFrame], None]) -> None:
    """Run a step over `rows` (with the columns of KEYS), if need be without the clients that it fails for.

    These are noted in the table `isolated`. Raises what the step raises if that is no error of data (SQLSTATE 22).
    """
    bad: list[int] = []
    while True:
        kept = rows.where(~_hash().isin(bad)) if bad else rows
        try:
            run(kept)
        except PySparkException as error:
            if not (error.getSqlState() or "").startswith("22") or len(bad) == MOST:
                raise
            found = _first_bad(kept, run)
            if found is None:
                raise
            bad.append(found)
            _note(warehouse, step, rows.where(_hash() == found), reason(error))
        else:
            return


def _first_bad(rows: DataFrame, run: Callable[[DataFrame], None]) -> int | None:
    """The hash of a client for which the step fails: half of the hashes at a time."""
    first, last = 0, _HASHES
    while last - first > 1:
        middle = (first + last) // 2
        half = rows.where((_hash() >= first) & (_hash() < middle))
        if half.isEmpty():
            first = middle
        elif _fails(half, run):
            last = middle
        elif rows.where((_hash() >= middle) & (_hash() < last)).isEmpty():
            return None
        else:
            first = middle
    return first


def _fails(rows: DataFrame, run: Callable[[DataFrame], None]) -> bool:
    try:
        run(rows)
    except PySparkException:
        return True
    return False


def _note(warehouse: Warehouse, step: str, rows: DataFrame, why: str) -> None:
    clients = rows.select(*KEYS).distinct()
    warehouse.append(
        "isolated",
        clients.withColumns({"at": f.lit(datetime.now(UTC)), "step": f.lit(step), "reason": f.lit(why[:1_000])}),
    )


def _hash() -> Column:
    return f.pmod(f.xxhash64(*KEYS), f.lit(_HASHES))
