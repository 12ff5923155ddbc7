"""Tables as files for other tools: CSV, Parquet, and charges in FOCUS 1.2."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.usage.price_list import PriceList
from pipeline.usage.tables import Warehouse
from pipeline.usage.transforms.chargeback import folded
from pipeline.usage.transforms.focus import focus

EXPORTED: Final = (
    "usage_hourly",
    "throttling_hourly",
    "chargeback_daily",
    "team_months",
    "noisy_neighbours",
    "quota_recommendations",
    "bypass_check",
)
FORMATS: Final = ("csv", "parquet")


def export(warehouse: Warehouse, folder: str, file_format: str) -> list[str]:
    """Write each table to its own folder, as Spark writes files: one for each task. Returns the folders."""
    tables = {name: warehouse.read(name) for name in EXPORTED}
    tables["chargeback_daily"] = folded(tables["chargeback_daily"])
    return [_write(rows, folder, name, file_format) for name, rows in tables.items()]


def export_focus(warehouse: Warehouse, folder: str, file_format: str, prices: PriceList) -> str:
    """chargeback_daily as FOCUS 1.2. Returns the folder."""
    return _write(focus(folded(warehouse.read("chargeback_daily")), prices), folder, "focus-1.2", file_format)


def _write(rows: DataFrame, folder: str, name: str, file_format: str) -> str:
    target = f"{folder.rstrip('/')}/{name}.{file_format}"
    if file_format == "csv":
        # CSV has no lists: they are written as JSON. Quotes are doubled (RFC 4180): Spark would write a backslash.
        lists = [field.name for field in rows.schema if field.dataType.typeName() == "array"]
        rows = rows.withColumns({name: f.to_json(name) for name in lists}) if lists else rows
        rows.write.mode("overwrite").csv(target, header=True, escape='"')
    else:
        rows.write.mode("overwrite").parquet(target)
    return target
