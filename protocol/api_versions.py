"""ApiVersions: the versions that broker and client may use through the proxy, and the client's software.

A response; its header has no tags in any version (KIP-511):

    correlation id int32, error code int16,
    API keys array: API key int16, min version int16, max version int16, tag buffer (3+)
    throttle time int32 (1+), tag buffer (3+): features, in tags 0 to 3

A request (3+) contains the client's software: name string, version string, tag buffer.
"""

from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from kio.schema.api_versions.v0.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16

from protocol.apis import API_VERSIONS, APIS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from protocol.errors import MalformedFrame, TruncatedFrame, UnsupportedVersion
from protocol.messages import encode
from protocol.wire import encode_varint, skip, unsigned_varint

FIRST_WITH_THROTTLE = 1
FIRST_FLEXIBLE = 3

MAX_RESPONSE = 16_384
"""Bytes of a response from its correlation id on. Kafka 4.3's has about 600."""
MAX_API_KEYS = 1_000
"""Kafka 4.3 has 93. This many take about a millisecond."""

_SASL = (SASL_HANDSHAKE, SASL_AUTHENTICATE)
_MAX_TAGS = 256
_LAST_KNOWN_TAG = 3
_UNSUPPORTED_VERSION: int = ErrorCode.unsupported_version.value
_BODY = 4  # after the correlation id
_INT32 = Struct(">i")
_ERROR_CODE = Struct(">h")
_RANGE = Struct(">hhh")
_RANGE_WITH_TAGS = Struct(">hhhB")


class ClientSoftware(NamedTuple):
    """As the client names it (KIP-511): `apache-kafka-java` 4.1.0. Both are "" if it does not."""

    name: str = ""
    version: str = ""


def client_software(request: bytes, version: int) -> ClientSoftware:
    """The client's software. Without a name, or where the bytes are malformed, both are "": the broker decides.

    Args:
        request: the body of an ApiVersions request, or its first bytes.
        version: of the request; below 3 it does not name the software.
    """
    if version < FIRST_FLEXIBLE:
        return ClientSoftware()
    try:
        size, pos = unsigned_varint(request, 0, len(request), 0, "software name")
        after = skip(pos, max(0, size - 1), len(request), 0, "software name")
        name = request[pos:after]
        size, pos = unsigned_varint(request, after, len(request), 0, "software version")
        after = skip(pos, max(0, size - 1), len(request), 0, "software version")
    except MalformedFrame:
        return ClientSoftware()
    return ClientSoftware(name.decode(errors="replace"), request[pos:after].decode(errors="replace"))


def negotiate(response: bytes, version: int, *, pass_unknown_apis: bool, hides_sasl: bool = False) -> bytes:
    """A broker's ApiVersions response, limited to the versions of the table.

    Each range becomes its intersection with the table's range. Empty ranges, keys outside of the table and undefined
    tags are removed. Features and everything else stay. Brokers that refuse Produce below 3 offer it from 0, since
    librdkafka needs that (KAFKA-18659); this passes too.

    A broker answers an unknown version with error 35 and the body of version 0 (KIP-511), and the client sends another
    request. Such a response is limited in the same way.

    Args:
        response: the whole response from its correlation id on.
        version: of the request that this answers.
        pass_unknown_apis: keep the keys outside of the table, unchanged.
        hides_sasl: remove SaslHandshake and SaslAuthenticate.

    Raises:
        UnsupportedVersion: the version is outside of the table.
        MalformedFrame: the bytes are not such a response, or above `MAX_RESPONSE` or `MAX_API_KEYS`.
    """
    if len(response) > MAX_RESPONSE:
        raise MalformedFrame(f"an ApiVersions response of at most {MAX_RESPONSE} bytes", MAX_RESPONSE)
    version = _body_version(response, version)
    return response[:_BODY] + _cut(response[_BODY:], version, pass_unknown_apis, hides_sasl)


def raise_api_versions_throttle(response: bytes, version: int, throttle_time_ms: int) -> bytes:
    """The response with the larger of its own throttle time and `throttle_time_ms`.

    Args:
        response: the result of `negotiate`. It is unchanged without a throttle time: in version 0, and with error 35.
        version: of the request that this answers.

    Raises:
        UnsupportedVersion: the version is outside of the table.
        MalformedFrame: the bytes are not such a response.
    """
    version = _body_version(response, version)
    if version < FIRST_WITH_THROTTLE:
        return response
    count, at = _read_count(response, _BODY + _ERROR_CODE.size, version)
    if version >= FIRST_FLEXIBLE:
        if response[at + _RANGE.size : at + count * _RANGE_WITH_TAGS.size : _RANGE_WITH_TAGS.size].count(0) != count:
            raise MalformedFrame("API keys without tags", at)
        at += count * _RANGE_WITH_TAGS.size
    else:
        at += count * _RANGE.size
    after = skip(at, _INT32.size, len(response), 0, "throttle time")
    if _INT32.unpack_from(response, at)[0] >= throttle_time_ms:
        return response
    return response[:at] + _INT32.pack(throttle_time_ms) + response[after:]


def _body_version(response: bytes, version: int) -> int:
    """The version of the body's layout."""
    api = APIS[API_VERSIONS]
    if not api.covers(version):
        raise UnsupportedVersion(api.name, version)
    skip(_BODY, _ERROR_CODE.size, len(response), 0, "error code")
    return 0 if _ERROR_CODE.unpack_from(response, _BODY)[0] == _UNSUPPORTED_VERSION else version


# Every connection begins with this response, and a broker's is constant: without the cache, many new connections would
# spend much of their time here (`python -m bench --only connections`).
@lru_cache(maxsize=64)
def _cut(body: bytes, version: int, pass_unknown_apis: bool, hides_sasl: bool) -> bytes:
    count, pos = _read_count(body, _ERROR_CODE.size, version)
    flexible = version >= FIRST_FLEXIBLE
    ranges, pos, tags_left = _read_ranges(body, pos, count) if flexible else _read_plain_ranges(body, pos, count)
    kept = [one for one in _intersections(ranges, pass_unknown_apis) if not (hides_sasl and one[0] in _SASL)]
    if not flexible:
        after = skip(pos, _INT32.size if version >= FIRST_WITH_THROTTLE else 0, len(body), 0, "throttle time")
        rest = body[pos:after]
        encoded = _INT32.pack(len(kept)) + b"".join([_RANGE.pack(*one) for one in kept])
    else:
        after = skip(pos, _INT32.size, len(body), 0, "throttle time")
        rest, after = _known_tags(body, after, tags_left)
        rest = body[pos : pos + _INT32.size] + rest
        encoded = encode_varint(len(kept) + 1) + b"".join([_RANGE_WITH_TAGS.pack(*one, 0) for one in kept])
    if after != len(body):
        raise MalformedFrame("the end of ApiVersions: bytes after its last field", _BODY + after)
    return body[: _ERROR_CODE.size] + encoded + rest


def _intersections(ranges: list[tuple[int, int, int]], pass_unknown_apis: bool) -> list[tuple[int, int, int]]:
    kept = []
    for api_key, min_version, max_version in ranges:
        api = APIS.get(api_key)
        if api is None:
            if pass_unknown_apis:
                kept.append((api_key, min_version, max_version))
            continue
        lowest, highest = max(min_version, api.min_version), min(max_version, api.max_version)
        if lowest <= highest:
            kept.append((api_key, lowest, highest))
    return kept


def _read_count(body: bytes, pos: int, version: int) -> tuple[int, int]:
    """The number of API keys, which fit into the bytes, and the position after it."""
    at = pos
    if version >= FIRST_FLEXIBLE:
        count, pos = unsigned_varint(body, pos, len(body), 0, "API key count")
        count -= 1
        size = _RANGE_WITH_TAGS.size
    else:
        pos = skip(pos, _INT32.size, len(body), 0, "API key count")
        count = _INT32.unpack_from(body, at)[0]
        size = _RANGE.size
    if not 0 <= count <= MAX_API_KEYS:
        raise MalformedFrame(f"API key count, at most {MAX_API_KEYS}", at)
    if count * size > len(body) - pos:
        raise TruncatedFrame("API key count", at)
    return count, pos


Ranges = tuple[list[tuple[int, int, int]], int, int]
"""API key, lowest and highest version of each API; the position after them; how many more tags may be read."""


def _read_plain_ranges(body: bytes, pos: int, count: int) -> Ranges:
    after = pos + count * _RANGE.size
    return list(_RANGE.iter_unpack(body[pos:after])), after, _MAX_TAGS


def _read_ranges(body: bytes, pos: int, count: int) -> Ranges:
    stride = _RANGE_WITH_TAGS.size
    after = pos + count * stride
    if body[pos + _RANGE.size : after : stride].count(0) == count:  # as always: no tags
        return [one[:3] for one in _RANGE_WITH_TAGS.iter_unpack(body[pos:after])], after, _MAX_TAGS
    ranges, tags_left = [], _MAX_TAGS
    for _ in range(count):
        at, pos = pos, skip(pos, _RANGE.size, len(body), 0, "API key")
        ranges.append(_RANGE.unpack_from(body, at))
        tags, pos = _read_tags(body, pos, tags_left)
        tags_left -= len(tags)
    return ranges, pos, tags_left


def _known_tags(body: bytes, pos: int, most: int) -> tuple[bytes, int]:
    """A tag buffer without undefined tags, and the position after it."""
    tags, pos = _read_tags(body, pos, most)
    known = [encoded for tag, encoded in tags if tag <= _LAST_KNOWN_TAG]
    return encode_varint(len(known)) + b"".join(known), pos


def _read_tags(body: bytes, pos: int, most: int) -> tuple[list[tuple[int, bytes]], int]:
    """Each tag with its bytes, the number included, and the position after the tag buffer."""
    at, end = pos, len(body)
    count, pos = unsigned_varint(body, pos, end, 0, "tag count")
    if count > most:
        raise MalformedFrame(f"tag count, at most {_MAX_TAGS} in all", at)
    tags = []
    for _ in range(count):
        at = pos
        tag, pos = unsigned_varint(body, pos, end, 0, "tag")
        size, pos = unsigned_varint(body, pos, end, 0, "tag size")
        pos = skip(pos, size, end, 0, "tagged field")
        tags.append((tag, body[at:pos]))
    return tags, pos


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
    return _INT32.pack(correlation_id) + _UNSUPPORTED_VERSION_BODY
