"""Once a day: old rows and files deleted, small files joined, quarantined values parsed again."""

from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as f

from pipeline.usage.jobs import closing
from pipeline.usage.schemas import KEPT_DAYS, TABLES
from pipeline.usage.tables import Warehouse
from pipeline.usage.transforms.parsing import invalid, parsed, valid


def maintain(warehouse: Warehouse, now_ms: int) -> int:
    """Returns how many quarantined values became records. Safe beside the stream: Delta refuses what would conflict."""
    found = retry_quarantine(warehouse, now_ms) if warehouse.exists("quarantine") else 0
    oldest = datetime.fromtimestamp(now_ms / 1000, UTC).date() - timedelta(days=KEPT_DAYS)
    for name, table in TABLES.items():
        if warehouse.exists(name):
            if table.ages_by:
                is_open = closing.is_open(warehouse) if name == "chargeback_daily" else "true"
                warehouse.delete(name, f"{table.ages_by} < date'{oldest}' and {is_open}")
            warehouse.compact(name)
    return found


def retry_quarantine(warehouse: Warehouse, now_ms: int) -> int:
    """Parse the quarantined values again: one from the future is valid later. Returns how many became records.

    If it ends between the two tables, the next run adds these records again, which changes no total.
    """
    renamed = {"kafka_partition": "partition", "kafka_offset": "offset", "kafka_time": "timestamp"}
    quarantined = warehouse.read("quarantine").withColumnsRenamed(renamed)
    rows = parsed(quarantined.withColumn("now_ms", f.lit(now_ms)))
    found: int = valid(rows).count()
    if found:
        warehouse.append("records", valid(rows))
        warehouse.replace("quarantine", invalid(rows))
    return found
