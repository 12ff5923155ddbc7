"""Every Delta table of the pipeline: its columns (`tables.toml`), what it is partitioned by, and how long its versions
are kept.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from pyspark.sql.types import StructType

from pipeline.usage.records import THROTTLE, USAGE

QUARTER_MS: Final = 900_000
"""The grain of deltas: zones of half and of quarter hours have their midnight on a boundary."""
SLOT_MS: Final = 10_000
"""The grain of rates within a quarter hour."""
DAY_MS: Final = 86_400_000
LOOKBACK_DAYS: Final = 8
"""How far back the previous sample of a series is looked for. A sidecar sends each live series every 10 minutes."""
UNALLOCATED: Final = "unallocated"
COST: Final = "decimal(28,10)"
UNIT_PRICE: Final = "decimal(14,6)"
AMOUNT: Final = "decimal(18,2)"

SERIES_COMMON: Final = ("sidecar", "incarnation", "start_time_ms", "listener", "labels", "user", "client_id")
"""What every series is identified by; `labels` is canonical JSON, its keys sorted."""


@dataclass(frozen=True, slots=True)
class RecordKind:
    """One kind of record.

    own: what identifies a series besides SERIES_COMMON; counters: cumulative columns.
    """

    name: str
    own: tuple[str, ...]
    counters: tuple[str, ...]
    gauges: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        return (*SERIES_COMMON, *self.own)

    @property
    def delta_keys(self) -> tuple[str, ...]:
        """What a delta keeps of its series: all but its start and its listener."""
        return ("sidecar", "incarnation", "labels", "user", "client_id", *self.own)


REQUEST_FACTS: Final = ("unanswered_requests", "inspected_requests", "idempotent_requests", "uncompressed_requests")
"""Of Produce requests, in the series without a topic; null in records of older proxies."""

USAGE_KIND: Final = RecordKind(
    USAGE,
    ("topic", "direction", "has_total"),
    ("bytes", "record_bytes", "requests", "messages", *REQUEST_FACTS),
    ("max_second_bytes",),
)
THROTTLE_KIND: Final = RecordKind(
    THROTTLE,
    ("limit", "entity"),
    ("throttled_ms", "delayed_bytes", "refused_bytes", "would_have_bytes"),
    ("limit_value", "fleet"),
)
KINDS: Final = (USAGE_KIND, THROTTLE_KIND)

_COLUMNS: Final = tomllib.loads(files("pipeline.usage").joinpath("tables.toml").read_text(encoding="utf-8"))
_RECORD: Final = _COLUMNS["records"].split(",")[1:-3]
JSON_RECORD: Final = ",".join(_RECORD).replace("labels string", "labels map<string,string>")
"""A record as `from_json` reads it: without its date and where it was in Kafka."""


@cache
def _schema(ddl: str) -> StructType:
    return StructType.fromDDL(ddl)


@dataclass(frozen=True, slots=True)
class Table:
    """One table. columns: DDL; where rows are kept for KEPT_DAYS, the first one is their time.

    is_source: the report reads which of its dates changed since a version.
    """

    name: str
    columns: str
    is_source: bool = False

    @property
    def by(self) -> tuple[str, ...]:
        """Its partition columns: the date, of records their kind, too."""
        return tuple(name for name in ("source_date", "date", "kind") if name in self.schema.names)

    @property
    def ages_by(self) -> str:
        """The column with the time of a row; "" where the report replaces the table, and for closed_periods."""
        first = self.schema[0]
        return first.name if first.dataType.typeName() in ("date", "timestamp") else ""

    @property
    def schema(self) -> StructType:
        return _schema(self.columns)


_SOURCES: Final = ("records", "storage_snapshots", "broker_topic_hourly")
"""Of the report: it reads which of their dates changed since a version."""
TABLES: Final = {name: Table(name, columns, name in _SOURCES) for name, columns in _COLUMNS.items()}

RETENTION: Final = "interval 30 days"
"""For how long Delta keeps its log and removed files. A report that did not run for longer computes all dates again."""
KEPT_DAYS: Final = 400
"""For how long rows are kept; charges of closed months for ever. Ingest takes no records that are older."""
