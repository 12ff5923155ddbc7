"""Two runs of the report at once: a table has what the later run wrote."""

from dataclasses import replace

from pyspark.sql import SparkSession

from pipeline.usage.jobs.runs import begin
from pipeline.usage.tables import Warehouse


def test_an_earlier_run_does_not_write_over_a_later_one(spark: SparkSession, warehouse: Warehouse) -> None:
    columns = "sidecar string, incarnation string"

    def write(run: Warehouse, name: str) -> None:
        made = spark.createDataFrame([(name, "run-1")], columns)
        empty = run.read("sidecars").drop("sidecar", "incarnation").limit(0)
        run.replace("sidecars", made.join(empty, how="left"))

    earlier, later = begin(warehouse), begin(warehouse)
    for run, name in ((earlier, "a"), (later, "b"), (later, "c"), (earlier, "d")):
        write(run, name)
    assert [row["sidecar"] for row in warehouse.read("sidecars").collect()] == ["c"]
    write(replace(warehouse, fence=None), "by hand")
    assert [row["sidecar"] for row in warehouse.read("sidecars").collect()] == ["by hand"]
