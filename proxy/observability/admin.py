"""The admin port: /metrics, /healthz, /readyz and /throttles over HTTP, in the proxy's event loop.

It decides nothing. The server passes callables that return the state, and this module puts it into HTTP.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from heapq import nlargest
from operator import attrgetter
from typing import Final, TypeVar

from proxy.config.config import ObservabilityOptions
from proxy.config.errors import BindError
from proxy.observability.exposition import expose, own_version
from proxy.observability.http_request import Request
from proxy.observability.http_server import HttpServer, Response, text_response
from proxy.observability.logs import text_value
from proxy.observability.metrics import Metrics

READINESS_TIMEOUT_SECONDS: Final = 1.0
MAX_WAITING_SHOWN: Final = 1000
#: Rows of /throttles that are written in one round of the event loop: about 1 ms.
ROWS_AT_ONCE: Final = 100

INDEX: Final = """kafka-quota-proxy

/metrics    Prometheus metrics (text, or OpenMetrics by the Accept header)
/healthz    200: the process works; also while it drains
/readyz     200: new connections are served; else 503 and why: draining, memory, no bootstrap server answers
/throttles  connections that a quota holds now: limit, entity, time; exemptions (JSON; a table for Accept: text/plain)
"""

_VARY: Final = (("Vary", "Accept"),)


@dataclass(frozen=True, slots=True)
class Status:
    """Whether a check passed, and one sentence for a person."""

    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ThrottleStatus:
    """One connection that a quota holds now: the client, the limit and its entity, and for how long."""

    user: str
    client_id: str
    peer: str
    limit: str
    entity: str
    limit_value: float
    """The rate that the limit allows, in its unit per second."""
    waited_seconds: float
    remaining_seconds: float
    mode: str
    reason: str = "debt"


async def start_admin(
    options: ObservabilityOptions,
    metrics: Metrics,
    *,
    health: Callable[[], Status],
    readiness: Callable[[], Awaitable[Status]],
    throttles: Callable[[], Iterable[Sequence[ThrottleStatus]]],
    exemptions: Callable[[], Sequence[str]] = tuple,
) -> HttpServer:
    """Serve on `options.metrics_listen` until closed. Raises BindError when that address cannot be bound.

    `throttles` yields groups of connections that are held; the event loop runs between them.

    Requests must name an IP address, `localhost`, the host of `options.metrics_listen` or one of
    `options.metrics_allowed_hosts` as their Host.
    """
    own_version()  # read it while descriptors are available
    names = {name.lower().removesuffix(".") for name in (options.metrics_listen[0], *options.metrics_allowed_hosts)}
    server = HttpServer(_Pages(metrics, health, readiness, throttles, exemptions).respond, names)
    try:
        await server.listen(options.metrics_listen)
    except OSError as error:
        raise BindError("--metrics-listen", options.metrics_listen, error) from error
    return server


class _Pages:
    def __init__(
        self,
        metrics: Metrics,
        health: Callable[[], Status],
        readiness: Callable[[], Awaitable[Status]],
        throttles: Callable[[], Iterable[Sequence[ThrottleStatus]]],
        exemptions: Callable[[], Sequence[str]],
    ) -> None:
        self._metrics = metrics
        self._health = health
        self._readiness = readiness
        self._throttles = throttles
        self._exemptions = exemptions
        #: One scrape and one list at a time: many monitors must not add up to a busy loop.
        self._scraping = asyncio.Lock()
        self._listing = asyncio.Lock()
        self._pages: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/": self._index,
            "/metrics": self._exposition,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/throttles": self._waiting,
        }

    async def respond(self, request: Request) -> Response:
        page = self._pages.get(request.path)
        if page is None:
            return text_response(f"404: nothing here\n\n{INDEX}", 404)
        return await page(request)

    async def _index(self, _request: Request) -> Response:
        return text_response(INDEX)

    async def _exposition(self, request: Request) -> Response:
        async with self._scraping:
            exposition = await expose(self._metrics, request.accept)
        return Response(exposition.body, exposition.content_type, fields=_VARY)

    async def _healthz(self, _request: Request) -> Response:
        return _status_response(self._health())

    async def _readyz(self, _request: Request) -> Response:
        try:
            async with asyncio.timeout(READINESS_TIMEOUT_SECONDS):
                status = await self._readiness()
        except TimeoutError:
            status = Status(ok=False, reason=f"no answer within {READINESS_TIMEOUT_SECONDS:g} s")
        return _status_response(status)

    async def _waiting(self, request: Request) -> Response:
        async with self._listing:
            total, shown = 0, list[ThrottleStatus]()
            for group in self._throttles():
                total += len(group)
                shown = nlargest(MAX_WAITING_SHOWN, [*shown, *group], key=attrgetter("remaining_seconds"))
                await asyncio.sleep(0)
            exemptions = self._exemptions()
            if prefers_plain_text(request.accept):
                table = await waiting_table(shown, total=total)
                return text_response("".join([table, *(f"exempt: {line}\n" for line in exemptions)]), fields=_VARY)
            rows = await _each(shown, _json_row)
        body = f'{{"total": {total}, "waiting": [{", ".join(rows)}], "exempt": {json.dumps(exemptions)}}}\n'
        return Response(body.encode(), "application/json; charset=utf-8", fields=_VARY)


def _status_response(status: Status) -> Response:
    return text_response(status.reason + "\n", 200 if status.ok else 503)


def prefers_plain_text(accept: str) -> bool:
    """Whether an Accept header prefers text/plain to JSON. Without a preference, JSON is sent."""
    weights: dict[str, float] = {}
    for part in accept.lower().split(","):
        media_type, *parameters = (piece.strip() for piece in part.split(";"))
        weight = next((piece[2:] for piece in parameters if piece.startswith("q=")), "1")
        try:
            weights[media_type] = float(weight)
        except ValueError:
            weights[media_type] = 0.0
    plain = weights.get("text/plain", weights.get("text/*", 0.0))
    named_json = weights.get("application/json")
    if named_json is not None:
        return plain > named_json
    return plain > 0 and plain >= weights.get("application/*", weights.get("*/*", 0.0))


_COLUMNS: Final = (
    "CLIENT ID",
    "USER",
    "PEER",
    "LIMIT",
    "ENTITY",
    "LIMIT VALUE",
    "WAITED",
    "REMAINING",
    "MODE",
    "REASON",
)
_RIGHT_ALIGNED: Final = frozenset({"LIMIT VALUE", "WAITED", "REMAINING"})


_FIELDS: Final = tuple(field.name for field in fields(ThrottleStatus))
_Item = TypeVar("_Item")
_Row = TypeVar("_Row")


async def _each(items: Sequence[_Item], write: Callable[[_Item], _Row]) -> list[_Row]:
    """`write` of each item. The event loop runs between groups."""
    rows: list[_Row] = []
    for first in range(0, len(items), ROWS_AT_ONCE):
        rows += map(write, items[first : first + ROWS_AT_ONCE])
        await asyncio.sleep(0)
    return rows


def _json_row(client: ThrottleStatus) -> str:
    return json.dumps({name: getattr(client, name) for name in _FIELDS})


async def waiting_table(waiting: Sequence[ThrottleStatus], *, total: int) -> str:
    """One aligned line per client under a line of headings, or one sentence when no connection is held."""
    if not waiting:
        return "no connection is held\n"
    rows = [_COLUMNS, *await _each(waiting, _table_row)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line_of(row: tuple[str, ...]) -> str:
        cells = zip(_COLUMNS, row, widths, strict=True)
        return "  ".join(
            cell.rjust(width) if heading in _RIGHT_ALIGNED else cell.ljust(width) for heading, cell, width in cells
        ).rstrip()

    lines = await _each(rows, line_of)
    if total > len(waiting):
        lines.append(f"... and {total - len(waiting)} more")
    return "\n".join(lines) + "\n"


def _table_row(client: ThrottleStatus) -> tuple[str, ...]:
    return (
        text_value(client.client_id),
        text_value(client.user),
        text_value(client.peer),
        client.limit,
        text_value(client.entity),
        text_value(float(client.limit_value)),
        f"{client.waited_seconds:.1f} s",
        f"{client.remaining_seconds:.1f} s",
        client.mode,
        client.reason,
    )
