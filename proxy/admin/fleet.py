"""The page /fleet, who shares limits with this proxy and who uses how much, and its text for people."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.admin.http_server import Response, text_response
from proxy.fleet.fleet import Fleet
from proxy.fleet.status import page_of
from proxy.observability.logs import one_line


@dataclass(frozen=True, slots=True)
class FleetPage:
    """`fleet`: None without `--fleet`."""

    fleet: Fleet | None = None

    def respond(self) -> Response:
        if self.fleet is None:
            return text_response("404: this proxy shares no limits; --fleet NAME does\n", 404)
        page = page_of(self.fleet, self.fleet.clock())
        return Response(f"{json.dumps(page)}\n".encode(), "application/json; charset=utf-8")


def text_of(page: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the command `fleet`."""
    state = "has joined" if page["joined"] else "is cut off from the topic"
    refused = ", ".join(f"{count} {reason}" for reason, count in page["refused_records"].items() if count)
    yield f"fleet {page['fleet']}: {page['members']} of at most {page['max_members']} members"
    yield f"this proxy, {page['member']}, {state}; a record takes {1000 * page['delivery_seconds']:.0f} ms"
    yield f"refused records: {refused or 'none'}; limits in use: {page['shared_limits']}"
    for limit in page["limits"]:
        yield ""
        name = f"{one_line(limit['entity'])} {limit['limit']}"
        yield f"{name}: {limit['quota']:,.0f}/s for all, {limit['caps_ratio']:.0%} claimed"
        yield f"  this proxy may use {limit['allowed']:,.0f}/s now, and for {limit['lease_seconds']:.0f} s if cut off"
        if limit["quota"] < limit["configured"]:
            yield f"  its own quota is {limit['configured']:,.0f}/s: another member states a lower one"
        yield f"  {'MEMBER':<32}  {'CAP':>6}  {'WANT':>6}  {'QUOTA':>14}  STATED"
        for each in limit["members"]:
            marks = " above the fair level" * each["above_fair"] + " (this proxy)" * each["here"]
            shares = f"{each['cap_ratio']:>6.1%}  {each['want_ratio']:>6.1%}  {each['quota']:>14,.0f}"
            yield f"  {each['member']:<32}  {shares}  {each['stated_seconds_ago']:.0f} s ago{marks}"
