"""The rows of /clients, /limits and /brokers: the figures of one client, limit or broker in the last minute."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import isnan
from typing import Any, Final

from protocol.apis import FETCH, PRODUCE
from proxy.admin.history import History
from proxy.observability.client_times import STATES, ClientTimes
from proxy.observability.labels import entity_label
from proxy.observability.past import SNAPSHOT_NS, Span
from proxy.observability.response_times import BUCKETS
from proxy.observability.tallies import EntityMetrics
from proxy.sessions.gate import Gate
from proxy.sessions.session import Session
from proxy.sessions.shared import Shared
from quotas.admission.limit import Limit
from quotas.limit_kinds import DISK_GUARD

WINDOW_SECONDS: Final = 60
#: Names in a row.
_MOST_NAMES: Final = 10
COUNTS: Final = 7
"""The number of counters in `EntityMetrics.counts` that come before the times."""

Row = dict[str, Any]


@dataclass(slots=True)
class Open:
    """The open connections of one client."""

    sessions: list[Session] = field(default_factory=list)
    limits: dict[Limit, None] = field(default_factory=dict)


class Rows:
    """Makes them from what sessions, limits and the history have now."""

    def __init__(self, shared: Shared, gate: Gate, history: History) -> None:
        self._shared = shared
        self._gate = gate
        self._history = history

    def client(self, entity: EntityMetrics, span: Span, of: Open) -> Row:
        seconds, (_, produced, fetched, produces, fetches, throttled, *_) = span
        sessions, now_ns = of.sessions, self._shared.clock()
        recent = entity.past.last(10, now_ns, entity.counts)
        (states, unused), (recent_states, recent_unused) = _states(span), _states(recent)
        names = {" ".join(session.connection.software).strip() for session in sessions}
        requests = produces + fetches
        reports = self._shared.context.metrics.client_reports
        outlook = reports.outlook(entity)
        return {
            "client_id": entity.client_id,
            "user": entity.user,
            "software": ", ".join(sorted(names - {""})[:_MOST_NAMES]),
            "connections": len(sessions),
            "in_flight": sum(session.in_flight for session in sessions),
            "produce_bytes_per_second": round(produced / seconds),
            "fetch_bytes_per_second": round(fetched / seconds),
            "requests_per_second": round(requests / seconds, 2),
            "bytes_per_request": round((produced + fetched) / requests) if requests else 0,
            "produces_per_second": round(produces / seconds, 2),
            "states": states,
            "unused_ratio": unused,
            "window_seconds": round(seconds, 1),
            "recent_states": recent_states,
            "recent_unused_ratio": recent_unused,
            "recent_seconds": round(recent.seconds, 1),
            "waits": _waits(entity.times),
            "limits": [[limit.name, entity_label(limit.entity)] for limit in of.limits],
            "buffered_bytes": sum(session.buffered_bytes for session in sessions),
            "brokers": sorted({session.watch.broker for session in sessions if session.upstream is not None}),
            "oldest_request_seconds": max((each.broker_waits_ns(now_ns) for each in sessions), default=0) / 1e9,
            "broker_throttled_seconds": round(entity.times.broker_throttled_seconds, 3),
            "broker_throttled_60s": round(throttled, 3),
            "broker_throttled_10s": round(recent.counts[COUNTS - 2], 3),
            "programs": _programs(sessions),
            "groups": self._shared.context.groups.of_client((entity.user, entity.client_id), now_ns),
            "lag_records": _lag(sessions, now_ns),
            "reported": reports.reported(entity),
            "outlook": None if outlook is None else outlook._asdict(),
            "line": [round(each) for each in entity.past.line],
        }

    def limit(self, limit: Limit, users: Sequence[EntityMetrics]) -> Row:
        now_ns, whole = self._shared.clock(), limit.whole
        row: Row = {"limit": limit.name, "entity": entity_label(limit.entity), "limit_value": limit.rate}
        registry = self._shared.context.registry
        row["source"] = registry.source_of(limit.name, limit.entity)
        row["entry"] = registry.entry_of(limit.name, limit.entity)
        row["request_cost"] = limit.request_cost or None
        if limit.name == DISK_GUARD and registry.guard is not None:
            row["disk"] = registry.guard.message
        for seconds in (10, WINDOW_SECONDS):
            span = self._history.last(limit, seconds, now_ns)
            rate = None if span is None else span.counts[0] / span.seconds
            row[f"rate_{seconds}s"] = None if rate is None else round(rate, 1)
            row[f"used_ratio_{seconds}s"] = None if rate is None or not limit.rate else round(rate / limit.rate, 4)
            row["waiting_ratio"] = None if span is None else round(span.counts[1] / max(span.counts[2], 1), 4)
        row |= {
            "queued": limit.waiters.queued,
            "queued_connections": limit.waiters.waiting,
            "clients": [{"client_id": each.client_id, "user": each.user} for each in users[:_MOST_NAMES]],
            "client_count": len(users),
            "line": self._line(limit),
        }
        row |= self._moves(limit)
        if whole is not None:
            row |= {"fleet": whole.fleet, "fleet_members": whole.members, "fleet_value": whole.rate}
            row |= {"fleet_lowest": whole.lowest, "fleet_own_value": whole.own_rate}
        return row

    def _moves(self, limit: Limit) -> Row:
        for each in self._shared.context.metrics.sources.moving():
            if each.limit is limit:
                return {"moves": {name: value for name, value in each._asdict().items() if name != "limit"}}
        return {}

    def _line(self, limit: Limit) -> list[float]:
        found = self._history.limits.get(limit)
        return [] if found is None else [round(each, 1) for each in found.past.line]

    def of_gate(self) -> list[Row]:
        """Limits on connections that connections are waiting for now."""
        waiting = defaultdict[tuple[str, str, Any, str, str], int](int)
        registry = self._shared.context.registry
        for pending in self._gate.pending.values():
            name, entity, value = pending.verdict.limit_name or "", pending.verdict.entity, pending.verdict.limit_value
            found = ("", "") if entity is None else (registry.source_of(name, entity), registry.entry_of(name, entity))
            waiting[name, entity_label(entity), value, *found] += 1
        names = "limit", "entity", "limit_value", "source", "entry"
        nothing = dict.fromkeys(["rate_10s", "rate_60s", "used_ratio_10s", "used_ratio_60s", "waiting_ratio"])
        counted = {"clients": [], "client_count": 0, "line": []}
        return [
            dict(zip(names, key, strict=True)) | nothing | counted | {"queued": count, "queued_connections": count}
            for key, count in waiting.items()
        ]

    def broker(self, address: str, span: Span, line: list[float], sessions: Sequence[Session]) -> Row:
        buckets = len(BUCKETS) + 2
        produce, others = span.counts[2 : 2 + buckets], span.counts[2 + buckets :]
        now_ns = self._shared.clock()
        failing = self._shared.health.failing(address)
        return {
            "address": address,
            "connections": len(sessions),
            "in_flight": sum(session.in_flight for session in sessions),
            "oldest_request_seconds": max((each.broker_waits_ns(now_ns) for each in sessions), default=0) / 1e9,
            "failing": failing,
            "hint": failing and self._shared.health.hint(failing),
            "produce": _times(produce),
            "others": _times(others),
            "line": [None if isnan(each) else round(each, 5) for each in line],
        }


def _states(span: Span) -> tuple[dict[str, float], float]:
    """The share of the time that connections spent in each state, and the share of connections that did nothing."""
    unused_ns, *spent_ns = span.counts[COUNTS - 1 :]
    total_ns = sum(spent_ns)
    states = {state: round(each / total_ns, 4) for state, each in zip(STATES, spent_ns, strict=True) if each}
    return states, round(unused_ns / total_ns, 4) if total_ns else 0


def _lag(sessions: Iterable[Session], now_ns: int) -> int | None:
    """The lag in records; None if it is unknown."""
    known = [records for each in sessions if (records := each.identity.lag.records(now_ns)) is not None]
    return sum(known) if known else None


def _programs(sessions: Iterable[Session]) -> int:
    """The least number of programs that use these connections: each has one connection per broker, and one address."""
    connections, hosts = Counter[tuple[str, int]](), set[str]()
    for session in sessions:
        kind = None if session.upstream is None else session.request_stream.kind
        hosts.add(session.origin.ip)
        if kind is not None and kind.api_key in {PRODUCE, FETCH}:
            connections[session.watch.broker, kind.api_key] += 1
    return max(len(hosts), *connections.values(), 0)


def _waits(times: ClientTimes) -> list[Row]:
    """The limits that a client waited for in the last minute, the longest waits first."""
    waits, snapshot = sorted(times.limits_of_last_minute().items(), key=lambda each: -each[1]), SNAPSHOT_NS // 10**9
    return [
        {
            "limit": key[0],
            "entity": key[1],
            "seconds": ns / 1e9,
            "lasting_seconds": times.lasting.get(key, 0) * snapshot,
        }
        for key, ns in waits[:_MOST_NAMES]
    ]


def _times(counts: Sequence[float]) -> Row:
    """The number of observations in a histogram, their mean, and two quantiles in seconds."""
    total, numbers = counts[0], [int(each) for each in counts[1:]]
    count = sum(numbers)
    mean = round(total / count, 5) if count else None
    return {
        "count": count,
        "mean_seconds": mean,
        "p50_seconds": _quantile(numbers, 0.5),
        "p99_seconds": _quantile(numbers, 0.99),
    }


def _quantile(numbers: Sequence[int], share: float) -> float | None:
    """Interpolates linearly within a bucket; returns the last bound for values above it."""
    wanted = share * sum(numbers)
    if not wanted:
        return None
    for (low, high), before, number in zip(pairwise((0.0, *BUCKETS)), accumulate((0, *numbers)), numbers, strict=False):
        if before + number >= wanted:
            return round(low + (high - low) * (wanted - before) / number, 5)
    return BUCKETS[-1]
