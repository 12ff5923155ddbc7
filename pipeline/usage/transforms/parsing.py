"""Kafka values to typed records, and for each value that is none the reason.

The rules are those of `record_v1.schema.json`, and two that need a clock: a record from the future, and one older than
the tables keep. Differences from the schema: an unknown field is ignored, and a JSON number with a zero fraction is not
a whole number here.
"""

from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pipeline.usage.records import IDLE, MAX_COUNT, MAX_LABELS, MAX_LIMIT, MAX_TEXT, SCHEMA_VERSION
from pipeline.usage.schemas import DAY_MS, JSON_RECORD, KEPT_DAYS, REQUEST_FACTS, THROTTLE_KIND, USAGE_KIND

CLOCK_AHEAD_MS = 600_000
"""A record may be this far ahead of the clock of the ingesting driver."""
OLDEST_TIME = datetime(2000, 1, 1, tzinfo=UTC)
MAX_BYTES_PER_S = 125_000_000_000
"""1 Tbit/s: a counter that grew faster than any network card is not believed."""
_CORRUPT = "_corrupt_record"
_ABSURD = "is missing or negative or absurd"


def parsed(kafka: DataFrame) -> DataFrame:
    """Rows of Spark's Kafka source, with `now_ms`, to the columns of `records`, with `reason` (null for a valid
    record), `kafka_topic`, and, of a record that is not valid, its raw `value` and `key`.

    now_ms: a column with the wall clock in milliseconds since 1970-01-01 UTC. One scan of the JSON for each record.
    """
    record = f.from_json(
        f.col("value").cast("string"), f"{JSON_RECORD}, {_CORRUPT} string", {"columnNameOfCorruptRecord": _CORRUPT}
    )
    renamed = {name: f"kafka_{name}" for name in ("topic", "partition", "offset")} | {"timestamp": "kafka_time"}
    # The number of a row is not deterministic as far as Spark knows, so that it does not move a later filter in front
    # of the parsing and parse each record twice. Used by `valid` and `invalid`; else it would be removed.
    rows = kafka.withColumnsRenamed(renamed).withColumns({"record": record, "row": f.monotonically_increasing_id()})
    # Of valid records only: Spark computes these for every row, and a label that is there twice, or a time after the
    # year 294247, is an error that would end the stream.
    is_valid = f.col("reason").isNull()
    labels = f.when(is_valid, f.to_json(f.map_from_entries(f.array_sort(f.map_entries("labels")))))
    return (
        rows.select("*", "record.*")
        .drop("record")
        .withColumn("reason", reason())
        .withColumns({name: f.when(~is_valid, f.col(name)) for name in ("value", "key")})
        .withColumn("labels", labels)
        .withColumn("date", f.when(is_valid, f.to_date(f.timestamp_millis(f.col("time_ms")))))
        .withColumn("kafka_time", f.when(_is_sane("kafka_time"), f.col("kafka_time")))
    )


def valid(rows: DataFrame) -> DataFrame:
    """Of `parsed`: the records."""
    return rows.where(f.col("reason").isNull() & (f.col("row") >= 0))


def invalid(rows: DataFrame) -> DataFrame:
    """Of `parsed`: the rows of `quarantine`; their date is the one on which Kafka got them, or of `now_ms` where
    Kafka's time is before 2000 or after tomorrow.
    """
    got = f.to_date(f.coalesce("kafka_time", f.timestamp_millis("now_ms")))
    found = rows.where(f.col("reason").isNotNull() & (f.col("row") >= 0))
    return found.withColumns({"date": got, "topic": f.col("kafka_topic")})


def reason() -> Column:
    """Why a record is not valid; the first reason that applies, null when there is none."""
    is_broken = f.col(_CORRUPT).isNotNull() | f.coalesce(f.col("schema"), f.col("seq")).isNull()
    checks = [
        (f.col("value").isNull(), "no value"),
        (is_broken, "broken JSON or a wrong type"),
        (~f.col("schema").eqNullSafe(SCHEMA_VERSION), "unknown schema version"),
        (~f.coalesce(f.col("kind").isin(USAGE_KIND.name, THROTTLE_KIND.name, IDLE), f.lit(False)), "unknown kind"),
        *((_bad_text(name, 1), f"{name} is missing or empty or too long") for name in ("sidecar", "incarnation")),
        *((_bad_text(name), f"{name} is missing or too long") for name in ("listener", "user", "client_id")),
        (_bad_labels(), "labels are missing or too many or too long"),
        (f.size(f.array_distinct(f.map_keys("labels"))) < f.size("labels"), "labels have a name twice"),
        *((_bad_count(name), f"{name} {_ABSURD}") for name in ("seq", "time_ms", "start_time_ms")),
        (f.col("time_ms") > f.col("now_ms") + CLOCK_AHEAD_MS, "time_ms is in the future"),
        (f.col("time_ms") < f.col("now_ms") - KEPT_DAYS * DAY_MS, f"time_ms is more than {KEPT_DAYS} days ago"),
        (f.col("start_time_ms") > f.col("time_ms"), "start_time_ms is after time_ms"),
        *_usage_checks(),
        *_throttle_checks(),
    ]
    return f.coalesce(*(f.when(failed, text) for failed, text in checks))


def _usage_checks() -> list[tuple[Column, str]]:
    usage = f.col("kind") == USAGE_KIND.name
    elapsed_ms = f.col("time_ms") - f.col("start_time_ms") + 60_000
    return [
        (usage & ~f.coalesce(f.col("direction").isin("produce", "fetch"), f.lit(False)), "unknown direction"),
        (usage & _bad_text("topic", is_optional=True), "topic is too long"),
        *((usage & _bad_count(name), f"{name} {_ABSURD}") for name in ("bytes", "requests")),
        *(
            (usage & _bad_count(name, is_optional=True), f"{name} is negative or absurd")
            for name in ("record_bytes", "messages", "max_second_bytes", *REQUEST_FACTS)
        ),
        (usage & (f.col("bytes") / elapsed_ms > MAX_BYTES_PER_S / 1000), "bytes grew faster than 1 Tbit/s"),
    ]


def _throttle_checks() -> list[tuple[Column, str]]:
    throttle = f.col("kind") == THROTTLE_KIND.name
    numbers = {name: f.coalesce(name, f.lit(0.0)) for name in ("limit_value", "fleet_cap")}
    return [
        *((throttle & _bad_text(name, 1), f"{name} is missing or empty or too long") for name in ("limit", "entity")),
        *((throttle & _bad_count(name), f"{name} {_ABSURD}") for name in THROTTLE_KIND.counters),
        *((throttle & (number < 0), f"{name} is negative") for name, number in numbers.items()),
        # NaN is above all numbers.
        *((throttle & (number > MAX_LIMIT), f"{name} is absurd") for name, number in numbers.items()),
        (throttle & _bad_text("fleet", 1, is_optional=True), "fleet is empty or too long"),
    ]


def _is_sane(name: str) -> Column:
    """A time that a producer has set: from 2000 to tomorrow."""
    return f.col(name).between(f.lit(OLDEST_TIME), f.timestamp_millis(f.col("now_ms") + DAY_MS))


def _bad_text(name: str, least: int = 0, *, is_optional: bool = False) -> Column:
    return f.coalesce(~f.length(name).between(least, MAX_TEXT), f.lit(not is_optional))


def _bad_labels() -> Column:
    too_long = f.exists(f.map_values("labels"), lambda each: f.coalesce(f.length(each) > MAX_TEXT, f.lit(True)))
    return f.coalesce((f.size("labels") > MAX_LABELS) | too_long, f.lit(True))


def _bad_count(name: str, *, is_optional: bool = False) -> Column:
    return f.coalesce(~f.col(name).between(0, MAX_COUNT), f.lit(not is_optional))
