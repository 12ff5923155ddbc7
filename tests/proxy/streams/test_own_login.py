"""The proxy's own login as the streams of a connection see it."""

from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_payload_module, load_response_schema
from kio.schema.api_versions.v3.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from kio.static.primitive import i16

from protocol.apis import API_VERSIONS, APIS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from protocol.errors import MalformedFrame
from protocol.messages import decode, encode
from proxy.brokers.sasl_exchange import CORRELATION_ID, MAX_RESPONSE
from proxy.config.client_settings import ClientSettings, LoginSettings
from proxy.sessions.pump_set import IN_FLIGHT
from proxy.streams.handlers.login import OwnRequest
from tests.proxy.conversation import without_burst
from tests.proxy.frames import answer, api_versions, frame, heartbeat, heartbeat_answer, produce, produced, request
from tests.proxy.streams.pair import Pair, World, release_due
from tests.proxy.streams.waiting import CUTS

NO_TIME: Any = timedelta(0)
UPSTREAM = ClientSettings(login=LoginSettings(mechanism="PLAIN", username="etl", password="p"))


def own_request(pair: Pair) -> OwnRequest:
    """The proxy has sent a request of its own."""
    sent = OwnRequest()
    pair.response_stream.in_flight.append((CORRELATION_ID, sent))
    return sent


def sasl(api: int, version: int, correlation: int) -> bytes:
    module: Any = load_payload_module(api, version, EntityType.request)
    body = module.SaslHandshakeRequest(mechanism="PLAIN") if api == SASL_HANDSHAKE else None
    body = body or module.SaslAuthenticateRequest(auth_bytes=b"\0u\0p")
    return request(api, version, correlation, encode(body))


@pytest.mark.parametrize("cuts", CUTS)
def test_a_response_to_the_proxy_is_taken_out_of_the_stream(cuts: list[int]) -> None:
    pair = Pair(World(upstream=UPSTREAM), cuts=cuts)
    pair.client_sends(heartbeat(1), produce(2))
    sent = own_request(pair)
    response = frame(b"\x00\x00\x00\x01" + b"to the proxy" * 50)
    pair.broker_sends(heartbeat_answer(1), produced(2), response)
    pair.exchange(heartbeat(3), heartbeat_answer(3))
    assert sent.response == response[4:]
    assert pair.to_client == heartbeat_answer(1) + produced(2) + heartbeat_answer(3)


def test_a_response_that_is_too_long_ends_the_connection() -> None:
    pair = Pair(World(upstream=UPSTREAM))
    own_request(pair)
    with pytest.raises(MalformedFrame):
        pair.broker_sends(frame(b"\x00\x00\x00\x01" + bytes(MAX_RESPONSE)))


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize(
    ("api", "version"), [(SASL_HANDSHAKE, 1), (SASL_AUTHENTICATE, 0), (SASL_AUTHENTICATE, 1), (SASL_AUTHENTICATE, 2)]
)
def test_clients_that_use_sasl_get_the_error_of_a_listener_without_it(api: int, version: int, cuts: list[int]) -> None:
    pair = Pair(World(upstream=UPSTREAM), cuts=cuts)
    pair.client_sends(heartbeat(1), sasl(api, version, 2), heartbeat(3))
    assert pair.to_broker == heartbeat(1) + heartbeat(3)
    pair.broker_sends(heartbeat_answer(1), heartbeat_answer(3))
    first, refused, last = pair.received()
    assert (first, last) == (heartbeat_answer(1), heartbeat_answer(3))
    assert refused[4:8] == b"\x00\x00\x00\x02"
    start = 9 if version == 2 else 8
    body: Any = decode(load_response_schema(api, version), refused, start)
    assert body.error_code is ErrorCode.illegal_sasl_state


def test_where_the_proxy_logs_in_sasl_is_not_offered() -> None:
    offered = tuple(ApiVersion(api_key=i16(key), min_version=i16(0), max_version=i16(99)) for key in APIS)
    response = answer(
        API_VERSIONS, 3, 1, ApiVersionsResponse(error_code=ErrorCode.none, api_keys=offered, throttle_time=NO_TIME)
    )
    kept = {}
    for upstream in (UPSTREAM, ClientSettings()):
        pair = Pair(World(upstream=upstream))
        pair.exchange(api_versions(1, 3), response)
        body = decode(ApiVersionsResponse, bytes(pair.to_client), 8)
        kept[upstream] = {int(api.api_key) for api in body.api_keys}
    assert kept[ClientSettings()] - kept[UPSTREAM] == {SASL_HANDSHAKE, SASL_AUTHENTICATE}
    assert len(kept[UPSTREAM]) == len(APIS) - 2


@pytest.mark.parametrize("cuts", CUTS)
def test_no_frame_begins_during_a_login(cuts: list[int]) -> None:
    pair = Pair(World(upstream=UPSTREAM), cuts=cuts)
    first, second = produce(1, 900), produce(2, 900)
    pair.client_sends(first[:300])
    pair.connection.max_in_flight = 0
    pair.client_sends(first[300:], second)
    assert (bytes(pair.to_broker), pair.requests.paused) == (first, IN_FLIGHT)
    login_ends(pair)
    assert pair.to_broker == first + second


def login_ends(pair: Pair) -> None:
    pair.connection.max_in_flight = 1_000
    pair.after_step()


def test_a_frame_that_is_released_during_a_login_asks_again() -> None:
    pair = Pair(world := World([without_burst("client-id=etl,producer_byte_rate=1000")], upstream=UPSTREAM))
    first, second = produce(1, 2_000), produce(2, 2_000)
    pair.client_sends(first, second)
    assert pair.sent() == [first]
    assert pair.is_held
    pair.connection.max_in_flight = 0
    world.clock.pass_seconds(10)
    assert release_due(world)
    assert (pair.sent(), pair.requests.paused) == ([first], IN_FLIGHT)
    login_ends(pair)
    assert pair.to_broker == first + second
    assert sum(world.passed().values()) == len(first + second) - 8
