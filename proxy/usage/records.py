"""One usage record: a JSON object in UTF-8, as pipeline/usage/record_v1.schema.json has it."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from proxy.usage.samples import Sample
from proxy.usage.series import UsageKey

SCHEMA_VERSION: Final = 1
NS_PER_MS: Final = 1_000_000


class Origin(NamedTuple):
    """The process that writes the records. `incarnation`: one run of it."""

    sidecar: str
    incarnation: str
    listener: str

    @property
    def key(self) -> bytes:
        """The key of its Kafka records, which keeps them in order."""
        return f"{self.sidecar}/{self.incarnation}".encode()


def encoded(origin: Origin, seq: int, sample: Sample) -> bytes:
    """The record of one sample, without a line end. `seq`: its number within the incarnation."""
    series = sample.series
    key = series.key
    record: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "kind": "usage" if isinstance(key, UsageKey) else "throttle",
        "sidecar": origin.sidecar,
        "incarnation": origin.incarnation,
        "seq": seq,
        "time_ms": sample.time_ms,
        "start_time_ms": series.start_ms,
        "listener": origin.listener,
        "labels": dict(key.labels),
        "user": key.user,
        "client_id": key.client_id,
    }
    if isinstance(key, UsageKey):
        size, requests, messages = sample.counts
        is_counted = key.topic is not None
        record["topic"] = key.topic
        record["direction"] = key.direction
        record["bytes"] = size
        record["record_bytes"] = size if is_counted else None
        record["requests"] = requests
        record["messages"] = messages if is_counted else None
    else:
        throttled_ns, delayed, refused, would_have = sample.counts
        record["limit"] = key.limit
        record["entity"] = key.entity
        record["throttled_ms"] = throttled_ns // NS_PER_MS
        record["delayed_bytes"] = delayed
        record["refused_bytes"] = refused
        record["would_have_bytes"] = would_have
        record["limit_value"] = sample.limit_value
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
