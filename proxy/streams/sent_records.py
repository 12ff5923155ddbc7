"""Records that were counted by topic when they passed, until the broker has accepted them. Those that it refuses are
subtracted again.

This happens only with `--usage-by-topic`. A request that has an object keeps its own records; those of batches are kept
together.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from protocol.produce import ProduceResponseWalk
from protocol.produce_walk import ACKS_AND_TIMEOUT, read_topic_head
from protocol.record_batch import read_partitions
from protocol.wire import compact_string_end, unpack_int32
from proxy.streams.topic_charges import Traffic

#: How many topics and partitions of one request are kept for its response.
MAX_REMEMBERED: Final = 1_000
#: Divided by the number of requests in flight, how many topics and partitions of the next one are kept. Up to 4
#: requests keep `MAX_REMEMBERED` each, and 1,000 requests whose broker does not respond keep 26,000 together, 4 MB.
MAX_COUNTED: Final = 4_000

SentPartition = tuple[Any, ...]
"""Topic, index, bytes and messages of the records, and what else is known. Topic None: its request's only partition."""
SentRequest = tuple[int, list[SentPartition]]
"""Its correlation id, and its partitions."""
SentRecords = deque[tuple[int, list[SentPartition], Traffic]]
"""Of the requests in flight that passed in batches, and perhaps of some before them; the oldest first."""


def most_kept(in_flight: int) -> int:
    """How many topics or partitions are kept of a request that follows `in_flight` others."""
    return min(MAX_REMEMBERED, MAX_COUNTED // (in_flight + 1))


def take_back(sent: Iterable[SentPartition], traffic: Traffic, walk: ProduceResponseWalk) -> None:
    """Subtract the records that are not in the log, according to the response that `walk` has parsed."""
    refused = {topic: set(indexes) for topic, indexes in walk.refused.items() if indexes}
    if refused:
        for topic, index, record_bytes, messages, *_ in sent:
            if topic in traffic and (topic is None or index in refused.get(topic, ())):
                traffic[topic].take_back(record_bytes, messages)


def list_plain_body(buf: bytearray, pos: int, end: int, by_id: bool) -> list[SentPartition]:
    """The partitions in a body that `read_plain_body` accepts."""
    found: list[SentPartition] = []
    pos = compact_string_end(buf, pos, end) + ACKS_AND_TIMEOUT + 1
    for _ in range(buf[pos - 1] - 1):
        topic, count, pos = read_topic_head(buf, pos, end, by_id) or ("", 0, pos)
        for _ in range(count):
            index = unpack_int32(buf, pos)[0]
            _, pos, record_bytes, messages, _ = read_partitions(buf, pos, end, 1, tags=True)
            found.append((topic, index, record_bytes, messages))
        pos += 1
    return found
