"""Produce responses: throttle time filled in, node endpoints hidden.

    correlation id int32, tag buffer (9+),
    responses array: name string (0-12) or topic id (13), partitions array:
        index int32, error code int16, base offset int64, log append time int64 (2+), log start offset int64 (5+),
        record errors array (8+): batch index int32, message nullable string, tag buffer (9+),
        error message nullable string (8+), tag buffer (9+; tag 0 is the current leader, 10+)
      tag buffer (9+)
    throttle time int32 (1+), tag buffer (9+; tag 0 is NodeEndpoints, 10+)

Up to version 8 the throttle time is the frame's last four bytes. From 9 on its place is found by a walk, which looks
only at what tells lengths, and NodeEndpoints are hidden as `node_endpoints` has it. The response keeps its length.
"""

from struct import Struct

from protocol.errors import MalformedFrame, TruncatedFrame
from protocol.node_endpoints import hide_tagged_node_endpoints
from protocol.wire import skip, skip_compact_string, skip_tags, unsigned_varint

FIRST_WITH_THROTTLE = 1
FIRST_FLEXIBLE = 9
FIRST_WITH_NODE_ENDPOINTS = 10
FIRST_WITH_TOPIC_IDS = 13

INT32 = Struct(">i")

# The usual response has one topic, one partition and no error text:
# correlation id; no tags, 1 topic + 1; topic; 1 partition + 1; index to log start offset;
# no record errors, no message, no tags, no tags; throttle; no tags.
_USUAL_WITH_ID = Struct(">4xH16xB30xIiB")
_USUAL_LENGTHS = 0x01000000
_FROM_END_TO_THROTTLE = 5
# The same with a topic's name: its length plus one is a byte after the topic count. One layout for each length up to
# 126, by the size of the response, so that one call reads everything.
_USUAL_WITH_NAME = {
    layout.size: layout.unpack_from for layout in (Struct(f">4xHB{length}xB30xIiB") for length in range(1, 127))
}
_NAME_SIZE_LESS_ONE = Struct(">4xHB0xB30xIiB").size - 1

_ID_SIZE = 16
_PARTITION_FIXED = 30
_USUAL_PARTITION = _PARTITION_FIXED + 3  # no record errors, no message, no tags: bytes 1, 0, 0

_usual_with_id = _USUAL_WITH_ID.unpack_from
_USUAL_WITH_ID_SIZE = _USUAL_WITH_ID.size


def finish_produce_response(buf: bytearray, start: int, end: int, version: int, throttle_time_ms: int) -> int:
    """Makes the response in `buf[start:end]` ready for the client, in place.

    Args:
        start: where the correlation id is.
        version: of the request that this answers, 0 to 13.
        throttle_time_ms: what the proxy has to tell; the response says the larger of this and the broker's own.

    Returns:
        The throttle time that the response holds now, in milliseconds; 0 for version 0, which has no such field.

    Raises:
        MalformedFrame: the bytes are no Produce response of this version. Nothing of it may be forwarded.
    """
    if version >= FIRST_WITH_TOPIC_IDS:
        if end - start == _USUAL_WITH_ID_SIZE:
            topics, partitions, lengths, throttle, tags = _usual_with_id(buf, start)
            if topics == 2 and partitions == 2 and lengths == _USUAL_LENGTHS and tags == 0:
                if throttle_time_ms > throttle:
                    INT32.pack_into(buf, end - _FROM_END_TO_THROTTLE, throttle_time_ms)
                    return throttle_time_ms
                return throttle  # type: ignore[no-any-return]  # a struct's int32
        return _finish_flexible(buf, start, end, version, throttle_time_ms)
    if version >= FIRST_FLEXIBLE:
        usual_with_name = _USUAL_WITH_NAME.get(end - start)
        if usual_with_name is not None:
            topics, name, partitions, lengths, throttle, tags = usual_with_name(buf, start)
            named = name == end - start - _NAME_SIZE_LESS_ONE
            if named and topics == 2 and partitions == 2 and lengths == _USUAL_LENGTHS and tags == 0:
                if throttle_time_ms > throttle:
                    INT32.pack_into(buf, end - _FROM_END_TO_THROTTLE, throttle_time_ms)
                    return throttle_time_ms
                return throttle  # type: ignore[no-any-return]  # a struct's int32
        return _finish_flexible(buf, start, end, version, throttle_time_ms)
    if version < FIRST_WITH_THROTTLE:
        return 0
    if end - start < 12:  # correlation id, array length, throttle time
        raise TruncatedFrame("Produce response", 0)
    return _raise_throttle(buf, end - 4, throttle_time_ms)


def _raise_throttle(buf: bytearray, at: int, throttle_time_ms: int) -> int:
    throttle: int = INT32.unpack_from(buf, at)[0]
    if throttle_time_ms > throttle:
        INT32.pack_into(buf, at, throttle_time_ms)
        return throttle_time_ms
    return throttle


def _finish_flexible(buf: bytearray, start: int, end: int, version: int, throttle_time_ms: int) -> int:
    pos = skip(start, 4, end, start, "correlation id")
    pos = skip_tags(buf, pos, end, start)
    topics, pos = unsigned_varint(buf, pos, end, start, "topic count")
    by_id = version >= FIRST_WITH_TOPIC_IDS
    for _ in range(topics - 1):  # each takes bytes, so a false count ends at `end`
        # A position beyond `end` is found out by whatever reads there next.
        if by_id:
            pos += _ID_SIZE
        elif pos < end and 0 < buf[pos] < 0x80:
            pos += buf[pos]
        else:
            pos = skip_compact_string(buf, pos, end, start, "topic name")
        # one usual partition and no tags
        if end - pos > _USUAL_PARTITION + 1 and buf[pos] == 2 and buf[pos + 31 : pos + 35] == b"\x01\x00\x00\x00":
            pos += 35
            continue
        pos = _skip_partitions(buf, pos, end, start)
        pos = skip_tags(buf, pos, end, start)
    throttle_at = pos
    pos = skip(pos, 4, end, start, "throttle time")
    if version >= FIRST_WITH_NODE_ENDPOINTS:
        pos = hide_tagged_node_endpoints(buf, pos, end, start)
    else:
        pos = skip_tags(buf, pos, end, start)
    if pos != end:
        raise MalformedFrame("Produce response: bytes behind its last field", pos - start)
    return _raise_throttle(buf, throttle_at, throttle_time_ms)


def _skip_partitions(buf: bytearray, pos: int, end: int, origin: int) -> int:
    count, pos = unsigned_varint(buf, pos, end, origin, "partition count")
    left = count - 1
    if left > 0:
        # When all of them are usual they have one length, and each length byte stands at a fixed stride.
        behind = pos + left * _USUAL_PARTITION
        if behind <= end and (
            buf[pos + 30 : behind : _USUAL_PARTITION].count(1) == left
            and buf[pos + 31 : behind : _USUAL_PARTITION].count(0) == left
            and buf[pos + 32 : behind : _USUAL_PARTITION].count(0) == left
        ):
            return behind
    while left > 0:
        left -= 1
        pos = skip(pos, _PARTITION_FIXED, end, origin, "partition")
        if buf[pos : pos + 3] == b"\x01\x00\x00" and pos + 3 <= end:
            pos += 3
            continue
        errors, pos = unsigned_varint(buf, pos, end, origin, "record error count")
        for _ in range(errors - 1):
            pos = skip(pos, 4, end, origin, "batch index")
            pos = skip_compact_string(buf, pos, end, origin, "record error message")
            pos = skip_tags(buf, pos, end, origin)
        pos = skip_compact_string(buf, pos, end, origin, "partition error message")
        pos = skip_tags(buf, pos, end, origin)
    return pos
