"""A program for spark-submit: writes rows of a kilobyte to a topic, in two tasks.

    spark-submit advised_job.py BOOTSTRAP TOPIC ROWS OPTIONS

`OPTIONS` are lines as `kafka-quota-proxy advise` prints them; the sink takes those of the producer.
"""

import re
import sys

from pyspark.sql import SparkSession


def main(bootstrap: str, topic: str, rows: str, lines: str) -> None:
    options = dict(re.findall(r'^\.option\("(kafka\.[^"]+)", "([^"]+)"\)$', lines, re.MULTILINE))
    spark = SparkSession.builder.getOrCreate()
    values = spark.range(int(rows), numPartitions=2).selectExpr("CAST(repeat('x', 1000) AS STRING) AS value")
    values.write.format("kafka").options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic, **options}).save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
