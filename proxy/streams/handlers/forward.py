"""Requests that are forwarded once their header has been parsed, and their responses.

They are never held. `request_rate` counts them only while it has no debt, so that a client's own heartbeats cannot hold
its data forever. While there is debt, responses contain `throttle_time_ms` if their version has that field at a fixed
place.
"""

from typing import Final

from protocol.errors import MalformedFrame
from protocol.throttle_time import raise_throttle, throttle_needs
from proxy.streams.pending import Responses
from proxy.streams.request import Handler, Kind, Requests
from proxy.streams.steps import NEED, PASS

#: The largest request that is kept until it is complete.
MAX_KEPT: Final = 131_072
#: The largest incomplete request that is kept while half of the memory is used by kept bytes, so that incomplete
#: requests do not block their own rest.
MAX_PARTIAL: Final = 4_096


class Forward(Handler):
    """Counts requests and forwards them. The base of all handlers whose requests carry no data."""

    unseen = True
    batchable = True

    def on_request(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        self.count(requests, now_ns)
        return requests.forward(kind, kind, pos, end)

    def respond(self, responses: Responses, kind: Kind, pos: int, end: int, length: int, now_ns: int) -> int:
        step = self.raise_throttle_time(responses, kind, pos, end, length, now_ns)
        return self.forward_response(responses, kind, pos, end, length, now_ns) if step == PASS else step

    def forward_response(self, responses: Responses, kind: Kind, pos: int, end: int, length: int, now_ns: int) -> int:
        """Forward a response whose throttle time has been raised."""
        return responses.forward(pos, end, length)

    def may_keep(self, pos: int, end: int, length: int) -> bool:
        """Whether the request at `pos` is short enough to be kept until it is complete."""
        is_short = pos + 4 + length > end and self.context.memory.keeps_much
        return length <= (MAX_PARTIAL if is_short else MAX_KEPT)

    def raise_throttle_time(
        self, responses: Responses, kind: Kind, pos: int, end: int, length: int, now_ns: int, least_ms: int = 0
    ) -> int:
        """Raise the response's throttle time to that of `request_rate`, or to `least_ms` if that is longer. Returns
        `PASS`, or the step that asks for more bytes.
        """
        notice = responses.connection.identity.request_notice
        throttle_ms = max(least_ms, responses.connection.observer.notify(notice, now_ns) if notice.until_ns else 0)
        if not throttle_ms:
            return PASS
        api = kind.header.api
        needed = throttle_needs(api, kind.version)
        if not needed:
            return PASS
        if length < needed:
            raise MalformedFrame("the throttle time of a response", length)
        if end - pos < 4 + needed:
            responses.want = 4 + needed - (end - pos)
            return NEED
        raise_throttle(responses.buf, pos + 4, min(end, pos + 4 + length), api, kind.version, throttle_ms)
        return PASS
