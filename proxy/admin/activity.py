"""What clients, limits and brokers did in the last minute: the pages /clients, /limits, /brokers and /explain.

A view is collected at most once a second, however many clients ask, in rounds of the event loop of about 1 ms. It costs
nothing while no page is requested, because everything that it reads is counted for the metrics anyway.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final, TypeVar

from proxy.admin.activity_rows import COUNTS, WINDOW_SECONDS, Open, Row, Rows
from proxy.admin.explain import Finding, explain, name_of, refused, text_of, without_broker
from proxy.admin.history import History
from proxy.admin.http_server import VARY, Response, json_response, text_response
from proxy.admin.plain_text import asks_for_text
from proxy.admin.tables import TABLES, table, with_verdicts
from proxy.admin.verdict import Known
from proxy.observability.past import Span
from proxy.observability.response_times import ResponseTimes
from proxy.observability.tallies import EntityMetrics
from proxy.sessions.gate import Gate
from proxy.sessions.session import Session
from proxy.sessions.shared import Shared
from quotas.admission.limit import Limit

#: Rows of a table, the busiest first.
MOST_SHOWN: Final = 500
#: A connection that has had no broker for this long counts as waiting for one.
_LONG_NS: Final = 2_000_000_000
_COLLECTED_FOR_NS: Final = 1_000_000_000
#: Connections, clients or limits to process before the event loop runs again.
_AT_ONCE: Final = 100

PATHS: Final = ("/clients", "/limits", "/brokers", "/explain")

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
        self._rows = Rows(shared, gate, history)
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
        since_ns = now_ns - WINDOW_SECONDS * 1_000_000_000
        failing = dict.fromkeys(self._shared.health.outages(since_ns))
        times_by_address = dict(self._shared.brokers.items())
        async for address in in_rounds(times_by_address | failing):
            times = times_by_address.get(address) or ResponseTimes(now_ns)
            span = times.past.last(WINDOW_SECONDS, self._shared.clock(), times.counts)
            if by_broker[address] or span.counts[1] or address in failing:
                view.brokers.append(self._rows.broker(address, span, list(times.past.line), by_broker[address]))
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

    async def _open(self) -> tuple[dict[EntityMetrics, Open], dict[str, list[Session]], list[int]]:
        """The open connections by client and by broker, and how long connections without a broker have waited."""
        clients = dict[EntityMetrics, Open]()
        by_broker = defaultdict[str, list[Session]](list)
        waiting_ns: list[int] = []
        async for session in in_rounds(list(self._sessions)):
            since_ns = None if session.opening is None else session.opening.connecting_since_ns
            if since_ns is not None:
                waiting_ns.append(self._shared.clock() - since_ns)
            if session.identity.wire_client_id is not None:
                of = clients.setdefault(session.identity.entity, Open())
                of.sessions.append(session)
                of.limits |= dict.fromkeys(session.limits)
                if session.upstream is not None:
                    by_broker[session.watch.broker].append(session)
        return clients, by_broker, waiting_ns

    async def _add_clients(self, view: View, clients: Mapping[EntityMetrics, Open]) -> None:
        busiest: list[tuple[EntityMetrics, Span, Open]] = []
        async for entity in in_rounds(list(self._shared.context.metrics.entities)):
            span = entity.past.last(WINDOW_SECONDS, self._shared.clock(), entity.counts)
            if entity in clients or any(span.counts[COUNTS:]):
                busiest.append((entity, span, clients.get(entity, Open())))
                if len(busiest) >= 2 * MOST_SHOWN:
                    busiest = nlargest(MOST_SHOWN, busiest, key=_bytes)
        async for busy in in_rounds(nlargest(MOST_SHOWN, busiest, key=_bytes)):
            view.clients.append(self._rows.client(*busy))

    async def _add_limits(self, view: View, clients: Mapping[EntityMetrics, Open]) -> None:
        users = defaultdict[Limit, list[EntityMetrics]](list)
        async for entity in in_rounds(clients):
            for limit in clients[entity].limits:
                users[limit].append(entity)
        async for limit in in_rounds(list(dict.fromkeys([*self._history.limits, *users]))):
            row = self._rows.limit(limit, users[limit])
            if row["rate_60s"] or row["client_count"] or row["queued_connections"]:
                view.limits.append(row)
                if len(view.limits) >= 2 * MOST_SHOWN:
                    view.limits = nlargest(MOST_SHOWN, view.limits, key=_used)
        view.limits = nlargest(MOST_SHOWN, view.limits, key=_used) + self._rows.of_gate()


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


def _bytes(row: tuple[EntityMetrics, Span, Open]) -> float:
    return row[1].counts[0]


async def in_rounds(items: Iterable[T], at_once: int = _AT_ONCE) -> AsyncIterator[T]:
    """Lets the event loop run before each `at_once` of them."""
    for number, item in enumerate(items):
        if number % at_once == 0:
            await asyncio.sleep(0)
        yield item
