"""The frames of the benchmarks: what the load sends and what the null broker answers, built once by kio.

Both ends build their bytes here, before any clock runs, and then only ever send slices of them. A *cycle* is a run of
equal frames whose correlation ids are 0, 1, … in order, sent over and over: with it a whole batch of answers is one
slice of one buffer, and neither end parses frames during the measurement.

The client id of a request selects the response: ``fetch-1048576x50`` is a Fetch of 1 MiB of record batches in
50 partitions, ``metadata-100000`` a topic of 100,000 partitions. So one null broker serves every benchmark.
"""

import datetime
import io
import re
import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
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
TOPIC_ID = uuid.UUID(int=0x51BE4C0)
#: A cycle holds about this many bytes: more than any cache close to a core, as real payloads are.
CYCLE_BYTES = 8 << 20
#: Suffix of the client id of a load with one send for each answer.
ONE_BY_ONE = "-one-by-one"

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of exchange: frames with their length prefix, equal in size, cut from one cycle each way.

    `cycle` is how many frames stand in `requests` and in `answers`. `payload_bytes` is what counts as data in one
    exchange (the request of a Produce, the answer of a Fetch), length prefix included. `one_by_one`: each frame has a
    `send` of its own, at both ends.
    """

    name: str
    cycle: int
    requests: bytes
    answers: bytes
    payload_bytes: int
    one_by_one: bool = False

    @property
    def request_bytes(self) -> int:
        """Size of one request on the wire."""
        return len(self.requests) // self.cycle

    @property
    def answer_bytes(self) -> int:
        """Size of one answer on the wire."""
        return len(self.answers) // self.cycle


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


def record_batch(size: int) -> bytes:
    """A record batch of `size` bytes (magic 2, one record): filler, with a CRC of 0, since it is not decoded."""
    head = struct.pack(
        ">qiibIhiqqqhii", 0, size - 12, 0, 2, 0, 0, 0, 1_700_000_000_000, 1_700_000_000_000, -1, -1, -1, 1
    )
    return head + b"\x2a" * (size - len(head))


def frames_in_cycle(request_bytes: int, answer_bytes: int) -> int:
    """How many frames a cycle holds: both ends compute it from the sizes of the two frames."""
    return max(8, min(1024, CYCLE_BYTES // max(request_bytes, answer_bytes)))


def repeat(frame: bytes, cycle: int, *, offset: int) -> bytes:
    """`cycle` copies of `frame`, the correlation id at `offset` counting up from 0."""
    frames = bytearray(frame * cycle)
    for number in range(cycle):
        struct.pack_into(">i", frames, number * len(frame) + offset, number)
    return bytes(frames)


REQUEST_CORRELATION_OFFSET = 8
ANSWER_CORRELATION_OFFSET = 4


def produce_request(size: int, client_id: str) -> bytes:
    """A Produce (acks=all) to one partition, with a frame of exactly `size` bytes."""
    messages = schema("produce", PRODUCE_VERSION, "request")

    def frame(batch_bytes: int) -> bytes:
        partition = messages.PartitionProduceData(index=i32(0), records=Records(record_batch(batch_bytes)))
        topic = messages.TopicProduceData(topic_id=TOPIC_ID, partition_data=(partition,))
        body = messages.ProduceRequest(acks=i16(-1), timeout=_milliseconds(30_000), topic_data=(topic,))
        return request_frame(body, client_id)

    # The records' compact length takes more bytes in a larger frame, so the overhead is found by trying.
    batch_bytes = size - (len(frame(size)) - size)
    batch_bytes += size - len(frame(batch_bytes))
    return frame(batch_bytes)


def produce_answer() -> bytes:
    """The success of one partition."""
    messages = schema("produce", PRODUCE_VERSION, "response")
    partition = messages.PartitionProduceResponse(
        index=i32(0),
        error_code=ErrorCode.none,
        base_offset=i64(1),
        log_append_time=None,
        log_start_offset=i64(0),
        record_errors=(),
    )
    topic = messages.TopicProduceResponse(topic_id=TOPIC_ID, partition_responses=(partition,))
    return answer_frame(messages.ProduceResponse(responses=(topic,), throttle_time=_milliseconds(0)))


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


def metadata_answer(nodes: Mapping[int, Address], partitions: int, version: int) -> bytes:
    """`nodes` and one topic of `partitions` partitions, node 0 leading each, with three replicas."""
    messages = schema("metadata", version, "response")
    brokers = tuple(
        messages.MetadataResponseBroker(node_id=i32(node), host=host, port=i32(port))
        for node, (host, port) in nodes.items()
    )
    replicas = (i32(0), i32(1), i32(2)) if partitions > 1 else (i32(0),)
    topic = messages.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=TOPIC,
        topic_id=TOPIC_ID,
        partitions=tuple(
            messages.MetadataResponsePartition(
                error_code=ErrorCode.none,
                partition_index=i32(number),
                leader_id=i32(0),
                leader_epoch=i32(0),
                replica_nodes=replicas,
                isr_nodes=replicas,
            )
            for number in range(partitions)
        ),
    )
    body = messages.MetadataResponse(
        throttle_time=_milliseconds(0),
        brokers=brokers,
        cluster_id="bench-null-broker",
        controller_id=i32(0),
        topics=(topic,),
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
    """The answer to ApiVersions of `version`; above what is known, the v0 answer with UNSUPPORTED_VERSION."""
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


def produce_shape(size: int, *, one_by_one: bool = False) -> Shape:
    """Produce frames of `size` bytes."""
    client_id = f"produce-{size}" + (ONE_BY_ONE if one_by_one else "")
    request, answer = produce_request(size, client_id), produce_answer()
    return _shape(client_id, request, answer, payload_bytes=len(request))


def fetch_shape(record_bytes: int, partitions: int) -> Shape:
    """Fetch answers that carry `record_bytes` of record batches in `partitions` partitions."""
    client_id = f"fetch-{record_bytes}x{partitions}"
    request, answer = fetch_request(client_id), fetch_answer(record_bytes, partitions)
    return _shape(client_id, request, answer, payload_bytes=len(answer))


def _shape(name: str, request: bytes, answer: bytes, *, payload_bytes: int) -> Shape:
    cycle = frames_in_cycle(len(request), len(answer))
    return Shape(
        name=name,
        cycle=cycle,
        requests=repeat(request, cycle, offset=REQUEST_CORRELATION_OFFSET),
        answers=repeat(answer, cycle, offset=ANSWER_CORRELATION_OFFSET),
        payload_bytes=payload_bytes,
        one_by_one=name.endswith(ONE_BY_ONE),
    )


_FETCH_NAME = re.compile(r"fetch-(\d+)x(\d+)")
_METADATA_NAME = re.compile(r"metadata-(\d+)")


@lru_cache(maxsize=32)
def answer_cycle(api_key: int, client_id: str, request_bytes: int) -> tuple[bytes, int]:
    """(the cycle of answers, size of one) to a Produce or Fetch of `request_bytes` by `client_id`."""
    if api_key == FETCH and (match := _FETCH_NAME.fullmatch(client_id)):
        answer = fetch_answer(int(match[1]), int(match[2]))
    elif api_key == PRODUCE:
        answer = produce_answer()
    else:
        raise ValueError(f"the null broker has no answer for API {api_key} of {client_id!r}")
    cycle = frames_in_cycle(request_bytes, len(answer))
    return repeat(answer, cycle, offset=ANSWER_CORRELATION_OFFSET), len(answer)


def metadata_partitions(client_id: str) -> int:
    """How many partitions the client wants to see; 1 unless its id says more."""
    match = _METADATA_NAME.fullmatch(client_id)
    return int(match[1]) if match else 1
