"""NodeEndpoints (KIP-951): broker addresses at the end of data responses, hidden without a change of length.

With an error such as NOT_LEADER_OR_FOLLOWER a broker names the new leader's host and port: in Produce (10+) and Fetch
(16+) under tag 0 of the body, in ShareFetch and ShareAcknowledge as an untagged array. A client that takes them walks
round the proxy. They come after megabytes of records, when the frame's length is long gone, so they cannot be replaced
by names of other lengths. Instead the tag is renamed to one that no client knows; an untagged array is made empty, and
one unknown tag swallows the rest of the frame. Clients skip unknown tags (KIP-482) and ask for metadata, as they did
before KIP-951. The bytes swallowed are zeroed.
"""

from protocol.wire import encode_varint, skip, unsigned_varint, varint_size

NODE_ENDPOINTS_TAG = 0

HIDDEN_TAG = 127
"""The last tag that takes one byte, as tag 0 does. Kafka numbers its tags from 0 up and is far from it."""

_HIDDEN_TAG_IN_TWO_BYTES = 128

SWALLOWING_MIN = 4
"""Least bytes of a frame from the array's count on that `swallowing` can be written over: one endpoint takes eleven."""


def hide_tagged_node_endpoints(buf: bytearray, pos: int, end: int, origin: int) -> int:
    """Over the tag buffer of a body that is held whole; returns the position behind it."""
    count, pos = unsigned_varint(buf, pos, end, origin, "tag count")
    for _ in range(count):  # each takes two bytes or more, so a false count ends at `end`
        tag_at = pos
        tag, pos = unsigned_varint(buf, pos, end, origin, "tag")
        size, pos = unsigned_varint(buf, pos, end, origin, "tag size")
        behind = skip(pos, size, end, origin, "tagged field")
        if tag == NODE_ENDPOINTS_TAG:
            buf[tag_at] = HIDDEN_TAG
            buf[pos:behind] = bytes(size)
        pos = behind
    return pos


def swallowing(size: int) -> bytes:
    """First bytes of `size` that read as an empty array and a tag buffer with one unknown tag, which takes the rest."""
    for tag in (HIDDEN_TAG, _HIDDEN_TAG_IN_TWO_BYTES):
        # The size's own length depends on the size. Where no size fits (129 bytes left: 128 take two bytes, 127 one),
        # the longer tag makes up for it.
        for size_bytes in range(1, varint_size(size) + 1):
            tag_size = size - 2 - varint_size(tag) - size_bytes
            if tag_size >= 0 and varint_size(tag_size) == size_bytes:
                return b"\x01\x01" + encode_varint(tag) + encode_varint(tag_size)
    raise ValueError(f"{size} bytes are too few for a tag")
