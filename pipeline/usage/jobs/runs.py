"""The runs of the report: their numbers, what they have read, and with which rules."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.usage.isolation import WHOLE
from pipeline.usage.schemas import TABLES
from pipeline.usage.tables import Fence, Warehouse
from pipeline.usage.transforms.sidecars import topic_holes

SOURCES: Final = tuple(table.name for table in TABLES.values() if table.is_source)
"""What the report reads; `report_runs` notes their versions in this order."""
_RUNS: Final = "report_runs"


@dataclass(frozen=True, slots=True)
class News:
    """What no run has read. versions: of the sources. dates: of each source, those with new rows."""

    versions: Mapping[str, int]
    read: Mapping[str, int]
    dates: Mapping[str, Sequence[date]]


def news(warehouse: Warehouse, since: date | None) -> News:
    """What is new in the sources; with `since` all their dates from then on, too."""
    last = warehouse.read(_RUNS).agg(*(f.max(f"{name}_version").alias(name) for name in SOURCES)).first()
    read = {name: -1 if last[name] is None else last[name] for name in SOURCES}
    versions = {name: warehouse.version(name) for name in SOURCES}
    changed: dict[str, Sequence[date]] = {}
    for name, version in versions.items():
        dates = _dates(warehouse.added_since(name, read[name])) if version > read[name] else set()
        again = _dates(warehouse.read(name).where(f.col("date") >= since)) if since is not None else set()
        changed[name] = sorted(dates | again)
    return News(versions, read, changed)


def _dates(rows: DataFrame) -> set[date]:
    return {row["date"] for row in rows.select("date").distinct().collect()}  # one row for each date


def begin(warehouse: Warehouse) -> Warehouse:
    """The warehouse for one run: a run that began earlier writes no table that this one has written.

    Steps that the run before left out are tried again.
    """
    if warehouse.exists("isolated"):
        warehouse.delete("isolated", WHOLE)
    row = warehouse.row(_RUNS, {"run_id": f.lit(str(uuid.uuid4())), "at": f.current_timestamp()})
    warehouse.append(_RUNS, row)
    number = int(warehouse.spark.conf.get("spark.databricks.delta.lastCommitVersionInSession"))
    detail = warehouse.spark.sql(f"describe detail delta.`{warehouse.path(_RUNS)}`").first()
    # The number belongs to this table: one that was made anew begins at 0 again.
    return replace(warehouse, fence=Fence(f"report-{detail['id']}", number))


def note(warehouse: Warehouse, found: News, dates: Sequence[date], since: date | None, rules: str) -> None:
    """Note what was read, last of all: a run that was killed is repeated as a whole. Also finds holes of the topic."""
    offsets = _note_holes(warehouse, found)
    row = {
        "run_id": f.lit(str(uuid.uuid4())),
        "at": f.current_timestamp(),
        **{f"{name}_version": f.lit(version) for name, version in found.versions.items()},
        "first_date": f.lit(min(dates)),
        "last_date": f.lit(max(dates)),
        "dates": f.lit(len(dates)),
        "since": f.lit(since),
        "rules": f.lit(rules),
        "offsets": f.create_map(*(f.lit(each) for pair in offsets.items() for each in pair)),
    }
    warehouse.append(_RUNS, warehouse.row(_RUNS, row))


def outdated(warehouse: Warehouse, rules: str) -> date | None:
    """The first date that was computed with other rules than these, and not again since; None without one."""
    ran = warehouse.read(_RUNS).where("first_date is not null").select("rules", "first_date", "last_date", "since")
    first: date | None = None
    for row in ran.orderBy("at").collect():  # one row for each run
        if row["rules"] != rules:
            first = row["first_date"] if first is None else min(first, row["first_date"])
        elif row["since"] is not None and first is not None and row["since"] <= first:
            first = None
    return first


def _note_holes(warehouse: Warehouse, found: News) -> dict[int, int]:
    """Write the offsets between those read that were never read. Returns the last offset read of each partition."""
    if found.versions["records"] <= found.read["records"]:
        return {}
    known = _last_offsets(warehouse)
    columns = ("kafka_partition", "kafka_offset")
    fresh = warehouse.added_since("records", found.read["records"]).select(*columns)
    fresh = fresh.unionByName(warehouse.read("quarantine").select(*columns)).where(f.col("kafka_offset").isNotNull())
    holes = topic_holes(fresh, known).withColumn("found_at", f.current_timestamp())
    if not holes.isEmpty():
        # A run that was killed after this finds them again.
        every = warehouse.read("topic_holes").unionByName(holes, allowMissingColumns=True)
        where = ("kafka_partition", "first_offset", "last_offset")
        warehouse.replace("topic_holes", every.groupBy(*where).agg(f.min("found_at").alias("found_at")))
    newest = fresh.groupBy("kafka_partition").agg(f.max("kafka_offset").alias("offset")).collect()
    return {row["kafka_partition"]: row["offset"] for row in newest}  # one row for each partition


def _last_offsets(warehouse: Warehouse) -> DataFrame:
    ran = warehouse.read(_RUNS).select(f.explode("offsets").alias("kafka_partition", "offset"))
    return ran.groupBy("kafka_partition").agg(f.max("offset").alias("last_offset"))
