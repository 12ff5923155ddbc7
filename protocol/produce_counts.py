"""Bytes and messages of each topic of a Produce request that has arrived whole: what usage by topic counts.

The fast path of `produce_walk` for flexible versions. Brokers accept one batch of magic 2 in a partition
(`ProduceRequest.validateRecords`), most often with a length of two bytes:

    index int32 | length of the records | base offset int64, size int32, ..., magic int8, ..., records count | tags
"""

from struct import Struct, error
from typing import Final

from protocol.produce_walk import ACKS_AND_TIMEOUT, FIRST_FLEXIBLE, FIRST_WITH_TOPIC_IDS
from protocol.record_batch import BATCH_HEADER, BEFORE_SIZE, read_partitions
from protocol.topics import TOPIC_ID_SIZE, Topic
from protocol.wire import NOT_AT_HAND, compact_string_end

TopicCount = tuple[Topic, int, int]
"""A topic, with bytes and messages of its records."""

_NOTHING: Final[tuple[list[TopicCount], int]] = [], 0

#: Both bytes of the length, size and magic of the batch, records count.
_partition = Struct(">4xBB8xi4xb40xI").unpack_from
#: Bytes of a partition besides what the size of its batch counts, and besides its records.
_BESIDES_SIZE: Final = 4 + 2 + BEFORE_SIZE + 1
_BESIDES_RECORDS: Final = 4 + 2 + 1
_HEADER_IN_SIZE: Final = BATCH_HEADER - BEFORE_SIZE
#: What low + 128 * high of the length is more than the size of the batch: the length counts `BEFORE_SIZE` bytes more
#: and itself, and its low byte has the high bit set.
_LENGTH_OVER_SIZE: Final = BEFORE_SIZE + 1 + 0x80


def count_records(buf: bytearray, pos: int, end: int, version: int, most: int) -> tuple[list[TopicCount], int]:
    """What a request contains for each topic, in its order, and the number of topics and partitions.

    Args:
        pos: index of the body.
        end: where the frame ends. The bytes after it do not change the result.
        most: the largest number of topics and partitions to read.

    Returns:
        Nothing where a `ProduceRequestWalk` must be used: for versions that are not flexible, tags, a partition that
        does not have one batch of magic 2, topics of none or more than 126 partitions, or of more than 126 characters.
    """
    pos = (pos + 1 if buf[pos] < 2 else compact_string_end(buf, pos, end)) + ACKS_AND_TIMEOUT
    found: list[TopicCount] = []
    try:
        if version < FIRST_FLEXIBLE or buf[pos] > 0x7F:
            return _NOTHING
        after, left = _count_topics(buf, pos, end, version >= FIRST_WITH_TOPIC_IDS, most, found)
        return (found, most - left) if after == end - 1 and not buf[after] else _NOTHING
    except (IndexError, UnicodeDecodeError, error):
        return _NOTHING


def _count_topics(
    buf: bytearray, pos: int, end: int, by_id: bool, left: int, found: list[TopicCount]
) -> tuple[int, int]:
    """Count the topics of the array at `pos` into `found`. Returns the position after them, which may be after `end`,
    and how many of the pieces that may be read are left.
    """
    unpack = _partition
    topics = buf[pos] - 1
    pos += 1
    for _ in range(topics):
        size = TOPIC_ID_SIZE if by_id else buf[pos]
        after = pos + size
        pieces = buf[after]  # in a compact array, the number of partitions and one
        if size | pieces > 0x7F or not 1 < pieces <= left:
            return NOT_AT_HAND, left
        left -= pieces
        topic = bytes(buf[pos:after]) if by_id else buf[pos + 1 : after].decode()
        pos = first = after + 1
        uncounted = pieces - 1
        besides = _BESIDES_RECORDS * uncounted
        messages = tags = 0
        while uncounted:
            low, high, size, magic, claimed = unpack(buf, pos)
            if (
                not 0 < high < 0x80 <= low
                or low + (high << 7) != size + _LENGTH_OVER_SIZE
                or magic != 2
                or claimed > size - _HEADER_IN_SIZE >> 3  # in nearly no batch
            ):
                pos, more_messages, more_besides = _count_rest(buf, pos, end, uncounted)
                messages += more_messages
                besides += more_besides
                break
            messages += claimed
            uncounted -= 1
            pos += size + _BESIDES_SIZE
            tags |= buf[pos - 1]
        if tags | buf[pos]:
            return NOT_AT_HAND, left
        pos += 1
        found.append((topic, pos - first - besides - 1, messages))
    return pos, left


def _count_rest(buf: bytearray, pos: int, end: int, left: int) -> tuple[int, int, int]:
    """The other partitions of a topic: the position after them, their messages, and their bytes besides records that
    are more than `_BESIDES_RECORDS`. `NOT_AT_HAND`: one of them does not have one batch.
    """
    besides = -pos - _BESIDES_RECORDS * left
    messages = 0
    while left:
        count, pos, record_bytes, more_messages, _ = read_partitions(buf, pos, end, left, tags=True)
        if not count:
            return NOT_AT_HAND, 0, 0
        left -= count
        messages += more_messages
        besides -= record_bytes
    return pos, messages, besides + pos
