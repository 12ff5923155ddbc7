"""Small fleets of sidecars, as Hypothesis draws them, and what they send: valid usage and throttle records."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from hypothesis import strategies as st

from tests.pipeline.usage.published import key, value

NOON_MS = int(datetime(2026, 1, 5, 12, tzinfo=UTC).timestamp() * 1000)
MINUTE_MS = 60_000
KafkaRow: TypeAlias = tuple[bytes | None, bytes | None, str, int, int, datetime]


def usage_record(**changes: Any) -> dict[str, Any]:
    """A valid usage record with these fields changed."""
    return {
        "schema": 1,
        "kind": "usage",
        "sidecar": "pod-1",
        "incarnation": "run-1",
        "seq": 0,
        "time_ms": NOON_MS,
        "start_time_ms": NOON_MS - MINUTE_MS,
        "listener": "0.0.0.0:19092",
        "labels": {},
        "user": "alice",
        "client_id": "etl",
        "topic": None,
        "direction": "produce",
        "bytes": 0,
        "record_bytes": None,
        "requests": 0,
        "messages": None,
        **changes,
    }


def throttle_record(**changes: Any) -> dict[str, Any]:
    """A valid throttle record with these fields changed."""
    common = usage_record()
    for name in ("topic", "direction", "bytes", "record_bytes", "requests", "messages"):
        del common[name]
    return {
        **common,
        "kind": "throttle",
        "limit": "producer_byte_rate",
        "entity": "client-id:etl",
        "throttled_ms": 0,
        "delayed_bytes": 0,
        "refused_bytes": 0,
        "would_have_bytes": 0,
        "limit_value": 5e6,
        **changes,
    }


def idle_record(**changes: Any) -> dict[str, Any]:
    """A valid idle record with these fields changed."""
    common = usage_record(user="", client_id="", listener="", final=False)
    for name in ("topic", "direction", "bytes", "record_bytes", "requests", "messages"):
        del common[name]
    return {**common, "kind": "idle", **changes}


def kafka_row(record: dict[str, Any], offset: int = 0) -> KafkaRow:
    """A record as a row of Spark's Kafka source; columns in KAFKA_COLUMNS."""
    return raw_row(value(record), key(record), offset)


def raw_row(raw: bytes | None, its_key: bytes | None = None, offset: int = 0) -> KafkaRow:
    return (raw, its_key, "usage", 0, offset, datetime.fromtimestamp(NOON_MS / 1000))  # noqa: DTZ006 - Spark wants local


KAFKA_COLUMNS = "value binary, key binary, topic string, partition int, offset bigint, timestamp timestamp"


@dataclass
class Drawn:
    """A drawn fleet. sent: every record, in order. final: (sidecar, incarnation, client, start) → the last counters of
    each series. arrived: the records that came: some lost, some repeated, in any order.
    """

    sent: list[dict[str, Any]] = field(default_factory=list)
    final: dict[tuple[Any, ...], tuple[int, int, int | None]] = field(default_factory=dict)
    arrived: list[dict[str, Any]] = field(default_factory=list)


@st.composite
def fleets(draw: st.DrawFn) -> Drawn:
    """Four to eight sidecars with clocks apart, one to three runs each, series that expire and come back.

    Any record but a series' last may be lost; any may come twice; all may come in any order.
    """
    drawn = Drawn()
    for sidecar in range(draw(st.integers(4, 8))):
        clock = NOON_MS + draw(st.integers(-3_600_000, 3_600_000))
        for run in range(draw(st.integers(1, 3))):
            seq = 0
            for client in range(draw(st.integers(1, 2))):
                for _ in range(draw(st.integers(1, 2))):  # the series, and the one after it expired
                    clock, seq = _series(draw, drawn, (f"pod-{sidecar}", f"run-{run}", f"client-{client}"), clock, seq)
    extra = draw(st.lists(st.sampled_from(drawn.arrived), max_size=4))
    drawn.arrived = draw(st.permutations(drawn.arrived + extra))
    return drawn


def _series(draw: st.DrawFn, drawn: Drawn, name: tuple[str, str, str], clock: int, seq: int) -> tuple[int, int]:
    sidecar, incarnation, client = name
    start = clock
    total = requests = 0
    messages: int | None = draw(st.sampled_from([None, 0]))
    count = draw(st.integers(1, 5))
    for number in range(count):
        # From a few seconds to more than a day: deltas over many quarter hours and over midnight.
        clock += draw(st.sampled_from([1, 9_999, 600_000, 900_000, 5_400_000, 93_600_000]))
        total += draw(st.integers(0, 10**12)) if clock - start > 60_000 else draw(st.integers(0, 1000))
        requests += draw(st.integers(0, 1000))
        messages = None if messages is None else messages + draw(st.integers(0, 10**6))
        record = usage_record(
            sidecar=sidecar, incarnation=incarnation, client_id=client, seq=seq, time_ms=clock, start_time_ms=start,
            bytes=total, requests=requests, messages=messages,
        )  # fmt: skip
        seq += 1
        drawn.sent.append(record)
        if number == count - 1 or draw(st.booleans()):
            drawn.arrived.append(record)
    drawn.final[(*name, start)] = (total, requests, messages)
    return clock + 1, seq
