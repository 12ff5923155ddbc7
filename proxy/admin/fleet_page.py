"""The page /fleet, which shows the members that share limits with this proxy and how much each uses, and its text."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.admin.http_server import Response, json_response, text_response
from proxy.fleet.fleet import Fleet
from proxy.fleet.status import addresses_of, page_of
from proxy.observability.logs import one_line


@dataclass(frozen=True, slots=True)
class FleetPage:
    """`fleet` is None without `--fleet`."""

    fleet: Fleet | None = None

    @property
    def member(self) -> str:
        """The name of this proxy in its fleet; "" without one."""
        return "" if self.fleet is None else self.fleet.member.caps.name

    def links(self) -> list[dict[str, str]]:
        """The pages for browsers of the other members that advertise an address."""
        found = [] if self.fleet is None else addresses_of(self.fleet, self.fleet.clock())
        return [
            {"name": each["member"], "url": f"http://{each['admin']}/"}
            for each in found
            if each["admin"] and not each["here"]
        ]

    def respond(self) -> Response:
        if self.fleet is None:
            return text_response("404: this proxy shares no limits, because it runs without --fleet NAME\n", 404)
        return json_response(json.dumps(page_of(self.fleet, self.fleet.clock())))


def text_of(page: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the command `fleet`."""
    state = f"has not joined: {one_line(page['why_away'])}" if page["why_away"] else "has joined"
    refused = ", ".join(f"{count} {reason}" for reason, count in page["refused_records"].items() if count)
    leaving = f", {page['leaving']} leaving" if page["leaving"] else ""
    yield f"fleet {page['fleet']}: {page['members']} of at most {page['max_members']} members{leaving}"
    yield f"this proxy, {page['member']}, {state}; a record takes {1000 * page['delivery_seconds']:.0f} ms"
    yield f"refused records: {refused or 'none'}; limits in use: {page['shared_limits']}"
    for each in page["lacking"]:
        limits = one_line(", ".join(each["limits"])) or f"{each['at_least']} limits"
        yield f"{each['member']} lacks {limits}"
    for limit in page["limits"]:
        yield ""
        name = f"{one_line(limit['entity'])} {limit['limit']}"
        yield f"{name}: {limit['quota']:,.0f}/s for all, {limit['caps_ratio']:.0%} claimed"
        yield f"  this proxy may use {limit['allowed']:,.0f}/s now, and for {limit['lease_seconds']:.0f} s if cut off"
        lowest = [each["member"] for each in limit["members"] if each["lowest"]]
        if lowest:
            names = ", ".join(lowest[:5])
            yield f"  the lowest quota applies to all, that of {names}; here it is {limit['configured']:,.0f}/s"
        yield f"  {'MEMBER':<32}  {'CAP':>6}  {'WANT':>6}  {'QUOTA':>14}  ADVERTISED"
        for each in limit["members"]:
            marks = " above the fair level" * each["above_fair"] + " leaving" * each["leaving"]
            marks += " lowest quota" * each["lowest"] + " (this proxy)" * each["here"]
            shares = f"{each['cap_ratio']:>6.1%}  {each['want_ratio']:>6.1%}  {each['quota']:>14,.0f}"
            yield f"  {each['member']:<32}  {shares}  {each['stated_seconds_ago']:.0f} s ago{marks}"
