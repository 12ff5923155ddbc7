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
    try:
        run()
    except (PySparkException, Py4JError) as error:
        noted = {"at": f.current_timestamp(), "step": f.lit(step), "reason": f.lit(reason(error)[:1_000])}
        warehouse.append("isolated", warehouse.row("isolated", noted))
        return False
    return True


def isolate(
    warehouse: Warehouse, step: str, rows: DataFrame, run: Callable[[DataFrame], None], keys: Sequence[str] = CLIENT
) -> None:
    """Run a step over `rows`, if need be without the clients, or other `keys`, that it fails for.

    These are noted in the table `isolated`. Raises what the step raises if that is no error of data.
    """
    bad: list[int] = []
    while True:
        kept = rows.where(~_hash(keys).isin(bad)) if bad else rows
        try:
            run(kept)
        except (PySparkException, Py4JError) as error:
            why = _DATA_ERROR.search(str(error))
            if why is None or len(bad) == MOST:
                raise
            found = _first_bad(kept, run, _hash(keys))
            if found is None:
                raise
            bad.append(found)
            _note(warehouse, step, rows.where(_hash(keys) == found).select(*keys).distinct(), why[0])
        else:
            return


def _first_bad(rows: DataFrame, run: Callable[[DataFrame], None], key: Column) -> int | None:
    """The hash of a client for which the step fails: half of the clients at a time. None if it needs several."""
    left = sorted(row[0] for row in rows.select(key).distinct().collect())  # one row for each client
    while len(left) > 1:
        half = left[: len(left) // 2]
        if _fails(rows.where(key.between(half[0], half[-1])), run):
            left = half
        elif _fails(rows.where(key.between(left[len(half)], left[-1])), run):
            left = left[len(half) :]
        else:
            return None
    return left[0] if left else None


def _fails(rows: DataFrame, run: Callable[[DataFrame], None]) -> bool:
    try:
        run(rows)
    except (PySparkException, Py4JError):
        return True
    return False


def _note(warehouse: Warehouse, step: str, bad: DataFrame, why: str) -> None:
    """One row for each step and client: a run that is repeated finds them again."""
    noted = {"at": f.current_timestamp(), "step": f.lit(step), "reason": f.lit(why[:1_000])}
    every = warehouse.read("isolated").unionByName(bad.withColumns(noted), allowMissingColumns=True)
    keys = [name for name in every.columns if name not in ("at", "reason")]
    latest = every.groupBy(*keys).agg(f.max("at").alias("at"), f.max_by("reason", "at").alias("reason"))
    warehouse.replace("isolated", latest)


def _hash(keys: Sequence[str]) -> Column:
    return f.pmod(f.xxhash64(*keys), f.lit(_HASHES))
