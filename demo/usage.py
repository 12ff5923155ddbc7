"""`make demo-usage`: the usage of 50 sidecars over two weeks, made up, through every table to the HTML report."""

import argparse
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from demo import fleet
from pipeline.failures import JobFailedError
from pipeline.options import count, heap
from pipeline.spark_session import SparkStartError
from pipeline.usage import owners, price_list
from pipeline.usage.jobs.export import export, export_focus
from pipeline.usage.jobs.report import Rules, report
from pipeline.usage.page.content import render
from pipeline.usage.schemas import TABLES, USAGE_KIND
from pipeline.usage.session import session
from pipeline.usage.tables import Warehouse
from pipeline.usage.transforms.deltas import deltas, samples
from pipeline.usage.transforms.members import cluster

SHOWN = (
    "usage_hourly",
    "throttling_hourly",
    "chargeback_daily",
    "team_months",
    "noisy_neighbours",
    "quota_recommendations",
    "bypass_check",
)
_BYPASSED = "topic-3"


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo.usage", description=__doc__)
    parser.add_argument("--memory", type=heap, default="1g", help="heap of Spark (default: %(default)s)")
    parser.add_argument("--cores", type=count, default=2, help="of Spark (default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, default=Path("build/demo-usage"), metavar="FOLDER", help="(default: %(default)s)"
    )
    parser.add_argument("--days", type=count, default=14, metavar="N", help="days of usage (default: %(default)s)")
    given = parser.parse_args()
    try:
        with session(cores=given.cores, memory=given.memory) as spark:
            demo(spark, given.output.resolve(), given.days)
    except (SparkStartError, JobFailedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def demo(spark: SparkSession, folder: Path, days: int) -> Path:
    """Write records, run the report, export, print a row of each table. Returns the path of the HTML file."""
    folder.mkdir(parents=True, exist_ok=True)
    warehouse = Warehouse(spark, str(folder / f"warehouse-{datetime.now(UTC):%Y%m%dT%H%M%S}"))
    start = datetime.combine(datetime.now(UTC).date() - timedelta(days=days), datetime.min.time(), UTC)
    # One record in 20 minutes for each of 300 series, so that two weeks stay small.
    made = fleet.Fleet(int(start.timestamp() * 1000), days, interval_s=1_200, series=300)
    _show(f"making {made.records:,} usage records of {made.sidecars} sidecars over {days} days")
    started = time.monotonic()
    warehouse.append("records", as_records(fleet.records(spark, made)))
    _show(f"made in {time.monotonic() - started:.0f} s; computing all tables from them")
    prices = price_list.parse(fleet.EXAMPLE_PRICES)
    _broker_counts(warehouse)
    started = time.monotonic()
    dates = report(warehouse, Rules(owners.parse(fleet.EXAMPLE_OWNERS), prices))
    _show(f"{len(dates)} dates computed in {time.monotonic() - started:.0f} s")
    for name in SHOWN:
        rows = warehouse.read(name)
        _show(f"\n{name}: {rows.count():,} rows, one of them:")
        row = rows.orderBy(f.rand(1)).first()
        _show("\n".join(f"    {key:24} {value}" for key, value in row.asDict().items()) if row else "    none")
    _show("\nwriting CSV, FOCUS and HTML")
    written = export(warehouse, str(folder / "export"), "csv")
    written.append(export_focus(warehouse, str(folder / "export"), "csv", prices))
    page = folder / "usage.html"
    page.write_text(render(warehouse), encoding="utf-8")
    _show("\n".join(f"export: {each}" for each in written))
    _show(f"tables: {warehouse.root}")
    _show(f"report: {page}")
    return page


def _show(text: str) -> None:
    print(text, flush=True)


def as_records(made: DataFrame) -> DataFrame:
    """Records as if Kafka had brought them, of proxies that count each byte once."""
    missing = set(TABLES["records"].schema.names) - set(made.columns)
    return made.withColumns({name: f.lit(None) for name in sorted(missing)})


def _broker_counts(warehouse: Warehouse) -> None:
    """What brokers would have counted: the same, but for one topic that got a tenth more round the proxy."""
    sampled = samples(warehouse.read("records"), USAGE_KIND)
    found = deltas(sampled, None, USAGE_KIND).where("direction = 'produce'")
    extra = f.when(f.col("topic") == _BYPASSED, 1.1).otherwise(1.0)
    hour = (f.to_date("time").alias("date"), f.date_trunc("hour", "time").alias("hour"))
    counted = found.groupBy(*hour, cluster(), "topic").agg(
        *(f.floor(f.sum(name) * f.first(extra)).cast("bigint").alias(name) for name in ("record_bytes", "messages"))
    )
    warehouse.append("broker_topic_hourly", counted)


if __name__ == "__main__":
    sys.exit(main())
