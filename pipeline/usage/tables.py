"""The Delta tables of one warehouse folder: created with their schema; a repeated write changes nothing.

A folder on an object store without atomic rename (S3) takes a single writer at a time; Delta's own documents say which
LogStore lifts that.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import cache

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from pipeline.usage.schemas import PINNED_RETENTION, RETENTION, TABLES


@dataclass(frozen=True, slots=True)
class Warehouse:
    """Where the tables are: `root` is a path or URI that Spark can write to, one folder for each table."""

    spark: SparkSession
    root: str

    def path(self, name: str) -> str:
        """The folder of a table. Raises KeyError for a table that `schemas` does not have."""
        return f"{self.root.rstrip('/')}/{TABLES[name].name}"

    def exists(self, name: str) -> bool:
        tables = self.spark._jvm.io.delta.tables.DeltaTable
        return bool(tables.isDeltaTable(self.spark._jsparkSession, self.path(name)))

    def create(self, name: str) -> None:
        """Create the table if it is missing."""
        if self.exists(name):
            return
        table = TABLES[name]
        partitions = f" partitioned by ({', '.join(table.by)})" if table.by else ""
        kept = PINNED_RETENTION if table.is_pinned else RETENTION
        self.spark.sql(
            f"create table if not exists delta.`{self.path(name)}` ({table.columns}) using delta{partitions} "
            f"comment '{table.comment}' tblproperties ("
            f"'delta.deletedFileRetentionDuration' = '{kept}', 'delta.logRetentionDuration' = '{kept}', "
            f"'delta.enableChangeDataFeed' = '{str(table.is_source).lower()}', "
            # Files are found by partition. Minima and maxima of each column would be computed row by row.
            "'delta.dataSkippingNumIndexedCols' = '0')"
        )

    def read(self, name: str, version: int | None = None) -> DataFrame:
        """The table, empty if it does not exist yet; `version` reads it as it was (time travel), empty for -1."""
        if version == -1 or (version is None and not self.exists(name)):
            return self.spark.createDataFrame([], TABLES[name].columns)
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(self.path(name))

    def read_dates(self, name: str, dates: Iterable[date], column: str = "date") -> DataFrame:
        """The rows of these dates, found by partition."""
        return self.read(name).where(f.col(column).isin(sorted(dates)))

    def append_once(self, name: str, rows: DataFrame, app_id: str, version: int) -> None:
        """Append; a second append under the same `app_id` and `version` does nothing."""
        self.create(name)
        (
            self._ordered(name, rows)
            .write.format("delta")
            .mode("append")
            .option("txnAppId", app_id)
            .option("txnVersion", version)
            .save(self.path(name))
        )

    def append(self, name: str, rows: DataFrame) -> None:
        self.create(name)
        self._ordered(name, rows).write.format("delta").mode("append").save(self.path(name))

    def replace(self, name: str, rows: DataFrame) -> None:
        """Put these rows in place of the whole table."""
        self.create(name)
        self._ordered(name, rows).write.format("delta").mode("overwrite").save(self.path(name))

    def replace_where(self, name: str, rows: DataFrame, condition: str) -> None:
        """Put these rows in place of those that meet the condition. Raises when a new row does not meet it."""
        self.create(name)
        writer = self._ordered(name, rows).write.format("delta").mode("overwrite")
        writer.option("replaceWhere", condition).save(self.path(name))

    def replace_dates(self, name: str, rows: DataFrame, dates: Iterable[date], column: str = "date") -> None:
        """Put these rows in place of all rows of these dates."""
        self.replace_where(name, rows, in_dates(dates, column))

    def version(self, name: str) -> int:
        """The table's newest version; -1 where there is no table."""
        if not self.exists(name):
            return -1
        history: Row = self.spark.sql(f"describe history delta.`{self.path(name)}` limit 1").first()
        return int(history["version"])

    def dates_changed_since(self, name: str, version: int) -> list[date]:
        """The dates with rows added after `version`, from Delta's change feed: it reads new files only.

        `version` is not the newest one.
        """
        feed = self.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version + 1)
        rows = feed.load(self.path(name)).select("date").distinct().collect()  # one row for each date
        return sorted(row["date"] for row in rows)

    def compact(self, name: str) -> None:
        """Join small files of each partition. Readers are not disturbed; no row changes."""
        self.spark.sql(f"optimize delta.`{self.path(name)}`")

    def vacuum(self, name: str) -> None:
        """Delete files that no version within the table's retention needs."""
        self.spark.sql(f"vacuum delta.`{self.path(name)}`")

    def _ordered(self, name: str, rows: DataFrame) -> DataFrame:
        """The table's columns in the table's order, whatever else the rows have."""
        columns = _columns(TABLES[name].columns)
        return rows.select(*(f.col(field.name).cast(field.dataType).alias(field.name) for field in columns))


@cache
def _columns(ddl: str) -> StructType:
    return StructType.fromDDL(ddl)


def in_dates(dates: Iterable[date], column: str = "date") -> str:
    """The SQL condition for these dates, for `replaceWhere`."""
    listed = ", ".join(f"date'{each}'" for each in sorted(dates))
    return f"{column} in ({listed})"
