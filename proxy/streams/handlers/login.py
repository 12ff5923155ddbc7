"""SASL when the proxy itself logs in: responses to its own login are removed from the stream, and clients that use SASL
get the answer of a listener without SASL.
"""

from collections.abc import Mapping
from typing import Final, final

from protocol.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from protocol.errors import MalformedFrame
from protocol.request_header import unpack_prefix
from protocol.wire import INT32
from proxy.brokers.sasl_exchange import MAX_RESPONSE
from proxy.streams.handlers.forward import Forward
from proxy.streams.pending import Pending, Responses
from proxy.streams.request import Kind, Requests
from proxy.streams.steps import NEED

_ILLEGAL_SASL_STATE: Final = b"\x00\x22"
#: By API and version, the answer after the correlation id: no mechanisms, and no text, token or lifetime.
_ANSWERS: Final[Mapping[tuple[int, int], bytes]] = {
    (SASL_HANDSHAKE, 1): _ILLEGAL_SASL_STATE + bytes(4),
    (SASL_AUTHENTICATE, 0): _ILLEGAL_SASL_STATE + b"\xff\xff" + bytes(4),
    (SASL_AUTHENTICATE, 1): _ILLEGAL_SASL_STATE + b"\xff\xff" + bytes(4 + 8),
    (SASL_AUTHENTICATE, 2): b"\x00" + _ILLEGAL_SASL_STATE + b"\x00\x01" + bytes(8) + b"\x00",
}


@final
class OwnRequest(Pending):
    """A request of the proxy's own login. `response`: the response, without its length; empty until it arrives."""

    __slots__ = ("response",)

    def __init__(self) -> None:
        self.response = b""

    def respond(self, responses: Responses, pos: int, end: int, length: int, now_ns: int) -> int:
        """Remove the response from the stream."""
        if length > MAX_RESPONSE:
            raise MalformedFrame(f"a response of SASL within {MAX_RESPONSE} bytes", length)
        self.response = responses.whole(pos, end, length)
        return responses.replace(b"", pos, length) if self.response else NEED


@final
class RefuseLogin(Forward):
    """Answers clients with error 34, and forwards nothing of their login."""

    batchable = False
    identifies = False

    def on_request(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        self.count(requests, now_ns)
        length, _, correlation_id = unpack_prefix(requests.buf, pos)
        answer = _ANSWERS[kind.api_key, kind.version]
        requests.responses.answers.add(correlation_id, INT32.pack(correlation_id) + answer)
        return requests.discard(pos, end, length)
