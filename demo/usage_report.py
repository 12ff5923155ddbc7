"""The usage pipeline over what the demo's proxies wrote: ingest, report and page in the session that produced."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.failures import JobFailedError, reason
from pipeline.usage import owners, price_list
from pipeline.usage.jobs.ingest import Source, ingest
from pipeline.usage.jobs.report import Rules, report
from pipeline.usage.page.content import render
from pipeline.usage.session import LOCAL
from pipeline.usage.tables import Warehouse

SETTINGS: Final = {**LOCAL, "spark.sql.shuffle.partitions": "2"}
"""What the session needs from its start."""
_FEW_ROWS: Final = {
    # One task each, and no compiled code: for some hundred rows both take longer than they save.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
_OWNERS: Final = '[[owner]]\nteam = "flights"\nclient-id = "flights-.*"\n'
# What Amazon MSK Serverless charges for data in and out in us-east-1 (https://aws.amazon.com/msk/pricing/, 2026).
_PRICES: Final = """\
currency = "USD"
zone = "UTC"
provider = "Demo, at the list prices of Amazon MSK Serverless"
account = "demo"

[[price]]
axis = "network_in"
amount = "0.10"
per = "GB"
from = 2020-01-01

[[price]]
axis = "network_out"
amount = "0.05"
per = "GB"
from = 2020-01-01
"""


def write_report(
    spark: SparkSession, bootstrap_servers: str, topic: str, folder: Path, say: Callable[[str], None]
) -> Path:
    """Read the usage records of a topic and write the tables and the HTML report. Returns the path of the report.

    folder: gets a separate warehouse for each run. Raises JobFailedError.
    """
    try:
        return _write_report(spark, bootstrap_servers, topic, folder, say)
    except (PySparkException, Py4JError) as error:
        raise JobFailedError(f"the usage report failed: {reason(error)}") from error


def _write_report(
    spark: SparkSession, bootstrap_servers: str, topic: str, folder: Path, say: Callable[[str], None]
) -> Path:
    for name, value in _FEW_ROWS.items():
        spark.conf.set(name, value)
    warehouse = Warehouse(spark, str(folder / f"warehouse-{time.strftime('%Y%m%dT%H%M%S')}"))
    say("reading the usage records of both proxies")
    query = ingest(warehouse, Source(bootstrap_servers, topic), f"{warehouse.root}/_checkpoint")
    query.awaitTermination()
    say(f"{warehouse.read('records').count():,} usage records; computing usage, throttling and charges")
    report(warehouse, Rules(owners.parse(_OWNERS), price_list.parse(_PRICES)))
    say("all tables are computed; drawing the usage report")
    page = folder / "usage.html"
    page.write_text(render(warehouse), encoding="utf-8")
    return page
