"""Client metrics (KIP-714): the two requests, the proxy's own responses, and a reader of what clients push.

The requests and responses, in the only version, 0:

    GetTelemetrySubscriptions  client instance id uuid, tag buffer
      response  throttle time int32, error code int16, client instance id uuid, subscription id int32,
                accepted compression types compact array of int8, push interval int32 (ms), max bytes int32,
                delta temporality boolean, requested metrics compact array of compact strings, tag buffer
    PushTelemetry  client instance id uuid, subscription id int32, terminating boolean, compression type int8,
                   metrics compact bytes, tag buffer
      response  throttle time int32, error code int16, tag buffer

The metrics are MetricsData of OpenTelemetry in protobuf. Of it are read (`opentelemetry/proto/metrics/v1`):

    MetricsData      resource_metrics 1
    ResourceMetrics  scope_metrics 2
    ScopeMetrics     metrics 2
    Metric           name 1, gauge 5, sum 7
    Gauge, Sum       data_points 1
    NumberDataPoint  as_double 4, as_int 6: eight bytes each, little-endian

All else is skipped by its length.
"""

import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Final, final

from protocol.errors import MalformedFrame
from protocol.wire import INT16, INT32, encode_count, encode_string, skip, unsigned_varint

MAX_BYTES: Final = 131_072
"""Of a request. A dozen metrics take 4 kB; a consumer of Java repeats its lag for each partition."""
MAX_FIELDS: Final = 5_000
"""Fields of a push that are read: at most 7 ms. Java sends 12 for each data point, so 400 partitions are possible."""

# The errors that a push is answered with. By others clients switch their metrics off until they restart (KAFKA-21076).
# So a malformed push is answered with NONE.
NONE: Final = 0
UNKNOWN_SUBSCRIPTION_ID: Final = 117
TELEMETRY_TOO_LARGE: Final = 118

_push = Struct(">16sixx")
_NO_TAGS: Final = b"\x00"

#: Number of a field and its wire type, as protobuf has them before each.
_FIRST: Final = 1 << 3 | 2
_SECOND: Final = 2 << 3 | 2
_GAUGE: Final = 5 << 3 | 2
_SUM: Final = 7 << 3 | 2
_AS_DOUBLE: Final = 4 << 3 | 1
_AS_INT: Final = 6 << 3 | 1
_FIXED_SIZES: Final = {1: 8, 5: 4}
_FORMATS: Final = {_AS_DOUBLE: Struct("<d"), _AS_INT: Struct("<q")}


def push_request(body: bytes) -> tuple[bytes, int, bytes]:
    """The client instance id, the subscription id, and the metrics. These may be null: librdkafka before 2.10.1 sends
    that (#4912).

    Raises MalformedFrame.
    """
    at = skip(0, _push.size, len(body), 0, "a push")
    size, at = unsigned_varint(body, at, len(body), 0, "the metrics")
    end = skip(at, max(0, size - 1), len(body), 0, "the metrics")
    return (*_push.unpack_from(body), body[at:end])


def push_response(error: int, throttle_time_ms: int) -> bytes:
    """The response to it, after its correlation id."""
    return _NO_TAGS + INT32.pack(throttle_time_ms) + INT16.pack(error) + _NO_TAGS


def subscription_id(names: Sequence[str]) -> int:
    """Of a subscription to these metrics, whatever process answers."""
    return zlib.crc32("\n".join(names).encode()) >> 1


def subscription_response(body: bytes, names: Sequence[str], interval_ms: int, throttle_time_ms: int) -> bytes:
    """The response to GetTelemetrySubscriptions with this body, after its correlation id. It asks for metrics by
    prefixes of their names, as totals and without compression; a client without an id gets a random one.
    """
    instance = body[:16] if len(body) >= 16 and any(body[:16]) else uuid.uuid4().bytes
    head = _NO_TAGS + INT32.pack(throttle_time_ms) + INT16.pack(NONE) + instance + INT32.pack(subscription_id(names))
    how = encode_count(0, compact=True) + INT32.pack(interval_ms) + INT32.pack(MAX_BYTES) + b"\x00"
    asked = [encode_string(name.encode(), compact=True) for name in names]
    return b"".join([head, how, encode_count(len(names), compact=True), *asked, _NO_TAGS])


@final
class MetricsReader:
    """Reads the metrics of one push."""

    def __init__(self, metrics: bytes) -> None:
        self._data: Final = metrics
        self._fields_left = MAX_FIELDS

    def data_points(self, wanted: Mapping[bytes, str]) -> list[tuple[str, float]]:
        """The values of gauges and sums, each with what `wanted` has for the name of its metric.

        Raises MalformedFrame: it is not MetricsData, or has more than `MAX_FIELDS` fields.
        """
        found: list[tuple[str, float]] = []
        for resource in self._messages(_FIRST, 0, len(self._data)):
            for scope in self._messages(_SECOND, *resource):
                for metric in self._messages(_SECOND, *scope):
                    fields = dict(self._fields(*metric))
                    at, end = fields.get(_FIRST, (0, 0))
                    name = wanted.get(self._data[at:end])
                    if name is not None:
                        points = self._messages(_FIRST, *(fields.get(_GAUGE) or fields.get(_SUM, (0, 0))))
                        found += [(name, value) for point in points for value in self._values(*point)]
        return found

    def _values(self, pos: int, end: int) -> Iterator[float]:
        """That of a data point, if it has one."""
        for key, (at, _) in self._fields(pos, end):
            if key in _FORMATS:
                yield float(_FORMATS[key].unpack_from(self._data, at)[0])

    def _messages(self, wanted: int, pos: int, end: int) -> Iterator[tuple[int, int]]:
        """Where each message in that field begins and ends."""
        return (place for key, place in self._fields(pos, end) if key == wanted)

    def _fields(self, pos: int, end: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """The key of each field, and where its content begins and ends. No varint here has more than 32 bits."""
        data = self._data
        while pos < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise MalformedFrame(f"metrics of at most {MAX_FIELDS} fields", pos)
            key, at = unsigned_varint(data, pos, end, 0, "a field of metrics")
            kind = key & 7
            if kind == 2:
                size, at = unsigned_varint(data, at, end, 0, "a field of metrics")
                pos = at + size
            elif kind == 0:
                _, pos = unsigned_varint(data, at, end, 0, "a field of metrics")
            else:  # a group, which OTLP does not have, ends nowhere
                pos = at + _FIXED_SIZES.get(kind, end)
            if pos > end:
                raise MalformedFrame("a field of metrics", at)
            yield key, (at, pos)
