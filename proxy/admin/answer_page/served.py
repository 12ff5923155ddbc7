"""The page /answer, as text or as what the page for browsers draws, and that page."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from proxy.admin.activity import Activity, View, in_rounds
from proxy.admin.answer_page.answer import Cause, Load, answers, awaited
from proxy.admin.answer_page.rows import Shown, broker_row, client_row, limit_row
from proxy.admin.fleet_page import FleetPage
from proxy.admin.http_server import VARY, Response, json_response, text_response
from proxy.admin.plain_text import asks_for_text
from proxy.admin.tables import with_verdicts

#: Rows to process before the event loop runs again: about 1 ms.
_AT_ONCE: Final = 20
_MOST_LINKS: Final = 200
_HTML: Final = Path(__file__).with_name("page.html").read_bytes()
#: The page is one file that loads nothing: it allows its own scripts and styles, and the pages of this port.
_POLICY: Final = (
    *VARY,
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
    ),
)

_in_rounds = partial(in_rounds, at_once=_AT_ONCE)


@dataclass(frozen=True, slots=True)
class AnswerPage:
    """Is it the proxy?"""

    activity: Activity
    fleet: FleetPage = field(default_factory=FleetPage)

    async def respond(self, path: str, accept: str) -> Response:
        """`/` is the page for browsers. `/answer` is text if `accept` names text/plain and not JSON, otherwise JSON."""
        if path == "/":
            return Response(_HTML, "text/html; charset=utf-8", fields=_POLICY)
        view = await self.activity.view()
        clients = with_verdicts(view.clients, view.findings)
        found = answers(clients, view.limits, view.brokers, view.refused, Load(*view.load))
        if asks_for_text(accept):
            return text_response("".join(f"{each}\n" for each in found), fields=VARY)
        return json_response(await _shown(view, clients, found, self.fleet.links()[:_MOST_LINKS]))


async def _shown(
    view: View, clients: Sequence[dict[str, Any]], found: Iterable[Cause], links: Sequence[Mapping[str, str]]
) -> str:
    """What the page for browsers draws, as JSON."""
    limits = {(each["limit"], each["entity"]): each for each in view.limits}
    waiting = Counter([address async for each in _in_rounds(clients) for address in awaited(each, view.brokers)])
    pairs = zip(clients, view.findings, strict=True)
    shown = {
        "clients": [client_row(*pair, limits) async for pair in _in_rounds(pairs)],
        "limits": [limit_row(each) async for each in _in_rounds(view.limits)],
        "brokers": [broker_row(each, waiting[each["address"]]) async for each in _in_rounds(view.brokers)],
    }
    parts = [f'"answers": {json.dumps([each._asdict() for each in found])}', f'"members": {json.dumps(links)}']
    for name, rows in shown.items():
        rows.sort(key=_order)
        parts.append(f'"{name}": [{", ".join([json.dumps(row) async for row in _in_rounds(rows)])}]')
    return f"{{{', '.join(parts)}}}"


def _order(row: Shown) -> Any:
    return row["order"]
