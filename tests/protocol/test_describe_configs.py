"""DescribeConfigs requests: does one name a broker? And the configs that hold addresses. More in test_rewriting.py."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema

from protocol.apis import DESCRIBE_CONFIGS
from protocol.describe_configs import BROKER_RESOURCE, DescribeConfigsRequestWalk
from protocol.errors import MalformedFrame, TruncatedFrame
from protocol.messages import decode, encode
from tests.protocol.kafka_messages import BYTES, chunk_sizes, of_request, requests, streamed

VERSIONS = st.integers(1, 4)
RESOURCE_TYPES = st.sampled_from([2, 4, 8])
HEADER = b"h" * 21


class InTurns:
    """A request walk that is called with little work each time, as often as it takes."""

    def __init__(self, version: int, frame: bytes, work: int) -> None:
        self.walk = DescribeConfigsRequestWalk(version, len(frame), len(HEADER))
        self._work = work

    def advance(self, buf: bytearray, pos: int, end: int) -> int:
        while True:
            self.walk.work_left = self._work
            pos = self.walk.advance(buf, pos, end)
            if pos == end or self.walk.work_left > 0:
                return pos


def names_broker(version: int, body: bytes, sizes: list[int], work: int = 500) -> bool:
    walk = InTurns(version, HEADER + body, work)
    assert streamed(walk, body, sizes) == body
    assert walk.walk.is_over
    return walk.walk.names_broker


def one_resource(version: int, kind: int, *names: str) -> bytes:
    known = {"resource_type": kind, "resource_name": "1", "configuration_keys": names}
    resource = of_request(DESCRIBE_CONFIGS, version, "DescribeConfigsResource", **known)
    return encode(of_request(DESCRIBE_CONFIGS, version, "DescribeConfigsRequest", resources=(resource,)))


@given(data=st.data(), version=VERSIONS, sizes=chunk_sizes, work=st.sampled_from([1, 10, 500]))
def test_any_request(data: st.DataObject, version: int, sizes: list[int], work: int) -> None:
    body: Any = data.draw(requests(DESCRIBE_CONFIGS, version, resource_type=RESOURCE_TYPES))
    named = any(resource.resource_type == BROKER_RESOURCE for resource in body.resources)
    assert names_broker(version, encode(body), sizes, work) is named


def test_by_hand() -> None:
    plain = b"\x00\x00\x00\x01" + b"\x04" + b"\x00\x011" + b"\xff\xff\xff\xff" + b"\x01"
    assert names_broker(1, plain, [])
    flexible = b"\x02" + b"\x04" + b"\x021" + b"\x02\x02k" + b"\x01\x05\x01x" + b"\x01\x01" + b"\x01\x09\x00"
    assert names_broker(4, flexible, [])


@pytest.mark.parametrize("version", range(1, 5))
def test_cut_short_or_too_long(version: int) -> None:
    body = one_resource(version, 2, "a", "b")
    for size in range(len(body)):
        with pytest.raises(TruncatedFrame):
            DescribeConfigsRequestWalk(version, size, 0).advance(bytearray(body[:size]), 0, size)
    with pytest.raises(MalformedFrame):
        names_broker(version, body + b"\x00", [])


@given(version=VERSIONS, body=BYTES, sizes=chunk_sizes, work=st.sampled_from([1, 10, 500]))
def test_any_bytes(version: int, body: bytes, sizes: list[int], work: int) -> None:
    outcomes: list[bool | str] = []
    for splits in ([], sizes):
        try:
            outcomes.append(names_broker(version, body, splits, work) if body else False)
        except MalformedFrame as error:
            outcomes.append(f"{type(error).__name__} at {error.offset}")
    assert outcomes[0] == outcomes[1]
    try:
        request: Any = decode(load_request_schema(DESCRIBE_CONFIGS, version), body, 0)
    except MalformedFrame:
        return
    assert outcomes[0] is any(resource.resource_type == BROKER_RESOURCE for resource in request.resources)


@pytest.mark.parametrize("names", [True, False])
def test_one_step_reads_few_items(names: bool) -> None:
    body = one_resource(4, 2, *["n"] * 2_000) if names else b"\xd1\x0f" + b"\x02\x02t\x00\x00" * 2_000 + b"\x00\x00\x00"
    walk = DescribeConfigsRequestWalk(4, len(body), 0)
    pos, most, most_kept = 0, 0, 0
    while pos < len(body):
        walk.work_left = 20
        final = walk.advance(bytearray(body), pos, len(body))
        most, pos = max(most, final - pos), final
        most_kept = max(most_kept, len(walk.out))
    assert most <= 80
    assert most_kept < 10


# ---- responses
