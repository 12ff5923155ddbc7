"""The beginning of Metadata responses, checked by a second, independent decoder. For more see test_rewriting.py."""

from typing import Any

import kafkaprotocol
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.apis import APIS, METADATA
from protocol.broker_addresses import MAX_PREFIX
from protocol.errors import MalformedFrame
from protocol.messages import encode
from protocol.rewriting import rewriting_walk
from tests.protocol.kafka_messages import (
    PROXY_HOST,
    REAL_HOST,
    REAL_HOSTS,
    Addresses,
    header,
    of_response,
    proxy_port,
    response_bytes,
    responses,
)
from tests.protocol.rewriting import rewrite, run

LAST_OF_SECOND_DECODER = 12
NOT_NULL = st.sampled_from(["", "r1", "x" * 130])  # the second decoder cannot read null in flexible versions
TOPIC_NAMES = st.sampled_from(["flights", "weather", "t" * 200])


@given(data=st.data())
def test_the_second_decoder_agrees(data: st.DataObject) -> None:
    version = data.draw(st.integers(0, LAST_OF_SECOND_DECODER))
    body: Any = data.draw(
        responses(METADATA, version, host=REAL_HOSTS, name=TOPIC_NAMES, cluster_id=NOT_NULL, rack=NOT_NULL)
    )
    response = response_bytes(METADATA, version, body)

    after = rewrite(METADATA, version, response)

    assert REAL_HOST.encode() not in after
    _, before = kafkaprotocol.read_network_response(METADATA, version, bytes(4) + response)
    _, message = kafkaprotocol.read_network_response(METADATA, version, bytes(4) + after)
    assert [broker.host for broker in message.brokers] == [PROXY_HOST] * len(body.brokers)
    assert [broker.port for broker in message.brokers] == [proxy_port(broker.node_id) for broker in body.brokers]
    assert [broker.node_id for broker in message.brokers] == [broker.node_id for broker in body.brokers]
    assert repr(message.topics) == repr(before.topics)


def broker(version: int, node_id: int, **changes: Any) -> Any:
    return of_response(
        METADATA, version, "MetadataResponseBroker", node_id=node_id, **({"host": REAL_HOST, "port": 9092} | changes)
    )


def prefix_of(version: int, brokers: list[Any]) -> bytes:
    flexible = APIS[METADATA].is_flexible(version)
    throttle = bytes(4) if version >= 3 else b""
    count = len(brokers) + 1 if flexible else len(brokers)
    encoded = count.to_bytes(1 if count < 128 else 2, "big") if flexible else count.to_bytes(4, "big")
    if flexible and count >= 128:
        encoded = bytes([count & 0x7F | 0x80, count >> 7])
    return header(METADATA, version) + throttle + encoded + b"".join(encode(one) for one in brokers)


@pytest.mark.parametrize("version", [0, 8, 9, 13])
@pytest.mark.parametrize("count", [0, 1, 126, 127, 3_000])
def test_topics_are_not_read(version: int, count: int) -> None:
    """Whatever follows the brokers is neither needed nor changed."""
    prefix = prefix_of(version, [broker(version, node_id) for node_id in range(count)])
    walk = rewriting_walk(METADATA, version, len(prefix) + 1_000, Addresses())

    assert run(walk, prefix + b"\xff") == len(prefix)

    assert walk.frame_left == 1_000
    assert walk.out == prefix_of(
        version, [broker(version, node_id, host=PROXY_HOST, port=proxy_port(node_id)) for node_id in range(count)]
    )


def test_the_brokers_are_reported_once_and_together() -> None:
    addresses = Addresses()
    response = prefix_of(13, [broker(13, node_id) for node_id in range(5)]) + bytes(8)
    rewrite(METADATA, 13, response, addresses, [1] * len(response), 1)
    assert [[node_id for node_id, _, _ in brokers] for brokers in addresses.lists] == [[0, 1, 2, 3, 4]]
    assert not addresses.told, "a broker that is not in the list has left, so the list is reported as a whole"


@pytest.mark.parametrize("version", [8, 9])
def test_a_count_that_no_cluster_has(version: int) -> None:
    start = header(METADATA, version) + bytes(4)
    for count in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff") if version == 8 else (b"\xff\xff\xff\xff\x07", b"\x00"):
        for frame in (start + count + bytes(100), start + count + bytes(100_000)):
            with pytest.raises(MalformedFrame) as caught:
                rewrite(METADATA, version, frame)
            assert caught.value.offset in (len(start), len(start) + len(count))


def test_a_host_that_is_not_utf_8_takes_nothing_from_the_other_brokers() -> None:
    response = prefix_of(13, [broker(13, 1), broker(13, 2)]) + bytes(8)
    at = response.rindex(REAL_HOST.encode())
    addresses = Addresses()
    rewrite(METADATA, 13, response[:at] + b"\xff" + response[at + 1 :], addresses)
    assert [host for _, host, _ in addresses.lists[0]] == [REAL_HOST, "\ufffd" + REAL_HOST[1:]]


@pytest.mark.parametrize("rack", ["r" * 1_000, "r" * 30_000])
@pytest.mark.parametrize("version", [8, 9])
def test_brokers_that_take_too_many_bytes(version: int, rack: str) -> None:
    one = encode(broker(version, 1, rack=rack))
    for brokers, refused in ((MAX_PREFIX // len(one) - 1, False), (MAX_PREFIX // len(one) + 1, True)):
        prefix = prefix_of(version, [broker(version, 1, rack=rack)] * brokers)
        walk = rewriting_walk(METADATA, version, 1 << 30, Addresses())
        if refused:
            with pytest.raises(MalformedFrame, match="brokers within"):
                run(walk, prefix + bytes(8))
        else:
            assert run(walk, prefix + bytes(8)) == len(prefix)
