"""The requests of KIP-714 by kio's schemas, and OTLP by the library of OpenTelemetry."""

import math
import struct
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)

from protocol import telemetry
from protocol.apis import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from protocol.errors import MalformedFrame
from protocol.messages import decode, encode
from protocol.telemetry import MAX_BYTES, MAX_FIELDS, MetricsReader
from tests.protocol.kafka_messages import BYTES, of_request, requests, with_changes

pytestmark = pytest.mark.claim(
    "telemetry", "any bytes are read or refused, in bounded work; values are those of the OpenTelemetry library"
)

WANTED = {b"org.apache.kafka.one": "one", b"org.apache.kafka.two": "two"}
NAMES = ("org.apache.kafka.producer.", "org.apache.kafka.consumer.poll.idle.ratio.avg")


def data_points(payload: bytes) -> list[tuple[str, float]]:
    return MetricsReader(payload).data_points(WANTED)


# ---- OTLP

TEXT = st.text(st.characters(codec="utf-8"), max_size=10)
UINT64 = st.integers(0, 2**64 - 1)


@st.composite
def points(draw: st.DrawFn) -> NumberDataPoint:
    point = NumberDataPoint(
        start_time_unix_nano=draw(UINT64), time_unix_nano=draw(UINT64), flags=draw(st.integers(0, 2**31 - 1))
    )
    for key in draw(st.lists(TEXT, max_size=2)):
        point.attributes.add(key=key).value.string_value = draw(TEXT)
    if draw(st.booleans()):
        point.as_double = draw(st.floats())
    elif draw(st.booleans()):
        point.as_int = draw(st.integers(-(2**63), 2**63 - 1))
    return point


@st.composite
def metrics(draw: st.DrawFn) -> Metric:
    metric = Metric(name=draw(st.sampled_from([*map(bytes.decode, WANTED), "", "org.apache.kafka.three"])), unit="ms")
    metric.description = draw(TEXT)
    found = draw(st.lists(points(), max_size=3))
    kind = draw(st.sampled_from(["gauge", "sum", "histogram", "none"]))
    if kind == "gauge":
        metric.gauge.CopyFrom(Gauge(data_points=found))
    elif kind == "sum":
        temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        metric.sum.CopyFrom(Sum(data_points=found, aggregation_temporality=temporality, is_monotonic=True))
    elif kind == "histogram":
        metric.histogram.data_points.add(count=3, bucket_counts=[1, 2])
    return metric


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    data = MetricsData()
    for scopes in draw(st.lists(st.lists(st.lists(metrics(), max_size=3), max_size=2), max_size=3)):
        resource = ResourceMetrics(scope_metrics=[ScopeMetrics(metrics=each, schema_url="u") for each in scopes])
        resource.resource.attributes.add(key="client_rack").value.string_value = "a"
        data.resource_metrics.append(resource)
    return bytes(data.SerializeToString())


def of_the_library(payload: bytes) -> list[tuple[str, float]]:
    found = []
    for resource in MetricsData.FromString(payload).resource_metrics:
        for metric in (each for scope in resource.scope_metrics for each in scope.metrics):
            name = WANTED.get(metric.name.encode())
            for point in [*metric.gauge.data_points, *metric.sum.data_points]:
                which = point.WhichOneof("value")
                if name is not None and which is not None:
                    found.append((name, float(getattr(point, which))))
    return found


def as_bits(found: list[tuple[str, float]]) -> list[tuple[str, bytes]]:
    return [(name, b"NaN" if math.isnan(value) else struct.pack("<d", value)) for name, value in found]


@given(payloads())
def test_the_values_are_those_that_the_library_reads(payload: bytes) -> None:
    assert as_bits(data_points(payload)) == as_bits(of_the_library(payload))


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    return with_changes(draw, draw(payloads()) or b"\x0a\x00")


@given(BYTES | changed())
@example(b"\x0b")  # a group
@example(b"\x0a\xff\xff\xff\xff\x0f")
@example(b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    with suppress(MalformedFrame):
        assert all(isinstance(value, float) for _, value in data_points(payload))
    with suppress(MalformedFrame):
        assert len(telemetry.push_request(payload)[2]) < len(payload)


@given(payloads(), st.integers(0, 500))
def test_a_payload_that_is_cut_gives_no_more_than_the_whole(payload: bytes, size: int) -> None:
    with suppress(MalformedFrame):
        found = data_points(payload[:size])
        assert as_bits(found) == as_bits(data_points(payload))[: len(found)]


@pytest.mark.parametrize("nested", [b"", b"\x12\x00", b"\x12\x02\x12\x00", b"\x12\x04\x12\x02\x2a\x00"])
def test_the_number_of_fields_is_bounded(nested: bytes) -> None:
    """Whatever the smallest messages contain, the work is that for `MAX_FIELDS` fields."""
    smallest = b"\x0a" + bytes([len(nested)]) + nested
    with pytest.raises(MalformedFrame, match=f"at most {MAX_FIELDS} fields"):
        data_points(smallest * (MAX_BYTES // len(smallest)))
    assert data_points(smallest * (MAX_FIELDS // len(smallest))) == []


# ---- requests and responses


@given(requests(PUSH_TELEMETRY, 0, metrics=st.binary(max_size=300)))
def test_a_push(push: Any) -> None:
    instance = bytes(16) if push.client_instance_id is None else push.client_instance_id.bytes
    assert telemetry.push_request(encode(push)) == (instance, push.subscription_id, push.metrics)


def test_a_push_without_metrics_as_librdkafka_sends_it() -> None:
    assert telemetry.push_request(bytes(16) + b"\x00\x00\x00\x07\x00\x00" + b"\x00\x00") == (bytes(16), 7, b"")


@given(st.integers(0, 2**31 - 1))
def test_the_response_to_a_push(throttle_time_ms: int) -> None:
    for error, name in (
        (telemetry.NONE, ErrorCode.none),
        (telemetry.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.unknown_subscription_id),
        (telemetry.TELEMETRY_TOO_LARGE, ErrorCode.telemetry_too_large),
    ):
        response: Any = decode(
            load_response_schema(PUSH_TELEMETRY, 0), telemetry.push_response(error, throttle_time_ms), 1
        )
        assert (response.error_code, response.throttle_time.total_seconds()) == (name, throttle_time_ms / 1000)


@pytest.mark.parametrize("names", [NAMES, ()])
@pytest.mark.parametrize("instance", [UUID(int=7), None])
def test_the_response_with_a_subscription(names: tuple[str, ...], instance: UUID | None) -> None:
    request = of_request(
        GET_TELEMETRY_SUBSCRIPTIONS, 0, "GetTelemetrySubscriptionsRequest", client_instance_id=instance
    )
    answer = telemetry.subscription_response(encode(request), names, 10_000, 250)
    response: Any = decode(load_response_schema(GET_TELEMETRY_SUBSCRIPTIONS, 0), answer, 1)
    assert response.error_code is ErrorCode.none
    assert response.throttle_time.total_seconds() == 0.25
    assert response.client_instance_id is not None
    assert instance in {response.client_instance_id, None}
    assert response.subscription_id == telemetry.subscription_id(names) >= 0
    assert response.accepted_compression_types == ()
    assert response.push_interval.total_seconds() == 10
    assert response.telemetry_max_bytes == MAX_BYTES
    assert response.delta_temporality is False
    assert response.requested_metrics == names


def test_each_client_without_an_id_gets_another_one() -> None:
    answers = {telemetry.subscription_response(body, NAMES, 10_000, 0) for body in (bytes(17), bytes(17), b"")}
    assert len(answers) == 3
    assert telemetry.subscription_id(NAMES) != telemetry.subscription_id(NAMES[:1])
