"""The usage of a fleet that does not exist: skewed clients, topics and sidecars, days and nights, weekends, teams that
grow and shrink, restarts, throttling.

Counters are closed forms of time, so any number of records can be made in parallel, each independently, and they are
always the same.
"""

import math
from dataclasses import dataclass
from itertools import accumulate

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.usage.schemas import DAY_MS

TEAMS = ("search", "billing", "ads", "fraud", "reco", "legacy")
"""Client ids begin with these. The example owners file has no rule for the last one."""
GROWTH = (1.6, 1.0, 0.6, 1.1, 1.25, 0.9)
"""What each team uses after two weeks, of what it used at first."""
CLUSTERS = ("east", "west")
"""Sidecars are of one after the other."""
_TURN_MS = DAY_MS / (2 * math.pi)


@dataclass(frozen=True, slots=True)
class Fleet:
    """series: (client, topic, direction, sidecar) tuples that exist, far fewer than all combinations.

    Of the series, every eighth has a throttle series beside it. interval_s: seconds between two records of a series.
    restart_days: days between two restarts of a sidecar.
    """

    start_ms: int
    days: float
    interval_s: int = 60
    sidecars: int = 50
    clients: int = 2_000
    topics: int = 500
    series: int = 20_000
    restart_days: int = 5

    @property
    def steps(self) -> int:
        return max(1, int(self.days * 86_400 / self.interval_s))

    @property
    def records(self) -> int:
        """How many records of both kinds."""
        return self.series * self.steps + (self.series // 8) * self.steps


EXAMPLE_OWNERS = "".join(f'[[owner]]\nteam = "{team}"\nclient-id = "{team}-.*"\n\n' for team in TEAMS[:-1])
EXAMPLE_PRICES = """\
currency = "EUR"
zone = "Europe/Berlin"
provider = "Data platform"
account = "kafka-prod"

[[price]]
axis = "network_in"
amount = "0.09"
per = "GB"
from = 2020-01-01

[[price]]
axis = "network_out"
amount = "0.04"
per = "GB"
from = 2020-01-01

[[price]]
axis = "requests"
amount = "0.20"
per = "million requests"
from = 2020-01-01

[[budget]]
team = "ads"
amount = "500.00"

[[budget]]
team = "search"
amount = "5.00"
"""


def records(spark: SparkSession, fleet: Fleet, *, partitions: int = 8) -> DataFrame:
    """Every record, typed, in the columns of `records` (labels as JSON) without Kafka's."""
    return usage(spark, fleet, partitions).unionByName(throttling(spark, fleet, partitions), allowMissingColumns=True)


def usage(spark: SparkSession, fleet: Fleet, partitions: int = 8) -> DataFrame:
    rows = _numbered(_series(spark, fleet, fleet.series, partitions), fleet, f.lit(0))
    volume = _volume(fleet, f.col("time_ms")) - _volume(fleet, f.col("start_time_ms"))
    size = f.floor(volume).cast("bigint")
    return rows.select(
        *_common("usage"),
        _topic(fleet),
        f.when(_is_produce(), "produce").otherwise("fetch").alias("direction"),
        size.alias("bytes"),
        f.floor(size * 0.94).cast("bigint").alias("record_bytes"),
        f.floor(size / 24_000).cast("bigint").alias("requests"),
        f.floor(size / 700).cast("bigint").alias("messages"),
    )


def throttling(spark: SparkSession, fleet: Fleet, partitions: int = 8) -> DataFrame:
    """Throttled in the upper half of the day's wave. Two clients in five share one limit, over all teams."""
    rows = _series(spark, fleet, fleet.series // 8, partitions)
    rows = _numbered(rows, fleet, _of_sidecar(fleet, fleet.series))
    waited = f.floor((_upper_half(f.col("time_ms")) - _upper_half(f.col("start_time_ms"))) * _weight()).cast("bigint")
    own = f.concat(f.lit("client-id:"), f.col("client_id"))
    return rows.select(
        *_common("throttle"),
        f.when(_is_produce(), "producer_byte_rate").otherwise("consumer_byte_rate").alias("limit"),
        f.when(f.col("client_number") % 5 < 2, "resource-group:batch").otherwise(own).alias("entity"),
        waited.alias("throttled_ms"),
        f.floor(waited * _rate() / 1000).cast("bigint").alias("delayed_bytes"),
        f.lit(0).cast("bigint").alias("refused_bytes"),
        f.lit(0).cast("bigint").alias("would_have_bytes"),
        f.ceil(_rate() * 3).cast("double").alias("limit_value"),  # clients have one to three series in a sidecar
    )


def _series(spark: SparkSession, fleet: Fleet, series: int, partitions: int) -> DataFrame:
    """One row for each record: id of the series, and when."""
    numbers = spark.range(0, series * fleet.steps, 1, partitions)
    number, step = (f.col("n") % series).alias("id"), f.floor(f.col("n") / series).alias("step")
    rows = numbers.withColumnRenamed("id", "n").select(number, step.cast("bigint"))
    sidecar = f.col("id") % fleet.sidecars
    # Before the interval's end: the last day ends at its midnight.
    time_ms = f.lit(fleet.start_ms - 1) + (f.col("step") + 1) * (fleet.interval_s * 1000) - f.pmod("id", f.lit(997))
    rows = rows.withColumns({"sidecar_number": sidecar, "time_ms": time_ms})
    # Sidecars restart on different days, at the same time of day.
    life_ms = fleet.restart_days * DAY_MS
    shift = (f.col("sidecar_number") % fleet.restart_days) * DAY_MS
    run = f.floor((f.col("time_ms") - fleet.start_ms + shift) / life_ms).cast("bigint")
    first, following = (_first_step(fleet, f.col("run") + more, shift) for more in (0, 1))
    begun = f.greatest(f.lit(fleet.start_ms), f.lit(fleet.start_ms) + f.col("run") * life_ms - shift)
    client = _skewed(f.xxhash64("id", f.lit(1)), fleet.clients)
    teams = f.array(*map(f.lit, TEAMS))
    rows = rows.withColumns({"run": run, "client_number": client})
    # One sidecar in 17 is killed each time; each other run ends with a last record, but for the newest.
    is_last = (f.col("step") == following - 1) & (following < fleet.steps) & (f.col("sidecar_number") % 17 != 7)
    rows = rows.withColumns({"step_of_run": f.col("step") - first, "final": is_last})
    name = f.concat(f.element_at(teams, (f.col("client_number") % len(TEAMS) + 1).cast("int")), f.lit("-etl-"))
    return rows.withColumns(
        {"start_time_ms": begun.cast("bigint"), "client_id": f.concat(name, f.col("client_number"))}
    )


def _first_step(fleet: Fleet, run: Column, shift: Column) -> Column:
    return f.greatest(f.lit(0), f.floor((run * fleet.restart_days * DAY_MS - shift) / (fleet.interval_s * 1000)))


def _of_sidecar(fleet: Fleet, series: int) -> Column:
    """How many of this number of series belong to the row's sidecar."""
    return f.ceil((series - f.col("sidecar_number")) / fleet.sidecars)


def _numbered(rows: DataFrame, fleet: Fleet, before: Column) -> DataFrame:
    """Add `seq`: at each step usage records, then throttle records. before: how many of the sidecar come first."""
    of_step = _of_sidecar(fleet, fleet.series) + _of_sidecar(fleet, fleet.series // 8)
    number = f.col("step_of_run") * of_step + before + f.floor(f.col("id") / fleet.sidecars)
    return rows.withColumn("seq", number.cast("bigint"))


def _common(kind: str) -> list[Column]:
    clusters, cluster = f.array(*map(f.lit, CLUSTERS)), (f.col("sidecar_number") % len(CLUSTERS) + 1).cast("int")
    return [
        f.to_date(f.timestamp_millis("time_ms")).alias("date"),
        f.lit(1).alias("schema"),
        f.lit(kind).alias("kind"),
        f.concat(f.lit("pod-"), f.col("sidecar_number")).alias("sidecar"),
        f.concat_ws("-", f.lit("run"), f.col("sidecar_number"), f.col("run")).alias("incarnation"),
        "seq",
        "time_ms",
        "start_time_ms",
        f.lit("0.0.0.0:19092").alias("listener"),
        f.concat(f.lit('{"cluster":"'), f.element_at(clusters, cluster), f.lit('"}')).alias("labels"),
        f.concat(f.lit("svc-"), f.col("client_number") % 97).alias("user"),
        "client_id",
        "final",
    ]


def _is_produce() -> Column:
    return f.pmod(f.xxhash64("id", f.lit(3)), f.lit(10)) < 7


def _topic(fleet: Fleet) -> Column:
    return f.concat(f.lit("topic-"), _skewed(f.xxhash64("id", f.lit(2)), fleet.topics)).alias("topic")


def _skewed(hashed: Column, count: int) -> Column:
    """A few of `count` numbers often, most of them seldom: the cube of a uniform number."""
    uniform = f.pmod(hashed, f.lit(1_000_003)) / 1_000_003
    return f.floor(f.pow(uniform, f.lit(3.0)) * count).cast("bigint")


def _rate() -> Column:
    """Mean bytes per second of each series of a client: 100 to 1,000,000, most of them small."""
    uniform = f.pmod(f.xxhash64("client_number", f.lit(4)), f.lit(1_000_003)) / 1_000_003
    return f.pow(f.lit(10.0), 2 + 4 * f.pow(uniform, f.lit(3.0)))


def _weight() -> Column:
    """The share of the day's upper half for which a series is throttled: up to 4 %."""
    return f.pmod(f.xxhash64("id", f.lit(5)), f.lit(1_000_003)) / 1_000_003 * 0.04


def _volume(fleet: Fleet, time_ms: Column) -> Column:
    """Bytes from the fleet's first day to a time: the mean rate of that day, with a wave over the day around it.

    A day at the weekend has 0.4 of a working day.
    """
    first = fleet.start_ms // DAY_MS
    # Days since Thursday, 1970-01-01.
    weekdays = [0.4 if (first + day) % 7 in (2, 3) else 1.0 for day in range(int(fleet.days) + 2)]
    grown = [[part * growth ** (day / 14) for day, part in enumerate(weekdays)] for growth in GROWTH]
    summed = [[0.0, *accumulate(team)] for team in grown]
    day = f.floor(time_ms / DAY_MS) - first

    def of_day(table: list[list[float]]) -> Column:
        team = f.array(*(f.array(*map(f.lit, each)) for each in table))[f.col("client_number") % len(TEAMS)]
        return team[day]

    in_day = f.pmod(time_ms, f.lit(DAY_MS)) + 0.7 * _TURN_MS * (1 - f.cos(time_ms / _TURN_MS))
    return _rate() / 1000 * (DAY_MS * of_day(summed) + of_day(grown) * in_day)


def _upper_half(time_ms: Column) -> Column:
    """The integral of max(0, sin) over the day's wave, in milliseconds."""
    turns = time_ms / _TURN_MS
    whole = f.floor(turns / (2 * math.pi))
    rest = turns - whole * 2 * math.pi
    return _TURN_MS * (2 * whole + 1 - f.cos(f.least(rest, f.lit(math.pi))))
