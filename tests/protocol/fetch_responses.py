"""Fetch and ShareFetch responses of any version, and what they contain of each topic."""

import datetime
from collections import Counter
from struct import pack
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from protocol.apis import FETCH, SHARE_FETCH
from protocol.records_walk import RecordsWalk
from protocol.topics import Topic
from tests.protocol.kafka_messages import CORRELATION_ID, REAL_HOST, response_bytes

Partitions = list[bytes | None]
"""The records of each partition of a topic."""
TOPICS = st.lists(
    st.lists(st.none() | st.sampled_from([0, 30, 126, 127, 300, 17_000]).map(bytes), max_size=6), max_size=4
)


def topic_of(version: int, index: int) -> Topic:
    """The topic at this place of a response."""
    return UUID(int=index + 1).bytes if version >= 13 else f"topic-{index}"


def record_bytes(version: int, topics: list[Partitions]) -> Counter[Topic]:
    """Of each topic that has any."""
    sizes = {
        topic_of(version, index): sum(len(records or b"") for records in partitions)
        for index, partitions in enumerate(topics)
    }
    return Counter({topic: size for topic, size in sizes.items() if size})


class Taking:
    """A walk whose findings are taken after each call."""

    def __init__(self, walk: RecordsWalk) -> None:
        self.walk = walk
        self.totals = Counter[Topic]()
        self.work_left = 1 << 40

    def advance(self, buf: bytearray, pos: int, end: int) -> int:
        self.walk.work_left = self.work_left
        try:
            return self.walk.advance(buf, pos, end)
        finally:
            self.work_left = self.walk.work_left
            for topic, size in self.walk.take():
                self.totals[topic] += size


def partition(version: int, **changes: Any) -> Any:
    """One of a Fetch response, from version 4 on."""
    module: Any = load_payload_module(FETCH, version, EntityType.response)
    fields = {
        "partition_index": 3,
        "error_code": ErrorCode.none,
        "high_watermark": 4711,
        "last_stable_offset": 4711,
        "aborted_transactions": None,
        "records": b"r" * 50,
    }
    if version >= 5:
        fields["log_start_offset"] = 0
    if version >= 11:
        fields["preferred_read_replica"] = -1
    return module.PartitionData(**(fields | changes))


def response_of(version: int, *topics: list[Any], error: ErrorCode = ErrorCode.none, endpoints: int = 0) -> bytes:
    """A Fetch response, from version 4 on, with these partitions of each topic."""
    module: Any = load_payload_module(FETCH, version, EntityType.response)
    made = []
    for index, partitions in enumerate(topics):
        topic = topic_of(version, index)
        key: Any = {"topic_id": UUID(bytes=topic)} if isinstance(topic, bytes) else {"topic": topic}
        made.append(module.FetchableTopicResponse(**key, partitions=tuple(partitions)))
    fields: dict[str, Any] = {"error_code": error, "session_id": 1} if version >= 7 else {}
    if version >= 16:
        fields["node_endpoints"] = tuple(
            module.NodeEndpoint(node_id=index, host=REAL_HOST, port=9092, rack="r") for index in range(endpoints)
        )
    return response_bytes(
        FETCH, version, module.FetchResponse(throttle_time=datetime.timedelta(0), responses=tuple(made), **fields)
    )


def fetch_response(version: int, topics: list[Partitions]) -> bytes:
    """A response of any version, with an endpoint from version 16 on."""
    if version < 4:
        return _old_response(version, topics)
    made = [[partition(version, records=records) for records in partitions] for partitions in topics]
    return response_of(version, *made, endpoints=1)


def _old_response(version: int, topics: list[Partitions]) -> bytes:
    """Versions 0 to 3, which kio does not know."""
    out = CORRELATION_ID + (pack(">i", 0) if version >= 1 else b"") + pack(">i", len(topics))
    for index, partitions in enumerate(topics):
        name = f"topic-{index}".encode()
        out += pack(">h", len(name)) + name + pack(">i", len(partitions))
        for number, records in enumerate(partitions):
            out += pack(">ihqi", number, 0, 9, -1 if records is None else len(records)) + (records or b"")
    return out


def share_response(version: int, topics: list[Partitions]) -> bytes:
    """A ShareFetch response without endpoints."""
    module: Any = load_payload_module(SHARE_FETCH, version, EntityType.response)
    made = []
    for index, partitions in enumerate(topics):
        data = tuple(
            module.PartitionData(
                partition_index=number,
                error_code=ErrorCode.none,
                acknowledge_error_code=ErrorCode.none,
                current_leader=module.LeaderIdAndEpoch(leader_id=1, leader_epoch=5),
                records=records or b"",
                acquired_records=(module.AcquiredRecords(first_offset=0, last_offset=9, delivery_count=1),),
            )
            for number, records in enumerate(partitions)
        )
        made.append(module.ShareFetchableTopicResponse(topic_id=UUID(int=index + 1), partitions=data))
    body = module.ShareFetchResponse(
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode.none,
        acquisition_lock_timeout=datetime.timedelta(seconds=30),
        responses=tuple(made),
        node_endpoints=(),
    )
    return response_bytes(SHARE_FETCH, version, body)
