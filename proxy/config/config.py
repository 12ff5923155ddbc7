"""What one proxy process was asked to do, checked and in final units.

`Config` is the only thing the rest of the shell sees of flags, environment variables and files. It is built once by
`proxy.commands` and never changes; what may change while the process runs (the quotas file) is named here, read elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from quotas.spec.parse import QuotaEntry

Address = tuple[str, int]
"""A host (name or IP literal, without brackets) and a TCP port."""

ThrottleMode = Literal["auto", "notify"]
QuotaAlgorithm = Literal["token-bucket", "sampled-window", "ewma"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warn", "error"]
EventLoopName = Literal["uvloop", "asyncio"]


def is_wildcard(host: str) -> bool:
    """Whether the host means every interface, so that one can listen on it but not connect to it: 0.0.0.0, [::], 0."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return host in {"", "0"}


def format_address(address: Address) -> str:
    """`host:port` as a user writes it: an IPv6 literal stands in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unmapped(host: str) -> str:
    """An IPv4 address that came mapped into IPv6, as a socket for both shows it, as itself."""
    return host.removeprefix("::ffff:") if "." in host else host


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of one proxy process. The defaults are those of the command line.

    `broker_ports` is the range that node ids map onto, None: a port that the kernel chooses for each node.
    `broker_port` maps a node id to the port that it has in place of its place in the range.
    `quotas` are the entries given by flags; those of `quotas_file` replace entries of the same entity.
    `quota_share` is in (0, 1] and scales every rate, unless `quotas_file` gives another one.
    `quota_algorithm` is for entries that name none; connection_creation_rate has sampled windows unless its entry says
    otherwise. `quota_window_num` windows of `quota_window_size_seconds` are what they count over; `first_window` spares
    a newcomer's rate the windows that it never had.
    `max_connection_hold_seconds`: a connection over a rate waits as long at most, and is closed after that.
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

    throttle_mode: ThrottleMode = "auto"
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
