"""Requests of the same kind: parsed once, and compared afterwards.

Consecutive requests of a client mostly have the same API, version and client id, so their header bytes are equal from
the client id on. The parsed header of the first one is kept, for all connections together.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from protocol.apis import Treatment
from protocol.request_header import PREFIX_SIZE, RequestHeader
from proxy.observability.metrics import Metrics
from proxy.streams.handler import Handler, RequestKind

#: Number of kinds kept, and the longest header of one. Together they bound the memory: a client with another client id
#: or header tags in each request slows down only itself.
MAX_KINDS: Final = 4_096
MAX_TAIL_BYTES: Final = 512
#: The key of a kind that no request is compared with.
_NO_KEY: Final = 1 << 32


class Kinds:
    """The RequestKind of each header. Shared by all connections."""

    __slots__ = ("_handlers", "_known", "_metrics")

    def __init__(self, handlers: Mapping[Treatment, Handler], metrics: Metrics) -> None:
        self._handlers = handlers
        self._metrics = metrics
        self._known: dict[tuple[int, int, bytes], RequestKind] = {}

    def kind_of(self, header: RequestHeader, buf: bytearray, pos: int) -> RequestKind:
        """The kind of the request whose frame begins at `pos`."""
        tail = bytes(buf[pos + PREFIX_SIZE : pos + header.size])
        key = (header.api.key, header.version, tail)
        kind = self._known.get(key)
        if kind is None:
            counter = self._metrics.request_cell(header.api.name, header.version)
            handler = self._handlers[header.api.treatment]
            if len(tail) > MAX_TAIL_BYTES:  # it stays while its request is in flight, so it must not keep the head
                kind = RequestKind(replace(header, client_id=""), b"", handler, counter)
                kind.key = _NO_KEY
                return kind
            kind = RequestKind(header, tail, handler, counter)
            if len(self._known) >= MAX_KINDS:
                self._known.clear()
            self._known[key] = kind
        return kind
