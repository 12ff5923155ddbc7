"""DescribeClientQuotas, written and checked by kio."""

import struct
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
from kio.schema.errors import ErrorCode
from kio.static.primitive import f64

from protocol.apis import METADATA
from protocol.client_quotas import (
    MAX_QUOTAS,
    QUOTAS_REQUEST,
    VERSIONS_REQUEST,
    ClientQuota,
    brokers_in,
    offers,
    quotas_in,
)
from protocol.errors import MalformedFrame, TooManyItems
from protocol.messages import decode, encode
from protocol.wire import encode_varint
from tests.protocol.kafka_messages import of_response
from tests.protocol.test_api_versions import offer

DESCRIBE_CLIENT_QUOTAS = 48
HEADER = b"\x00\x00\x00\x01"
FLEXIBLE = HEADER + b"\x00"


of_quotas = partial(of_response, DESCRIBE_CLIENT_QUOTAS, 1)


def response(*quotas: ClientQuota, error: ErrorCode = ErrorCode.none) -> bytes:
    entries = []
    for quota in quotas:
        entity = tuple(
            of_quotas("EntityData", entity_type=kind, entity_name=name) for kind, name in quota.entity.items()
        )
        values = tuple(of_quotas("ValueData", key=key, value=f64(float(value))) for key, value in quota.values.items())
        entries.append(of_quotas("EntryData", entity=entity, values=values))
    message = None if error is ErrorCode.none else "no"
    fields = {"error_code": error, "error_message": message, "entries": tuple(entries)}
    return FLEXIBLE + encode(of_quotas("DescribeClientQuotasResponse", **fields))


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


def test_a_refusal_has_no_entries() -> None:
    refused = response(error=ErrorCode.cluster_authorization_failed)
    assert quotas_in(refused) == (ErrorCode.cluster_authorization_failed, ())
    assert quotas_in(refused[:-2] + b"\x00\x00") == (ErrorCode.cluster_authorization_failed, ()), "null"


def test_the_work_for_a_response_is_bounded() -> None:
    """Entries of three bytes each, and a count of two billion."""
    start, entry = response()[:-2], b"\x01\x01\x00"
    many = b"".join([start, encode_varint(MAX_QUOTAS + 2), entry * (MAX_QUOTAS + 1), b"\x00"])
    with pytest.raises(TooManyItems):
        quotas_in(many)
    with pytest.raises((MalformedFrame, TooManyItems)):
        quotas_in(b"".join([start, encode_varint(2_000_000_000), entry, b"\x00"]))


@pytest.mark.parametrize(
    ("offered", "has"), [((0, 1), True), ((1, 9), True), ((0, 0), False), ((2, 3), False), (None, False)]
)
def test_whether_a_broker_offers_it(offered: tuple[int, int] | None, has: bool) -> None:
    ranges = [(18, 0, 4)] + ([] if offered is None else [(48, *offered)])
    assert offers(offer(0, *ranges), DescribeClientQuotasRequest) == has


def test_brokers_are_counted() -> None:
    brokers = tuple(of_response(METADATA, 1, "MetadataResponseBroker", node_id=node, host="b") for node in range(3))
    body = of_response(METADATA, 1, "MetadataResponse", brokers=brokers, controller_id=1)
    assert brokers_in(HEADER + encode(body)) == brokers
