"""The admin port: /metrics, /healthz, /readyz and /throttles over HTTP, in the proxy's event loop.

It decides nothing. The server passes callables that return the state, and this module puts it into HTTP.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from heapq import nlargest
from operator import attrgetter
from typing import Final

from proxy.config.config import ObservabilityOptions
from proxy.config.errors import BindError
from proxy.observability.exposition import MetricsPage, format_of
from proxy.observability.http_server import HttpServer, Response, text_response
from proxy.observability.logs import text_value

#: Rows of /throttles: about 1 ms to write.
MAX_WAITING_SHOWN: Final = 100

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
    """One connection that a quota holds now: the client, the limit and its entity, and for how long.

    The fields are the keys in JSON, and the columns of the table. `limit_value`: the rate that the limit allows, in its
    unit per second.
    """

    client_id: str
    user: str
    peer: str
    limit: str
    entity: str
    limit_value: float
    waited_seconds: float
    remaining_seconds: float
    mode: str
    reason: str = "debt"


_NAMES: Final = tuple(each.name for each in fields(ThrottleStatus))
_HEADINGS: Final = [name.removesuffix("_seconds").replace("_", " ").upper() for name in _NAMES]
_IS_NUMBER: Final = [each.type is float for each in fields(ThrottleStatus)]


async def start_admin(options: ObservabilityOptions, pages: "Pages") -> HttpServer:
    """Serve on `options.metrics_listen` until closed. Raises BindError when that address cannot be bound.

    Requests must name an IP address, `localhost`, the host of `options.metrics_listen` or one of
    `options.metrics_allowed_hosts` as their Host.
    """
    names = {name.lower().removesuffix(".") for name in (options.metrics_listen[0], *options.metrics_allowed_hosts)}
    server = HttpServer(pages.respond, names)
    try:
        await server.listen(options.metrics_listen)
    except OSError as error:
        raise BindError("--metrics-listen", options.metrics_listen, error) from error
    return server


@dataclass(frozen=True, slots=True)
class Pages:
    """`throttles` yields groups of connections that are held; the event loop runs between them."""

    metrics: MetricsPage
    health: Callable[[], Status]
    readiness: Callable[[], Awaitable[Status]]
    throttles: Callable[[], Iterable[Sequence[ThrottleStatus]]]
    exemptions: Callable[[], Sequence[str]] = tuple
    #: One list at a time: many monitors must not add up to a busy loop.
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def respond(self, path: str, accept: str) -> Response:
        match path:
            case "/":
                return text_response(INDEX)
            case "/metrics":
                form = format_of(accept)
                return Response(await self.metrics.body(form), form.content_type, fields=_VARY)
            case "/healthz":
                return _status_response(self.health())
            case "/readyz":
                return _status_response(await self.readiness())
            case "/throttles":
                async with self.writing:
                    return await self._waiting(accept.lower())
        return text_response(f"404: nothing here\n\n{INDEX}", 404)

    async def _waiting(self, accept: str) -> Response:
        total, shown = 0, list[ThrottleStatus]()
        for group in self.throttles():
            total += len(group)
            shown = nlargest(MAX_WAITING_SHOWN, [*shown, *group], key=attrgetter("remaining_seconds"))
            await asyncio.sleep(0)
        exemptions = self.exemptions()
        if "text/plain" in accept and "application/json" not in accept:
            table = waiting_table(shown, total=total)
            return text_response("".join([table, *(f"exempt: {line}\n" for line in exemptions)]), fields=_VARY)
        page = {"total": total, "waiting": list(map(asdict, shown)), "exempt": exemptions}
        return Response(f"{json.dumps(page)}\n".encode(), "application/json; charset=utf-8", fields=_VARY)


def _status_response(status: Status) -> Response:
    return text_response(status.reason + "\n", 200 if status.ok else 503)


def waiting_table(waiting: Sequence[ThrottleStatus], *, total: int) -> str:
    """One aligned line per client under a line of headings, or one sentence when no connection is held."""
    if not waiting:
        return "no connection is held\n"
    rows = [_HEADINGS, *map(_cells, waiting)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line_of(row: list[str]) -> str:
        cells = zip(row, widths, _IS_NUMBER, strict=True)
        return "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells).rstrip()

    lines = list(map(line_of, rows))
    if total > len(waiting):
        lines.append(f"... and {total - len(waiting)} more")
    return "\n".join(lines) + "\n"


def _cells(client: ThrottleStatus) -> list[str]:
    values = [(name, getattr(client, name)) for name in _NAMES]
    return [f"{value:.1f} s" if name.endswith("_seconds") else text_value(value) for name, value in values]
