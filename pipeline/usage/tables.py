"""The Delta tables of one warehouse folder: created with their schema; a repeated write changes nothing.

A folder on an object store without atomic rename (S3) takes a single writer at a time; Delta's own documents say which
LogStore lifts that.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from threading import Lock
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.usage.schemas import RETENTION, TABLES

ATTEMPTS: Final = 8
"""Of one write, when another run writes the same table."""
MOST_WRITES: Final = 1_000
"""Of one run and table."""
_CONFLICT: Final = re.compile(r"(Concurrent\w*|ProtocolChanged|MetadataChanged)Exception")
"""Delta's exceptions, as PySpark has them in the text of its own or of Py4J's."""


class Fence:
    """Keeps an earlier run of the report from writing a table that a later one has written.

    Delta skips a write with a transaction number that is not above the last one of its application id.
    """

    def __init__(self, app_id: str, run: int) -> None:
        """app_id: the same for all runs. run: larger for each later run."""
        self._app_id = app_id
        self._run = run
        self._writes: Counter[str] = Counter()
        self._lock = Lock()

    def options(self, name: str) -> dict[str, str]:
        """Options of one attempt to write a table."""
        with self._lock:
            self._writes[name] += 1
            return {"txnAppId": self._app_id, "txnVersion": f"{self._run * MOST_WRITES + self._writes[name]}"}


@dataclass(frozen=True, slots=True)
class Warehouse:
    """Where the tables are: `root` is a path or URI that Spark can write to, one folder for each table."""

    spark: SparkSession
    root: str
    fence: "Fence | None" = None
    created: set[str] = field(default_factory=set, compare=False)
    """Tables that exist for sure: no look at the folder for each of their reads."""

    def path(self, name: str) -> str:
        """The folder of a table. Raises KeyError for a table that `schemas` does not have."""
        return f"{self.root.rstrip('/')}/{TABLES[name].name}"

    def exists(self, name: str) -> bool:
        if name not in self.created:
            try:
                _ = self.spark.read.format("delta").load(self.path(name)).columns
            except AnalysisException:
                return False
            self.created.add(name)
        return True

    def create(self, name: str) -> None:
        """Create the table, without rows, if it is missing."""
        if not self.exists(name):
            self.append(name, self.row(name, {}).where("false"))

    def read(self, name: str) -> DataFrame:
        """The table, empty if it does not exist yet."""
        if not self.exists(name):
            return self.row(name, {}).where("false")
        rows = self.spark.read.format("delta").load(self.path(name))
        # Columns that are newer than the table.
        missing = [each for each in TABLES[name].schema if each.name not in rows.columns]
        rows = rows.withColumns({each.name: f.lit(None).cast(each.dataType) for each in missing}) if missing else rows
        return rows.withColumn("cluster", f.coalesce("cluster", f.lit(""))) if "cluster" in rows.columns else rows

    def read_dates(self, name: str, dates: Iterable[date], column: str = "date") -> DataFrame:
        """The rows of these dates, found by partition."""
        return self.read(name).where(f.col(column).isin(sorted(dates)))

    def row(self, name: str, values: Mapping[str, Column]) -> DataFrame:
        """One row for a table, made by Spark's own plan, since rows from Python start Python workers; else null."""
        columns = TABLES[name].schema
        return self.spark.range(1).select(
            *(values.get(each.name, f.lit(None)).cast(each.dataType).alias(each.name) for each in columns)
        )

    def append_once(self, name: str, rows: DataFrame, app_id: str, version: int) -> None:
        """Append; a second append under the same `app_id` and `version` does nothing."""
        self._save(name, rows, "append", txnAppId=app_id, txnVersion=f"{version}")

    def append(self, name: str, rows: DataFrame) -> None:
        self._write(name, rows, "append")

    def replace(self, name: str, rows: DataFrame) -> None:
        """Put these rows in place of the whole table."""
        self._write(name, rows, "overwrite")

    def replace_where(self, name: str, rows: DataFrame, condition: str) -> None:
        """Put these rows in place of those that meet the condition. Raises when a new row does not meet it."""
        self._write(name, rows, "overwrite", replaceWhere=condition)

    def replace_dates(self, name: str, rows: DataFrame, dates: Iterable[date], column: str = "date") -> None:
        """Put these rows in place of all rows of these dates."""
        self.replace_where(name, rows, in_dates(dates, column))

    def version(self, name: str) -> int:
        """The table's newest version; -1 where there is no table."""
        if not self.exists(name):
            return -1
        return int(self.spark.sql(f"describe history delta.`{self.path(name)}` limit 1").first()["version"])

    def added_since(self, name: str, version: int) -> DataFrame:
        """The rows added after `version`, not the newest one; all rows where Delta has deleted its log of that time."""
        feed = self.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version + 1)
        try:
            rows = feed.load(self.path(name)).where("_change_type = 'insert'")
            _ = rows.columns  # asks for them now, under Spark Connect too
        except (PySparkException, Py4JError):
            return self.read(name)
        return rows

    def compact(self, name: str) -> None:
        """Join small files, and delete those that no version within the table's retention needs; no row changes."""
        for statement in ("optimize", "vacuum"):
            self.spark.sql(f"{statement} delta.`{self.path(name)}`")

    def delete(self, name: str, condition: str) -> None:
        """Delete the rows that meet the condition."""
        self.spark.sql(f"delete from delta.`{self.path(name)}` where {condition}")  # noqa: S608 - not from users

    def _write(self, name: str, rows: DataFrame, mode: str, **options: str) -> None:
        """Again after a conflict with another writer, and not at all if a later run has written the table: `Fence`."""
        fence = self.fence
        _again(lambda: self._save(name, rows, mode, **options, **(fence.options(name) if fence else {})))

    def _save(self, name: str, rows: DataFrame, mode: str, **options: str) -> None:
        """The table's columns in the table's order, whatever else the rows have. The first write makes the table."""
        table = TABLES[name]
        properties = {
            "delta.deletedFileRetentionDuration": RETENTION,
            "delta.logRetentionDuration": RETENTION,
            "delta.enableChangeDataFeed": str(table.is_source).lower(),
            # Ingest writes a few files in each micro-batch.
            "delta.autoOptimize.autoCompact": str(table.is_source).lower(),
            # Files are found by partition. Minima and maxima of each column would be computed row by row.
            "delta.dataSkippingNumIndexedCols": "0",
        }
        columns = (f.col(field.name).cast(field.dataType).alias(field.name) for field in table.schema)
        writer = rows.select(*columns).write.format("delta").mode(mode).partitionBy(*table.by)
        writer.options(mergeSchema="true", **properties, **options).save(self.path(name))


def _again(write: Callable[[], object]) -> None:
    """Try again after a conflict with another writer. Raises what the last attempt raises."""
    for attempt in range(ATTEMPTS):
        try:
            write()
        except (PySparkException, Py4JError) as error:
            if attempt == ATTEMPTS - 1 or _CONFLICT.search(str(error)) is None:
                raise
            time.sleep(1 + attempt)
        else:
            return


def in_dates(dates: Iterable[date], column: str = "date") -> str:
    """The SQL condition for these dates, for `replaceWhere`."""
    listed = ", ".join(f"date'{each}'" for each in sorted(dates))
    return f"{column} in ({listed})"
