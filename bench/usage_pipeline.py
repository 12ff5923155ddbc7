"""How long one micro-batch of ingest takes (JSON parsed, checked, written to records and quarantine), and the whole
command `report`, each for a day of so many records.

The records are Kafka rows in Parquet, so that the figure is that of the pipeline and not of a broker. `report` is a
process of its own: the start of Spark is in its figures. Most of them, for few records, is fixed: Spark plans and
compiles each query, Delta commits each table.

    .venv/bin/python -m bench.usage_pipeline --memory 2g --records 35000 1000000 20000000
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from demo import fleet
from demo.usage import as_records
from pipeline.options import count, heap
from pipeline.usage.cli import INCOMPLETE, OVER_BUDGET
from pipeline.usage.jobs.ingest import wall_clock_ms, write_batch
from pipeline.usage.session import PROJECT, session
from pipeline.usage.tables import Warehouse


@dataclass(frozen=True, slots=True)
class Run:
    """seconds: by the clock on the wall; cpu_s: CPU seconds, of use on a busy machine."""

    seconds: float
    cpu_s: float


def bench(spark: SparkSession, folder: Path, records: int, series: int, *options: str) -> dict[str, Run]:
    """Print and return the runs by step. options: of the command `report`."""
    shutil.rmtree(folder, ignore_errors=True)
    warehouse = Warehouse(spark, str(folder / "warehouse"))
    made = _fleet(records, series)
    runs = {"ingest": _ingest(warehouse, made, folder), "report": _report(warehouse, made, folder, options)}
    for step, run in runs.items():
        print(f"{step} {made.records:>10,} records: {run.seconds:>6.1f} s, {run.cpu_s:>6.1f} s of CPU", flush=True)
    shutil.rmtree(folder)
    return runs


def _fleet(records: int, series: int) -> fleet.Fleet:
    """About so many records of one day: at most so many series, one record a minute of each."""
    series = min(series, max(8, records // 35))
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
    return _measure(lambda: write_batch(warehouse, batch, "bench", 0), _cpu_of_spark)


def _report(warehouse: Warehouse, made: fleet.Fleet, folder: Path, options: Sequence[str]) -> Run:
    if warehouse.read("records").count() != made.records:
        warehouse.replace("records", as_records(fleet.records(warehouse.spark, made)))
    command = [sys.executable, "-m", "pipeline.usage", *options, "report", "--warehouse", warehouse.root]
    for name, text in (("owners", fleet.EXAMPLE_OWNERS), ("prices", fleet.EXAMPLE_PRICES)):
        path = folder / f"{name}.toml"
        path.write_text(text, encoding="utf-8")
        command += [f"--{name}", str(path)]

    def run() -> None:
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        if done.returncode not in (0, INCOMPLETE, OVER_BUDGET):
            raise RuntimeError(done.stderr)

    return _measure(run, _cpu_of_ended)


def _measure(step: Callable[[], None], cpu_s: Callable[[], float]) -> Run:
    started, before = time.perf_counter(), cpu_s()
    step()
    return Run(time.perf_counter() - started, cpu_s() - before)


def _cpu_of_ended() -> float:
    """CPU seconds of all processes that this one started and that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _cpu_of_spark() -> float:
    """CPU seconds of this process's Spark so far; Linux only."""
    stat = Path(f"/proc/{SparkContext._gateway.proc.pid}/stat").read_text(encoding="ascii")
    fields = stat.rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.usage_pipeline", description=__doc__)
    parser.add_argument("--memory", type=heap, default="1g", help="heap of Spark (default: %(default)s)")
    parser.add_argument("--cores", type=count, default=2, help="of Spark (default: %(default)s)")
    parser.add_argument("--records", type=count, nargs="+", default=[35_000, 1_000_000], metavar="N", help="of a run")
    parser.add_argument("--series", type=count, default=20_000, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("build/bench-usage"), help="(default: %(default)s)")
    given = parser.parse_args()
    options = ("--memory", given.memory, "--cores", f"{given.cores}")
    for records in given.records:
        with session(cores=given.cores, memory=given.memory, shuffle_partitions=8) as spark:
            bench(spark, given.output.resolve(), records, given.series, *options)


if __name__ == "__main__":
    main()
