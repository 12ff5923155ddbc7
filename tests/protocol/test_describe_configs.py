"""DescribeConfigs requests: does one name a broker? And the configs that hold addresses. More in test_rewriting.py."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema

from protocol.apis import DESCRIBE_CONFIGS
from protocol.describe_configs import BROKER_RESOURCE, DescribeConfigsRequestWalk
from protocol.errors import MalformedFrame
from protocol.messages import decode, encode
from tests.protocol.kafka_messages import BYTES, Resting, chunk_sizes, of_request, requests, streamed

VERSIONS = st.integers(1, 4)
RESOURCE_TYPES = st.sampled_from([2, 4, 8])
HEADER = b"h" * 21


def names_broker(version: int, body: bytes, sizes: list[int], work: int = 500) -> bool:
    walk = DescribeConfigsRequestWalk(version, len(HEADER + body), len(HEADER))
    assert streamed(Resting(walk, work, beyond=8), body, sizes) == body
    assert walk.is_over
    return walk.names_broker


def one_resource(version: int, kind: int, *names: str) -> bytes:
    known = {"resource_type": kind, "resource_name": "1", "configuration_keys": names}
    resource = of_request(DESCRIBE_CONFIGS, version, "DescribeConfigsResource", **known)
    return encode(of_request(DESCRIBE_CONFIGS, version, "DescribeConfigsRequest", resources=(resource,)))


@given(data=st.data(), version=VERSIONS, sizes=chunk_sizes, work=st.sampled_from([1, 10, 500]))
def test_any_request(data: st.DataObject, version: int, sizes: list[int], work: int) -> None:
    body: Any = data.draw(requests(DESCRIBE_CONFIGS, version, resource_type=RESOURCE_TYPES))
    named = any(resource.resource_type == BROKER_RESOURCE for resource in body.resources)
    assert names_broker(version, encode(body), sizes, work) is named


@given(version=VERSIONS, body=BYTES, sizes=chunk_sizes, work=st.sampled_from([1, 10, 500]))
def test_any_bytes_that_kio_can_read(version: int, body: bytes, sizes: list[int], work: int) -> None:
    try:
        request: Any = decode(load_request_schema(DESCRIBE_CONFIGS, version), body, 0)
    except MalformedFrame:
        return
    assert names_broker(version, body, sizes, work) is any(
        resource.resource_type == BROKER_RESOURCE for resource in request.resources
    )


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
