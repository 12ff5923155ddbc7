"""How long requests and their responses are in the proxy, measured by taps on both of its sides.

                 client ──── tap ──── proxy ──── tap ──── broker
    request        sent_ns ─────────▶ ─────────▶ sent_ns
    response       answered_ns ◀───── ◀───────── answered_ns

The time in the proxy is the time between the two on the client's side without that on the broker's side. It contains
two ways between a tap and the proxy, and the wait for a processor.
"""

from collections.abc import Iterable
from typing import NamedTuple

from deploy.local.frames import Exchange


class InProxy(NamedTuple):
    """A forwarded request. size: its bytes at the broker's side; at_broker_ns: from there to its response."""

    size: int
    took_ns: int
    at_broker_ns: int


def times_in_proxy(exchanges: Iterable[Exchange]) -> list[InProxy]:
    """The requests that both sides have seen, of one API. One on the broker's side lies within the one on the client's
    side with the same correlation id.
    """
    found: list[InProxy] = []
    outer: dict[int, list[Exchange]] = {}
    for each in sorted(exchanges, key=lambda each: each.sent_ns):
        same_id = outer.setdefault(each.correlation_id, [])
        around = next((one for one in same_id if one.answered_ns >= each.answered_ns), None)
        if around is None:
            same_id.append(each)
        else:
            same_id.remove(around)
            at_broker_ns = each.answered_ns - each.sent_ns
            found.append(InProxy(each.size, around.answered_ns - around.sent_ns - at_broker_ns, at_broker_ns))
    return found
