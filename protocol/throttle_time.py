"""`throttle_time_ms` raised in place, where it has a fixed place near the start of the response.

    correlation id int32, tag buffer (flexible versions), body: throttle_time_ms int32 at `Api.throttle_at`

That is so for all APIs with the field except Produce, ApiVersions, CreateDelegationToken and DescribeDelegationToken,
where fields of variable length precede it. The table in `apis` has the offsets.
"""

from typing import Final

from protocol.apis import FETCH, PRODUCE, Api
from protocol.errors import TruncatedFrame
from protocol.wire import INT32, skip_tags, unpack_int32

CORRELATION_ID_SIZE = 4

FIRST_WITH_WAITING_CLIENTS: Final = {PRODUCE: 6, FETCH: 8}
"""In earlier versions, clients do not wait for the throttle time: brokers delay the response instead (KIP-219)."""


def clients_wait(api_key: int, version: int) -> bool:
    """Whether clients are to wait for the throttle time of a response before they send the next request."""
    return version >= FIRST_WITH_WAITING_CLIENTS.get(api_key, 0)


def throttle_needs(api: Api, version: int) -> int:
    """Bytes of a response, from its correlation id on, that `raise_throttle` reads.

    Returns:
        0 if this version has no `throttle_time_ms` at a fixed place. A response shorter than that is malformed.
    """
    if api.throttle_from is None or version < api.throttle_from or api.throttle_at is None:
        return 0
    return CORRELATION_ID_SIZE + api.response_header_is_flexible(version) + api.throttle_at + INT32.size


def raise_throttle(buf: bytearray, start: int, end: int, api: Api, version: int, throttle_time_ms: int) -> None:
    """Writes the larger of the broker's and the proxy's throttle time into a response, in place.

    Does nothing where `throttle_needs` returns 0. Kafka defines no tags for the response header: if there are tags, and
    these and the field are not in `buf` yet, the broker's value stays.

    Args:
        start: index of the correlation id.
        end: of what is in `buf`, `throttle_needs` bytes at least, or of the response.
        version: of the request.

    Raises:
        MalformedFrame: the tags are malformed.
    """
    needed = throttle_needs(api, version)
    if not needed:
        return
    at = start + needed - INT32.size
    if api.response_header_is_flexible(version) and buf[start + CORRELATION_ID_SIZE]:
        try:
            at += skip_tags(buf, start + CORRELATION_ID_SIZE, end, start) - start - CORRELATION_ID_SIZE - 1
        except TruncatedFrame:
            return
    if at + INT32.size <= end:
        raise_int32(buf, at, throttle_time_ms)


def raise_int32(buf: bytearray, at: int, value: int) -> None:
    """Writes `value` over the int32 at `at` if it is larger."""
    if value > unpack_int32(buf, at)[0]:
        INT32.pack_into(buf, at, value)
