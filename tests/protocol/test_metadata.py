"""The beginning of Metadata responses, checked by kio and by a second, independent decoder."""

from dataclasses import replace
from typing import Any

import kafkaprotocol
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.static.constants import EntityType

from protocol.apis import APIS, METADATA
from protocol.errors import MalformedFrame, UnsupportedVersion
from protocol.messages import encode
from protocol.metadata import MAX_PREFIX, MetadataPrefix
from tests.protocol.kafka_messages import (
    PROXY_HOST,
    REAL_HOST,
    REAL_HOSTS,
    Addresses,
    header,
    parsed,
    proxy_port,
    response_bytes,
    responses,
)

VERSIONS = range(14)
LAST_OF_SECOND_DECODER = 12
NOT_NULL = st.sampled_from(["", "r1", "x" * 130])  # the second decoder cannot read null in flexible versions
TOPIC_NAMES = st.sampled_from(["flights", "weather", "t" * 200])


def rewritten(version: int, response: bytes, addresses: Addresses, sizes: list[int]) -> bytes:
    """The whole response as the client gets it; the prefix came in pieces of these sizes, then whole."""
    prefix = MetadataPrefix(version, addresses)
    came = 0
    for size in sizes:
        came = min(came + size, len(response))
        done = prefix.rewrite(bytearray(response[:came]))
        if done is not None:
            break
    else:
        done = prefix.rewrite(memoryview(response))
    assert done is not None
    new, replaced = done
    assert replaced <= len(response)
    return new + response[replaced:]


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data(), sizes=st.lists(st.integers(0, 60), max_size=20) | st.just([1] * 200))
def test_brokers_are_replaced_and_all_else_stays(version: int, data: st.DataObject, sizes: list[int]) -> None:
    body: Any = data.draw(responses(METADATA, version, host=REAL_HOSTS))
    response = response_bytes(METADATA, version, body)
    addresses = Addresses()

    after = parsed(METADATA, version, rewritten(version, response, addresses, sizes))

    brokers = tuple(replace(broker, host=PROXY_HOST, port=proxy_port(broker.node_id)) for broker in body.brokers)
    assert after == replace(body, brokers=brokers)
    assert addresses.lists == [[(broker.node_id, broker.host, broker.port) for broker in body.brokers]]
    assert not addresses.told, "who is not in the list has left, so it is told as a whole"


@pytest.mark.parametrize("version", range(LAST_OF_SECOND_DECODER + 1))
@given(data=st.data())
def test_the_second_decoder_agrees(version: int, data: st.DataObject) -> None:
    body: Any = data.draw(
        responses(METADATA, version, host=REAL_HOSTS, name=TOPIC_NAMES, cluster_id=NOT_NULL, rack=NOT_NULL)
    )
    response = response_bytes(METADATA, version, body)

    after = rewritten(version, response, Addresses(), [])

    assert REAL_HOST.encode() not in after
    _, before = kafkaprotocol.read_network_response(METADATA, version, bytes(4) + response)
    _, message = kafkaprotocol.read_network_response(METADATA, version, bytes(4) + after)
    assert [broker.host for broker in message.brokers] == [PROXY_HOST] * len(body.brokers)
    assert [broker.port for broker in message.brokers] == [proxy_port(broker.node_id) for broker in body.brokers]
    assert [broker.node_id for broker in message.brokers] == [broker.node_id for broker in body.brokers]
    assert repr(message.topics) == repr(before.topics)


def broker(version: int, node_id: int, **changes: Any) -> Any:
    module: Any = load_payload_module(METADATA, version, EntityType.response)
    return module.MetadataResponseBroker(**({"node_id": node_id, "host": REAL_HOST, "port": 9092} | changes))


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
def test_topics_are_not_looked_at(version: int, count: int) -> None:
    """Whatever follows the brokers: nothing of it is asked for, and nothing of it is replaced."""
    prefix = prefix_of(version, [broker(version, node_id) for node_id in range(count)])

    done = MetadataPrefix(version, Addresses()).rewrite(prefix + b"\xff" * 1_000)

    assert done is not None
    new, replaced = done
    assert replaced == len(prefix)
    assert new == prefix_of(
        version, [broker(version, node_id, host=PROXY_HOST, port=proxy_port(node_id)) for node_id in range(count)]
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_every_prefix_that_is_too_short_asks_for_more(version: int) -> None:
    response = prefix_of(version, [broker(version, 1), broker(version, 2)])
    for size in range(len(response)):
        assert MetadataPrefix(version, Addresses()).rewrite(response[:size]) is None
    assert MetadataPrefix(version, Addresses()).rewrite(response) is not None


def test_the_brokers_are_told_once_however_often_bytes_are_shown() -> None:
    addresses = Addresses()
    response = prefix_of(13, [broker(13, node_id) for node_id in range(5)])
    prefix = MetadataPrefix(13, addresses)
    for size in range(len(response) + 1):
        prefix.rewrite(response[:size])
    assert [[node_id for node_id, _, _ in brokers] for brokers in addresses.lists] == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("version", [8, 9])
def test_a_count_that_no_cluster_has(version: int) -> None:
    start = header(METADATA, version) + bytes(4)
    for count in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff") if version == 8 else (b"\xff\xff\xff\xff\x07", b"\x00"):
        with pytest.raises(MalformedFrame) as caught:
            MetadataPrefix(version, Addresses()).rewrite(start + count + bytes(100))
        assert caught.value.offset == len(start)


def test_text_that_is_no_text() -> None:
    response = prefix_of(13, [broker(13, 1), broker(13, 2)])
    at = response.rindex(REAL_HOST.encode())
    with pytest.raises(MalformedFrame) as caught:
        MetadataPrefix(13, Addresses()).rewrite(response[:at] + b"\xff" + response[at + 1 :])
    assert caught.value.offset == at - 5  # the broker starts with its node id and a length


def test_brokers_without_end() -> None:
    start = header(METADATA, 8) + bytes(4) + (100_000).to_bytes(4, "big")
    response = start + encode(broker(8, 1)) * (MAX_PREFIX // 37 + 2)
    prefix = MetadataPrefix(8, Addresses())
    assert prefix.rewrite(response[: MAX_PREFIX - 1]) is None
    with pytest.raises(MalformedFrame):
        prefix.rewrite(response)


def test_a_version_that_nobody_speaks() -> None:
    with pytest.raises(UnsupportedVersion):
        MetadataPrefix(14, Addresses())
