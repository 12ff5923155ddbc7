"""Metadata responses: the brokers replaced, the topics streamed untouched.

In every version the brokers come before the topics:

    correlation id int32, tag buffer (9+), throttle time int32 (3+),
    brokers array: node id int32, host string, port int32, rack nullable string (1+), tag buffer (9+)
    cluster id ...

Only this is read and written anew, so what it costs does not depend on the number of topics: an answer for 100,000
partitions takes half a second to decode and encode whole.
"""

from collections.abc import Iterator
from dataclasses import replace
from struct import Struct
from typing import Any

from kio.index import load_payload_module
from kio.static.constants import EntityType

from protocol.addresses import NodeAddresses
from protocol.apis import APIS, METADATA
from protocol.errors import MalformedFrame, TruncatedFrame, UnsupportedVersion
from protocol.messages import encode, read
from protocol.wire import BytesLike, encode_varint, skip, skip_tags, unsigned_varint

MAX_PREFIX = 1_048_576
"""Bytes up to the end of the brokers: room for ten thousand of them. A longer prefix is refused."""

FIRST_WITH_THROTTLE = 3

_SMALLEST_BROKER = 10  # version 0: node id, empty host, port
_INT32 = Struct(">i")


class MetadataPrefix:
    """Rewrites the beginning of one Metadata response."""

    def __init__(self, version: int, addresses: NodeAddresses) -> None:
        """version: of the request that is answered."""
        api = APIS[METADATA]
        if not api.covers(version):
            raise UnsupportedVersion(api.name, version)
        self._flexible = api.is_flexible(version)
        self._has_throttle = version >= FIRST_WITH_THROTTLE
        self._addresses = addresses
        module: Any = load_payload_module(METADATA, version, EntityType.response)
        self._broker = module.MetadataResponseBroker
        self._before_brokers = b""
        self._left: int | None = None  # brokers still to come, None: their count as well
        self._pos = 0  # behind the last broker read
        self._brokers: list[Any] = []

    def rewrite(self, head: BytesLike) -> tuple[bytes, int] | None:
        """Reads on in a response's first bytes.

        Args:
            head: the response from its correlation id on, as much as has come; always all of it, but what was read
                in an earlier call is not read again.

        Returns:
            `None` when more bytes are needed. Else the new bytes, and how many bytes of `head` they replace: the
            frame's length changes by the difference, and what follows in the response stays as it is.

        Raises:
            MalformedFrame: the bytes are no such response, or the brokers take more than `MAX_PREFIX` bytes.
        """
        try:
            self._read(head)
        except TruncatedFrame as error:
            if len(head) >= MAX_PREFIX:
                raise MalformedFrame(f"brokers of Metadata within {MAX_PREFIX} bytes", error.offset) from error
            return None
        count = encode_varint(len(self._brokers) + 1) if self._flexible else _INT32.pack(len(self._brokers))
        return self._before_brokers + count + b"".join(map(encode, self._replaced())), self._pos

    def _read(self, head: BytesLike) -> None:
        """Raises TruncatedFrame when `head` ends too early; what was read by then is kept."""
        end = min(len(head), MAX_PREFIX)
        if self._left is None:
            self._left = self._read_count(head, end)
        if not self._left:
            return
        unread = bytes(head[self._pos : end])
        start = self._pos
        while self._left:
            try:
                broker, behind = read(self._broker, unread, self._pos - start)
            except MalformedFrame as error:
                raise type(error)(error.what, start + error.offset) from error
            self._brokers.append(broker)
            self._pos = start + behind
            self._left -= 1

    def _read_count(self, head: BytesLike, end: int) -> int:
        pos = skip(0, 4, end, 0, "correlation id")
        if self._flexible:
            pos = skip_tags(head, pos, end, 0)
        if self._has_throttle:
            pos = skip(pos, 4, end, 0, "throttle time")
        before = pos
        if self._flexible:
            count, pos = unsigned_varint(head, pos, end, 0, "broker count")
            count -= 1
        else:
            pos = skip(pos, 4, end, 0, "broker count")
            count = _INT32.unpack_from(head, before)[0]
        if not 0 <= count <= MAX_PREFIX // _SMALLEST_BROKER:
            raise MalformedFrame("broker count of Metadata", before)
        self._before_brokers = bytes(head[:before])
        self._pos = pos
        return count

    def _replaced(self) -> Iterator[Any]:
        brokers = self._brokers
        told = self._addresses.advertise_all([(broker.node_id, broker.host, broker.port) for broker in brokers])
        for broker, (host, port) in zip(brokers, told, strict=True):
            yield replace(broker, host=host, port=port)
