"""The frames of the benchmarks, encoded by kio: what the load sends and what the null broker answers."""

import datetime
import io
import struct
import uuid
from functools import cache, lru_cache
from importlib import import_module
from itertools import pairwise
from typing import Any

from kio.schema import index
from kio.schema.errors import ErrorCode
from kio.schema.request_header.v1.header import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeaderV2
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import Records, i8, i16, i32, i32Timedelta, i64

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION, API_VERSIONS_VERSION = 13, 18, 12, 4
METADATA_VERSIONS = (12, 13)
UNSUPPORTED_VERSION = 35

TOPIC = "bench"
#: Topic ids by name. Requests to one topic go to TOPIC, the first.
TOPICS = {name: uuid.UUID(int=0x51BE4C0 + number) for number, name in enumerate((TOPIC, "bench-1", "bench-2"))}
TOPIC_ID = TOPICS[TOPIC]
#: First Produce version that names topics by their id.
FIRST_WITH_TOPIC_IDS = 13

Address = tuple[str, int]


def _milliseconds(value: int) -> i32Timedelta:
    return i32Timedelta.parse(datetime.timedelta(milliseconds=value))


def schema(name: str, version: int, kind: str) -> Any:
    """The module that kio generated for one message: ``schema("fetch", 18, "response")``."""
    return import_module(f"kio.schema.{name}.v{version}.{kind}")


def _encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def request_frame(body: Any, client_id: str, correlation_id: int = 0) -> bytes:
    """A whole request frame, length prefix included."""
    header_type = RequestHeaderV2 if type(body).__header_schema__ is RequestHeaderV2 else RequestHeaderV1
    header = header_type(
        request_api_key=type(body).__api_key__,
        request_api_version=type(body).__version__,
        correlation_id=i32(correlation_id),
        client_id=client_id,
    )
    payload = _encode(header) + _encode(body)
    return struct.pack(">i", len(payload)) + payload


def answer_frame(body: Any, correlation_id: int = 0) -> bytes:
    """A whole response frame, length prefix included."""
    payload = _encode(type(body).__header_schema__(correlation_id=i32(correlation_id))) + _encode(body)
    return struct.pack(">i", len(payload)) + payload


def record_batch(size: int, *, producer_id: int = -1, codec: int = 0) -> bytes:
    """A record batch of `size` bytes (magic 2, one record): filler, its CRC 0, since neither end decodes it.

    `codec`: the compression that its attributes name, 0 to 4.
    """
    timestamp, epoch = 1_700_000_000_000, 0 if producer_id >= 0 else -1
    head = struct.pack(
        ">qiibIhiqqqhii", 0, size - 12, 0, 2, 0, codec, 0, timestamp, timestamp, producer_id, epoch, epoch, 1
    )
    return head + b"\x2a" * (size - len(head))


def with_correlation_id(frame: bytes, correlation_id: int, *, is_request: bool) -> bytes:
    """A copy of a frame with another correlation id."""
    offset = 8 if is_request else 4
    return frame[:offset] + struct.pack(">i", correlation_id) + frame[offset + 4 :]


def _spread(partitions: int, topics: int, first: int) -> list[tuple[str, range]]:
    """`partitions` partitions over the first `topics` of TOPICS: the name and the indices of each."""
    ends = [first + partitions * number // topics for number in range(topics + 1)]
    return [(name, range(*each)) for name, each in zip(TOPICS, pairwise(ends), strict=False)]


def _topic(name: str, version: int) -> dict[str, Any]:
    return {"topic_id": TOPICS[name]} if version >= FIRST_WITH_TOPIC_IDS else {"name": name}


def produce_request(
    size: int,
    client_id: str,
    *,
    version: int = PRODUCE_VERSION,
    topics: int = 1,
    partitions: int = 1,
    first_partition: int = 0,
    producer_id: int = -1,
    codec: int = 0,
) -> bytes:
    """A Produce (acks=all) whose frame is exactly `size` bytes, in equal parts to `partitions` of `topics` topics."""
    messages = schema("produce", version, "request")
    spread = _spread(partitions, topics, first_partition)

    def frame(batch_bytes: int, last_bytes: int) -> bytes:
        sizes = iter([batch_bytes] * (partitions - 1) + [last_bytes])
        data = tuple(
            messages.TopicProduceData(
                **_topic(name, version),
                partition_data=tuple(
                    messages.PartitionProduceData(
                        index=i32(index),
                        records=Records(record_batch(next(sizes), producer_id=producer_id, codec=codec)),
                    )
                    for index in indices
                ),
            )
            for name, indices in spread
        )
        body = messages.ProduceRequest(acks=i16(-1), timeout=_milliseconds(30_000), topic_data=data)
        return request_frame(body, client_id)

    # The records' compact length takes more bytes in a larger batch, so the last batch's size is found by trying.
    last = batch_bytes = size // partitions - (len(frame(100, 100)) // partitions - 100)
    for _ in range(3):
        last += size - len(frame(batch_bytes, last))
    return frame(batch_bytes, last)


def produce_answer(
    *, version: int = PRODUCE_VERSION, topics: int = 1, partitions: int = 1, first_partition: int = 0
) -> bytes:
    """The success of each partition of such a request."""
    messages = schema("produce", version, "response")
    responses = tuple(
        messages.TopicProduceResponse(
            **_topic(name, version),
            partition_responses=tuple(
                messages.PartitionProduceResponse(
                    index=i32(index),
                    error_code=ErrorCode.none,
                    base_offset=i64(1),
                    log_append_time=None,
                    log_start_offset=i64(0),
                    record_errors=(),
                )
                for index in indices
            ),
        )
        for name, indices in _spread(partitions, topics, first_partition)
    )
    return answer_frame(messages.ProduceResponse(responses=responses, throttle_time=_milliseconds(0)))


def fetch_request(client_id: str) -> bytes:
    """A Fetch in an established fetch session (KIP-227), so that it names no partitions."""
    messages = schema("fetch", FETCH_VERSION, "request")
    body = messages.FetchRequest(
        max_wait=_milliseconds(500),
        min_bytes=i32(1),
        max_bytes=i32(52_428_800),
        isolation_level=i8(0),
        session_id=i32(1),
        session_epoch=i32(1),
        topics=(),
        forgotten_topics_data=(),
    )
    return request_frame(body, client_id)


def fetch_answer(record_bytes: int, partitions: int) -> bytes:
    """`record_bytes` of record batches, in equal parts in `partitions` partitions of one topic."""
    messages = schema("fetch", FETCH_VERSION, "response")
    records = Records(record_batch(record_bytes // partitions))
    topic = messages.FetchableTopicResponse(
        topic_id=TOPIC_ID,
        partitions=tuple(
            messages.PartitionData(
                partition_index=i32(number),
                error_code=ErrorCode.none,
                high_watermark=i64(1),
                last_stable_offset=i64(1),
                log_start_offset=i64(0),
                aborted_transactions=None,
                records=records,
            )
            for number in range(partitions)
        ),
    )
    body = messages.FetchResponse(
        throttle_time=_milliseconds(0), error_code=ErrorCode.none, session_id=i32(1), responses=(topic,)
    )
    return answer_frame(body)


@lru_cache(maxsize=32)
def metadata_request(client_id: str) -> bytes:
    """Metadata of all topics."""
    messages = schema("metadata", METADATA_VERSION, "request")
    body = messages.MetadataRequest(
        topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    return request_frame(body, client_id)


@cache
def metadata_answer(address: Address, version: int) -> bytes:
    """One broker, node 0, which leads the only partition of each of TOPICS."""
    messages = schema("metadata", version, "response")
    host, port = address
    zero = (i32(0),)
    topics = tuple(
        messages.MetadataResponseTopic(
            error_code=ErrorCode.none,
            name=name,
            topic_id=topic_id,
            partitions=(
                messages.MetadataResponsePartition(
                    error_code=ErrorCode.none,
                    partition_index=i32(0),
                    leader_id=i32(0),
                    leader_epoch=i32(0),
                    replica_nodes=zero,
                    isr_nodes=zero,
                ),
            ),
        )
        for name, topic_id in TOPICS.items()
    )
    body = messages.MetadataResponse(
        throttle_time=_milliseconds(0),
        brokers=(messages.MetadataResponseBroker(node_id=i32(0), host=host, port=i32(port)),),
        cluster_id="bench-null-broker",
        controller_id=i32(0),
        topics=topics,
    )
    return answer_frame(body)


def nodes_in_metadata(frame: bytes) -> dict[int, Address]:
    """Node id to address, out of a Metadata answer of METADATA_VERSION, length prefix included."""
    messages = schema("metadata", METADATA_VERSION, "response")
    response_header = messages.MetadataResponse.__header_schema__
    _, header_bytes = entity_reader(response_header)(frame, 4)
    response, _ = entity_reader(messages.MetadataResponse)(frame, 4 + header_bytes)
    return {broker.node_id: (broker.host, broker.port) for broker in response.brokers}


@lru_cache(maxsize=32)
def api_versions_request(client_id: str) -> bytes:
    """The first request of every client."""
    messages = schema("api_versions", API_VERSIONS_VERSION, "request")
    body = messages.ApiVersionsRequest(client_software_name="bench", client_software_version="1")
    return request_frame(body, client_id)


@cache
def _offered_apis() -> tuple[tuple[int, int, int], ...]:
    """(key, min, max) of what the null broker claims, as long as a real broker's list: every message that kio has."""
    offered = []
    for key, name in index.api_key_map.items():
        versions = [v for v, kinds in index.schema_name_map[name].items() if EntityType.request in kinds]
        low, high = min(versions), max(versions)
        if key == PRODUCE:
            low = 0
        elif key == METADATA:
            low, high = METADATA_VERSIONS
        offered.append((key, low, high))
    return tuple(offered)


@cache
def api_versions_answer(version: int) -> bytes:
    """The answer to ApiVersions of `version`; for unknown versions, the v0 answer with UNSUPPORTED_VERSION."""
    known = version <= API_VERSIONS_VERSION
    messages = schema("api_versions", version if known else 0, "response")
    keys = tuple(
        messages.ApiVersion(api_key=i16(key), min_version=i16(low), max_version=i16(high))
        for key, low, high in _offered_apis()
        if known or key == API_VERSIONS
    )
    error = ErrorCode.none if known else ErrorCode(UNSUPPORTED_VERSION)
    throttle = {"throttle_time": _milliseconds(0)} if known and version >= 1 else {}
    return answer_frame(messages.ApiVersionsResponse(error_code=error, api_keys=keys, **throttle))
