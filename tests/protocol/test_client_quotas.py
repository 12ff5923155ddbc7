"""DescribeClientQuotas, written and checked by kio."""

import datetime
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.api_versions.v0.response import ApiVersion, ApiVersionsResponse
from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
from kio.schema.describe_client_quotas.v1.response import (
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v1.response import MetadataResponse, MetadataResponseBroker
from kio.static.primitive import f64, i16, i32, i32Timedelta

from protocol.client_quotas import (
    MAX_QUOTAS,
    QUOTAS_REQUEST,
    VERSIONS_REQUEST,
    ClientQuota,
    brokers_in,
    has_quotas,
    quotas_in,
)
from protocol.errors import MalformedFrame, TooManyItems
from protocol.messages import decode, encode

HEADER = b"\x00\x00\x00\x01"
FLEXIBLE = HEADER + b"\x00"


def response(*quotas: ClientQuota, error: ErrorCode = ErrorCode.none) -> bytes:
    entries = tuple(
        EntryData(
            entity=tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in quota.entity.items()),
            values=tuple(ValueData(key=key, value=f64(float(value))) for key, value in quota.values.items()),
        )
        for quota in quotas
    )
    no_time = i32Timedelta.parse(datetime.timedelta(0))
    body = DescribeClientQuotasResponse(
        throttle_time=no_time,
        error_code=error,
        error_message=None if error is ErrorCode.none else "no",
        entries=entries,
    )
    return FLEXIBLE + encode(body)


def test_the_request_asks_for_all_quotas() -> None:
    assert int.from_bytes(QUOTAS_REQUEST[:4], "big") == len(QUOTAS_REQUEST) - 4
    assert QUOTAS_REQUEST[4:8] == struct.pack(">hh", 48, 1)
    body = decode(DescribeClientQuotasRequest, QUOTAS_REQUEST, len(QUOTAS_REQUEST) - 3)
    assert body == DescribeClientQuotasRequest(components=(), strict=False)
    assert VERSIONS_REQUEST[4:8] == struct.pack(">hh", 18, 0)


NAMES = st.text(max_size=9)
QUOTAS = st.builds(
    ClientQuota,
    st.dictionaries(st.sampled_from(["user", "client-id", "ip", "group"]), st.none() | NAMES, max_size=3),
    st.dictionaries(NAMES, st.floats(allow_nan=False, allow_infinity=False), max_size=3),
)


@given(quotas=st.lists(QUOTAS, max_size=5))
def test_all_entities_with_their_values(quotas: list[ClientQuota]) -> None:
    assert quotas_in(response(*quotas)) == (ErrorCode.none, tuple(quotas))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_number_arrive_too(value: float) -> None:
    whole = response(ClientQuota({"user": "a"}, {"producer_byte_rate": 1.5}))
    changed = whole.replace(struct.pack(">d", 1.5), struct.pack(">d", value))
    assert str(quotas_in(changed)[1][0].values["producer_byte_rate"]) == str(value)


def test_a_refusal_has_no_entries() -> None:
    refused = response(error=ErrorCode.cluster_authorization_failed)
    assert quotas_in(refused) == (ErrorCode.cluster_authorization_failed, ())
    assert quotas_in(refused[:-2] + b"\x00\x00") == (ErrorCode.cluster_authorization_failed, ()), "null"


def test_cut_anywhere_or_longer_it_is_refused() -> None:
    whole = response(ClientQuota({"user": None, "client-id": "etl"}, {"producer_byte_rate": 5e6}))
    for bad in (*(whole[:end] for end in range(4, len(whole))), whole + b"\x00"):
        with pytest.raises(MalformedFrame):
            quotas_in(bad)


def test_the_work_for_a_response_is_bounded() -> None:
    """Entries of three bytes each, and a count of two billion."""
    start, entry = response()[:-2], b"\x01\x01\x00"
    many = b"".join([start, _varint(MAX_QUOTAS + 2), entry * (MAX_QUOTAS + 1), b"\x00"])
    with pytest.raises(TooManyItems):
        quotas_in(many)
    with pytest.raises((MalformedFrame, TooManyItems)):
        quotas_in(b"".join([start, _varint(2_000_000_000), entry, b"\x00"]))


def _varint(number: int) -> bytes:
    digits = []
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


@pytest.mark.parametrize(
    ("offered", "has"), [((0, 1), True), ((1, 9), True), ((0, 0), False), ((2, 3), False), (None, False)]
)
def test_whether_a_broker_offers_it(offered: tuple[int, int] | None, has: bool) -> None:
    keys = [ApiVersion(api_key=i16(18), min_version=i16(0), max_version=i16(4))]
    if offered is not None:
        keys.append(ApiVersion(api_key=i16(48), min_version=i16(offered[0]), max_version=i16(offered[1])))
    body = ApiVersionsResponse(error_code=ErrorCode.none, api_keys=tuple(keys))
    assert has_quotas(HEADER + encode(body)) == has


def test_brokers_are_counted() -> None:
    brokers = tuple(
        MetadataResponseBroker(node_id=i32(node), host="b", port=i32(9092), rack=None)  # type: ignore[arg-type]
        for node in range(3)
    )
    body = MetadataResponse(brokers=brokers, controller_id=i32(1), topics=())  # type: ignore[arg-type]
    assert brokers_in(HEADER + encode(body)) == brokers
