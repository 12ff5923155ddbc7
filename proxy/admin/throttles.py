"""The page /throttles: connections that a quota holds now, and exemptions, as JSON or as a table."""

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from operator import attrgetter
from typing import Final

from proxy.admin.http_server import VARY, Response, json_response, text_response
from proxy.admin.plain_text import aligned, asks_for_text
from proxy.enforcement.report import ThrottleStatus, connection_status
from proxy.observability.logs import text_value
from proxy.sessions.gate import Gate
from proxy.sessions.session import Session

#: Writing this many rows takes about 1 ms.
MAX_SHOWN: Final = 100
#: Connections to process before the event loop runs again: about 1 ms.
LISTED_AT_ONCE: Final = 200

_NAMES: Final = ThrottleStatus._fields
_HEADINGS: Final = [name.removesuffix("_seconds").replace("_", " ").upper() for name in _NAMES]
_IS_NUMBER: Final = [name.endswith(("_seconds", "_value", "_members", "_here")) for name in _NAMES]


def throttled(sessions: Collection[Session], gate: Gate, clock: Callable[[], int]) -> Iterator[list[ThrottleStatus]]:
    """The throttled connections, in groups. `gate` has the connections that wait for a limit on connections."""
    present = list(sessions)
    for first in range(0, len(present), LISTED_AT_ONCE):
        found = [_status_of(session, gate, clock) for session in present[first : first + LISTED_AT_ONCE]]
        yield list(filter(None, found))


def _status_of(session: Session, gate: Gate, clock: Callable[[], int]) -> ThrottleStatus | None:
    pending = gate.pending.get(session)
    if pending is None:
        return session.throttle_status
    return connection_status(session.identity.client, pending.verdict, pending.since_ns, clock())


@dataclass(frozen=True, slots=True)
class ThrottlesPage:
    """`throttled` yields groups of connections, and the event loop runs between them."""

    throttled: Callable[[], Iterable[Sequence[ThrottleStatus]]]
    exemptions: Callable[[], Sequence[str]] = tuple
    #: Only one list is made at a time, so that many readers cannot keep the loop busy.
    listing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def respond(self, accept: str) -> Response:
        """A table if `accept` names text/plain and not JSON, otherwise JSON."""
        async with self.listing:
            total, shown = 0, list[ThrottleStatus]()
            for group in self.throttled():
                total += len(group)
                shown = nlargest(MAX_SHOWN, [*shown, *group], key=attrgetter("remaining_seconds"))
                await asyncio.sleep(0)
        exemptions = self.exemptions()
        if asks_for_text(accept):
            lines = [table(shown, total=total), *(f"exempt: {line}\n" for line in exemptions)]
            return text_response("".join(lines), fields=VARY)
        page = {"total": total, "waiting": [_without_nulls(each) for each in shown], "exempt": exemptions}
        return json_response(json.dumps(page))


def _without_nulls(status: ThrottleStatus) -> dict[str, object]:
    return {name: value for name, value in status._asdict().items() if value is not None}


def table(shown: Sequence[ThrottleStatus], *, total: int) -> str:
    """One aligned line per client under a line of headings, or one sentence when no connection is held."""
    if not shown:
        return "no connection is held\n"
    columns = zip(_HEADINGS, *map(_cells, shown), strict=True)
    kept = [number for number, (_, *cells) in enumerate(columns) if any(cells)]
    rows = [[row[number] for number in kept] for row in (_HEADINGS, *map(_cells, shown))]
    return aligned(rows, [_IS_NUMBER[number] for number in kept], total - len(shown))


def _cells(client: ThrottleStatus) -> list[str]:
    values = zip(_NAMES, client, strict=True)
    return [
        "" if value is None else f"{value:.1f} s" if name.endswith("_seconds") else text_value(value)
        for name, value in values
    ]
