"""The smallest share of a limit on produced bytes with which a producer loses no data.

A client sends a request again that waits longer than its request timeout, and drops records that leave its buffer later
than its delivery timeout. Neither happens while each client's share of the limit is at least

    max(2 * bytes in flight / request timeout, client buffer / delivery timeout)
"""

from typing import Final

from quotas.limit_kinds import BYTES_IN_RATE, PRODUCER_BYTE_RATE

LIMITS_WITH_FLOOR: Final = (PRODUCER_BYTE_RATE, BYTES_IN_RATE)


def smallest_share(in_flight: int, request_timeout: int, buffer: int, delivery_timeout: int) -> int:
    """Bytes per second, by bytes and seconds. `in_flight`: 0 where the request timeout does not count waits."""
    return max(2 * in_flight // request_timeout, buffer // delivery_timeout)


#: By the defaults of the client library: `max.in.flight.requests.per.connection` requests of `max.request.size`,
#: `request.timeout.ms`, `buffer.memory`, `delivery.timeout.ms`.
JAVA: Final = smallest_share(5 * 1_048_576, 30, 33_554_432, 120)
#: Five requests of `message.max.bytes`, `request.timeout.ms`, `queue.buffering.max.kbytes`, `message.timeout.ms`.
LIBRDKAFKA: Final = smallest_share(5 * 1_000_000, 30, 1_073_741_824, 300)

#: The software of a client is not known at the start: warnings begin below the smaller floor and give both.
SMALLEST_SHARE: Final = min(JAVA, LIBRDKAFKA)
FLOORS: Final = f"Java {JAVA}, librdkafka {LIBRDKAFKA} bytes/s at default settings"
REMEDY: Final = "raise the limit, lower the client's buffer, or raise its delivery timeout"
