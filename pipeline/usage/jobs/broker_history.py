"""Broker metrics from before the proxy, or beside it: a Prometheus range query's answer as a file.

    curl '.../api/v1/query_range?query=kafka_server_brokertopicmetrics_bytesin_total&start=...&end=...&step=300'

The metric's labels name the topic (`topic`) and the broker (`instance`); others are ignored.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.usage.schemas import UNALLOCATED
from pipeline.usage.tables import Warehouse
from pipeline.usage.transforms.bypass import from_counters
from pipeline.usage.transforms.hourly import FROM_BROKERS

_ANSWER = "data struct<result:array<struct<metric:map<string,string>,values:array<array<string>>>>>"


def read_range(warehouse: Warehouse, path: str) -> DataFrame:
    """The samples of a query_range answer: time, broker, topic, bytes. One file is read by one task."""
    answer = warehouse.spark.read.schema(_ANSWER).option("multiLine", "true").json(path)
    series = answer.select(f.explode("data.result").alias("series"))
    points = series.select("series.metric", f.explode("series.values").alias("point"))
    return points.select(
        f.timestamp_seconds(f.col("point")[0].cast("double")).alias("time"),
        f.coalesce(f.col("metric")["instance"], f.lit("")).alias("broker"),
        f.col("metric")["topic"].alias("topic"),
        f.col("point")[1].cast("double").cast("bigint").alias("bytes"),
    ).where(f.col("topic").isNotNull())


def import_range(warehouse: Warehouse, path: str, direction: str) -> int:
    """Write a file's growth by topic and hour to usage_hourly with source `brokers`, and for the produce direction to
    broker_topic_hourly. Dates of the file are replaced. Returns how many rows there are.
    """
    hourly = from_counters(read_range(warehouse, path)).persist()
    dates = [row["date"] for row in hourly.select("date").distinct().collect()]
    nothing = f.lit(None)
    usage = hourly.withColumns(
        {
            "team": f.lit(UNALLOCATED),
            "user": nothing,
            "client_id": nothing,
            "direction": f.lit(direction),
            "bytes": f.col("record_bytes"),
            "requests": nothing,
            "split_bytes": f.lit(0),
            "longest_gap_ms": nothing,
            "source": f.lit(FROM_BROKERS),
        }
    )
    listed = ", ".join(f"date'{each}'" for each in sorted(dates))
    where = f"date in ({listed}) and source = '{FROM_BROKERS}' and direction = '{direction}'"
    if dates:
        warehouse.replace_where("usage_hourly", usage, where)
        if direction == "produce":
            warehouse.replace_dates("broker_topic_hourly", hourly, dates)
    count = int(hourly.count())
    hourly.unpersist()
    return count
