"""A step that fails for the values of a client is computed without it, and the client is named; one that fails whatever
is left out is left out itself.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pipeline.failures import reason
from pipeline.usage.tables import Warehouse

CLIENT: Final = ("sidecar", "user", "client_id")
ENTITY: Final = ("sidecar", "limit", "entity")
MOST: Final = 8
"""Clients that are left out of one step; with more the step fails."""
_HASHES: Final = 2**32
_DATA_ERROR: Final = re.compile(r"\[[A-Z0-9_.]+\] [^\n]*SQLSTATE: 22\w+")
"""In the text of what Spark raises, also where a broadcast wraps it in errors of Java."""


WHOLE: Final = "coalesce(sidecar, user, client_id, entity, topic) is null"
"""Of rows of `isolated`: the step itself was left out."""


def attempt(warehouse: Warehouse, step: str, run: Callable[[], None]) -> bool:
    """Run a step that no other needs. Returns False if it failed: its tables stay as they were, and it is noted in the
    table `isolated`.
    """
    error = _error_of(run)
    if error is not None:
        warehouse.append("isolated", warehouse.row("isolated", _noted(step, reason(error))))
    return error is None


def computed_once(rows: DataFrame) -> DataFrame:
    """Rows that several steps read, as a leaf in their plans. A cached query is planned with each of them, and compared
    with every part of every other plan.

    If the rows cannot be computed, each step that reads them fails on its own.
    """
    try:
        return rows.localCheckpoint()
    except (PySparkException, Py4JError):
        return rows


def isolate(
    warehouse: Warehouse, step: str, rows: DataFrame, run: Callable[[DataFrame], None], keys: Sequence[str] = CLIENT
) -> None:
    """Run a step over `rows`, if need be without the clients, or other `keys`, that it fails for.

    These are noted in the table `isolated`. Raises what the step raises if that is no error of data.
    """
    bad: list[int] = []
    kept = rows
    while (error := _error_of(run, kept)) is not None:
        why = _DATA_ERROR.search(str(error))
        found = None if why is None or len(bad) == MOST else _first_bad(kept, run, _hash(keys))
        if why is None or found is None:
            raise error
        bad.append(found)
        _note(warehouse, step, rows.where(_hash(keys) == found).select(*keys).distinct(), why[0])
        kept = rows.where(~_hash(keys).isin(bad))


def _first_bad(rows: DataFrame, run: Callable[[DataFrame], None], key: Column) -> int | None:
    """The hash of a client for which the step fails: half of the clients at a time. None if it needs several."""
    left = sorted(row[0] for row in rows.select(key).distinct().collect())  # one row for each client
    while len(left) > 1:
        half = left[: len(left) // 2]
        if _error_of(run, rows.where(key.between(half[0], half[-1]))):
            left = half
        elif _error_of(run, rows.where(key.between(left[len(half)], left[-1]))):
            left = left[len(half) :]
        else:
            return None
    return left[0] if left else None


def _error_of(run: Callable[..., None], *rows: DataFrame) -> PySparkException | Py4JError | None:
    """What Spark raises in a step."""
    try:
        run(*rows)
    except (PySparkException, Py4JError) as error:
        return error
    return None


def _noted(step: str, why: str) -> dict[str, Column]:
    return {"at": f.current_timestamp(), "step": f.lit(step), "reason": f.lit(why[:1_000])}


def _note(warehouse: Warehouse, step: str, bad: DataFrame, why: str) -> None:
    """One row for each step and client: a run that is repeated finds them again."""
    every = warehouse.read("isolated").unionByName(bad.withColumns(_noted(step, why)), allowMissingColumns=True)
    keys = [name for name in every.columns if name not in ("at", "reason")]
    latest = every.groupBy(*keys).agg(f.max("at").alias("at"), f.max_by("reason", "at").alias("reason"))
    warehouse.replace("isolated", latest)


def _hash(keys: Sequence[str]) -> Column:
    return f.pmod(f.xxhash64(*keys), f.lit(_HASHES))
