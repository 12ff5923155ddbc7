"""The configuration of one proxy process, checked and in final units.

The rest of the shell reads only `Config`, no flag, environment variable or file. `proxy.commands` builds it once, and
it never changes. The quotas file may change while the process runs: `Config` has its path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from quotas.entry import QuotaEntry

Address = tuple[str, int]
"""A host (name or IP literal, without brackets) and a TCP port."""

QuotaAlgorithm = Literal["token-bucket", "sampled-window", "ewma"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warn", "error"]
EventLoopName = Literal["uvloop", "asyncio"]


def is_wildcard(host: str) -> bool:
    """Whether the host means every interface: a socket can listen on it, but not connect to it (0.0.0.0, [::], 0)."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return host in {"", "0"}


def format_address(address: Address) -> str:
    """`host:port`, with an IPv6 literal in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unmapped(host: str) -> str:
    """An IPv4 address without the `::ffff:` that a socket for both families puts before it."""
    return host.removeprefix("::ffff:") if "." in host else host


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of one proxy process. The defaults are those of the command line.

    `broker_ports` is the range that node ids map onto, None: a port that the kernel chooses for each node.
    `broker_port` maps a node id to a port of its own, in place of one of the range.
    `quotas` are the entries given by flags; entries of `quotas_file` replace those of the same entity.
    `quota_share` is in (0, 1] and scales every rate; the share in `quotas_file` replaces it.
    `quota_algorithm` is for entries that name none; connection_creation_rate uses sampled windows unless its entry
    names an algorithm. Sampled windows are `quota_window_num` windows of `quota_window_size_seconds`; with
    `first_window`, the rate of a new entity is measured over the windows since its start.
    `max_connection_hold_seconds`: the longest wait of a connection over its rate; then it is closed.
    `metrics_allowed_hosts`: further names that the Host field of a request to `metrics_listen` may have.
    `stalled_client_timeout_seconds`: while `max_buffered_bytes` is used up, a peer that takes no byte for this long is
    closed.
    """

    bootstrap_servers: tuple[Address, ...]

    listen: Address = ("127.0.0.1", 19092)
    broker_ports: range | None = range(19093, 19113)
    broker_port: Mapping[int, int] = field(default_factory=dict)
    advertised_host: str = "127.0.0.1"
    max_connections: int = 10_000

    client_id: str | None = None
    principal: str | None = None
    quotas: tuple[QuotaEntry, ...] = ()
    quotas_file: Path | None = None
    quota_share: float = 1.0
    quota_algorithm: QuotaAlgorithm = "token-bucket"
    quota_window_num: int = 11
    quota_window_size_seconds: float = 1.0
    first_window: bool = True
    producer_id_quota_window_size_seconds: int = 3600
    producer_id_quota_window_count: int = 4

    throttle_mode: str = "auto"
    max_throttle_ms: int = 5000
    max_connection_hold_seconds: float = 8.0
    dry_run: bool = False

    metrics_listen: Address = ("127.0.0.1", 19404)
    metrics_allowed_hosts: tuple[str, ...] = ()
    max_metric_entities: int = 1000
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"

    drain_timeout_seconds: float = 20.0
    socket_request_max_bytes: int = 104_857_600
    socket_response_max_bytes: int = 1_073_741_824
    max_buffered_bytes: int = 268_435_456
    stalled_client_timeout_seconds: float = 30.0
    pass_unknown_apis: bool = False
    event_loop: EventLoopName = "uvloop"
