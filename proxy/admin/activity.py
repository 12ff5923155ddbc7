"""What clients, limits and brokers did in the last minute: the pages /clients, /limits, /brokers and /explain.

A view is collected at most once a second, however many clients ask, in rounds of the event loop of about 1 ms. It costs
nothing while no page is requested, because everything that it reads is counted for the metrics anyway.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import accumulate, pairwise
from math import isnan
from typing import Any, Final, TypeVar

from protocol.apis import FETCH, PRODUCE
from proxy.admin.explain import Finding, explain, name_of, refused, text_of, without_broker
from proxy.admin.history import History
from proxy.admin.http_server import VARY, Response, json_response, text_response
from proxy.admin.plain_text import asks_for_text
from proxy.admin.tables import TABLES, table, with_verdicts
from proxy.admin.verdict import Known
from proxy.observability.client_times import STATES, ClientTimes
from proxy.observability.labels import entity_label
from proxy.observability.past import SNAPSHOT_NS, Span
from proxy.observability.response_times import BUCKETS, ResponseTimes
from proxy.observability.tallies import EntityMetrics
from proxy.sessions.gate import Gate
from proxy.sessions.session import Session
from proxy.sessions.shared import Shared
from quotas.admission.limit import Limit
from quotas.limit_kinds import DISK_GUARD

#: Rows of a table, the busiest first.
MOST_SHOWN: Final = 500
#: Names in a row.
_MOST_NAMES: Final = 10
_WINDOW_SECONDS: Final = 60
#: A connection that has had no broker for this long counts as waiting for one.
_LONG_NS: Final = 2_000_000_000
_COLLECTED_FOR_NS: Final = 1_000_000_000
#: Connections, clients or limits to process before the event loop runs again.
_AT_ONCE: Final = 100
_COUNTS: Final = 7
"""The number of counters in `EntityMetrics.counts` that come before the times."""

PATHS: Final = ("/clients", "/limits", "/brokers", "/explain")

Row = dict[str, Any]
T = TypeVar("T")


@dataclass(slots=True)
class View:
    """The rows of each page. `findings` has one for each client, `refused` those of connections without a known client,
    and `all_findings` has both. `load`: how late the loop is, its busy share, and whether limits are enforced.
    """

    clients: list[Row] = field(default_factory=list)
    limits: list[Row] = field(default_factory=list)
    brokers: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    refused: list[Finding] = field(default_factory=list)
    load: tuple[float, float, bool] = (0, 0, True)

    @property
    def all_findings(self) -> list[Finding]:
        return self.findings + self.refused


@dataclass(slots=True)
class _Open:
    """The open connections of one client."""

    sessions: list[Session] = field(default_factory=list)
    limits: dict[Limit, None] = field(default_factory=dict)


class Activity:
    """Collects a view. `unmatched` returns the quota entries that no client has matched."""

    def __init__(
        self,
        shared: Shared,
        sessions: Collection[Session],
        gate: Gate,
        history: History,
        unmatched: Callable[[], Sequence[str]],
    ) -> None:
        self._shared = shared
        self._sessions = sessions
        self._gate = gate
        self._history = history
        self._unmatched = unmatched
        self._collecting: asyncio.Task[View] | None = None
        self._collected_ns = 0

    async def view(self) -> View:
        """The latest view: at most a second old, plus the time that it takes to collect it."""
        found = self._collecting
        if found is None or (found.done() and self._shared.clock() - self._collected_ns >= _COLLECTED_FOR_NS):
            self._collected_ns = self._shared.clock()
            found = self._collecting = asyncio.ensure_future(self._collect())
        return await asyncio.shield(found)

    async def respond(self, path: str, accept: str) -> Response:
        """One of the pages in `PATHS`: text if `accept` names text/plain and not JSON, otherwise JSON."""
        view = await self.view()
        is_text = asks_for_text(accept)
        if path == "/explain" and is_text:
            conflicts = self._shared.context.nodes.placement.conflicts()
            return text_response("\n".join([*conflicts, *text_of(view.all_findings, view.brokers), ""]), fields=VARY)
        rows = _rows_of(view, path)
        if is_text:
            return text_response(table(TABLES[path[1:]], rows), fields=VARY)
        parts = [json.dumps(row) async for row in in_rounds(rows)]
        return json_response(f"[{', '.join(parts)}]")

    # ---- inside

    async def _collect(self) -> View:
        view = View()
        clients, by_broker, waiting_ns = await self._open()
        await self._add_clients(view, clients)
        await self._add_limits(view, clients)
        now_ns = self._shared.clock()
        since_ns = now_ns - _WINDOW_SECONDS * 1_000_000_000
        failing = dict.fromkeys(self._shared.health.outages(since_ns))
        times_by_address = dict(self._shared.brokers.items())
        async for address in in_rounds(times_by_address | failing):
            times = times_by_address.get(address) or ResponseTimes(now_ns)
            span = times.past.last(_WINDOW_SECONDS, self._shared.clock(), times.counts)
            if by_broker[address] or span.counts[1] or address in failing:
                view.brokers.append(self._broker(address, span, list(times.past.line), by_broker[address]))
        names = [name_of(client) for client in view.clients]
        known = Known(
            view.limits,
            view.brokers,
            names,
            self._unmatched(),
            enforces=self._shared.context.actions.enforces,
            late_seconds=self._history.late_seconds(now_ns),
            holder=max(view.clients, key=lambda row: row["buffered_bytes"], default=None),
        )
        async for shown in in_rounds(view.clients):
            view.findings.append(explain(shown, known))
        latest = self._shared.context.metrics.errors.latest.values()
        view.refused = [refused(fields) for at_ns, fields in latest if at_ns >= since_ns]
        if max(waiting_ns, default=0) > _LONG_NS:
            view.refused.append(without_broker(len(waiting_ns), max(waiting_ns) / 1e9))
        view.load = known.late_seconds, self._history.busy_ratio(now_ns), known.enforces
        return view

    async def _open(self) -> tuple[dict[EntityMetrics, _Open], dict[str, list[Session]], list[int]]:
        """The open connections by client and by broker, and how long connections without a broker have waited."""
        clients = dict[EntityMetrics, _Open]()
        by_broker = defaultdict[str, list[Session]](list)
        waiting_ns: list[int] = []
        async for session in in_rounds(list(self._sessions)):
            since_ns = None if session.opening is None else session.opening.connecting_since_ns
            if since_ns is not None:
                waiting_ns.append(self._shared.clock() - since_ns)
            if session.identity.wire_client_id is not None:
                of = clients.setdefault(session.identity.entity, _Open())
                of.sessions.append(session)
                of.limits |= dict.fromkeys(session.limits)
                if session.upstream is not None:
                    by_broker[session.watch.broker].append(session)
        return clients, by_broker, waiting_ns

    async def _add_clients(self, view: View, clients: Mapping[EntityMetrics, _Open]) -> None:
        busiest: list[tuple[EntityMetrics, Span, _Open]] = []
        async for entity in in_rounds(list(self._shared.context.metrics.entities)):
            span = entity.past.last(_WINDOW_SECONDS, self._shared.clock(), entity.counts)
            if entity in clients or any(span.counts[_COUNTS:]):
                busiest.append((entity, span, clients.get(entity, _Open())))
                if len(busiest) >= 2 * MOST_SHOWN:
                    busiest = nlargest(MOST_SHOWN, busiest, key=_bytes)
        async for busy in in_rounds(nlargest(MOST_SHOWN, busiest, key=_bytes)):
            view.clients.append(self._client(*busy))

    async def _add_limits(self, view: View, clients: Mapping[EntityMetrics, _Open]) -> None:
        users = defaultdict[Limit, list[EntityMetrics]](list)
        async for entity in in_rounds(clients):
            for limit in clients[entity].limits:
                users[limit].append(entity)
        async for limit in in_rounds(list(dict.fromkeys([*self._history.limits, *users]))):
            row = self._limit(limit, users[limit])
            if row["rate_60s"] or row["client_count"] or row["queued_connections"]:
                view.limits.append(row)
                if len(view.limits) >= 2 * MOST_SHOWN:
                    view.limits = nlargest(MOST_SHOWN, view.limits, key=_used)
        view.limits = nlargest(MOST_SHOWN, view.limits, key=_used) + self._gate_rows()

    def _client(self, entity: EntityMetrics, span: Span, of: _Open) -> Row:
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
            "broker_throttled_10s": round(recent.counts[_COUNTS - 2], 3),
            "programs": _programs(sessions),
            "groups": self._shared.context.groups.of_client((entity.user, entity.client_id), now_ns),
            "lag_records": _lag(sessions, now_ns),
            "reported": reports.reported(entity),
            "outlook": None if outlook is None else outlook._asdict(),
            "line": [round(each) for each in entity.past.line],
        }

    def _limit(self, limit: Limit, users: Sequence[EntityMetrics]) -> Row:
        now_ns, whole = self._shared.clock(), limit.whole
        row: Row = {"limit": limit.name, "entity": entity_label(limit.entity), "limit_value": limit.rate}
        registry = self._shared.context.registry
        row["source"] = registry.source_of(limit.name, limit.entity)
        row["entry"] = registry.entry_of(limit.name, limit.entity)
        row["request_cost"] = limit.request_cost or None
        if limit.name == DISK_GUARD and registry.guard is not None:
            row["disk"] = registry.guard.message
        for seconds in (10, _WINDOW_SECONDS):
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

    def _gate_rows(self) -> list[Row]:
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

    def _broker(self, address: str, span: Span, line: list[float], sessions: Sequence[Session]) -> Row:
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
    unused_ns, *spent_ns = span.counts[_COUNTS - 1 :]
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


def _rows_of(view: View, path: str) -> list[Row]:
    match path:
        case "/clients":
            return with_verdicts(view.clients, view.findings)
        case "/limits":
            return view.limits
        case "/brokers":
            return view.brokers
    return [each._asdict() for each in view.all_findings]


def _used(row: Row) -> float:
    return row["used_ratio_60s"] or 0.0


def _bytes(row: tuple[EntityMetrics, Span, _Open]) -> float:
    return row[1].counts[0]


async def in_rounds(items: Iterable[T], at_once: int = _AT_ONCE) -> AsyncIterator[T]:
    """Lets the event loop run before each `at_once` of them."""
    for number, item in enumerate(items):
        if number % at_once == 0:
            await asyncio.sleep(0)
        yield item


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
