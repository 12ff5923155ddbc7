"""Every Delta table of the pipeline: its columns, what it is partitioned by, and how long its versions are kept.

Money is decimal: `cost` with 10 places (of one row, before rounding), `amount` with 2. Counters are 64-bit integers.
Times are UTC timestamps, except the raw `_ms` columns of records.
"""

from dataclasses import dataclass
from functools import cache
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
class Kind:
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


USAGE_KIND: Final = Kind(
    USAGE, ("topic", "direction", "has_total"), ("bytes", "record_bytes", "requests", "messages"), ("max_second_bytes",)
)
THROTTLE_KIND: Final = Kind(
    THROTTLE,
    ("limit", "entity"),
    ("throttled_ms", "delayed_bytes", "refused_bytes", "would_have_bytes"),
    ("limit_value", "fleet"),
)
KINDS: Final = (USAGE_KIND, THROTTLE_KIND)

_RECORD_FIELDS: Final = (
    "schema int, kind string, sidecar string, incarnation string, seq bigint, time_ms bigint, start_time_ms bigint, "
    "listener string, labels {labels}, user string, client_id string, topic string, direction string, "
    "has_total boolean, bytes bigint, "
    "record_bytes bigint, requests bigint, messages bigint, limit string, entity string, throttled_ms bigint, "
    "delayed_bytes bigint, refused_bytes bigint, would_have_bytes bigint, limit_value double, final boolean, "
    "max_second_bytes bigint, fleet string, fleet_cap double"
)
JSON_RECORD: Final = _RECORD_FIELDS.format(labels="map<string,string>")
"""A record as `from_json` reads it."""
_KAFKA: Final = "kafka_partition int, kafka_offset bigint, kafka_time timestamp"
RECORDS: Final = f"date date, {_RECORD_FIELDS.format(labels='string')}, {_KAFKA}"
QUARANTINE: Final = f"date date, reason string, value binary, key binary, topic string, {_KAFKA}"

_USAGE_SUMS: Final = "bytes bigint, record_bytes bigint, messages bigint, requests bigint"
_THROTTLE_SUMS: Final = "throttled_ms bigint, delayed_bytes bigint, refused_bytes bigint, would_have_bytes bigint"
_SERIES: Final = (
    "sidecar string, incarnation string, start_time_ms bigint, listener string, labels string, user string, "
    "client_id string"
)


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


def _of_kind(kind: Kind, own: str, gauges: str) -> dict[str, str]:
    """Its samples: series by quarter hour, with the first counter of its kind at the end of each slot as points.
    Its series by day: the last counters, from which the next day goes on.
    """
    series = f"{_SERIES}, {own}, first_ms bigint, last_ms bigint"
    firsts, lasts = (", ".join(f"{which}_{name} bigint" for name in kind.counters) for which in ("first", "last"))
    points = "points array<struct<ms:int,value:bigint,second:bigint,nth:int>>"
    return {
        f"{kind.name}_samples": f"date date, quarter bigint, {series}, {firsts}, {lasts}, {gauges}, {points}",
        f"{kind.name}_series_daily": f"date date, {series}, {lasts}",
    }


_DELTA_END: Final = "split_bytes bigint, longest_gap_ms bigint"
_USAGE_OWN: Final = "topic string, direction string, has_total boolean"
_THROTTLE_OWN: Final = "limit string, entity string"
_DELTA_SERIES: Final = "sidecar string, incarnation string, labels string, user string, client_id string"

_COLUMNS: Final = {
    # Every valid record as it came.
    "records": RECORDS,
    # Records that are not valid: why, and their raw bytes.
    "quarantine": QUARANTINE,
    **_of_kind(USAGE_KIND, _USAGE_OWN, "max_second_bytes bigint"),
    **_of_kind(THROTTLE_KIND, _THROTTLE_OWN, "limit_value double, fleet string"),
    # Usage by quarter hour and sidecar; source_date is that of the record which ended the delta.
    "usage_deltas": f"source_date date, time timestamp, {_DELTA_SERIES}, {_USAGE_OWN}, {_USAGE_SUMS}, {_DELTA_END}, "
    "max_second_bytes bigint",
    # Throttling by quarter hour and sidecar.
    "throttle_deltas": f"source_date date, time timestamp, {_DELTA_SERIES}, {_THROTTLE_OWN}, {_THROTTLE_SUMS}, "
    "limit_value double, split_throttled_ms bigint, longest_gap_ms bigint, fleet string",
    # Who used what, by hour.
    "usage_hourly": "date date, hour timestamp, cluster string, team string, user string, client_id string, "
    f"labels string, topic string, direction string, {_USAGE_SUMS}, split_bytes bigint, longest_gap_ms bigint",
    # Who was throttled by which limit, by hour.
    "throttling_hourly": "date date, hour timestamp, cluster string, team string, user string, client_id string, "
    f"labels string, {_THROTTLE_OWN}, {_THROTTLE_SUMS}, limit_value double",
    # Of each shared limit: who took more than its fair share, and whom that delayed.
    "noisy_neighbours": "date date, hour timestamp, cluster string, limit string, entity string, sidecar string, "
    "team string, user string, client_id string, bytes bigint, share double, fair_bytes double, "
    "own_throttled_ms bigint, victims bigint, victims_throttled_ms double, caused_throttled_ms double",
    # Which team caused the waiting of which team on shared limits, and what it cost.
    "waiting_cost": "date date, cluster string, limit string, entity string, caused_by string, team string, "
    f"waited_ms double, cost {COST}, currency string",
    # How fast each client and limit was by quarter hour: mean, 99th percentile, peak, and seconds by rate.
    "rates_quarterly": "date date, time timestamp, cluster string, sidecar string, limit string, entity string, "
    "mean double, p99 double, peak double, interval_s double, "
    "bins array<struct<step:int,seconds:double,bytes:double,top:double>>, has_seconds boolean",
    # The records of each run of a proxy, by day.
    "sidecar_days": "date date, cluster string, sidecar string, incarnation string, first_ms bigint, last_ms bigint, "
    "first_seq bigint, last_seq bigint, records bigint, repeated bigint, least_lag_ms bigint, most_lag_ms bigint, "
    "final boolean, bytes bigint, pace_ms bigint, gaps array<struct<from_ms:bigint,until_ms:bigint,records:bigint>>, "
    "idle bigint",
    # Each run of a proxy: whether all of its records arrived, and how it ended.
    "sidecars": "cluster string, sidecar string, incarnation string, first_record timestamp, last_record timestamp, "
    "state string, ended_cleanly boolean, records bigint, repeated bigint, missing_records bigint, last_gap date, "
    "lag_ms bigint, clock_offset_ms bigint, bytes bigint, estimated_missing_bytes bigint",
    # Offsets of the usage topic that were never read: deleted before ingest came to them.
    "topic_holes": "found_at timestamp, kafka_partition int, first_offset bigint, last_offset bigint",
    # Clients, limits and topics that a step of the report could not compute, and left out.
    "isolated": "at timestamp, step string, sidecar string, user string, client_id string, limit string, "
    "entity string, topic string, reason string",
    # What the quota of each entity should be, and why; a row for each of its clients.
    "quota_recommendations": "cluster string, team string, user string, client_id string, limit string, "
    "entity string, current_limit double, used_p50 double, used_p95 double, used_p99 double, demand_p99 double, "
    "demand_is_lower_bound boolean, peak double, need double, headroom double, proposed double, part double, "
    "why string, confidence string, intervals bigint, throttled_intervals bigint, days bigint, interval_s double, "
    "mean_record_bytes double, max_offsets_per_trigger bigint, buffer_drain_s double, first_day date, last_day date",
    # What it cost, by day.
    "chargeback_daily": "date date, cluster string, team string, user string, client_id string, topic string, "
    f"labels string, axis string, quantity decimal(20,0), cost {COST}, amount {AMOUNT}, currency string, "
    "source string, charge_class string, closed_period string, billed_month date",
    # What each team costs by month and per GB, against the month before and its budget.
    "team_months": "month date, cluster string, team string, amount decimal(28,2), gigabytes double, "
    "cost_per_gb double, month_before decimal(28,2), run_rate decimal(28,2), budget decimal(28,2), "
    "over_budget boolean, currency string",
    # Billing periods that are closed, with their prices and owners.
    "closed_periods": "period string, first_day date, end_day date, price_list string, owners string, "
    f"total {AMOUNT}, rows bigint, closed_at timestamp",
    # Partitions, bytes on disk and log end offsets of each topic at one time.
    "storage_snapshots": "date date, time timestamp, cluster string, topic string, partitions bigint, "
    "size_bytes bigint, end_offsets bigint",
    # What the brokers themselves counted, by topic and hour.
    "broker_topic_hourly": "date date, hour timestamp, cluster string, topic string, record_bytes bigint, "
    "messages bigint",
    # Which topics get data that no sidecar saw.
    "bypass_check": "date date, hour timestamp, cluster string, topic string, measure string, broker_count bigint, "
    "seen_count bigint, unseen_count bigint, unseen_share double, lost_sidecars bigint, is_certain boolean",
    # Every run of the report, and up to which version of its sources it has read.
    "report_runs": "at timestamp, run_id string, records_version bigint, storage_snapshots_version bigint, "
    "broker_topic_hourly_version bigint, first_date date, last_date date, dates bigint, since date, rules string, "
    "offsets map<int,bigint>",
}
_SOURCES: Final = ("records", "storage_snapshots", "broker_topic_hourly")
"""Of the report: it reads which of their dates changed since a version."""
TABLES: Final = {name: Table(name, columns, name in _SOURCES) for name, columns in _COLUMNS.items()}

RETENTION: Final = "interval 30 days"
"""For how long Delta keeps its log and removed files. A report that did not run for longer computes all dates again."""
KEPT_DAYS: Final = 400
"""For how long rows are kept; charges of closed months for ever. Ingest takes no records that are older."""
