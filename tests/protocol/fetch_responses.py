"""Fetch and ShareFetch responses of any version, and what they contain of each topic."""

from collections import Counter
from struct import pack
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from protocol.apis import FETCH, SHARE_FETCH
from protocol.topics import Topic
from tests.protocol.kafka_messages import CORRELATION_ID, REAL_HOST, Taking, of_response, response_bytes, topic_of

Partitions = list[bytes | None]
"""The records of each partition of a topic."""
TOPICS = st.lists(
    st.lists(st.none() | st.sampled_from([0, 30, 126, 127, 300, 17_000]).map(bytes), max_size=6), max_size=4
)


def record_bytes(version: int, topics: list[Partitions]) -> Counter[Topic]:
    """Of each topic that has any."""
    sizes = {
        topic_of(version, index): sum(len(records or b"") for records in partitions)
        for index, partitions in enumerate(topics)
    }
    return Counter({topic: size for topic, size in sizes.items() if size})


class Counting(Taking):
    """A walk over records, and their bytes of each topic."""

    @property
    def totals(self) -> Counter[Topic]:
        totals = Counter[Topic]()
        for topic, size in self.found:
            totals[topic] += size
        return totals


def partition(version: int, **changes: Any) -> Any:
    """One of a Fetch response, from version 4 on."""
    fields = {"partition_index": 3, "high_watermark": 4711, "last_stable_offset": 4711, "records": b"r" * 50}
    return of_response(FETCH, version, "PartitionData", **(fields | {"aborted_transactions": None} | changes))


def response_of(version: int, *topics: list[Any], endpoints: int = 0) -> bytes:
    """A Fetch response, from version 4 on, with these partitions of each topic."""
    made = []
    for index, partitions in enumerate(topics):
        topic = topic_of(version, index)
        key: Any = {"topic_id": UUID(bytes=topic)} if isinstance(topic, bytes) else {"topic": topic}
        made.append(of_response(FETCH, version, "FetchableTopicResponse", **key, partitions=tuple(partitions)))
    nodes = tuple(
        of_response(FETCH, version, "NodeEndpoint", node_id=index, host=REAL_HOST, port=9092, rack="r")
        for index in range(endpoints if version >= 16 else 0)
    )
    body = of_response(FETCH, version, "FetchResponse", session_id=1, responses=tuple(made), node_endpoints=nodes)
    return response_bytes(FETCH, version, body)


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


def share_response(version: int, topics: list[Partitions], *, api_key: int = SHARE_FETCH, endpoints: int = 0) -> bytes:
    """A ShareFetch response, or a ShareAcknowledge one, which has the same fields but for the records."""
    leader = of_response(api_key, version, "LeaderIdAndEpoch", leader_id=1, leader_epoch=5)
    acquired = (of_response(SHARE_FETCH, version, "AcquiredRecords", last_offset=9, delivery_count=1),)
    fields = {"current_leader": leader, "acquired_records": acquired}
    kind, topic = (
        ("ShareFetch", "ShareFetchableTopicResponse")
        if api_key == SHARE_FETCH
        else ("ShareAcknowledge", "ShareAcknowledgeTopicResponse")
    )
    made = []
    for index, partitions in enumerate(topics):
        parts = tuple(
            of_response(api_key, version, "PartitionData", partition_index=number, records=records or b"", **fields)
            for number, records in enumerate(partitions)
        )
        made.append(of_response(api_key, version, topic, topic_id=UUID(int=index + 1), partitions=parts))
    nodes = (of_response(api_key, version, "NodeEndpoint", node_id=1, host=REAL_HOST, port=9092),) * endpoints
    body = of_response(api_key, version, f"{kind}Response", responses=tuple(made), node_endpoints=nodes)
    return response_bytes(api_key, version, body)
