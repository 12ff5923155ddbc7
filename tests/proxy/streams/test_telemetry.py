"""Clients push their metrics (KIP-714): answered by the proxy, or passed to a broker that takes them itself."""

import uuid
from typing import Any

import pytest
from kio.index import load_response_schema
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)

from protocol.api_versions import ClientSoftware
from protocol.apis import API_VERSIONS, APIS, GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY, TELEMETRY
from protocol.messages import decode, encode
from protocol.telemetry import MAX_BYTES, MAX_FIELDS, subscription_id
from proxy.config.config import EnforcementOptions, ObservabilityOptions
from proxy.observability.client_reports import ASKED
from proxy.streams.handlers.telemetry import ALL, asked_of
from tests.protocol.kafka_messages import of_request, of_response
from tests.proxy.conversation import lines_of, without_burst
from tests.proxy.frames import answer, api_versions, frame, heartbeat, heartbeat_answer, produce, produced, request
from tests.proxy.streams.pair import Pair, World, pass_holds
from tests.proxy.streams.waiting import CUTS

pytestmark = pytest.mark.claim(
    "telemetry", "a broker that takes metrics gets them; no answer switches a client's metrics off"
)

ON = ObservabilityOptions(client_telemetry=True)
JAVA = ("apache-kafka-java", "3.9.0")
INSTANCE = uuid.UUID(int=0x714)
MB32 = 33_554_432


def negotiated(n: int, *keys: int) -> bytes:
    """What a broker offers: these APIs."""
    ranges = tuple(
        of_response(API_VERSIONS, 3, "ApiVersion", api_key=key, min_version=0, max_version=APIS[key].max_version)
        for key in keys
    )
    return answer(API_VERSIONS, 3, n, of_response(API_VERSIONS, 3, "ApiVersionsResponse", api_keys=ranges))


def subscribe(n: int, instance: uuid.UUID | None = None) -> bytes:
    body = of_request(GET_TELEMETRY_SUBSCRIPTIONS, 0, "GetTelemetrySubscriptionsRequest", client_instance_id=instance)
    return request(GET_TELEMETRY_SUBSCRIPTIONS, 0, n, encode(body))


def push(n: int, metrics: bytes, names: tuple[str, ...] = ASKED, instance: uuid.UUID = INSTANCE) -> bytes:
    body = of_request(
        PUSH_TELEMETRY,
        0,
        "PushTelemetryRequest",
        client_instance_id=instance,
        subscription_id=subscription_id(names),
        terminating=False,
        compression_type=0,
        metrics=metrics,
    )
    return request(PUSH_TELEMETRY, 0, n, encode(body))


def otlp(**values: float) -> bytes:
    """As Java sends it: each metric with its own resource. `buffer_total_bytes`: org.apache.kafka.producer. ..."""
    data = MetricsData()
    for name, value in values.items():
        metric = Metric(name="org.apache.kafka.producer." + name.replace("_", "."))
        points = [NumberDataPoint(as_double=value)]
        if name.endswith("total"):
            metric.sum.CopyFrom(Sum(data_points=points, is_monotonic=True))
        else:
            metric.gauge.CopyFrom(Gauge(data_points=points))
        data.resource_metrics.append(ResourceMetrics(scope_metrics=[ScopeMetrics(metrics=[metric])]))
    return bytes(data.SerializeToString())


def connected(world: World, *, cuts: tuple[int, ...] = (), software: tuple[str, str] = JAVA, **_: Any) -> Pair:
    """A client whose broker does not take metrics."""
    pair = Pair(world, cuts=cuts)
    pair.exchange(api_versions(1, 3, *software), negotiated(1, 0, 3, 12, 18))
    offered: Any = decode(load_response_schema(API_VERSIONS, 3), bytes(pair.to_client), 8)
    assert [each.api_key for each in offered.api_keys][-2:] == [71, 72]
    pair.to_client.clear()
    pair.to_broker.clear()
    return pair


def read(response: bytes, api_key: int) -> Any:
    return decode(load_response_schema(api_key, 0), response, 9)


def answered(pair: Pair, api_key: int, n: int) -> Any:
    """The last response, which is the `n`th."""
    last = pair.received()[-1]
    assert last[4:8] == n.to_bytes(4, "big")
    return read(last, api_key)


@pytest.mark.parametrize("cuts", CUTS)
def test_the_proxy_answers_in_the_order_of_the_requests(cuts: list[int]) -> None:
    world = World(observability=ON)
    pair = connected(world, cuts=tuple(cuts))
    pair.client_sends(heartbeat(2), subscribe(3), heartbeat(4), push(5, otlp(buffer_available_bytes=7)), heartbeat(6))
    assert pair.to_broker == heartbeat(2) + heartbeat(4) + heartbeat(6), "the broker sees neither request"
    assert not pair.to_client, "the broker has not answered the first one"
    pair.broker_sends(heartbeat_answer(2))
    subscription = answered(pair, GET_TELEMETRY_SUBSCRIPTIONS, 3)
    assert subscription.requested_metrics == ASKED
    assert subscription.client_instance_id not in {None, uuid.UUID(int=0)}
    assert subscription.accepted_compression_types == ()
    pair.broker_sends(heartbeat_answer(4), heartbeat_answer(6))
    received = pair.received()
    assert [int.from_bytes(each[4:8], "big") for each in received] == [2, 3, 4, 5, 6]
    assert read(received[3], PUSH_TELEMETRY).error_code == 0
    reports = world.metrics.client_reports
    assert reports.reported(pair.session.identity.entity) == {"buffer-available-bytes": 7.0}
    counts = {key: cell.value for key, cell in world.metrics.requests.items()}
    assert counts["GetTelemetrySubscriptions", "0"] == counts["PushTelemetry", "0"] == 1


def test_a_client_keeps_its_id() -> None:
    pair = connected(World(observability=ON))
    pair.client_sends(subscribe(2, INSTANCE))
    assert answered(pair, GET_TELEMETRY_SUBSCRIPTIONS, 2).client_instance_id == INSTANCE


@pytest.mark.parametrize("keys", [TELEMETRY, TELEMETRY[:1], TELEMETRY[1:]])
@pytest.mark.parametrize("is_on", [True, False])
def test_a_broker_that_takes_metrics_gets_them(keys: tuple[int, ...], is_on: bool) -> None:
    pair = Pair(world := World(observability=ObservabilityOptions(client_telemetry=is_on)))
    offer = negotiated(1, 0, 3, 18, *keys)
    sent = [api_versions(1, 3, *JAVA), subscribe(2), push(3, otlp(buffer_available_bytes=7))]
    pair.client_sends(*sent)
    pair.broker_sends(offer, frame(b"\0\0\0\2" + b"its own"), frame(b"\0\0\0\3" + b"its own"))
    assert pair.to_broker == b"".join(sent)
    assert pair.to_client == offer + frame(b"\0\0\0\2" + b"its own") + frame(b"\0\0\0\3" + b"its own")
    assert world.metrics.client_reports.reported(pair.session.identity.entity) == {}


@pytest.mark.parametrize(
    ("software", "asked"),
    [
        (JAVA, ASKED),
        (("apache-kafka-java", "4.2.5"), ASKED),
        (("librdkafka", "2.4.0"), ASKED),
        (("librdkafka", "2.5.0"), ()),
        (("librdkafka", "2.5.2"), ()),
        (("librdkafka", "v2.5.2-3-g1a2b3c"), ()),
        (("librdkafka", "2.5.3"), ALL),
        (("librdkafka", "2.5.13"), ALL),
        (("librdkafka", "2.8.0"), ALL),
        (("librdkafka", "2.10.0"), ALL),
        (("librdkafka", "v2.10.0-4-g1a2b3c"), ALL),
        (("librdkafka", "2.10.1"), ASKED),
        (("librdkafka", "2.11.0"), ASKED),
        (("librdkafka", "2.60.0"), ASKED),
        (("librdkafka", "12.5.1"), ASKED),
        (("librdkafka", "12.8.0"), ASKED),
        (("confluent-kafka-python", "2.5.0-rdkafka-2.5.0"), ()),
        (("confluent-kafka-go", "2.6.0-librdkafka-2.6.0"), ALL),
        (("", ""), ()),
    ],
)
def test_a_librdkafka_is_asked_for_what_it_can_read(software: tuple[str, str], asked: tuple[str, ...]) -> None:
    """One aborts at names that it does not know, and one keeps the last name alone."""
    assert asked_of(ClientSoftware(*software)) == asked
    pair = connected(World(observability=ON), software=software)
    pair.client_sends(subscribe(2))
    assert answered(pair, GET_TELEMETRY_SUBSCRIPTIONS, 2).requested_metrics == asked


def test_of_one_that_pushes_all_what_was_not_wanted_is_dropped() -> None:
    world = World(observability=ON)
    pair = connected(world, software=("librdkafka", "2.8.0"))
    pair.client_sends(push(2, otlp(record_queue_time_avg=1_500, connection_count=7), names=ALL))
    assert answered(pair, PUSH_TELEMETRY, 2).error_code == 0
    reported = world.metrics.client_reports.reported(pair.session.identity.entity)
    assert reported.keys() == {"record-queue-time-avg"}


FIELDS_TOO_MANY = b"\x0a\x00" * (MAX_FIELDS + 1)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (push(2, b"\x0a\xff"), 0),
        (push(2, FIELDS_TOO_MANY), 0),
        (request(PUSH_TELEMETRY, 0, 2, bytes(10)), 0),
        (request(PUSH_TELEMETRY, 0, 2), 118),  # as one that is too large, of which no byte is kept
        (request(PUSH_TELEMETRY, 0, 2, bytes(16) + subscription_id(ASKED).to_bytes(4, "big") + bytes(4)), 0),
        (push(2, otlp(buffer_total_bytes=1), names=()), 117),
        (push(2, bytes(MAX_BYTES)), 118),
    ],
)
def test_no_push_switches_the_metrics_of_a_client_off(sent: bytes, error: int) -> None:
    """The connection goes on, too."""
    pair = connected(World(observability=ON))
    pair.client_sends(sent, push(3, otlp(buffer_total_bytes=5)), heartbeat(4))
    pair.broker_sends(heartbeat_answer(4))
    refused, taken, _ = pair.received()
    assert read(refused, PUSH_TELEMETRY).error_code == error
    assert read(taken, PUSH_TELEMETRY).error_code == 0
    assert pair.to_broker == heartbeat(4)
    reports = pair.world.metrics.client_reports
    assert reports.reported(pair.session.identity.entity) == {"buffer-total-bytes": 5.0}


def test_requests_count_and_contain_the_throttle_time() -> None:
    pair = connected(World([without_burst("client-id=etl,request_rate=1")], observability=ON))
    pair.client_sends(subscribe(2), push(3, b""), subscribe(4))
    for n, (response, key) in enumerate(zip(pair.received(), (71, 72, 71), strict=True)):
        assert read(response, key).throttle_time.total_seconds() > 0, n


def test_a_push_waits_with_what_is_held_before_it() -> None:
    quotas = [without_burst("client-id=etl,producer_byte_rate=1000")]
    world = World(quotas, observability=ON, enforcement=EnforcementOptions(throttle_mode="pause"))
    pair = connected(world)
    pair.client_sends(produce(2), produce(3), push(4, otlp(buffer_total_bytes=5)))
    assert pair.is_held
    entity = pair.session.identity.entity
    assert world.metrics.client_reports.reported(entity) == {}, "silence is not health"
    pass_holds(world)
    pair.broker_sends(produced(2), produced(3))
    assert answered(pair, PUSH_TELEMETRY, 4).error_code == 0
    assert world.metrics.client_reports.reported(entity) == {"buffer-total-bytes": 5.0}


def test_reports_are_gone_with_the_last_connection() -> None:
    world = World(observability=ON)
    first, second = connected(world), connected(world)
    first.client_sends(push(2, otlp(buffer_total_bytes=5)))
    second.client_sends(heartbeat(2))
    entity = first.session.identity.entity
    first.hang_up()
    assert world.metrics.client_reports.reported(entity), "its process may push on any connection"
    second.hang_up()
    assert world.metrics.client_reports.reported(entity) == {}


def test_a_producer_whose_records_will_expire_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """Two default producers share 500 kB/s: each sends 250 kB/s of its 32 MiB."""
    world = World([without_burst("client-id=etl,producer_byte_rate=500000")], observability=ON)
    pair = connected(world)
    pair.client_sends(produce(2, 10_000_000))
    for n in range(4):
        full = otlp(
            buffer_total_bytes=MB32,
            buffer_available_bytes=0,
            record_queue_time_max=1_000 * (5 + 10 * n),
            outgoing_byte_total=2_500_000 * n,
        )
        pair.client_sends(push(3 + n, full))
        warnings = [fields for event, fields in lines_of(caplog.records) if event == "records_expire_soon"]
        assert len(warnings) == min(n, 1), "its rate is known from the second push on"
        world.clock.now_ns += 10_000_000_000
    (warning,) = warnings
    assert (warning["client_id"], warning["buffered_bytes"], warning["buffer_bytes"]) == ("etl", MB32, MB32)
    assert (warning["wait_seconds"], warning["expires_in_seconds"]) == (134, 105)
    assert warning["limit"] == "client-id:etl producer_byte_rate=500000"
