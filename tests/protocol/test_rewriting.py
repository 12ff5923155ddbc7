"""Responses with broker addresses, rewritten in any version, any splits, any number of turns.

A second, independent decoder reads Metadata.
"""

from struct import pack
from typing import Any

import kafkaprotocol
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema

from protocol.apis import APIS, DESCRIBE_CLUSTER, DESCRIBE_CONFIGS, DESCRIBE_QUORUM, FIND_COORDINATOR, METADATA
from protocol.broker_addresses import MAX_BROKERS, MAX_PREFIX
from protocol.errors import MalformedFrame, TruncatedFrame
from protocol.messages import decode, encode
from protocol.rewriting import rewriting_walk
from protocol.wire import encode_count, encode_string, encode_varint
from tests.protocol.kafka_messages import (
    BYTES,
    PROXY_HOST,
    REAL_HOST,
    REAL_HOSTS,
    Addresses,
    chunk_sizes,
    header,
    of_response,
    parsed,
    proxy_port,
    response_bytes,
    responses,
    versions,
    with_changes,
)
from tests.protocol.rewriting import REWRITTEN, expected, rewrite, run

WORK = st.sampled_from([1, 2, 7, 500, 1 << 62])
PORTS = st.integers(-1, 65_535)
HOSTS = REAL_HOSTS | st.just("") | st.just("h" * 130)
CONFIG_NAMES = st.sampled_from(
    [
        "listeners",
        "advertised.listeners",
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
        "metrics.reporter.bootstrap.servers",
        "listeners.not",
        "log.dirs",
        "n" * 130,
        "",
    ]
)
RESOURCE_TYPES = st.sampled_from([2, 4, 8])
ENDPOINT_TYPES = st.sampled_from([1, 2])
FIXED: dict[int, dict[str, Any]] = {
    METADATA: {"host": REAL_HOSTS | st.just("h" * 130)},
    FIND_COORDINATOR: {"host": HOSTS, "port": PORTS},
    DESCRIBE_CLUSTER: {"host": HOSTS, "port": PORTS, "endpoint_type": ENDPOINT_TYPES},
    DESCRIBE_CONFIGS: {"name": CONFIG_NAMES, "resource_type": RESOURCE_TYPES},
    DESCRIBE_QUORUM: {"host": REAL_HOSTS},
}


def bodies(api_key: int, version: int) -> st.SearchStrategy[Any]:
    return responses(api_key, version, **FIXED[api_key])


# ---- what is written


@pytest.mark.parametrize("api_key", REWRITTEN)
@given(data=st.data(), sizes=chunk_sizes, work=WORK)
def test_any_response_in_any_splits(api_key: int, data: st.DataObject, sizes: list[int], work: int) -> None:
    version = data.draw(st.sampled_from(versions(api_key)))
    body = data.draw(bodies(api_key, version))

    after = rewrite(api_key, version, response_bytes(api_key, version, body), sizes=sizes, work=work)

    assert parsed(api_key, version, after) == expected(api_key, body)


@pytest.mark.parametrize("api_key", [METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER])
@given(data=st.data(), sizes=chunk_sizes, work=WORK)
def test_a_hidden_broker_is_left_out_and_no_coordinator(
    api_key: int, data: st.DataObject, sizes: list[int], work: int
) -> None:
    """Clients look for another coordinator, or ask again; an address without host would be one of their own machine."""
    version = data.draw(st.sampled_from(versions(api_key)))
    body = data.draw(bodies(api_key, version))

    def hides(node_id: int) -> bool:
        return node_id % 2 == 1

    after = rewrite(api_key, version, response_bytes(api_key, version, body), Addresses(hides), sizes, work)

    assert parsed(api_key, version, after) == expected(api_key, body, hides)


def text(value: str | None) -> bytes:
    return b"\x00" if value is None else encode_string(value.encode(), compact=True)


def count(items: int) -> bytes:
    return encode_count(items, compact=True)


def address(node_id: int) -> bytes:
    return pack(">i", node_id) + text(REAL_HOST) + pack(">i", 9092)


@given(data=st.data())
def test_addresses_are_reported(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(range(4)))
    body = data.draw(responses(FIND_COORDINATOR, version, host=REAL_HOSTS, port=st.just(9092)))
    addresses = Addresses()
    rewrite(FIND_COORDINATOR, version, response_bytes(FIND_COORDINATOR, version, body), addresses)
    assert addresses.told == [(body.node_id, REAL_HOST, 9092)]


def coordinators(hosts: list[bytes], tags: bytes = b"\x00") -> bytes:
    one = [
        encode_string(b"g", True) + pack(">i", 3) + encode_string(host, True) + pack(">ihb", 9, 0, 0) for host in hosts
    ]
    return header(FIND_COORDINATOR, 4) + bytes(4) + encode_varint(len(hosts) + 1) + tags.join([*one, b""]) + b"\x00"


@pytest.mark.parametrize(("endpoint_type", "shown"), [(1, ["", PROXY_HOST, ""]), (2, [""] * 3)])
def test_each_fenced_broker_is_hidden_and_all_controllers_are(endpoint_type: int, shown: list[str]) -> None:
    brokers = [address(node) + text(None) + bytes([node % 2, 0]) for node in (1, 2, 3)]
    start = header(DESCRIBE_CLUSTER, 2) + bytes(6) + b"\x00" + bytes([endpoint_type]) + text("c") + bytes(4)
    addresses = Addresses()
    frame = start + count(3) + b"".join(brokers) + bytes(5)
    after = parsed(DESCRIBE_CLUSTER, 2, rewrite(DESCRIBE_CLUSTER, 2, frame, addresses))
    assert [broker.host for broker in after.brokers] == shown
    assert addresses.lists in ([[(2, REAL_HOST, 9092)]], [[]], [])[endpoint_type - 1 :]


# ---- bounded work and memory


def frames_of_many(items: int) -> list[tuple[int, int, bytes]]:
    """API, version and a frame of many items: those that are read quickly, and those that take the longest."""
    start = header(DESCRIBE_CLUSTER, 2) + bytes(6) + b"\x00\x01" + text("c") + pack(">i", 1)
    brokers = [address(node_id) + text("r") + b"\x00" for node_id in range(items)]
    resource = pack(">h", 0) + text(None) + b"\x04" + text("1")
    synonym = text("s") + text("v") + b"\x04\x00"
    config = text("c") + text("v") + b"\x00\x04\x00" + count(1) + synonym + b"\x01" + text(None)
    hidden = text("listeners") + text("v") + bytes(3) + count(1) + synonym + b"\x01" + text(None)
    configs_start = header(DESCRIBE_CONFIGS, 4) + bytes(4)
    node = pack(">i", 1) + count(1) + text("L") + text("h") + bytes(2) + b"\x00" + b"\x00"
    quorum_start = header(DESCRIBE_QUORUM, 2) + bytes(2) + text(None) + count(0)
    listener = text("L") + text("h") + bytes(2) + b"\x00"
    no_listeners = bytes(4) + b"\x01\x00"
    partitions = header(DESCRIBE_QUORUM, 2) + bytes(2) + text(None) + count(1) + text("t")
    partition = bytes(6) + text(None) + bytes(16) + b"\x01\x01\x00"
    replica = bytes(44) + b"\x01\x05\x00"
    many = count(items)
    one_result = configs_start + count(1) + resource + many
    cluster = start + many
    no_configs = resource + count(0) + b"\x00"
    return [
        (FIND_COORDINATOR, 4, coordinators([b"host"] * items)),
        (FIND_COORDINATOR, 4, coordinators([b"host"] * items, b"\x01\x05\x00")),
        (DESCRIBE_CLUSTER, 2, cluster + b"\x00".join([*brokers, b""]) + bytes(5)),
        (DESCRIBE_CLUSTER, 2, cluster + b"\x01\x05\x00".join([*brokers, b""]) + bytes(5)),
        (DESCRIBE_CONFIGS, 4, one_result + (config + b"\x00") * items + bytes(2)),
        (DESCRIBE_CONFIGS, 4, one_result + (hidden + b"\x00") * items + bytes(2)),
        (DESCRIBE_CONFIGS, 4, configs_start + many + no_configs * items + bytes(1)),
        (DESCRIBE_QUORUM, 2, quorum_start + many + node * items + bytes(1)),
        (DESCRIBE_QUORUM, 2, quorum_start + many + no_listeners * items + bytes(1)),
        (DESCRIBE_QUORUM, 2, quorum_start + count(1) + bytes(4) + many + listener * items + bytes(2)),
        (DESCRIBE_QUORUM, 2, partitions + many + partition * items + b"\x00\x01\x00"),
        (DESCRIBE_QUORUM, 2, partitions + b"\x02" + bytes(23) + many + replica * items + b"\x01\x00\x00\x01\x00"),
    ]


@pytest.mark.parametrize("index", range(12))
def test_one_step_handles_few_items(index: int) -> None:
    items, work = 1_000, 20
    api_key, version, frame = frames_of_many(items)[index]
    walk = rewriting_walk(api_key, version, len(frame), Addresses())
    buf, pos, most_read, most_written, turns = bytearray(frame), 0, 0, 0, 0
    while not walk.is_done:
        walk.work_left, written = work, len(walk.out)
        final = walk.advance(buf, pos, len(frame))
        most_read, pos = max(most_read, final - pos), final
        most_written = max(most_written, len(walk.out) - written)
        turns += 1
    per_item = len(frame) / items
    assert most_read <= (work + 8) * per_item
    assert most_written <= (work + 8) * (per_item + len(PROXY_HOST))
    assert turns >= items / (work + 8)
    parsed(api_key, version, walk.out)


@pytest.mark.parametrize("brokers", [MAX_BROKERS, MAX_BROKERS + 1])
def test_the_number_of_brokers_is_bounded(brokers: int) -> None:
    frame = header(METADATA, 0) + pack(">i", brokers) + (pack(">ih", 1, 1) + b"h" + pack(">i", 9)) * brokers + bytes(4)
    walk = rewriting_walk(METADATA, 0, len(frame), Addresses())
    if brokers > MAX_BROKERS:
        with pytest.raises(MalformedFrame, match="broker count"):
            run(walk, frame)
    else:
        assert run(walk, frame) == len(frame) - 4


# ---- what cannot be


@pytest.mark.parametrize("api_key", REWRITTEN)
@given(data=st.data())
def test_cut_short_or_too_long(api_key: int, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions(api_key)))
    frame = response_bytes(api_key, version, data.draw(bodies(api_key, version)))
    walk = rewriting_walk(api_key, version, len(frame), Addresses())
    if walk.is_done:
        return
    cut = data.draw(st.integers(0, run(walk, frame) - 1))
    with pytest.raises(TruncatedFrame):
        rewrite(api_key, version, frame[:cut])
    if api_key != METADATA:
        with pytest.raises(MalformedFrame):
            rewrite(api_key, version, frame + b"\x00")


@pytest.mark.parametrize("api_key", REWRITTEN)
@given(data=st.data(), sizes=chunk_sizes, work=WORK)
def test_any_bytes(api_key: int, data: st.DataObject, sizes: list[int], work: int) -> None:
    """Success or MalformedFrame, the same in any splits; success where kio can read it, and then with its result."""
    version = data.draw(st.sampled_from(versions(api_key)))
    frame = data.draw(BYTES)
    if data.draw(st.booleans()):
        frame = with_changes(data.draw, response_bytes(api_key, version, data.draw(bodies(api_key, version))))

    outcomes = [outcome(api_key, version, frame, [], 1 << 62), outcome(api_key, version, frame, sizes, work)]

    assert outcomes[0] == outcomes[1], "how the bytes arrive makes no difference"
    start = len(header(api_key, version))
    try:
        assert frame[:start][4:] == header(api_key, version)[4:]
        body = decode(load_response_schema(api_key, version), frame, start)
    except (AssertionError, MalformedFrame):
        return
    after = outcomes[0]
    assert isinstance(after, bytes)
    assert decode(load_response_schema(api_key, version), after, start) == expected(api_key, body)


def outcome(api_key: int, version: int, frame: bytes, sizes: list[int], work: int) -> bytes | str:
    try:
        return rewrite(api_key, version, frame, sizes=sizes, work=work)
    except MalformedFrame as error:
        return f"{type(error).__name__} at {error.offset}"


# ---- the brokers of Metadata, which are read before the topics

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
    throttle = bytes(4) if version >= 3 else b""
    counted = encode_count(len(brokers), APIS[METADATA].is_flexible(version))
    return header(METADATA, version) + throttle + counted + b"".join(map(encode, brokers))


def test_the_brokers_are_reported_once_and_together() -> None:
    addresses = Addresses()
    response = prefix_of(13, [broker(13, node_id) for node_id in range(5)]) + bytes(8)
    rewrite(METADATA, 13, response, addresses, [1] * len(response), 1)
    assert [[node_id for node_id, _, _ in brokers] for brokers in addresses.lists] == [[0, 1, 2, 3, 4]]
    assert not addresses.told, "a broker that is not in the list has left, so the list is reported as a whole"


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
