"""Settings of clients with which no request times out and no record expires at a limit, by the rule of `floor`."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from proxy.config.floor import smallest_share

#: Names and defaults in seconds: size of the buffer and its unit, request timeout, delivery timeout; how a setting is
#: written. librdkafka accepts `delivery.timeout.ms` for its `message.timeout.ms`.
_LIBRARIES: Final = {
    "java": ("buffer.memory", 1, "request.timeout.ms", 30, 120, '.option("{}", "{}")'),
    "librdkafka": ("queue.buffering.max.kbytes", 1024, "socket.timeout.ms", 60, 300, "{}={}"),
}
_MAX_IN_FLIGHT: Final = 5 * 1_048_576
"""Of Java: `max.in.flight.requests.per.connection` requests of `max.request.size`."""


def advice(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By library, for a limit of `rate` bytes per second that `producers` share, in the throttle mode `mode`: settings
    of each, and the smallest useful limit with these. `buffer_memory`, `batch_size` (bytes) and `delivery_timeout`
    (seconds) are kept where they are given.

    A buffer has room for two seconds of a producer's share, a batch for an eighth of one, and for `request_cost`;
    timeouts leave time for one more try. In the modes auto and notify Java waits on its own, and since 3.9 its request
    timeout excludes this. librdkafka is held in each mode: what it has in flight waits. Spark reads a minute's worth
    for each micro-batch.
    """
    rate, producers, found = given["rate"], given["producers"], {}
    share = rate / producers
    buffer = given["buffer_memory"] or _within(1 << 20, 2 * share, 1 << 25)
    batch = given["batch_size"] or 1 << _within(1 << 14, share / 8, 1 << 20).bit_length() - 1
    if not given["batch_size"] and given["request_cost"]:
        batch = max(batch, 1 << (given["request_cost"] - 1).bit_length())
    for library, (buffer_name, unit, timeout_name, timeout, least, _) in _LIBRARIES.items():
        in_flight, consumer = buffer, dict[str, int]()
        if library == "java":
            in_flight = 0 if given["mode"] in {"auto", "notify"} else min(_MAX_IN_FLIGHT, buffer)
            consumer["maxOffsetsPerTrigger"] = max(1, 60 * rate // given["record_size"])
        if given["consumers"]:
            consumer["max.partition.fetch.bytes"] = _within(1 << 18, rate / given["consumers"], 1 << 20)
        timeout = _within(timeout, math.ceil(2 * in_flight / share), 300)
        delivery_timeout = given["delivery_timeout"] or max(least, 2 * timeout, 4 * buffer / share)
        timeout = _within(1, delivery_timeout / 2, timeout)
        producer = {
            buffer_name: buffer // unit,
            "batch.size": batch,
            "linger.ms": _within(5, 1000 * batch / share, 1000),
            timeout_name: 1000 * timeout,
            "delivery.timeout.ms": int(1000 * delivery_timeout),
        }
        smallest = producers * smallest_share(in_flight, timeout, buffer, math.ceil(delivery_timeout))
        found[library] = {"smallest_limit": smallest, "producer": producer, "consumer": consumer}
    return found


def _within(least: int, value: float, most: int) -> int:
    return int(max(least, min(most, value)))


def text_of(found: Mapping[str, Mapping[str, Any]], rate: int) -> Iterator[str]:
    """Options of Spark, and librdkafka's configuration."""
    for library, each in found.items():
        verdict = ": this limit is too low" * (rate < each["smallest_limit"])
        yield f"# {library}: the smallest useful limit with these settings is {each['smallest_limit']} bytes/s{verdict}"
        for name, value in [*each["producer"].items(), *each["consumer"].items()]:
            prefix = "kafka." * (library == "java" and "." in name)
            yield _LIBRARIES[library][-1].format(prefix + name, value)
