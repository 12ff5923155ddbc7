"""ApiVersions: what broker and client may speak through the proxy, and who the client is."""

from dataclasses import replace
from functools import lru_cache
from struct import Struct
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.api_versions.v0.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16

from protocol.apis import API_VERSIONS, APIS
from protocol.errors import UnsupportedVersion
from protocol.messages import decode, encode
from protocol.wire import skip

FIRST_WITH_CLIENT_SOFTWARE = 3

_LONGEST_REMEMBERED = 16_384
_UNSUPPORTED_VERSION = ErrorCode.unsupported_version.value
_BODY = 4  # behind the correlation id: the header of this response has no tags in any version (KIP-511)
_CORRELATION_ID = Struct(">i")
_ERROR_CODE = Struct(">h")


def negotiate(response: bytes, version: int, *, pass_unknown_apis: bool) -> bytes:
    """A broker's ApiVersions response, cut to what the table lets pass.

    Each range becomes its intersection with the table's; what is empty then, and keys that the table does not list, are
    left out. Features and everything else stay. The ranges of Produce start at 0 on brokers that refuse anything below
    3, since librdkafka wants it so (KAFKA-18659): this passes as well.

    A broker that does not know the version answers with error 35 and the body of version 0 whatever was asked
    (KIP-511), and the client asks again: this is cut and passed on like any other.

    Args:
        response: the whole response from its correlation id on.
        version: of the request that this answers.
        pass_unknown_apis: keep the keys that the table does not list, as they are.

    Raises:
        UnsupportedVersion: the table does not let this version pass.
        MalformedFrame: the bytes are no such response.
    """
    api = APIS[API_VERSIONS]
    if not api.covers(version):
        raise UnsupportedVersion(api.name, version)
    skip(_BODY, 2, len(response), 0, "error code")
    if _ERROR_CODE.unpack_from(response, _BODY)[0] == _UNSUPPORTED_VERSION:
        version = 0
    cut = _cut_known if len(response) <= _LONGEST_REMEMBERED else _cut
    return response[:_BODY] + cut(response[_BODY:], version, pass_unknown_apis)


def _cut(body_bytes: bytes, version: int, pass_unknown_apis: bool) -> bytes:
    body: Any = decode(load_response_schema(API_VERSIONS, version), body_bytes, 0)
    kept = []
    for offered in body.api_keys:
        known = APIS.get(offered.api_key)
        if known is None:
            if pass_unknown_apis:
                kept.append(offered)
            continue
        lowest, highest = max(offered.min_version, known.min_version), min(offered.max_version, known.max_version)
        if lowest <= highest:
            kept.append(replace(offered, min_version=lowest, max_version=highest))
    return encode(replace(body, api_keys=tuple(kept)))


# Every connection begins with this response, and a broker's is always the same: a storm of new connections would spend
# most of its time here otherwise (`python -m bench --only connections`).
_cut_known = lru_cache(maxsize=64)(_cut)


def unsupported_version_answer(correlation_id: int) -> bytes:
    """The proxy's own answer to a version that the table does not list, as a broker would give it (KIP-511).

    It is in version 0, says error 35 and lists the versions of ApiVersions alone; the client then asks in one of those.
    Without length prefix.
    """
    api = APIS[API_VERSIONS]
    only = ApiVersion(api_key=i16(api.key), min_version=i16(api.min_version), max_version=i16(api.max_version))
    body = ApiVersionsResponse(error_code=ErrorCode.unsupported_version, api_keys=(only,))
    return _CORRELATION_ID.pack(correlation_id) + encode(body)


def client_software(body: bytes, version: int) -> tuple[str, str]:
    """Name and version of the client's software (KIP-511), from the body of its request; empty before version 3.

    Raises:
        UnsupportedVersion: the table does not let this version pass, and the body is not to be read.
        MalformedFrame: the bytes are no such request.
    """
    api = APIS[API_VERSIONS]
    if not api.covers(version):
        raise UnsupportedVersion(api.name, version)
    if version < FIRST_WITH_CLIENT_SOFTWARE:
        return "", ""
    request: Any = decode(load_request_schema(API_VERSIONS, version), body, 0)
    return request.client_software_name, request.client_software_version
