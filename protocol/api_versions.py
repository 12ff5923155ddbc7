"""ApiVersions: the versions that broker and client may use through the proxy, and the client's software.

A response; its header has no tags in any version (KIP-511):

    correlation id int32, error code int16,
    API keys array: API key int16, min version int16, max version int16, tag buffer (3+)
    throttle time int32 (1+), tag buffer (3+): features, in tags 0 to 3

A request (3+) contains the client's software and, since KIP-1242 (5+), which broker the client means to reach:

    name compact string, version compact string,
    cluster id nullable compact string (5+), node id int32 (5+; -1: any broker), tag buffer

A broker with another cluster id or node id answers with error REBOOTSTRAP_REQUIRED, and with INVALID_REQUEST to
only one of the two.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from kio.index import load_response_schema
from kio.schema.api_versions.v0.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16

from protocol.apis import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    APIS,
    DESCRIBE_CLIENT_QUOTAS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TELEMETRY,
)
from protocol.errors import MalformedFrame, ProtocolError
from protocol.messages import decode, encode
from protocol.throttle_time import raise_int32
from protocol.wire import (
    INT16,
    INT32,
    compact_string_end,
    read_text,
    skip,
    string_bounds,
    unpack_int16,
    unpack_int32,
    varint_size,
)

FIRST_WITH_THROTTLE = 1
FIRST_FLEXIBLE = 3
FIRST_WITH_NODE_ID = 5
ANY_NODE = -1
_NULL = b"\x00"

_LAST_OF_KIO = 4
"""kio 0.6.5 ends here. The response of version 5 is the same."""
MAX_RESPONSE = 16_384
"""Bytes of a response from its correlation id on. Kafka 4.4's has about 600."""
MAX_ITEMS = 1_000
"""API keys, features and tags of a response. Kafka 4.4 has 95 keys."""

_SASL = (SASL_HANDSHAKE, SASL_AUTHENTICATE)
_QUOTA_APIS = (DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS)
_UNSUPPORTED_VERSION: int = ErrorCode.unsupported_version.value
_BODY = 4  # after the correlation id
_RANGE_SIZE = 6


class ClientSoftware(NamedTuple):
    """As the client names it (KIP-511): `apache-kafka-java` 4.1.0. Both are "" if it does not."""

    name: str = ""
    version: str = ""


def client_software(request: bytes, version: int) -> ClientSoftware:
    """The client's software. Without a name, or where the bytes are malformed, both are "": the broker decides.

    Args:
        request: the body of an ApiVersions request.
        version: of the request; below 3 it does not name the software.
    """
    if version < FIRST_FLEXIBLE:
        return ClientSoftware()
    try:
        at, after = string_bounds(request, 0, len(request), 0, "the name")
        start, end = string_bounds(request, after, len(request), 0, "the version")
    except ProtocolError:
        return ClientSoftware()
    return ClientSoftware(read_text(request[at:after]), read_text(request[start:end]))


def node_id_of(request: bytes) -> int:
    """The node that the client means, by the body of a request of version 5. `ANY_NODE` if the bytes are malformed."""
    at, end = _cluster_and_node_at(request)[1], len(request)
    return unpack_int32(request, at)[0] if at + INT32.size < end else ANY_NODE


def for_any_node(request: bytes) -> bytes:
    """The body of a request of version 5 that names a node, without that and the cluster's id."""
    cluster_at, node_at = _cluster_and_node_at(request)
    return request[:cluster_at] + _NULL + INT32.pack(ANY_NODE) + request[node_at + INT32.size :]


def _cluster_and_node_at(request: bytes) -> tuple[int, int]:
    end = len(request)
    cluster_at = compact_string_end(request, compact_string_end(request, 0, end), end)
    return cluster_at, compact_string_end(request, cluster_at, end)


def negotiate(
    response: bytes, version: int, *, pass_unknown_apis: bool, hides_sasl: bool = False, throttle_time_ms: int = 0
) -> bytes:
    """A broker's ApiVersions response, limited to the newest versions of the table.

    Each range keeps the broker's minimum: librdkafka before 2.11.1 tests for versions that it does not send. It logs in
    only where SaslHandshake 0 is offered, and brokers offer Produce 0 for its sake and refuse it (KAFKA-18659). Ranges
    without a version of the table, keys outside of it and undefined tags are removed. Features and all else stay.

    A broker answers an unknown version with error 35 and the body of version 0 (KIP-511), limited in the same way.

    Args:
        response: the whole response from its correlation id on.
        version: of the request that this answers, one of the table.
        pass_unknown_apis: keep the keys outside of the table, unchanged.
        hides_sasl: remove SaslHandshake and SaslAuthenticate.
        throttle_time_ms: the proxy's; where the response has the field, it contains the larger of this and its own.

    Raises:
        MalformedFrame: the bytes are not such a response, or above `MAX_RESPONSE`.
        TooManyItems: it has more than `MAX_ITEMS`.
    """
    if len(response) > MAX_RESPONSE:
        raise MalformedFrame(f"an ApiVersions response of at most {MAX_RESPONSE} bytes", MAX_RESPONSE)
    skip(_BODY, INT16.size, len(response), 0, "error code")
    if unpack_int16(response, _BODY)[0] == _UNSUPPORTED_VERSION:
        version = 0
    body, throttle_at = _cut(response[_BODY:], version, pass_unknown_apis, hides_sasl)
    cut = bytearray(response[:_BODY] + body)
    if version >= FIRST_WITH_THROTTLE:
        raise_int32(cut, _BODY + throttle_at, throttle_time_ms)
    return bytes(cut)


# Every connection begins with this response, and a broker's is constant: without the cache, many new connections would
# spend much of their time here (`python -m bench --only connections`).
@lru_cache(maxsize=64)
def _cut(body: bytes, version: int, pass_unknown_apis: bool, hides_sasl: bool) -> tuple[bytes, int]:
    """The body with the ranges that stay, and the offset of its throttle time."""
    schema: Any = load_response_schema(API_VERSIONS, min(version, _LAST_OF_KIO))
    message: Any = decode(schema, body, 0, MAX_ITEMS)
    kept = []
    for each in message.api_keys:
        api = APIS.get(each.api_key)
        if api is not None:
            highest = min(each.max_version, api.max_version)
            if max(each.min_version, api.min_version) <= highest and not (hides_sasl and api.key in _SASL):
                kept.append(replace(each, max_version=i16(highest)))
        elif pass_unknown_apis:
            kept.append(each)
    flexible = version >= FIRST_FLEXIBLE
    count_size = varint_size(len(kept) + 1) if flexible else INT32.size
    throttle_at = INT16.size + count_size + (_RANGE_SIZE + flexible) * len(kept)
    return encode(replace(message, api_keys=tuple(kept))), throttle_at


def with_telemetry(response: bytes, version: int) -> bytes:
    """What `negotiate` returned for this version; GetTelemetrySubscriptions and PushTelemetry are added where brokers
    offer neither (KIP-714).
    """
    return response[:_BODY] + _with_own(response[_BODY:], version, TELEMETRY, overrides=False)


def with_quota_apis(response: bytes, version: int, *, offers: bool) -> bytes:
    """What `negotiate` returned for this version, with DescribeClientQuotas and AlterClientQuotas as the proxy answers
    them, whatever brokers offer; without both if not `offers`.
    """
    return response[:_BODY] + _with_own(response[_BODY:], version, _QUOTA_APIS, offers=offers)


@lru_cache(maxsize=64)
def _with_own(
    body: bytes, version: int, keys: tuple[int, ...], *, overrides: bool = True, offers: bool = True
) -> bytes:
    """The body with these APIs as the proxy answers them. `overrides`: even if brokers offer one of them. `offers`: if
    not, they are only removed.
    """
    if unpack_int16(body, 0)[0]:  # an error: the client asks again
        return body
    schema: Any = load_response_schema(API_VERSIONS, min(version, _LAST_OF_KIO))
    message: Any = decode(schema, body, 0)
    kept = [each for each in message.api_keys if each.api_key not in keys]
    if not message.api_keys or (len(kept) < len(message.api_keys) and not overrides):
        return body
    added = [
        replace(
            message.api_keys[0],
            api_key=i16(key),
            min_version=i16(APIS[key].min_version),
            max_version=i16(APIS[key].max_version),
        )
        for key in keys
        if offers
    ]
    return encode(replace(message, api_keys=(*kept, *added)))


def _unsupported_version_body() -> bytes:
    api = APIS[API_VERSIONS]
    only = ApiVersion(api_key=i16(api.key), min_version=i16(api.min_version), max_version=i16(api.max_version))
    return encode(ApiVersionsResponse(error_code=ErrorCode.unsupported_version, api_keys=(only,)))


_UNSUPPORTED_VERSION_BODY = _unsupported_version_body()


def unsupported_version_answer(correlation_id: int) -> bytes:
    """The proxy's response to a version outside of the table, as a broker's (KIP-511), without length prefix.

    It has the layout of version 0 and error 35, and contains only the versions of ApiVersions. The client then sends
    another request in one of these.
    """
    return INT32.pack(correlation_id) + _UNSUPPORTED_VERSION_BODY
