"""What a peer may do wrong costs its own connection, is counted with its reason and said in one line; nothing else."""

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.apis import SASL_HANDSHAKE, SHARE_FETCH
from protocol.errors import ProtocolError
from proxy.config.config import SecurityOptions
from proxy.sessions.lifecycle import State
from tests.proxy import frames
from tests.proxy.conversation import lines_of, without_burst
from tests.proxy.frames import frame, heartbeat, heartbeat_answer, produce, request
from tests.proxy.sessions.steps import QuietPair, asks, broker_ends, client_ends, play, says
from tests.proxy.streams.pair import Pair, World

BAD_REQUESTS = {
    "length below zero": (b"\xff\xff\xff\xfe" + bytes(60), "negative_frame_length"),
    "length above the bound": (struct.pack(">i", 104_857_601) + produce(1)[4:], "frame_too_large"),
    "length too small for a header": (struct.pack(">i", 5) + bytes(60), "malformed_frame"),
    "unknown API": (request(4, 0, 1), "unknown_api"),
    "API key below zero": (request(-3, 0, 1), "unknown_api"),
    "version too new": (request(0, 14, 1, bytes(40)), "unsupported_version"),
    "version below zero": (request(1, -1, 1, bytes(40)), "unsupported_version"),
    "login of version 0": (request(SASL_HANDSHAKE, 0, 1, b"\x00\x05PLAIN"), "unsupported_version"),
    "client id beyond the frame": (frame(struct.pack(">hhih", 12, 0, 1, 900)), "malformed_frame"),
    "header tags without end": (request(12, 4, 1)[:-1] + b"\xff\xff\xff\xff\xff\xff", "malformed_frame"),
    "fetch without its budget": (request(1, 12, 1, b"\x00" * 3), "malformed_frame"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), "not_kafka"),
    "HTTP": (b"GET /metrics HTTP/1.1\r\nHost: proxy\r\n\r\n", "not_kafka"),
    "SSH": (b"SSH-2.0-OpenSSH_9.2p1\r\n", "not_kafka"),
}


def check_closed(pair: Pair, reason: str, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """It is counted once, and said in one line, whose fields these are."""
    assert pair.session.state is State.CLOSED
    errors = pair.world.metrics.errors.protocol
    assert (errors[reason], sum(errors.values())) == (1, 1)
    [(name, fields)] = lines_of(caplog.records)
    assert (name, fields["reason"]) == ("protocol_error", reason)
    return fields


HINTS = {"TLS": "--ssl-certificate-location", "HTTP": "--metrics-listen", "login of version 0": "librdkafka 1.2.0"}


@pytest.mark.parametrize("cuts", [(), (1,)])
@pytest.mark.parametrize("what", BAD_REQUESTS)
def test_a_bad_request_closes_its_own_line(what: str, cuts: tuple[int, ...], caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    other, pair = Pair(world), QuietPair(world, cuts=cuts)
    other.client_sends(produce(1, 600)[:300])
    sent, reason = BAD_REQUESTS[what]
    pair.client_sends(sent)
    fields = check_closed(pair, reason, caplog)
    assert fields["peer"] == "peer:1"
    assert HINTS.get(what, "") in (fields["hint"] or "")
    other.client_sends(produce(1, 600)[300:])
    assert other.sent() == [produce(1, 600)]


def test_the_longest_request_is_configurable(caplog: pytest.LogCaptureFixture) -> None:
    pair = QuietPair(World(security=SecurityOptions(max_request_bytes=500)))
    fits = produce(1, 500 - len(produce(1, 0)) + 4)
    assert len(fits) == 504
    pair.client_sends(fits)
    # The second of the same kind is compared, not parsed: the bound must hold there as well.
    pair.client_sends(produce(2, 500 - len(produce(1, 0)) + 5))
    assert pair.to_broker == fits
    check_closed(pair, "frame_too_large", caplog)


@pytest.mark.parametrize("size", [3, 4, 11, 13, 16, 600])
def test_a_client_that_dies_inside_of_a_frame(size: int, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of a header reaches the broker."""
    pair = QuietPair(World())
    play(pair, [asks(produce(1, 900)[:size]), client_ends, broker_ends])
    assert pair.to_broker == (produce(1, 900)[:size] if size > 16 else b"")
    check_closed(pair, "closed_mid_frame", caplog)


BAD_RESPONSES = {
    "wrong correlation id": (heartbeat_answer(8), "correlation_mismatch"),
    "response without a request": (heartbeat_answer(7) + heartbeat_answer(8), "unexpected_response"),
    "length below zero": (b"\x80\x00\x00\x00" + heartbeat_answer(7)[4:], "negative_frame_length"),
    "length without room for a correlation id": (b"\x00\x00\x00\x03" + bytes(8), "malformed_frame"),
    "length above the bound": (struct.pack(">i", 1_073_741_825) + heartbeat_answer(7)[4:], "frame_too_large"),
}


@pytest.mark.parametrize("what", BAD_RESPONSES)
def test_a_bad_response_closes_its_own_connection(what: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    other, pair = Pair(world), QuietPair(world)
    sent, reason = BAD_RESPONSES[what]
    play(pair, [asks(heartbeat(7)), says(sent)])
    check_closed(pair, reason, caplog)
    other.client_sends(heartbeat(1))
    assert other.sent() == [heartbeat(1)]


NUMBERS = st.integers(0, 5)
ASKED = st.one_of(
    st.binary(max_size=40),
    st.builds(frame, st.binary(max_size=60)),
    st.builds(produce, NUMBERS, st.integers(0, 300), st.integers(0, 13), st.integers(-1, 1)),
    st.builds(frames.fetch, NUMBERS, st.integers(0, 18)),
    st.builds(heartbeat, NUMBERS),
    st.builds(frames.metadata, NUMBERS),
    st.builds(frames.api_versions, NUMBERS, st.sampled_from([0, 3, 4, 99])),
    st.builds(request, st.just(SHARE_FETCH), st.just(1), NUMBERS, st.binary(max_size=9)),
)
ANSWERED = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda number, body: frame(struct.pack(">i", number) + body), NUMBERS, st.binary(max_size=80)),
    st.builds(frames.produced, NUMBERS, st.integers(0, 13)),
    st.builds(frames.fetched, NUMBERS, st.integers(0, 15)),
    st.builds(frames.fetched_with_endpoints, NUMBERS),
    st.builds(frames.share_fetched, NUMBERS),
    st.builds(frames.metadata_answer, NUMBERS, st.just({1: ("kafka", 9092)})),
)
SAID = st.lists(
    st.tuples(st.just(Pair.client_sends), ASKED) | st.tuples(st.just(Pair.broker_sends), ANSWERED), max_size=16
)


@settings(max_examples=150)
@given(SAID, st.lists(st.integers(1, 50), max_size=3))
def test_any_bytes_from_both_sides(said: list[tuple[Callable[[Pair, bytes], None], bytes]], cuts: list[int]) -> None:
    """Whatever client and broker send: it passes, or the connection closes for a reason of its own, never a defect."""
    pair = Pair(World([without_burst("client-id=etl,producer_byte_rate=40MB,consumer_byte_rate=40MB")]), cuts=cuts)
    for send, data in said:
        with suppress(ProtocolError):
            send(pair, data)
    pair.hang_up()
    assert pair.world.memory.used == pair.world.memory.buffered_bytes == 0
