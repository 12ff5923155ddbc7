"""Frames for the conversations: requests by hand, answers by kio's schemas where kio knows the version.

A frame is its length prefix and everything behind it. Payloads are noise: the proxy must not look at them.
"""

import datetime
import random
import struct
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.primitive import Records

from protocol.apis import API_VERSIONS, APIS, FETCH, FIND_COORDINATOR, METADATA, PRODUCE, SHARE_FETCH
from protocol.messages import encode
from protocol.wire import encode_string, encode_varint
from tests.protocol.kafka_messages import of_request, of_response, produce_body, record_batch

HEARTBEAT = 12
REAL_HOST = "127.0.0.9"
REAL_PORT = 49_092
TOPIC_ID = uuid.UUID(int=0x70B1C)


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def request(api: int, version: int, correlation: int, body: bytes = b"", client_id: str | None = "etl") -> bytes:
    """Any request; `client_id` None is the null string."""
    name = b"\xff\xff" if client_id is None else struct.pack(">h", len(client_id.encode())) + client_id.encode()
    known = APIS.get(api)
    tags = b"\x00" if known is not None and known.is_flexible(version) else b""
    return frame(struct.pack(">hhi", api, version, correlation) + name + tags + body)


def produce(correlation: int, size: int = 100, version: int = 9, acks: int = 1, client_id: str | None = "etl") -> bytes:
    """A Produce request with `size` bytes behind its acks."""
    transactional_id = b"" if version < 3 else b"\x00" if version >= 9 else b"\xff\xff"
    body = transactional_id + struct.pack(">h", acks) + noise(size, correlation)
    return request(PRODUCE, version, correlation, body, client_id)


def batch(messages: int, size: int, *, codec: int = 0, producer_id: int = -1) -> bytes:
    """A record batch of `size` bytes in all; what is inside is noise."""
    return record_batch(messages, noise(size - 61, messages), codec=codec, producer_id=producer_id)


Topic = str | uuid.UUID
"""By name, or, in Produce requests and responses from version 13 on, by id."""


def produce_records(
    correlation: int,
    topics: Mapping[Topic, Sequence[bytes | None]],
    version: int = 9,
    acks: int = 1,
    client_id: str | None = "etl",
) -> bytes:
    """A Produce request with these records, one item for each partition."""
    return request(PRODUCE, version, correlation, produce_body(version, topics.items(), acks=acks), client_id)


def refused(correlation: int, topics: Mapping[Topic, Sequence[ErrorCode]], version: int = 9) -> bytes:
    """A Produce response with these errors, one for each partition. Version 3 or later."""
    of = partial(of_response, PRODUCE, version)
    responses = []
    for topic, errors in topics.items():
        found = tuple(of("PartitionProduceResponse", index=n, error_code=error) for n, error in enumerate(errors))
        responses.append(of("TopicProduceResponse", name=topic, topic_id=topic, partition_responses=found))
    return answer(PRODUCE, version, correlation, of("ProduceResponse", responses=tuple(responses)))


def produced(correlation: int, version: int = 9, throttle_ms: int = 0, endpoints: bool = False) -> bytes:
    """The success of one partition, as a broker says it."""
    flexible = version >= 9
    out = struct.pack(">i", correlation) + (b"\x00\x02" if flexible else b"\x00\x00\x00\x01")
    if version >= 13:
        out += TOPIC_ID.bytes
    else:
        out += (b"\x05" if flexible else b"\x00\x04") + b"rows"
    out += b"\x02" if flexible else b"\x00\x00\x00\x01"
    out += struct.pack(">ihq", 0, 0, 4_711)
    out += struct.pack(">q", -1) if version >= 2 else b""
    out += struct.pack(">q", 0) if version >= 5 else b""
    out += b"\x01\x00\x00\x00" if flexible else b"\x00\x00\x00\x00\xff\xff" if version >= 8 else b""
    out += struct.pack(">i", throttle_ms) if version >= 1 else b""
    if flexible:
        out += b"\x01\x00" + _endpoints_field() if endpoints else b"\x00"
    return frame(out)


def produced_widely(correlation: int, version: int, size: int) -> bytes:
    """A Produce response of more than `size` bytes: so many partitions. Version 9 or later."""
    partition = struct.pack(">ihqqq", 0, 0, 1, -1, 0) + b"\x01\x00\x00"
    count = size // len(partition) + 1
    topic = TOPIC_ID.bytes if version >= 13 else b"\x05rows"
    head = struct.pack(">i", correlation) + b"\x00\x02" + topic + encode_varint(count + 1)
    return frame(head + partition * count + b"\x00" + struct.pack(">i", 0) + b"\x00")


def produce_throttle_ms(answer: bytes, version: int) -> int:
    """What a response made by `produced` (without endpoints) says."""
    end = len(answer) - 1 if version >= 9 else len(answer)
    return int(struct.unpack_from(">i", answer, end - 4)[0])


def _endpoints_field() -> bytes:
    """Size and value of the tagged field NodeEndpoints: one node."""
    one = struct.pack(">i", 7) + bytes([len(REAL_HOST) + 1]) + REAL_HOST.encode() + struct.pack(">i", REAL_PORT)
    value = b"\x02" + one + b"\x00\x00"
    return bytes([len(value)]) + value


def fetch(correlation: int, version: int = 12, client_id: str | None = "etl", max_bytes: int = 50_000_000) -> bytes:
    """A Fetch request: max wait 500 ms, min bytes 1."""
    replica = struct.pack(">i", -1) if version < 15 else b""
    budget = struct.pack(">iii", 500, 1, max_bytes) if version >= 3 else struct.pack(">ii", 500, 1)
    # From version 15 on the proxy reads requests to their end: isolation level, session, no topics, no rack, no tags.
    rest = noise(40, correlation) if version < 15 else b"\x00" + noise(8, correlation) + b"\x01\x01\x01\x00"
    return request(FETCH, version, correlation, replica + budget + rest, client_id)


def share_fetch(correlation: int, version: int = 1, max_bytes: int = 50_000_000, *, renews: bool = False) -> bytes:
    """A ShareFetch request without topics: max wait 500 ms, min bytes 1. renews: it only renews locks (version 2)."""
    body = of_request(
        SHARE_FETCH,
        version,
        "ShareFetchRequest",
        group_id="group",
        member_id="member",
        max_wait=datetime.timedelta(milliseconds=500),
        min_bytes=1,
        max_bytes=max_bytes,
        max_records=500,
        batch_size=500,
        is_renew_ack=renews,
    )
    return request(SHARE_FETCH, version, correlation, encode(body))


def fetch_max_bytes(sent: bytes, client_id: str = "etl", version: int = 12) -> int:
    """The budget that a request made by `fetch` asks for."""
    body = 14 + len(client_id) + (version >= 12)
    return int(struct.unpack_from(">i", sent, body + (4 if version < 15 else 0) + 8)[0])


def fetched(correlation: int, version: int = 12, size: int = 200, throttle_ms: int = 0) -> bytes:
    """A Fetch response below version 16: the throttle time where it belongs, and noise that nobody has to read."""
    out = struct.pack(">i", correlation) + (b"\x00" if version >= 12 else b"")
    out += struct.pack(">i", throttle_ms) if version >= 1 else b""
    return frame(out + noise(size, correlation))


def fetched_with_endpoints(correlation: int, version: int = 17, partitions: int = 2, record_bytes: int = 300) -> bytes:
    """A Fetch response that names a broker at its very end."""
    of = partial(of_response, FETCH, version)
    data = [Records(noise(record_bytes, n)) for n in range(partitions)]
    made = tuple(of("PartitionData", partition_index=n, high_watermark=9, records=each) for n, each in enumerate(data))
    topic = of("FetchableTopicResponse", topic_id=TOPIC_ID, partitions=made)
    endpoint = of("NodeEndpoint", node_id=7, host=REAL_HOST, port=REAL_PORT)
    body = of("FetchResponse", session_id=1, responses=(topic,), node_endpoints=(endpoint,))
    return answer(FETCH, version, correlation, body)


def share_fetched(correlation: int, version: int = 1, record_bytes: int = 300, lock_ms: int = 0) -> bytes:
    """A ShareFetch response that names a broker behind its records. `lock_ms`: for how long these are locked."""
    of = partial(of_response, SHARE_FETCH, version)
    records = Records(noise(record_bytes, correlation))
    leader = of("LeaderIdAndEpoch", leader_id=7, leader_epoch=3)
    acquired = (of("AcquiredRecords", last_offset=9, delivery_count=1),)
    partition = of("PartitionData", current_leader=leader, records=records, acquired_records=acquired)
    topic = of("ShareFetchableTopicResponse", topic_id=TOPIC_ID, partitions=(partition,))
    endpoint = of("NodeEndpoint", node_id=7, host=REAL_HOST, port=REAL_PORT)
    lock = datetime.timedelta(milliseconds=lock_ms)
    body = of("ShareFetchResponse", responses=(topic,), node_endpoints=(endpoint,), acquisition_lock_timeout=lock)
    return answer(SHARE_FETCH, version, correlation, body)


def metadata(correlation: int, version: int = 12) -> bytes:
    return request(METADATA, version, correlation, b"\x00\x00\x00")


def metadata_answer(
    correlation: int,
    brokers: dict[int, tuple[str, int]],
    topics: int = 3,
    version: int = 12,
    named: Mapping[str, uuid.UUID] | None = None,
) -> bytes:
    """A Metadata response; brokers by node id. Topics are so many of the same id, or those `named`, with their ids."""
    if named is None:
        named = {f"topic-{number}": TOPIC_ID for number in range(topics)}
    of = partial(of_response, METADATA, version)
    nodes = tuple(of("MetadataResponseBroker", node_id=node, host=h, port=port) for node, (h, port) in brokers.items())
    made = tuple(of("MetadataResponseTopic", name=name, topic_id=topic_id) for name, topic_id in named.items())
    body = of("MetadataResponse", brokers=nodes, cluster_id="cluster", topics=made)
    return answer(METADATA, version, correlation, body)


def coordinator_answer(correlation: int, node: int, host: str, port: int) -> bytes:
    """A FindCoordinator response, version 4."""
    return coordinators_answer(correlation, 1, node, host, port)


def find_coordinator(correlation: int, version: int = 4) -> bytes:
    """A FindCoordinator request; its body is noise."""
    return request(FIND_COORDINATOR, version, correlation, noise(20, correlation))


def coordinators_answer(
    correlation: int, count: int, node: int = 7, host: str = REAL_HOST, port: int = REAL_PORT
) -> bytes:
    """A FindCoordinator response, version 4, that names one broker so many times."""
    one = b"\x06group" + struct.pack(">i", node) + bytes([len(host) + 1]) + host.encode()
    one += struct.pack(">ih", port, 0) + b"\x00\x00"
    head = struct.pack(">i", correlation) + b"\x00" + struct.pack(">i", 0)
    return frame(head + encode_varint(count + 1) + one * count + b"\x00")


def answer(api: int, version: int, correlation: int, body: Any) -> bytes:
    """A whole response frame of one of kio's bodies."""
    tags = b"\x00" if APIS[api].response_header_is_flexible(version) else b""
    return frame(struct.pack(">i", correlation) + tags + encode(body))


def heartbeat(correlation: int, client_id: str | None = "etl") -> bytes:
    """A request that the proxy forwards unseen."""
    return request(HEARTBEAT, 4, correlation, noise(30, correlation), client_id)


def heartbeat_answer(correlation: int, size: int = 20, throttle_ms: int = 0) -> bytes:
    """A Heartbeat response, version 4, of `size` bytes after the correlation id: no tags, the throttle time, noise."""
    return frame(struct.pack(">ibi", correlation, 0, throttle_ms) + noise(size - 5, correlation))


def api_versions(correlation: int, version: int, name: str = "x", software_version: str = "y") -> bytes:
    body = encode_string(name.encode(), compact=True) + encode_string(software_version.encode(), compact=True) + b"\x00"
    return request(API_VERSIONS, version, correlation, body)


def correlation_of(sent: bytes) -> int:
    """Of a request."""
    return int(struct.unpack_from(">i", sent, 8)[0])
