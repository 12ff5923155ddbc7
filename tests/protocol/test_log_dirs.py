"""DescribeLogDirs, written by kio; what the disk guard reads of it."""

import struct
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
from kio.schema.errors import ErrorCode

from protocol.client_quotas import offers
from protocol.errors import MalformedFrame, ProtocolError
from protocol.log_dirs import LOG_DIRS_REQUEST, MAX_DIRECTORIES, LogDirectory, log_dirs_in
from protocol.messages import decode, encode
from protocol.wire import encode_varint
from tests.protocol.kafka_messages import of_response
from tests.protocol.test_api_versions import offer

DESCRIBE_LOG_DIRS = 35
FLEXIBLE = b"\x00\x00\x00\x01\x00"
of_dirs = partial(of_response, DESCRIBE_LOG_DIRS, 4)


def result(path: str, total: int, usable: int, error: ErrorCode = ErrorCode.none, topics: int = 0) -> object:
    partitions = tuple(
        of_dirs("DescribeLogDirsPartition", partition_index=n, partition_size=2**40) for n in range(topics)
    )
    found = tuple(of_dirs("DescribeLogDirsTopic", name=f"topic-{n}", partitions=partitions) for n in range(topics))
    fields = {"error_code": error, "topics": found, "total_bytes": total, "usable_bytes": usable}
    return of_dirs("DescribeLogDirsResult", log_dir=path, **fields)


def response(*results: object, error: ErrorCode = ErrorCode.none) -> bytes:
    return FLEXIBLE + encode(of_dirs("DescribeLogDirsResponse", error_code=error, results=tuple(results)))


def test_the_request_asks_for_no_topic() -> None:
    assert int.from_bytes(LOG_DIRS_REQUEST[:4], "big") == len(LOG_DIRS_REQUEST) - 4
    assert LOG_DIRS_REQUEST[4:8] == struct.pack(">hh", DESCRIBE_LOG_DIRS, 4)
    body = decode(DescribeLogDirsRequest, LOG_DIRS_REQUEST, len(LOG_DIRS_REQUEST) - 2)
    assert body == DescribeLogDirsRequest(topics=())


def test_directories_without_a_size_and_those_that_are_no_disks_are_left_out() -> None:
    found = response(
        result("/a", 100, 40, topics=3),
        result("/unknown", -1, -1),
        result("/failed", 100, 40, ErrorCode.kafka_storage_error),
        result("remote://bucket", 100, 40),
        result("/b", 100, 0),
        result("/odd", 100, 2**62),
    )
    wanted = [LogDirectory("/a", 100, 40), LogDirectory("/b", 100, 0), LogDirectory("/odd", 100, 100)]
    assert log_dirs_in(found) == (ErrorCode.none, wanted)


def test_the_error_of_the_broker() -> None:
    assert log_dirs_in(response(error=ErrorCode.cluster_authorization_failed)) == (
        ErrorCode.cluster_authorization_failed,
        [],
    )
    with pytest.raises(MalformedFrame):
        log_dirs_in(FLEXIBLE + struct.pack(">ih", 0, 32_000) + b"\x01\x00")


WHOLE = response(result("/data", 1000, 500, topics=4))


@given(st.integers(5, len(WHOLE) - 1), st.binary(min_size=1, max_size=4))
def test_no_bytes_are_more_than_a_protocol_error(at: int, replaced: bytes) -> None:
    with suppress(ProtocolError):
        log_dirs_in(WHOLE[:at] + replaced + WHOLE[at + len(replaced) :])


@pytest.mark.parametrize("count", [MAX_DIRECTORIES + 1, 2**31 - 1])
def test_too_many_directories_are_refused_before_they_are_read(count: int) -> None:
    with pytest.raises(MalformedFrame, match="directories"):
        log_dirs_in(FLEXIBLE + bytes(6) + encode_varint(count + 1))


@pytest.mark.parametrize(("lowest", "highest", "offered"), [(0, 3, False), (1, 4, True), (1, 9, True), (5, 5, False)])
def test_a_broker_offers_it_by_its_versions(lowest: int, highest: int, offered: bool) -> None:
    assert offers(offer(0, (18, 0, 4), (DESCRIBE_LOG_DIRS, lowest, highest)), DescribeLogDirsRequest) is offered
