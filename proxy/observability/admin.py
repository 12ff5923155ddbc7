"""The HTTP side of the proxy, in the same event loop, on a port of its own: metrics, health, and who waits now.

It decides nothing. The server hands it callables that say how things stand, and it puts their answers into HTTP.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from aiohttp import web

from proxy.config.errors import BindError
from proxy.observability.exposition import expose
from proxy.observability.logs import text_value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiohttp.typedefs import Handler

    from proxy.config.config import Config
    from proxy.observability.metrics import Metrics

READINESS_TIMEOUT_SECONDS: Final = 15.0
MAX_WAITING_SHOWN: Final = 1000

INDEX: Final = """kafka-quota-proxy

/metrics    Prometheus metrics (text, or OpenMetrics by the Accept header)
/healthz    200: the listeners are bound and the event loop turns
/readyz     200: a bootstrap server answered lately, else 503 and why
/throttles  who waits now, for which limit of which entity, how long (JSON; a table for Accept: text/plain)
"""


@dataclass(frozen=True, slots=True)
class Status:
    """Whether something is as it should be, and the sentence that a person reads about it."""

    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class WaitingClient:
    """One connection that is held by a quota now: who, by which limit of which entity, for how long."""

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


class AdminServer:
    """The running HTTP server. `port` is the bound one, also when port 0 was asked for."""

    def __init__(self, runner: web.AppRunner, port: int) -> None:
        self._runner = runner
        self.port = port

    async def close(self) -> None:
        await self._runner.cleanup()


async def start_admin(
    config: Config,
    metrics: Metrics,
    *,
    health: Callable[[], Status],
    readiness: Callable[[], Awaitable[Status]],
    throttles: Callable[[], Sequence[WaitingClient]],
) -> AdminServer:
    """Serve on `config.metrics_listen` until closed. Raises BindError when that address cannot be had."""
    pages = _Pages(metrics, health, readiness, throttles)
    app = web.Application(middlewares=[_point_to_index])
    app.router.add_get("/", pages.index)
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_get("/healthz", pages.healthz)
    app.router.add_get("/readyz", pages.readyz)
    app.router.add_get("/throttles", pages.throttles)
    # The access log would be a line per scrape; signals belong to the server.
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    host, port = config.metrics_listen
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise BindError("--metrics-listen", config.metrics_listen, error) from error
    return AdminServer(runner, runner.addresses[0][1])


@web.middleware
async def _point_to_index(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return web.Response(status=404, text=f"404: nothing here\n\n{INDEX}")


class _Pages:
    def __init__(
        self,
        metrics: Metrics,
        health: Callable[[], Status],
        readiness: Callable[[], Awaitable[Status]],
        throttles: Callable[[], Sequence[WaitingClient]],
    ) -> None:
        self._metrics = metrics
        self._health = health
        self._readiness = readiness
        self._throttles = throttles
        self._scraping = asyncio.Lock()

    async def index(self, _request: web.Request) -> web.Response:
        return web.Response(text=INDEX)

    async def metrics(self, request: web.Request) -> web.Response:
        async with self._scraping:  # many scrapers at once must not add up to a busy loop
            exposition = await expose(self._metrics, ",".join(request.headers.getall("Accept", ())))
        return web.Response(body=exposition.body, headers={"Content-Type": exposition.content_type})

    async def healthz(self, _request: web.Request) -> web.Response:
        return _status_response(self._health())

    async def readyz(self, _request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(READINESS_TIMEOUT_SECONDS):
                status = await self._readiness()
        except TimeoutError:
            status = Status(ok=False, reason=f"no bootstrap server answered within {READINESS_TIMEOUT_SECONDS:g} s")
        return _status_response(status)

    async def throttles(self, request: web.Request) -> web.Response:
        waiting = sorted(self._throttles(), key=lambda client: client.remaining_seconds, reverse=True)
        shown = waiting[:MAX_WAITING_SHOWN]
        if prefers_plain_text(",".join(request.headers.getall("Accept", ()))):
            return web.Response(text=waiting_table(shown, total=len(waiting)), headers={"Vary": "Accept"})
        body = {"total": len(waiting), "waiting": [asdict(client) for client in shown]}
        return web.json_response(body, headers={"Vary": "Accept"}, dumps=lambda value: json.dumps(value) + "\n")


def _status_response(status: Status) -> web.Response:
    return web.Response(status=200 if status.ok else 503, text=status.reason + "\n")


def prefers_plain_text(accept: str) -> bool:
    """Whether an Accept header asks for text/plain rather than JSON, which everyone else gets."""
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


_COLUMNS: Final = ("CLIENT ID", "USER", "PEER", "LIMIT", "ENTITY", "LIMIT VALUE", "WAITED", "REMAINING", "MODE")
_RIGHT_ALIGNED: Final = frozenset({"LIMIT VALUE", "WAITED", "REMAINING"})


def waiting_table(waiting: Sequence[WaitingClient], *, total: int) -> str:
    """One aligned line per client under a line of headings, or one sentence when nobody waits."""
    if not waiting:
        return "nobody waits\n"
    rows = [
        (
            text_value(client.client_id),
            text_value(client.user),
            text_value(client.peer),
            client.limit,
            text_value(client.entity),
            text_value(float(client.limit_value)),
            f"{client.waited_seconds:.1f} s",
            f"{client.remaining_seconds:.1f} s",
            client.mode,
        )
        for client in waiting
    ]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if heading in _RIGHT_ALIGNED else cell.ljust(width)
            for heading, cell, width in zip(_COLUMNS, row, widths, strict=True)
        ).rstrip()
        for row in (_COLUMNS, *rows)
    ]
    if total > len(waiting):
        lines.append(f"... and {total - len(waiting)} more")
    return "\n".join(lines) + "\n"
