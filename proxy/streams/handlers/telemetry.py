"""GetTelemetrySubscriptions and PushTelemetry (KIP-714). With `--client-telemetry`, the proxy answers both if the
broker offers neither. What clients push is only shown (`proxy.observability.client_reports`), and decides nothing.
"""

import re
from typing import Final, final

from protocol import telemetry
from protocol.api_versions import ClientSoftware
from protocol.apis import GET_TELEMETRY_SUBSCRIPTIONS
from protocol.errors import ProtocolError
from protocol.request_header import unpack_prefix
from protocol.wire import INT32
from proxy.enforcement.identity import Identity
from proxy.observability.client_reports import ASKED, INTERVAL_MS, NAMES, BufferOutlook
from proxy.observability.logs import EventLog, RateLimited
from proxy.streams.connection import Connection, Context
from proxy.streams.handlers.forward import Forward
from proxy.streams.request import Kind, Requests
from proxy.streams.steps import NEED
from quotas.admission.frame import worst_debt

_WARNING_INTERVAL_NS: Final = 3_600_000_000_000
#: librdkafka 2.5.0 to 2.5.2, even within another library, which then names both versions. It aborts its process if none
#: of the requested names is one of its metrics (librdkafka #4833). Java clients of these versions push nothing.
_aborts: Final = re.compile(r"(?<!\d)2\.5\.[0-2](?!\d)", re.ASCII).search
#: librdkafka 2.5.3 to 2.10.0 reads only the last of the requested names correctly (#5105, fixed in 2.10.1).
_keeps_last: Final = re.compile(r"(?<!\d)2\.(?:5\.(?:[3-9]|\d\d+)|[6-9]\.\d+|10\.0)(?!\d)", re.ASCII).search
#: A prefix of all names. Metrics that are not needed are dropped.
ALL: Final = ("org.apache.kafka.",)

_log = EventLog(__name__)


def asked_of(software: ClientSoftware) -> tuple[str, ...]:
    """The metrics that a client is asked for. None if it does not name its software."""
    if not software.name or _aborts(software.version):
        return ()
    return ALL if _keeps_last(software.version) else ASKED


@final
class Telemetry(Forward):
    """Answers the requests of connections with `ends_telemetry`, and forwards those of others."""

    batchable = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._lines: Final = RateLimited(_WARNING_INTERVAL_NS)

    def on_request(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        connection = requests.connection
        if not connection.ends_telemetry:
            return super().on_request(requests, kind, pos, end, now_ns)
        length, _, correlation_id = unpack_prefix(requests.buf, pos)
        request = b""  # too large, so it is discarded
        if self.may_keep(pos, end, length):
            request = requests.whole(pos, end, length)
            if not request:
                return NEED
        self.count(requests, now_ns)
        body, names = request[kind.header.body_offset - 4 :], asked_of(connection.software)
        throttle_time_ms = connection.observer.notify(connection.identity.request_notice, now_ns)
        if kind.api_key == GET_TELEMETRY_SUBSCRIPTIONS:
            response = telemetry.subscription_response(body, names, INTERVAL_MS, throttle_time_ms)
        else:
            response = telemetry.push_response(self._push(connection, body, names, now_ns), throttle_time_ms)
        requests.responses.answers.add(correlation_id, INT32.pack(correlation_id) + response)
        return requests.discard(pos, end, length)

    def _push(self, connection: Connection, body: bytes, names: tuple[str, ...], now_ns: int) -> int:
        """Keep what a client has pushed. Returns the error code of the answer."""
        if not body:
            return telemetry.TELEMETRY_TOO_LARGE
        try:
            instance, subscription_id, metrics = telemetry.push_request(body)
            if subscription_id != telemetry.subscription_id(names):
                return telemetry.UNKNOWN_SUBSCRIPTION_ID
            points = telemetry.MetricsReader(metrics).data_points(NAMES)
        except ProtocolError:
            return telemetry.NONE
        identity = connection.identity
        outlook = self.context.metrics.client_reports.record(identity.entity, instance, points, now_ns)
        if outlook is not None:
            self._warn(identity, outlook, now_ns)
        return telemetry.NONE

    def _warn(self, identity: Identity, outlook: BufferOutlook, now_ns: int) -> None:
        """Warn that records of a client are about to expire."""
        names = identity.client.names
        limit = worst_debt(identity.limits.produce.limits, now_ns)[1]
        fields: dict[str, object] = dict(zip(("client_id", "user", "peer"), names, strict=True))
        fields |= {"limit": limit and f"{limit.entity} {limit.name}={limit.rate}"} | outlook._asdict()
        effect = "records wait longer than Java's default of delivery.timeout.ms, 120 s: they are dropped"
        hint = "raise the limit, or change the client's settings: kafka-quota-proxy advise prints them"
        self._lines.event(_log.warning, "records_expire_soon", names[:2], now_ns, **fields, effect=effect, hint=hint)
