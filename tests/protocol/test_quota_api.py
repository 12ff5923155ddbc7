"""The quota API as the proxy answers it: kio's own codec writes the requests and reads the responses."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.primitive import f64, i8

from protocol.apis import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from protocol.client_quotas import ClientQuota
from protocol.errors import ProtocolError, TooManyItems
from protocol.messages import decode, encode
from protocol.quota_api import (
    MAX_ITEMS,
    MAX_MESSAGE,
    Alterations,
    Filter,
    Result,
    alter_request,
    alter_response,
    describe_error,
    describe_request,
    describe_response,
)
from tests.protocol.kafka_messages import of_request

VERSIONS = st.sampled_from([0, 1])
VALUES = st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.none() | st.text(max_size=9)
ENTITY = st.lists(st.tuples(st.text(max_size=9), NAMES), max_size=3).map(tuple)


def describe_body(version: int, wanted: Filter) -> bytes:
    made = [
        of_request(DESCRIBE_CLIENT_QUOTAS, version, "ComponentData", entity_type=kind, match_type=i8(how), match=match)
        for kind, how, match in wanted.components
    ]
    name = "DescribeClientQuotasRequest"
    return encode(of_request(DESCRIBE_CLIENT_QUOTAS, version, name, components=tuple(made), strict=wanted.strict))


def alter_body(version: int, request: Alterations) -> bytes:
    def of_alter(name: str, **fields: object) -> Any:
        return of_request(ALTER_CLIENT_QUOTAS, version, name, **fields)

    entries = []
    for entity, operations in request.entries:
        names = tuple(of_alter("EntityData", entity_type=kind, entity_name=name) for kind, name in entity)
        ops = tuple(of_alter("OpData", key=key, value=f64(value), remove=remove) for key, value, remove in operations)
        entries.append(of_alter("EntryData", entity=names, ops=ops))
    body = of_alter("AlterClientQuotasRequest", entries=tuple(entries), validate_only=request.validate_only)
    return encode(body)


COMPONENTS = st.tuples(st.text(max_size=9), st.integers(-128, 127), NAMES)
FILTERS = st.builds(Filter, st.lists(COMPONENTS, max_size=3).map(tuple), st.booleans())
OPERATIONS = st.tuples(st.text(max_size=9), VALUES, st.booleans())
ALTERATIONS = st.tuples(ENTITY, st.lists(OPERATIONS, max_size=3).map(tuple))
REQUESTS = st.builds(Alterations, st.lists(ALTERATIONS, max_size=3).map(tuple), st.booleans())


@given(VERSIONS, FILTERS, REQUESTS)
def test_what_clients_write_is_read(version: int, wanted: Filter, request: Alterations) -> None:
    assert describe_request(describe_body(version, wanted), version) == wanted
    assert alter_request(alter_body(version, request), version) == request


@given(VERSIONS, st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(version: int, body: bytes) -> None:
    for read in (describe_request, alter_request):
        with suppress(ProtocolError):
            read(body, version)


def test_a_request_with_too_many_items_is_refused() -> None:
    operations = (("k", 1.0, False),) * (MAX_ITEMS + 1)
    with pytest.raises(TooManyItems):
        alter_request(alter_body(1, Alterations((((), operations),), False)), 1)


def read_back(key: int, version: int, response: bytes) -> Any:
    assert response[:4] == b"\x00\x00\x00\x07"
    return decode(load_response_schema(key, version), response, 5 if version else 4)


@given(
    VERSIONS,
    st.dictionaries(st.text(max_size=9), NAMES, max_size=3),
    st.dictionaries(st.text(max_size=9), VALUES, max_size=3),
)
def test_what_is_described_is_read_by_clients(
    version: int, entity: dict[str, str | None], values: dict[str, float]
) -> None:
    quotas = [ClientQuota(entity, values)] * 2
    found = read_back(DESCRIBE_CLIENT_QUOTAS, version, describe_response(7, version, quotas, 250))
    assert (found.error_code, found.error_message, found.throttle_time.total_seconds()) == (ErrorCode.none, None, 0.25)
    for entry in found.entries:
        assert {each.entity_type: each.entity_name for each in entry.entity} == entity
        assert {each.key: each.value for each in entry.values} == values


@pytest.mark.parametrize("version", [0, 1])
def test_errors_are_read_by_clients(version: int) -> None:
    denied, long = ErrorCode.cluster_authorization_failed, "x" * (MAX_MESSAGE + 1)
    found = read_back(DESCRIBE_CLIENT_QUOTAS, version, describe_error(7, version, denied, long, 0))
    assert (found.error_code, found.error_message, found.entries) == (denied, long[:-1], None)
    results = [Result((("user", None), ("client-id", "c")), denied, long), Result((), ErrorCode.none, None)]
    found = read_back(ALTER_CLIENT_QUOTAS, version, alter_response(7, version, results, 0))
    one, other = found.entries
    assert (one.error_code, one.error_message) == (denied, long[:-1])
    assert [(each.entity_type, each.entity_name) for each in one.entity] == [("user", None), ("client-id", "c")]
    assert (other.error_code, other.error_message, other.entity) == (ErrorCode.none, None, ())
