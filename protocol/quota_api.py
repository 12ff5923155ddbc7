"""DescribeClientQuotas and AlterClientQuotas (KIP-546), versions 0 and 1, as the proxy answers them.

Requests are given without their header. Names of None are the default entity. Raises ProtocolError for what is no such
request, and for one with too many items.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema
from kio.schema.alter_client_quotas.v0 import response as altered_0
from kio.schema.alter_client_quotas.v1 import response as altered_1
from kio.schema.describe_client_quotas.v0 import response as described_0
from kio.schema.describe_client_quotas.v1 import response as described_1
from kio.schema.errors import ErrorCode
from kio.static.primitive import f64, i32Timedelta

from protocol.apis import ALTER_CLIENT_QUOTAS, APIS, DESCRIBE_CLIENT_QUOTAS
from protocol.messages import decode, encode
from protocol.wire import INT32

MAX_ITEMS: Final = 20_000
"""Entities, names and changes of a request: 0.1 s."""
MAX_MESSAGE: Final = 1_000
_DESCRIBED: Final[tuple[Any, ...]] = (described_0, described_1)
_ALTERED: Final[tuple[Any, ...]] = (altered_0, altered_1)

Names = tuple[tuple[str, str | None], ...]
"""Types of entities (user, client-id, ip) with their names, in the order of the request."""


Quotas = Sequence[tuple[Mapping[str, str | None], Mapping[str, float]]]
"""Names of entities by type, and values by key."""
Component = tuple[str, int, str | None]
"""A condition of a filter: a type, how it matches (0 this name, 1 the default, 2 any), and the name."""
Operation = tuple[str, float, bool]
"""A change of one quota: its key, the value, and whether it is removed."""


class Filter(NamedTuple):
    """Which entities a client asks for. `strict`: only those without further types."""

    components: tuple[Component, ...]
    strict: bool


class Alterations(NamedTuple):
    """The changes of a request, for each entity."""

    entries: tuple[tuple[Names, tuple[Operation, ...]], ...]
    validate_only: bool


class Result(NamedTuple):
    """What became of the changes of one entity."""

    entity: Names
    error: ErrorCode
    message: str | None


def describe_request(body: bytes, version: int) -> Filter:
    request: Any = decode(load_request_schema(DESCRIBE_CLIENT_QUOTAS, version), body, 0, MAX_ITEMS)
    components = [(each.entity_type, each.match_type, each.match) for each in request.components]
    return Filter(tuple(components), request.strict)


def alter_request(body: bytes, version: int) -> Alterations:
    request: Any = decode(load_request_schema(ALTER_CLIENT_QUOTAS, version), body, 0, MAX_ITEMS)
    entries = []
    for each in request.entries:
        names = tuple([(one.entity_type, one.entity_name) for one in each.entity])
        entries.append((names, tuple([(one.key, float(one.value), one.remove) for one in each.ops])))
    return Alterations(tuple(entries), request.validate_only)


def describe_response(correlation_id: int, version: int, quotas: Quotas, throttle_time_ms: int) -> bytes:
    """From the correlation id on. 10 us for each entity."""
    made = _DESCRIBED[version]
    entries = [
        made.EntryData(
            entity=tuple([made.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]),
            values=tuple([made.ValueData(key=key, value=f64(value)) for key, value in values.items()]),
        )
        for entity, values in quotas
    ]
    return _described(correlation_id, version, ErrorCode.none, None, tuple(entries), throttle_time_ms)


def describe_error(correlation_id: int, version: int, error: ErrorCode, message: str, throttle_time_ms: int) -> bytes:
    """From the correlation id on."""
    return _described(correlation_id, version, error, message[:MAX_MESSAGE], None, throttle_time_ms)


def _described(
    correlation_id: int, version: int, error: ErrorCode, message: str | None, entries: Any, throttle_time_ms: int
) -> bytes:
    response = _DESCRIBED[version].DescribeClientQuotasResponse(
        throttle_time=_duration(throttle_time_ms), error_code=error, error_message=message, entries=entries
    )
    return _header(correlation_id, DESCRIBE_CLIENT_QUOTAS, version) + encode(response)


def alter_response(correlation_id: int, version: int, results: Sequence[Result], throttle_time_ms: int) -> bytes:
    """From the correlation id on."""
    made = _ALTERED[version]
    entries = [
        made.EntryData(
            error_code=result.error,
            error_message=result.message and result.message[:MAX_MESSAGE],
            entity=tuple([made.EntityData(entity_type=kind, entity_name=name) for kind, name in result.entity]),
        )
        for result in results
    ]
    response = made.AlterClientQuotasResponse(throttle_time=_duration(throttle_time_ms), entries=tuple(entries))
    return _header(correlation_id, ALTER_CLIENT_QUOTAS, version) + encode(response)


def _header(correlation_id: int, api_key: int, version: int) -> bytes:
    return INT32.pack(correlation_id) + b"\x00" * APIS[api_key].response_header_is_flexible(version)


def _duration(milliseconds: int) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(milliseconds=milliseconds))
