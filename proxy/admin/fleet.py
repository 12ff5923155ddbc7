"""The page /fleet: who shares limits with this proxy, and who uses how much."""

import json
from dataclasses import dataclass
from itertools import islice
from typing import Final

from proxy.admin.http_server import Response, text_response
from proxy.fleet.fleet import Fleet
from proxy.fleet.status import limits_of, status_of

MAX_LIMITS: Final = 100
"""Of a page, with at most 100 members each."""


@dataclass(frozen=True, slots=True)
class FleetPage:
    """`fleet`: None without `--fleet`."""

    fleet: Fleet | None = None

    def respond(self) -> Response:
        if self.fleet is None:
            return text_response("404: this proxy shares no limits; --fleet NAME does\n", 404)
        now_ns = self.fleet.clock()
        status = status_of(self.fleet, now_ns)
        limits = [
            {**limit._asdict(), "members": [each._asdict() for each in limit.members]}
            for limit in islice(limits_of(self.fleet, now_ns), MAX_LIMITS)
        ]
        return Response(
            f"{json.dumps({**status._asdict(), 'limits': limits})}\n".encode(), "application/json; charset=utf-8"
        )
