"""NodeEndpoints (KIP-951): broker addresses at the end of data responses, hidden without a change of length.

With an error such as NOT_LEADER_OR_FOLLOWER a broker sends host and port of the new leader: in Produce (10+) and Fetch
(16+) under tag 0 of the body, in ShareFetch and ShareAcknowledge as an untagged array. A client that uses them bypasses
the proxy. They follow megabytes of records, when the frame's length is already sent, so they cannot be replaced by
names of other lengths. Instead the tag is changed to one unknown to clients; an untagged array is made empty, and
one unknown tag covers the rest of the frame. Clients skip unknown tags (KIP-482) and ask for metadata, as they did
before KIP-951. The bytes that such a tag covers are set to zero.
"""

from protocol.errors import TruncatedFrame
from protocol.walk import FrameWalk, Steps
from protocol.wire import encode_varint, varint_size

NODE_ENDPOINTS_TAG = 0

HIDDEN_TAG = 127
"""The last tag that takes one byte, as tag 0 does. Kafka numbers its tags from 0 up and is far from it."""

_HIDDEN_TAG_IN_TWO_BYTES = 128

SWALLOWING_MIN = 4
"""Minimum number of bytes, from the array's count to the end of the frame, that `swallowing` needs. One endpoint takes
eleven."""

_NO_ENDPOINTS = (0, 1)  # the count of a null array, which no broker sends, and of an empty one


def swallowing(size: int) -> bytes:
    """First bytes of `size` that decode as an empty array and a tag buffer with one unknown tag over the rest."""
    for tag in (HIDDEN_TAG, _HIDDEN_TAG_IN_TWO_BYTES):
        # The size of the tag's length depends on that length. Where none fits (129 bytes left: 128 take two bytes,
        # 127 one), a tag of two bytes does.
        for size_bytes in range(1, varint_size(size) + 1):
            tag_size = size - 2 - varint_size(tag) - size_bytes
            if tag_size >= 0 and varint_size(tag_size) == size_bytes:
                return b"\x01\x01" + encode_varint(tag) + encode_varint(tag_size)
    raise ValueError(f"{size} bytes are too few for a tag")


class EndpointsWalk(FrameWalk):
    """Walks a response that ends with node endpoints."""

    def _hide_tagged_endpoints(self) -> Steps:
        """The tag buffer of the body."""
        count = yield from self._varint("tag count")
        for _ in range(count):  # each takes two bytes or more, so a false count ends with the frame
            yield from self._need(1, "tag")
            hidden = self._buf[self._pos] == NODE_ENDPOINTS_TAG
            if hidden:
                self._buf[self._pos] = HIDDEN_TAG
            yield from self._varint("tag")
            size = yield from self._varint("tag size")
            if hidden:
                yield from self._blank(size, "NodeEndpoints")
            else:
                yield from self._skip(size, "tagged field")
            yield from self._pause()

    def _hide_endpoint_array(self) -> Steps:
        """The array and the tag buffer after it, which end the frame."""
        yield from self._need(1, "node endpoints")
        if self._buf[self._pos] in _NO_ENDPOINTS:
            yield from self._skip(1, "node endpoints")
            yield from self._skip_tags()
            return
        size = self._limit - self._pos
        if size < SWALLOWING_MIN:
            raise TruncatedFrame("node endpoints", self._offset())
        first = swallowing(size)
        yield from self._need(len(first), "node endpoints")
        self._buf[self._pos : self._pos + len(first)] = first
        yield from self._skip(len(first), "node endpoints")
        yield from self._blank(size - len(first), "node endpoints")
