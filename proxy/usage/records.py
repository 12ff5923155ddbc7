"""One usage record: a JSON object in UTF-8, as pipeline/usage/record_v1.schema.json has it."""

import json
from typing import Any, Final, NamedTuple

from proxy.usage.series import PRODUCE, Series, UsageKey
from quotas.time_units import NS_PER_MS

SCHEMA_VERSION: Final = 1
FACTS: Final = ("unanswered_requests", "inspected_requests", "idempotent_requests", "uncompressed_requests")


class Origin(NamedTuple):
    """The process that writes the records, by its keys in each of them. `incarnation`: one run of it."""

    sidecar: str
    incarnation: str
    listener: str

    @property
    def key(self) -> bytes:
        """The key of its Kafka records, which keeps them in order."""
        return f"{self.sidecar}/{self.incarnation}".encode()


def sampled(origin: Origin, series: Series, time_ms: int, *, is_last: bool = False) -> bytes:
    """The present counts of a series, as a record without its number. `is_last`: the process is shutting down."""
    key = series.key
    fields: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "kind": "usage" if isinstance(key, UsageKey) else "throttle",
        **origin._asdict(),
        "time_ms": time_ms,
        "start_time_ms": series.start_ms,
        **key._asdict(),
        "labels": dict(key.labels),
        "final": is_last,
    }
    if isinstance(key, UsageKey):
        size, requests, messages, record_bytes, *facts = series.counts
        is_counted = key.topic is not None
        fields["bytes"] = size
        fields["record_bytes"] = record_bytes if is_counted else None
        fields["requests"] = requests
        fields["messages"] = messages if is_counted and key.direction == PRODUCE else None
        fields["max_second_bytes"] = series.largest_second
        fields["has_total"] = True
        if not is_counted and key.direction == PRODUCE:
            fields |= zip(FACTS, facts, strict=True)
    else:
        throttled_ns, delayed, refused, would_have = series.counts
        fields["throttled_ms"] = throttled_ns // NS_PER_MS
        fields["delayed_bytes"] = delayed
        fields["refused_bytes"] = refused
        fields["would_have_bytes"] = would_have
        fields["limit_value"] = series.limit_value
        if series.fleet is not None:
            fields["fleet"], fields["fleet_cap"] = series.fleet, series.fleet_cap
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def idle(origin: Origin, start_ms: int, time_ms: int, *, is_last: bool = False) -> bytes:
    """A record that the process runs and has nothing else to write, without its number."""
    who = {"user": "", "client_id": "", "labels": {}}
    fields = {
        "schema": SCHEMA_VERSION,
        "kind": "idle",
        **origin._asdict(),
        "time_ms": time_ms,
        "start_time_ms": start_ms,
    }
    return json.dumps(fields | who | {"final": is_last}, ensure_ascii=False, separators=(",", ":")).encode()


def numbered(sample: bytes, seq: int) -> bytes:
    """The record of a sample. `seq`: its number within the incarnation."""
    return b'{"seq":%d,%b' % (seq, sample[1:])
