"""How many records per second: ingest (JSON parsed, checked, written to records and quarantine), and the whole report.

The records are Kafka rows in Parquet, so that the figure is that of the pipeline and not of a broker. Two sizes
separate the fixed time of a run (Spark plans and compiles each query, Delta commits each table) from the time for each
further record.

    .venv/bin/python -m bench.usage_pipeline --memory 2g --records 20000000
"""

import argparse
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from demo import fleet
from demo.usage import as_records
from pipeline.options import count, heap
from pipeline.usage import owners, price_list
from pipeline.usage.jobs.ingest import wall_clock_ms, write_batch
from pipeline.usage.jobs.report import Rules, report
from pipeline.usage.session import session
from pipeline.usage.tables import Warehouse


@dataclass(frozen=True, slots=True)
class Run:
    """seconds: by the clock on the wall; cpu_s: CPU seconds of Spark's JVM, of use on a busy machine."""

    records: int
    seconds: float
    cpu_s: float


def bench(spark: SparkSession, folder: Path, records: int, series: int) -> dict[str, list[Run]]:
    """Print and return the runs by step: with a tenth of `records`, then with all of them."""
    runs: dict[str, list[Run]] = {"ingest": [], "report": []}
    for number in (records // 10, records):
        shutil.rmtree(folder, ignore_errors=True)
        warehouse = Warehouse(spark, str(folder / "warehouse"))
        made = _fleet(number, series)
        for step, measure in (("ingest", partial(_ingest, folder=folder)), ("report", _report)):
            runs[step].append(_print(step, measure(warehouse, made)))
    shutil.rmtree(folder, ignore_errors=True)
    for step, (few, many) in runs.items():
        more, seconds = many.records - few.records, many.seconds - few.seconds
        if seconds > 0:
            size, duration = many.records / few.records, many.seconds / few.seconds
            print(
                f"{step}: {size:.1f} times the records in {duration:.1f} times the time; "
                f"{more / seconds:,.0f} records/s after the first {few.records:,}"
            )
    return runs


def _print(step: str, run: Run) -> Run:
    print(
        f"{step} {run.records:>10,} records: {run.seconds:>6.1f} s, {run.records / run.seconds:>9,.0f} records/s, "
        f"{run.records / run.cpu_s:>9,.0f} records per CPU second"
    )
    return run


def _fleet(records: int, series: int) -> fleet.Fleet:
    """A day of so many records: more series, the same interval."""
    start = datetime.combine(datetime.now(UTC).date() - timedelta(days=1), datetime.min.time(), UTC)
    steps = max(1, records * 8 // (series * 9))
    return fleet.Fleet(int(start.timestamp() * 1000), steps * 60 / 86_400, interval_s=60, series=series)


def _ingest(warehouse: Warehouse, made: fleet.Fleet, folder: Path) -> Run:
    rows = str(folder / "kafka.parquet")
    columns = [f.col(name) for name in fleet.records(warehouse.spark, made).columns if name not in ("date", "labels")]
    labels = f.map_from_arrays(f.array().cast("array<string>"), f.array().cast("array<string>")).alias("labels")
    value = f.to_json(f.struct(*columns, labels), {"ignoreNullFields": "false"}).cast("binary")
    fleet.records(warehouse.spark, made).select(
        value.alias("value"),
        f.col("sidecar").cast("binary").alias("key"),
        f.lit("usage").alias("topic"),
        f.lit(0).alias("partition"),
        f.lit(0).cast("bigint").alias("offset"),
        f.current_timestamp().alias("timestamp"),
    ).write.parquet(rows)
    batch = warehouse.spark.read.parquet(rows).withColumn("now_ms", f.lit(wall_clock_ms()))
    for name in ("records", "quarantine"):
        warehouse.create(name)
    return _measure(made, lambda: write_batch(warehouse, batch, "bench", 0))


def _report(warehouse: Warehouse, made: fleet.Fleet) -> Run:
    if warehouse.read("records").count() != made.records:
        warehouse.replace("records", as_records(fleet.records(warehouse.spark, made)))
    rules = Rules(owners.parse(fleet.EXAMPLE_OWNERS), price_list.parse(fleet.EXAMPLE_PRICES))
    return _measure(made, lambda: report(warehouse, rules))


def _measure(made: fleet.Fleet, step: Callable[[], object]) -> Run:
    pid = SparkContext._gateway.proc.pid
    started, cpu_s = time.perf_counter(), _cpu_s(pid)
    step()
    return Run(made.records, time.perf_counter() - started, _cpu_s(pid) - cpu_s)


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, all threads; Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.usage_pipeline", description=__doc__)
    parser.add_argument("--memory", type=heap, default="1g", help="heap of Spark (default: %(default)s)")
    parser.add_argument("--cores", type=count, default=2, help="of Spark (default: %(default)s)")
    parser.add_argument("--records", type=count, default=2_000_000, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--series", type=count, default=20_000, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("build/bench-usage"), help="(default: %(default)s)")
    given = parser.parse_args()
    with session(cores=given.cores, memory=given.memory, shuffle_partitions=8) as spark:
        bench(spark, given.output.resolve(), given.records, given.series)


if __name__ == "__main__":
    main()
