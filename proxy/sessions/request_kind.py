"""Requests that are alike: what the proxy does with them and with their responses, worked out once."""

from collections import deque
from enum import IntEnum
from typing import final

from protocol.apis import API_VERSIONS, FETCH, METADATA, PRODUCE, SHARE_ACKNOWLEDGE, SHARE_FETCH, Treatment
from protocol.fetch import fetch_budget_offset
from protocol.request_header import RequestHeader
from proxy.observability.tallies import Cell

#: First versions whose data responses may name brokers in a trailing NodeEndpoints field (KIP-951).
PRODUCE_ENDPOINTS_FROM = 10
FETCH_ENDPOINTS_FROM = 16


class Response(IntEnum):
    """What becomes of a response. Most are forwarded unseen; see the table in protocol/apis.py."""

    UNSEEN = 0
    PRODUCE = 1
    FETCH = 2
    WALK = 3
    HEAD = 4
    WHOLE = 5


def _response_of(header: RequestHeader) -> Response:
    special = {
        PRODUCE: Response.PRODUCE,
        FETCH: Response.FETCH,
        SHARE_FETCH: Response.FETCH,
        SHARE_ACKNOWLEDGE: Response.WALK,
        METADATA: Response.HEAD,
    }.get(header.api.key)
    if special is not None:
        return special
    whole = (Treatment.REWRITE, Treatment.NEGOTIATE, Treatment.LIMIT)
    return Response.WHOLE if header.api.treatment in whole else Response.UNSEEN


class Data(IntEnum):
    """Which budget a request draws on."""

    NONE = 0
    PRODUCE = 1
    FETCH = 2


class RequestKind:
    """All requests with the same API, version and head: what the proxy does with them and with their responses.

    ``tail`` are the head's bytes from the client id's length on, ``size`` where they end, counted from the frame's
    start. Shared by all sessions that send such requests.
    """

    __slots__ = (
        "alike",
        "api_key",
        "budget_at",
        "cell",
        "data",
        "expects_response",
        "header",
        "mutates",
        "response",
        "run",
        "runs",
        "shortest",
        "size",
        "tail",
        "version",
    )

    def __init__(self, header: RequestHeader, tail: bytes, cell: Cell, longest: int) -> None:
        self.header = header
        self.api_key = header.api.key
        #: API key and version as the one int32 that they are on the wire.
        self.alike = header.api.key << 16 | header.version
        self.version = header.version
        self.tail = tail
        self.cell = cell
        self.data = {PRODUCE: Data.PRODUCE, FETCH: Data.FETCH, SHARE_FETCH: Data.FETCH}.get(self.api_key, Data.NONE)
        self.expects_response = header.acks != 0
        offset = fetch_budget_offset(header.version) if self.api_key == FETCH else None
        self.budget_at = 0 if offset is None else header.body_offset + offset
        # A Fetch's budget is changed in place, so its head must be at hand up to there.
        self.size = header.size if offset is None else self.budget_at + 12
        self.shortest = self.size - 4
        #: Creates or deletes partitions: see proxy/sessions/mutations.py.
        self.mutates = header.api.treatment is Treatment.LIMIT
        # Needs no decision of its own where there is room: passes in runs.
        self.runs = (
            self.data is not Data.FETCH
            and not self.mutates
            and (self.api_key != API_VERSIONS or header.api.covers(header.version))
        )
        # What the hot loop compares, in one piece.
        self.run = (self.alike, tail, self.size, self.shortest, longest, self.expects_response)
        self.response = _response_of(header)


@final
class Answer:
    """A response made by the proxy itself, waiting for its turn among the broker's."""

    __slots__ = ("bytes",)

    def __init__(self, data: bytes) -> None:
        self.bytes = data


InFlight = deque[tuple[int, RequestKind | Answer]]
"""Requests without an answer yet, oldest first: correlation id, and what it was."""
