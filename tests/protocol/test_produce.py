"""Produce responses, versions 3 to 13 as kio writes them and 0 to 2 built by hand."""

import datetime
from dataclasses import replace
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module, load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from protocol.apis import PRODUCE
from protocol.errors import MalformedFrame
from protocol.messages import decode
from protocol.produce import finish_produce_response
from tests.protocol.kafka_messages import REAL_HOST, REAL_HOSTS, header, parsed, response_bytes, responses

KIO_VERSIONS = range(3, 14)
THROTTLES = st.integers(0, 2**31 - 1)


def finish(response: bytes, version: int, throttle_time_ms: int) -> tuple[bytes, int]:
    """Within a larger buffer, whose other bytes must stay."""
    buf = bytearray(b"\xa5" * 3 + response + b"\x00\x02" * 8)
    throttle = finish_produce_response(buf, 3, 3 + len(response), version, throttle_time_ms)
    assert buf[:3] == b"\xa5" * 3
    assert buf[3 + len(response) :] == b"\x00\x02" * 8
    return bytes(buf[3 : 3 + len(response)]), throttle


def succeeded(version: int, index: int, **changes: Any) -> Any:
    """One partition of a response, kio's."""
    module: Any = load_payload_module(PRODUCE, version, EntityType.response)
    fields: dict[str, Any] = {"index": index, "error_code": ErrorCode.none, "base_offset": 4711} | changes
    if version >= 8 and "record_errors" not in fields:
        fields["record_errors"] = ()
    return module.PartitionProduceResponse(**fields)


def response_of(version: int, partitions: list[Any], *, topics: int = 1, name: str = "flights") -> bytes:
    module: Any = load_payload_module(PRODUCE, version, EntityType.response)
    topic = {"topic_id": None} if version >= 13 else {"name": name}
    one = module.TopicProduceResponse(**topic, partition_responses=tuple(partitions))
    body = module.ProduceResponse(responses=(one,) * topics, throttle_time=datetime.timedelta(0))
    return response_bytes(PRODUCE, version, body)


def one_partition(version: int, name: str = "flights") -> bytes:
    """The usual response: one topic, one partition, no error."""
    return response_of(version, [succeeded(version, 3)], name=name)


@pytest.mark.parametrize("version", KIO_VERSIONS)
@given(data=st.data(), throttle_time_ms=THROTTLES)
def test_throttle_is_the_larger_one_and_no_address_is_left(
    version: int, data: st.DataObject, throttle_time_ms: int
) -> None:
    body = data.draw(responses(PRODUCE, version, host=REAL_HOSTS))
    response = response_bytes(PRODUCE, version, body)

    finished, throttle = finish(response, version, throttle_time_ms)

    brokers_own = body.throttle_time // datetime.timedelta(milliseconds=1)
    assert throttle == max(throttle_time_ms, brokers_own)
    assert len(finished) == len(response)
    assert REAL_HOST.encode() not in finished
    after = parsed(PRODUCE, version, finished)
    assert after.throttle_time == datetime.timedelta(milliseconds=throttle)
    assert after.responses == body.responses
    if version >= 10:
        assert after.node_endpoints == ()


@pytest.mark.parametrize("version", KIO_VERSIONS)
@pytest.mark.parametrize("name", ["f", "flights", "n" * 126, "n" * 127, "n" * 249])
def test_usual_response(version: int, name: str) -> None:
    response = one_partition(version, name=name)

    assert finish(response, version, 0) == (response, 0)
    throttled, throttle = finish(response, version, 1_800)
    assert throttle == 1_800
    assert parsed(PRODUCE, version, throttled).throttle_time == datetime.timedelta(milliseconds=1_800)
    assert finish(throttled, version, 5) == (throttled, 1_800)


@pytest.mark.parametrize("version", range(9, 14))
def test_any_other_byte_in_a_usual_response_is_read_as_kio_reads_it(version: int) -> None:
    """So the short way is taken only where it is right."""
    response = one_partition(version)
    topic_end = 6 + (16 if version >= 13 else response[6])
    # Where kio may refuse what no length depends on: a name that is no UTF-8, a time beyond all calendars, and an array
    # that is null, which is as long as an empty one.
    record_errors = topic_end + 31
    contents = {*range(7, topic_end), *range(topic_end + 1, topic_end + 31)}
    for index in range(5, len(response)):  # behind the header, which kio is not shown
        for value in {0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF, response[index] ^ 1} - {response[index]}:
            other = bytearray(response)
            other[index] = value
            try:
                before: Any = decode(load_response_schema(PRODUCE, version), bytes(other), 5)
            except MalformedFrame:
                before = None
            try:
                throttle = finish_produce_response(other, 0, len(other), version, 100)
            except MalformedFrame:
                assert before is None
                continue
            assert before is not None or index in contents or (index == record_errors and value == 0)
            if before is not None:
                assert throttle == max(100, before.throttle_time // datetime.timedelta(milliseconds=1))
                after = decode(load_response_schema(PRODUCE, version), bytes(other), 5)
                assert after == replace(before, throttle_time=datetime.timedelta(milliseconds=throttle))


@pytest.mark.parametrize("version", [9, 12, 13])
@pytest.mark.parametrize("partitions", [2, 126, 127, 500])
@pytest.mark.parametrize("failed", [None, 0, -1])
def test_many_partitions(version: int, partitions: int, failed: int | None) -> None:
    module: Any = load_payload_module(PRODUCE, version, EntityType.response)
    made = [succeeded(version, index) for index in range(partitions)]
    if failed is not None:
        error = module.BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="bad")
        made[failed] = succeeded(version, 9, record_errors=(error,), error_message="no")
    response = response_of(version, made, topics=2)

    finished, throttle = finish(response, version, 7)

    assert throttle == 7
    assert parsed(PRODUCE, version, finished).responses == parsed(PRODUCE, version, response).responses
    assert parsed(PRODUCE, version, finished).throttle_time == datetime.timedelta(milliseconds=7)


@pytest.mark.parametrize("version", [9, 12, 13])
@pytest.mark.parametrize("message", ["", "\x00", "\x00" * 33, "\x01\x00\x00"])
def test_a_message_that_looks_like_the_lengths_behind_it(version: int, message: str) -> None:
    usual = succeeded(version, 1)
    response = response_of(version, [usual, succeeded(version, 2, error_message=message), usual], topics=2)

    finished, _ = finish(response, version, 7)

    assert parsed(PRODUCE, version, finished).responses == parsed(PRODUCE, version, response).responses


@pytest.mark.parametrize("version", [1, 2])
def test_old_versions_hold_the_throttle_in_their_last_bytes(version: int) -> None:
    partition = pack(">ihq", 3, 0, 4711) + (pack(">q", -1) if version == 2 else b"")
    body = pack(">ih7si", 1, 7, b"flights", 1) + partition + pack(">i", 40)
    response = header(PRODUCE, version) + body

    assert finish(response, version, 30) == (response, 40)
    assert finish(response, version, 1_000) == (response[:-4] + pack(">i", 1_000), 1_000)


def test_version_0_has_no_throttle() -> None:
    response = header(PRODUCE, 0) + pack(">ih7siihq", 1, 7, b"flights", 1, 3, 0, 4711)

    assert finish(response, 0, 1_000) == (response, 0)


@pytest.mark.parametrize("version", [*range(1, 14)])
def test_cut_short(version: int) -> None:
    response = one_partition(max(3, version))
    for size in range(len(response) if version >= 9 else 12):
        with pytest.raises(MalformedFrame):
            finish_produce_response(bytearray(response[:size]), 0, size, version, 100)


def test_bytes_behind_the_last_field() -> None:
    response = bytearray(one_partition(13) + b"\x00")
    with pytest.raises(MalformedFrame):
        finish_produce_response(response, 0, len(response), 13, 0)


@given(unknown=st.lists(st.tuples(st.integers(1, 300), st.binary(max_size=200)), min_size=1, max_size=3))
def test_unknown_tags_stay(unknown: list[tuple[int, bytes]]) -> None:
    """Beside NodeEndpoints, which comes first: tags are written in their order."""
    tags = [(0, b"\x02" + pack(">i", 5) + b"\x1a" + REAL_HOST.encode() + pack(">i", 9092) + b"\x00\x00"), *unknown]
    encoded = b"".join(varint(tag) + varint(len(content)) + content for tag, content in tags)
    response = one_partition(13)[:-1] + varint(len(tags)) + encoded

    finished, _ = finish(response, 13, 0)

    hidden = [(127, bytes(len(tags[0][1]))), *unknown]
    expected = b"".join(varint(tag) + varint(len(content)) + content for tag, content in hidden)
    assert finished == one_partition(13)[:-1] + varint(len(tags)) + expected


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 0x7F | 0x80, value >> 7])
