"""The pages of the admin port: /metrics, /healthz, /readyz, /started, /throttles, /config and /fleet, over HTTP."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from proxy.admin.activity import PATHS, Activity
from proxy.admin.exposition import MetricsPage
from proxy.admin.fleet_page import FleetPage
from proxy.admin.http_server import MEMBER_FIELD, VARY, HttpServer, Response, json_response, text_response
from proxy.admin.plain_text import asks_for_text
from proxy.admin.throttles import ThrottlesPage
from proxy.config.config import ObservabilityOptions
from proxy.config.effective import text_of
from proxy.config.errors import BindError
from proxy.observability.logs import one_line

INDEX: Final = """kafka-quota-proxy

/metrics    Prometheus metrics (text, or OpenMetrics by the Accept header)
/healthz    200: the process works, even while it drains
/readyz     200: new connections are served; otherwise 503 and the reason: draining, memory, no bootstrap server answers
/started    200: a bootstrap server has answered since the start, even if none does now; otherwise like /readyz
/throttles  connections that a quota holds now: limit, entity, time; exemptions (JSON; a table for Accept: text/plain)
/answer     is it the proxy? One line for each cause, the worst first (JSON: also what the page in a browser draws)
/explain    where each client's time went in the last minute, in sentences (JSON; text for Accept: text/plain)
/clients    clients of the last minute: rates, and where their time went (JSON; a table for Accept: text/plain)
/limits     limits in use: rate, used share of the limit, which clients wait for it or share it (formats: as /clients)
/brokers    brokers: response time, oldest request (formats: as /clients)
/config     options in force with the source of each value, and the last reload (JSON; text for Accept: text/plain)
/fleet      the proxies that share limits with this one, and how much each uses (JSON; 404 without --fleet)

In a browser, this page shows the same figures as charts.
"""


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
    """The page for each path. Pages decide nothing: they show what the server passes to them. `answer` is for /answer,
    and for / in browsers. `health`, `readiness` and `started`: whether the check passed, and a sentence.
    """

    metrics: MetricsPage
    throttles: ThrottlesPage
    config: Callable[[], Mapping[str, Any]]
    health: Callable[[], tuple[bool, str]]
    readiness: Callable[[], Awaitable[tuple[bool, str]]]
    started: Callable[[], Awaitable[tuple[bool, str]]]
    activity: Activity
    answer: Callable[[str, str], Awaitable[Response]]
    fleet: FleetPage = field(default_factory=FleetPage)

    async def respond(self, path: str, accept: str) -> Response:
        """The page, with the name of this proxy in its fleet: whoever asks several members compares it."""
        response, member = await self._page(path, accept), self.fleet.member
        return replace(response, fields=(*response.fields, (MEMBER_FIELD, member))) if member else response

    async def _page(self, path: str, accept: str) -> Response:
        if path in PATHS:
            return await self.activity.respond(path, accept)
        match path:
            case "/":
                if "text/html" in accept.lower():
                    return await self.answer(path, accept)
                return text_response(INDEX, fields=VARY)
            case "/answer":
                return await self.answer(path, accept)
            case "/metrics":
                return await self.metrics.respond(accept)
            case "/healthz":
                return _status_response(self.health())
            case "/readyz":
                return _status_response(await self.readiness())
            case "/started":
                return _status_response(await self.started())
            case "/throttles":
                return await self.throttles.respond(accept)
            case "/config":
                return _config_response(self.config(), accept)
            case "/fleet":
                return self.fleet.respond()
        return text_response(f"404: nothing here\n\n{INDEX}", 404)


def _status_response(status: tuple[bool, str]) -> Response:
    ok, reason = status
    return text_response(f"{reason}\n", 200 if ok else 503)


def _config_response(page: Mapping[str, Any], accept: str) -> Response:
    """Text if `accept` names text/plain and not JSON, otherwise JSON."""
    if asks_for_text(accept):
        return text_response("".join(f"{one_line(line)}\n" for line in text_of(page)), fields=VARY)
    return json_response(json.dumps(page))
