"""From the configuration to an emitter. aiokafka is imported here, if a topic is configured."""

import secrets
import socket
import time
from collections.abc import Callable

from proxy.config.config import Config, UsageOptions, format_address
from proxy.observability.labels import label_value
from proxy.observability.metrics import Metrics
from proxy.usage.collector import Collector
from proxy.usage.emitter import Emitter
from proxy.usage.records import Origin
from proxy.usage.sink import FileSink, Sink
from quotas.admission.limit import Limit

INCARNATION_BYTES = 8
NS_PER_MS = 1_000_000


def emitter_of(config: Config, metrics: Metrics, listener: str, is_in_use: Callable[[Limit], bool]) -> Emitter | None:
    """The emitter of this process; None: usage records are off. `listener`: where clients connect, HOST:PORT."""
    options = config.usage
    if not options.is_on:
        return None
    sidecar = label_value(options.sidecar_name or socket.gethostname())
    origin = Origin(sidecar, secrets.token_hex(INCARNATION_BYTES), listener)
    collector = Collector(origin, options.labels, options.max_series, metrics.entities, is_in_use, _wall_ms())
    sink = _sink_of(config, options, origin)
    return Emitter(collector, sink, metrics.usage, options.interval_seconds, time.monotonic_ns, _wall_ms)


def _sink_of(config: Config, options: UsageOptions, origin: Origin) -> Sink:
    if options.topic is None:
        assert options.file is not None  # noqa: S101 - for the type checker
        return FileSink(options.file)
    from proxy.usage.topic_sink import TopicSink

    servers = options.bootstrap_servers or config.bootstrap_servers
    client = {
        "bootstrap_servers": list(map(format_address, servers)),
        "client_id": options.client_id or "kafka-quota-proxy-usage",
    }
    return TopicSink(options.topic, origin.key, client, options.client, time.monotonic_ns)


def _wall_ms() -> int:
    return time.time_ns() // NS_PER_MS
